// Transports whose messages travel through memory that both ends see.
//
// Nouns: a SendChannel and a ReceiveChannel are one ordered queue of messages to and from one
// process; a MessageHeader says what a message is; a PeerState says whether more can come from a
// process.
//
// A channel hands out the memory that messages travel in, so the executor packs into it and unpacks
// out of it without a further copy. Nothing here blocks except connect and wait.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_CHANNEL_TRANSPORT_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_CHANNEL_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace reshard {

// Which chunk of which stream of which run a message carries, and how much the stream has in all,
// so that the receiver can tell a peer that runs another program.
struct MessageHeader {
  std::uint64_t run_id;
  std::int64_t src_rank;
  std::int64_t dst_rank;
  std::uint32_t chunk;
  std::uint32_t num_chunks;
  std::int64_t nbytes;
  std::int64_t stream_nbytes;
};

// What one direction of a channel carries in one run; both ends publish theirs and compare.
struct RunTotals {
  std::uint64_t run_id;
  std::uint64_t num_messages;
  std::uint64_t nbytes;
};

enum class PeerState { kAlive, kClosed, kDead, kAborted };

// A queue of messages to one process.
class SendChannel {
 public:
  virtual ~SendChannel() = default;

  // Publishes what this run will send. Called once per run, before the first message.
  virtual void begin_run(const RunTotals& totals) = 0;

  // Memory for the next message (slot_bytes of the transport), or null while all slots are in use.
  // The same memory is returned until commit.
  virtual std::byte* try_acquire() = 0;

  // Sends the acquired memory as a message of header.nbytes bytes.
  virtual void commit(const MessageHeader& header) = 0;

  // Whether the receiver has released every message sent so far.
  virtual bool is_drained() = 0;

  // Whether the receiver has published its totals of the run given to begin_run; fills them.
  virtual bool peer_totals(RunTotals* totals) = 0;

  // The process at the other end.
  virtual int process() const = 0;
};

// A queue of messages from one process.
class ReceiveChannel {
 public:
  virtual ~ReceiveChannel() = default;

  virtual void begin_run(const RunTotals& totals) = 0;

  // The oldest message that has arrived, or null when there is none. Valid until release. The
  // header comes from the peer: the caller checks it before it uses the memory.
  virtual const std::byte* try_receive(MessageHeader* header) = 0;

  // Gives the memory of the received message back to the sender.
  virtual void release() = 0;

  virtual bool peer_totals(RunTotals* totals) = 0;
  virtual int process() const = 0;
};

class ChannelTransport : public Transport {
 public:
  // Largest message in bytes.
  virtual std::int64_t slot_bytes() const = 0;

  // Bytes of slots that this process holds for sending and receiving.
  virtual std::int64_t staging_bytes() const = 0;

  // The process that drives a rank, and this one. Throws kInvalidArgument for an unknown rank.
  virtual int process_of(std::int64_t rank) const = 0;
  virtual int own_process() const = 0;

  // All channels of this process; at most one per direction and process. They live as long as the
  // transport.
  virtual std::vector<SendChannel*> send_channels() = 0;
  virtual std::vector<ReceiveChannel*> receive_channels() = 0;

  // Sleeping without missing anything: take a ticket, look at all channels once more, then wait or
  // cancel. wait returns when something changed since the ticket was taken, after at most
  // `timeout_ns`, or for no reason.
  virtual std::uint32_t prepare_wait() = 0;
  virtual void wait(std::uint32_t ticket, std::int64_t timeout_ns) = 0;
  virtual void cancel_wait() = 0;

  // Tells peers now what commit and release may have held back. prepare_wait does it too.
  virtual void flush() = 0;

  // State of a peer process; cheap.
  virtual PeerState peer_state(int process) = 0;

  // "process 3 (ranks 4, 5; pid 77) died", for the message of an error about a peer.
  virtual std::string describe_peer(int process, PeerState state) = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_CHANNEL_TRANSPORT_H_

// One direction of the traffic with one process: its messages in order and how far they are.
//
// Both ends list the messages of all streams between the two processes alike: chunk 0 of every
// stream, then chunk 1, and so on, streams in the order of (src_rank, dst_rank). So the receiver
// knows which message comes next and refuses any other.
#ifndef RESHARD_NATIVE_SRC_LANE_H_
#define RESHARD_NATIVE_SRC_LANE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "chunk_copier.h"
#include "program.h"
#include "transport/channel_transport.h"

namespace reshard {

// Time spent and bytes moved by lanes; the executor adds them up over a run.
struct LaneCounters {
  std::int64_t nbytes = 0;
  std::int64_t ns_copy = 0;
};

class Lane {
 public:
  // `streams` are rows of program.streams that go in `direction` between this and `process`.
  Lane(const Program& program, ChunkCopier& copier, Direction direction, int process,
       std::vector<std::uint32_t> streams);

  int process() const { return process_; }
  const RunTotals& totals() const { return totals_; }
  const LaneCounters& counters() const { return counters_; }

  // For error messages: which message of which stream is next, and how much is done.
  std::string describe_progress() const;

  // An error that concerns the stream of the next message.
  Error error(StatusCode code, const std::string& what) const;

 protected:
  struct Message {
    std::uint32_t stream;
    std::uint32_t chunk;  // index inside the stream
  };

  ~Lane() = default;

  void begin(std::uint64_t run_id);
  bool all_moved() const { return next_ == messages_.size(); }
  MessageHeader next_header() const;
  const Chunk& next_chunk() const;
  void advance(std::int64_t ns_copy);

  // Throws kProtocol when the peer's program moves something else than ours.
  void compare_totals(const RunTotals& peer) const;

  const Program& program_;
  ChunkCopier& copier_;
  bool totals_match_ = false;

 private:
  const Message& current() const;

  Direction direction_;
  int process_;
  std::vector<Message> messages_;
  std::size_t next_ = 0;
  RunTotals totals_{};
  LaneCounters counters_;
};

class SendLane final : public Lane {
 public:
  SendLane(const Program& program, ChunkCopier& copier, SendChannel& channel,
           std::vector<std::uint32_t> streams);

  void begin(std::uint64_t run_id);
  // Packs and sends the next message if there is room; returns whether it did.
  bool step(const std::vector<std::byte*>& buffers);
  // Everything is sent and the receiver has taken it.
  bool is_done();

 private:
  SendChannel& channel_;
};

class ReceiveLane final : public Lane {
 public:
  ReceiveLane(const Program& program, ChunkCopier& copier, ReceiveChannel& channel,
              std::vector<std::uint32_t> streams);

  void begin(std::uint64_t run_id);
  // Checks and unpacks the next message if it is there; returns whether it did.
  bool step(const std::vector<std::byte*>& buffers);
  bool is_done() const { return all_moved(); }

 private:
  void check(const MessageHeader& header) const;

  ReceiveChannel& channel_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_LANE_H_

// A ring of message slots from one process to another, in the sender's segment.
//
// Only the sender writes `produced`, only the receiver `consumed`; each end trusts its own private
// count and checks the other's against it, so a broken peer can cause an error but no access
// outside the ring. Counts are sequentially consistent: see doorbell.h.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_RING_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel_transport.h"
#include "transport/shm/control_page.h"

namespace reshard {

struct RingGeometry {
  std::int64_t slot_bytes;
  std::int32_t num_slots;

  // Bytes of one ring in shared memory, a multiple of kPageBytes.
  std::size_t ring_bytes() const;
  // Where slot `index` starts in its ring.
  std::size_t slot_offset(std::uint64_t index) const;
};

// What one end moves in its current run; the other end reads it (a sequence lock).
struct SharedTotals {
  std::atomic<std::uint64_t> sequence;  // odd while being written
  std::atomic<std::uint64_t> run_id;
  std::atomic<std::uint64_t> num_messages;
  std::atomic<std::uint64_t> nbytes;

  void publish(const RunTotals& totals);
  // Whether the totals of run `run_id` are published; fills them.
  bool read(std::uint64_t run_id, RunTotals* totals) const;
};

struct RingHeader {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> produced;
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> consumed;
  alignas(kCacheLineBytes) SharedTotals sender_totals;
  alignas(kCacheLineBytes) SharedTotals receiver_totals;
};

constexpr std::int32_t kMaxSlots = 32;

// At the start of a ring: the header, then one header per slot; the slots follow on the next page.
struct RingFront {
  RingHeader header;
  struct alignas(kCacheLineBytes) {
    MessageHeader message;
  } slots[kMaxSlots];
};

// What a channel tells its transport.
class RingObserver {
 public:
  // A message was sent to, or a slot given back to, `process`. `pending` counts what the other end
  // has not dealt with: messages that it can receive, or slots that it can fill.
  virtual void on_progress(int process, std::int32_t pending) = 0;

 protected:
  ~RingObserver() = default;
};

class RingSender final : public SendChannel {
 public:
  RingSender(std::byte* ring, const RingGeometry& geometry, int process, RingObserver& observer);

  void begin_run(const RunTotals& totals) override;
  std::byte* try_acquire() override;
  void commit(const MessageHeader& header) override;
  bool is_drained() override;
  bool peer_totals(RunTotals* totals) override;
  int process() const override { return process_; }

 private:
  std::uint64_t in_flight();

  RingFront& front_;
  std::byte* ring_;
  RingGeometry geometry_;
  int process_;
  RingObserver& observer_;
  std::uint64_t produced_ = 0;
  std::uint64_t consumed_seen_ = 0;
  std::uint64_t run_id_ = 0;
};

class RingReceiver final : public ReceiveChannel {
 public:
  RingReceiver(std::byte* ring, const RingGeometry& geometry, int process, RingObserver& observer);

  void begin_run(const RunTotals& totals) override;
  const std::byte* try_receive(MessageHeader* header) override;
  void release() override;
  bool peer_totals(RunTotals* totals) override;
  int process() const override { return process_; }

 private:
  RingFront& front_;
  std::byte* ring_;
  RingGeometry geometry_;
  int process_;
  RingObserver& observer_;
  std::uint64_t consumed_ = 0;
  std::uint64_t produced_seen_ = 0;
  std::uint64_t run_id_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_RING_H_

// What one rank queues on its GPU in a run: copies on four streams, ordered by events.
//
//   pack stream     slot s: what leaves by the network, into half s % 2 of the staging memory
//   network stream  slot s: its messages, when packed and when the half is free again
//   domain stream   slot s: pack, exchange, unpack inside the domain, when slot s - 1 has arrived
//   unpack stream   slot s: what the network brought
//
// Nothing here waits on the host: where a stream is full, or a stage is long, it says that it has
// to be gone on with.
#ifndef RESHARD_NATIVE_SRC_GPU_WORKER_H_
#define RESHARD_NATIVE_SRC_GPU_WORKER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "bounded_stream.h"
#include "gpu_device.h"
#include "gpu_mover.h"
#include "program.h"
#include "round_schedule.h"
#include "transport/group_transport.h"

namespace reshard {

class GpuWorker {
 public:
  // So many slots may be queued before the first of them is over.
  static constexpr std::size_t kSlotsInFlight = 4;

  // `rounds` and `program` outlive it. Allocates the staging memory.
  GpuWorker(const Program& program, const RankRounds& rounds, GpuRank rank, std::size_t local);

  std::int64_t rank() const { return rounds_.rank; }
  const GpuDevice& device() const { return *rank_.device; }

  // Throws kInvalidArgument for a buffer that lies on another device.
  void check_places(const std::vector<CudaAddress>& addresses);

  // Queues a new run after what the caller's stream has by now.
  void begin(const std::vector<CudaAddress>& addresses, CudaStream caller);

  // What follows is done in stages, one at a time; each is called again until it returns
  // kAll.

  // Zero-fills a region of one of this device's buffers.
  Queued fill_zero(const ZeroRegion& region, CudaAddress base);

  // The stages of a slot, in the order in which they are called; `slot` counts this process's
  // slots.
  Queued pack(std::size_t slot);
  Queued begin_exchange(Channel channel, std::size_t slot);
  // Whether messages of a group may be added.
  bool has_room(Channel channel) const;
  // Adds the messages of the group with a number, if there is one.
  void add_messages(Channel channel, std::size_t slot, std::int64_t number,
                    std::vector<GroupMessage>& messages) const;
  Queued end_exchange(Channel channel, std::size_t slot);
  Queued unpack(std::size_t slot);

  // Whether all work of a slot, and of those before it, is over.
  bool is_over(std::size_t slot) const;

  // Called after the last slot: makes the caller's stream wait for all that was queued.
  void end();
  bool is_finished() const;

  // Marks the end of all that is queued by now, for clearing up after a failure, and makes the
  // caller's stream wait for it: what the caller queues next must not be overwritten by that. Then
  // says whether it is reached. Neither throws.
  void mark_rest() noexcept;
  // The caller's stream may be gone from now on.
  void forget_caller() { has_caller_ = false; }
  bool is_idle() const noexcept;

  // Adds the ranks that this one exchanges messages with in a slot.
  void add_peers(std::size_t slot, std::set<std::int64_t>& peers) const;

  std::int64_t staging_bytes() const { return rounds_.staging_bytes; }
  std::size_t num_launches() const { return mover_->num_launches(); }
  const ChannelSlot& part(Channel channel, std::size_t slot) const {
    return rounds_.slots[slot].channels[static_cast<int>(channel)];
  }

 private:
  enum Mark { kPacked, kExchanged, kDomainOver, kUnpacked, kNumMarks };
  // Numbers of the mover's batches for one slot; kNone where there is nothing to move.
  struct Batches {
    std::size_t packs[kNumChannels];
    std::size_t relays[kNumChannels];
    std::size_t unpacks[kNumChannels];
  };

  CudaStream stream(Role role) const { return streams_[static_cast<int>(role)]->get(); }
  GpuEvent& mark(Mark which, std::size_t slot) const {
    return *marks_[which][slot % kSlotsInFlight];
  }
  // Makes a stream wait for a mark of the slot `ago` slots before `slot`, if there is one.
  void hold_up(Role role, Mark which, std::size_t slot, std::size_t ago) const;
  BoundedStream& bounded(Role role) const { return *streams_[static_cast<int>(role)]; }
  // Whether a stage is called for the first time; and its end.
  bool begin_stage();
  Queued end_stage();
  // Goes on with batch `number` of the current stage.
  Queued run(std::size_t number, std::size_t batch, std::size_t slot, Role role);
  void fill_rows(CudaAddress first, std::int64_t width, std::int64_t rows, std::int64_t pitch);
  CudaAddress half(std::size_t slot) const;
  void add_batches();

  const Program& program_;
  const RankRounds& rounds_;
  const GpuRank rank_;
  const std::size_t local_;
  std::array<std::unique_ptr<BoundedStream>, kNumRoles> streams_;
  std::array<std::vector<std::unique_ptr<GpuEvent>>, kNumMarks> marks_;
  std::unique_ptr<GpuEvent> ready_;     // addresses are set, and the caller's work is done
  std::unique_ptr<GpuEvent> finished_;  // everything of the run
  std::array<std::unique_ptr<GpuEvent>, kNumRoles> rest_;
  CudaStream caller_ = nullptr;
  bool has_caller_ = false;  // from begin until its stream waits for everything
  std::unique_ptr<GpuMemory> staging_;
  std::unique_ptr<GpuMover> mover_;
  std::vector<Batches> batches_;      // of each slot
  std::vector<CudaAddress> checked_;  // addresses that lie on the device
  bool is_in_stage_ = false;
  std::size_t num_run_ = 0;  // batches of the current stage that are queued
  BatchCursor cursor_;       // of the next one
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_WORKER_H_

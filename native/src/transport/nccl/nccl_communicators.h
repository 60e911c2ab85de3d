// The communicators of the ranks of a process, and how they end.
//
// They end on a thread of their own, because NCCL may wait there for what never comes: an abort for
// what its stream waits for, which can be work of the caller; a destroy for all ranks of the
// machine, which come when they please. A thread that takes long is left behind. It owns all that
// it uses, and what NCCL still writes to until then. Source: NCCL 2.18 to 2.32, proxy.cc, init.cc.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_COMMUNICATORS_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_COMMUNICATORS_H_

#include <atomic>
#include <memory>
#include <vector>

#include "gpu_device.h"
#include "round_schedule.h"
#include "transport/group_transport.h"
#include "transport/nccl/nccl_api.h"

namespace reshard {

class NcclCommunicators {
 public:
  enum class Ending { kAbort, kDestroy };

  NcclCommunicators(std::shared_ptr<const NcclApi> api, const std::vector<GpuRank>& ranks);

  // Of each local rank; null: none. NCCL writes to the places of what is being made.
  std::vector<NcclComm>& of(Channel channel) { return slots_[static_cast<int>(channel)]; }

  // Ends all of them and waits for that, a short time. Nobody else uses them afterwards.
  static void end(const std::shared_ptr<NcclCommunicators>& all, Ending how);

  // Whether the end is reached, and NCCL queues nothing more. Any thread.
  bool are_ended() const { return are_ended_; }

 private:
  void end_all(Ending how) noexcept;

  const std::shared_ptr<const NcclApi> api_;
  std::vector<std::shared_ptr<const GpuDevice>> devices_;  // of each local rank
  std::vector<NcclComm> slots_[kNumChannels];
  std::atomic<bool> are_ended_{false};
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_COMMUNICATORS_H_

#include "transport/nccl/nccl_communicators.h"

#include <chrono>
#include <cstddef>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "signals_blocked.h"

namespace reshard {
namespace {

// How long to wait for the end.
constexpr std::chrono::milliseconds kEndTime{300};

}  // namespace

NcclCommunicators::NcclCommunicators(std::shared_ptr<const NcclApi> api,
                                     const std::vector<GpuRank>& ranks)
    : api_(std::move(api)) {
  for (const GpuRank& rank : ranks) devices_.push_back(rank.device);
  for (std::vector<NcclComm>& each : slots_) each.resize(ranks.size());
}

void NcclCommunicators::end(const std::shared_ptr<NcclCommunicators>& all, Ending how) {
  // Those of domains are made of these, and NCCL may be writing their places just now.
  bool has_any = false;
  for (const NcclComm& place : all->of(Channel::kNetwork)) {
    has_any = has_any || __atomic_load_n(&place, __ATOMIC_ACQUIRE) != nullptr;
  }
  if (!has_any) {
    all->are_ended_ = true;
    return;
  }
  std::packaged_task<void()> task([all, how] { all->end_all(how); });
  const std::future<void> done = task.get_future();
  std::thread thread;
  try {
    const SignalsBlocked blocked;
    thread = std::thread(std::move(task));
  } catch (const std::system_error&) {
    all->end_all(how);
    return;
  }
  if (done.wait_for(kEndTime) == std::future_status::ready) {
    thread.join();
  } else {
    thread.detach();
  }
}

// A split that is under way makes a communicator of the domain known until its parent is aborted,
// so parents come first then.
void NcclCommunicators::end_all(Ending how) noexcept {
  const NcclFunctions& nccl = api_->functions();
  const bool is_abort = how == Ending::kAbort;
  const Channel first = is_abort ? Channel::kNetwork : Channel::kDomain;
  const Channel second = is_abort ? Channel::kDomain : Channel::kNetwork;
  for (const Channel channel : {first, second}) {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const NcclComm communicator = __atomic_exchange_n(&of(channel)[i], nullptr, __ATOMIC_ACQ_REL);
      if (communicator == nullptr) continue;
      const GpuDevice::Scope scope(*devices_[i], std::nothrow);
      if (is_abort) {
        nccl.CommAbort(communicator);
      } else {
        nccl.CommDestroy(communicator);
      }
    }
  }
  are_ended_ = true;
}

}  // namespace reshard

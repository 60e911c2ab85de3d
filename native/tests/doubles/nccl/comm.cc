#include "nccl/comm.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "cuda/cuda_double.h"
#include "nccl/injections.h"
#include "nccl/library.h"
#include "nccl/pending_group.h"

namespace doubles {

Comm::Comm(int num_ranks, int rank, int device, const MeetingId& id)
    : num_ranks_(num_ranks), rank_(rank), device_(device), id_(id) {}

void Comm::join() {
  if (injections().init_failure() != 0) {
    fail(injections().init_failure(), "the initialisation was told to fail");
    step_ = Step::kFailed;
    return;
  }
  if (injections().hangs_init()) return;
  bool wrong_size = false;
  meeting_ = Meeting::open(id_, num_ranks_, &wrong_size);
  if (wrong_size) {
    fail(ncclInvalidArgument, "ranks name different numbers of ranks for one unique id");
    step_ = Step::kFailed;
  }
  if (meeting_ == nullptr) return;  // its maker has gone: nobody comes, as with NCCL
  Member& me = meeting_->member(rank_);
  std::uint32_t expected = 0;
  if (!me.is_here.compare_exchange_strong(expected, 1)) {
    library().violations.add("ncclCommInitRankConfig: rank " + std::to_string(rank_) +
                             " comes a second time with one unique id");
    fail(ncclInvalidUsage, "a rank comes a second time with one unique id");
    step_ = Step::kFailed;
    return;
  }
  me.pid = getpid();
  me.pid_start = start_of_process(getpid());
  me.version = library().version;
  me.physical_device = cudaDoublePhysicalDevice(device_);
  step_ = Step::kWaiting;
  ++meeting_->page().num_here;
}

// All ranks see the same members, so all of them come to the same end.
void Comm::check_members() {
  step_ = Step::kReady;
  for (int a = 0; a < num_ranks_; ++a) {
    for (int b = 0; b < a; ++b) {
      const Member& one = meeting_->member(a);
      const Member& other = meeting_->member(b);
      if (one.version != other.version) {
        fail(ncclInvalidUsage, "Mismatched NCCL version detected : rank " + std::to_string(b) +
                                   " has " + std::to_string(other.version) + ", rank " +
                                   std::to_string(a) + " has " + std::to_string(one.version));
        step_ = Step::kFailed;
        return;
      }
      if (one.physical_device == other.physical_device && !library().allows_shared_devices) {
        fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                   std::to_string(a) + " both on CUDA device " +
                                   std::to_string(one.physical_device));
        step_ = Step::kFailed;
        return;
      }
    }
  }
}

void Comm::advance() {
  if (async_error_ != 0) return;
  if (step_ == Step::kJoining) join();
  if (step_ == Step::kWaiting && meeting_->all_are_here()) {
    check_members();
    Meeting::sweep();
  }
  if (pending_ != nullptr && pending_->poll()) pending_ = nullptr;
  if (split_ != nullptr && poll_split()) split_ = nullptr;
  const bool may_finish = pending_ == nullptr && !has_jobs() && !injections().hangs_finalize();
  if (step_ == Step::kFinalizing && may_finish) step_ = Step::kFinalized;
}

int Comm::poll() {
  advance();
  if (library().reports_death && step_ == Step::kReady && lost_a_peer()) {
    fail(ncclRemoteError, "a process of the communicator has ended");
  }
  return result();
}

int Comm::result() const {
  if (async_error_ != 0) return async_error_;
  const bool is_settled = step_ == Step::kReady || step_ == Step::kFinalized;
  const bool is_launched = pending_ == nullptr || pending_->is_launched();
  return is_settled && is_launched && split_ == nullptr ? ncclSuccess : ncclInProgress;
}

void Comm::fail(int result, const std::string& text) {
  library().set_last_error(text);
  int none = 0;
  async_error_.compare_exchange_strong(none, result);
}

void Comm::abort() {
  aborted_ = true;
  for (const unsigned long long work : works_) cudaDoubleForget(work);
  works_.clear();
  pending_ = nullptr;
  if (meeting_ != nullptr) meeting_->wake(rank_);
  // Jobs look at the flag all the time; those that were not begun do nothing.
  while (num_running_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  leave();
}

void Comm::leave() {
  if (split_ != nullptr && split_->child != nullptr) split_->child->leave();
  split_ = nullptr;
  bool wrong_size = false;
  if (meeting_ == nullptr && step_ != Step::kQueued) {
    meeting_ = Meeting::open(id_, num_ranks_, &wrong_size);
  }
  if (meeting_ != nullptr) {
    if (!meeting_->all_are_here()) meeting_->page().is_abandoned = 1;
    if (step_ != Step::kFailed) meeting_->member(rank_).has_left = 1;
  }
  Meeting::sweep();
}

bool Comm::lost_a_peer() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const Member& member = meeting_->member(rank);
    if (member.has_left.load() == 0 && start_of_process(member.pid) != member.pid_start)
      return true;
  }
  return false;
}

}  // namespace doubles

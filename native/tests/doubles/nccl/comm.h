// One rank of a communicator, and how far it has come.
//
// It has no thread: every step that NCCL would do on its own is done when any communicator of the
// process is asked for its asynchronous error. All of it is guarded by the lock of the library
// (library.h), but for what is atomic, which jobs on streams read and write.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_COMM_H_
#define RESHARD_TESTS_DOUBLES_NCCL_COMM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl/meeting.h"
#include "nccl/nccl_names.h"
#include "shared/completion.h"

namespace doubles {

class Comm;
using CommPtr = std::shared_ptr<Comm>;

// Operations of one group call, for all communicators in it, until they are launched.
struct PendingGroup;

// A split that has not come to its end.
struct Split {
  int color;
  int key;
  ncclComm_t* out;
  enum class Step { kWaitForLast, kWaitForAll, kOpenChild, kWaitForChild } step;
  std::vector<int> members;  // ranks of the parent, in the order of the child
  CommPtr child;
};

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(int num_ranks, int rank, int device, const MeetingId& id);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  int device() const { return device_; }
  Meeting& meeting() { return *meeting_; }
  bool is_ready() const { return step_ == Step::kReady; }
  bool is_finalized() const { return step_ == Step::kFinalized || step_ == Step::kFinalizing; }

  // Begins to come to the meeting (at the end of the group, inside of one).
  void start_joining() { step_ = Step::kJoining; }
  // Goes on as far as is possible.
  void advance();
  // The same, and looks whether the other ranks still live.
  int poll();
  // As far as it came; ncclInProgress if that is not to the end.
  int result() const;

  // Where the split that is under way puts what it makes; null: there is none.
  ncclComm_t* split_place() const { return split_ == nullptr ? nullptr : split_->out; }
  void start_split(int color, int key, ncclComm_t* out);
  void set_pending(std::shared_ptr<PendingGroup> group) { pending_ = std::move(group); }
  void start_finalizing() { step_ = Step::kFinalizing; }

  // Ends all jobs, those that run and those that are queued.
  void abort();
  bool is_aborted() const { return aborted_; }
  // Goes away: others may not be able to come any more.
  void leave();

  // ---- for jobs
  void fail(int result, const std::string& text);
  int async_error() const { return async_error_; }
  bool has_jobs() const { return num_queued_ > 0; }
  void count_queued(int change) { num_queued_ += change; }
  void count_running(int change) { num_running_ += change; }
  // Work on streams, to be forgotten by an abort.
  void add_work(unsigned long long work) { works_.push_back(work); }
  // The end of the last group that was launched; null before the first.
  CompletionPtr last_group;
  // Whether a rank's process has ended.
  bool lost_a_peer();

 private:
  enum class Step { kQueued, kJoining, kWaiting, kReady, kFinalizing, kFinalized, kFailed };

  void join();
  void check_members();
  bool poll_split();
  void choose_members();
  bool open_child();

  const int num_ranks_;
  const int rank_;
  const int device_;
  const MeetingId id_;
  Step step_ = Step::kQueued;
  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<PendingGroup> pending_;
  std::unique_ptr<Split> split_;
  std::uint64_t num_splits_ = 0;
  std::vector<unsigned long long> works_;
  std::atomic<int> async_error_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<int> num_queued_{0};
  std::atomic<int> num_running_{0};
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_COMM_H_

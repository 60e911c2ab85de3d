// Runs a program that has rounds on the GPUs of this process: queues slot after slot, a few ahead
// of what is over, and watches for errors and the deadline.
//
// States: idle -> (begin) running -> (progress) idle. An error stops the transport and leaves the
// executor idle; what was queued is waited for, so that no memory is freed under it.
#ifndef RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_
#define RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker.h"
#include "program.h"
#include "round_schedule.h"
#include "run_options.h"
#include "transport/group_transport.h"

namespace reshard {

class RoundExecutor {
 public:
  explicit RoundExecutor(const Program& program) : program_(program) {}
  ~RoundExecutor();
  RoundExecutor(const RoundExecutor&) = delete;
  RoundExecutor& operator=(const RoundExecutor&) = delete;

  // Starts a run. `buffers` are addresses of device memory. Keeps the transport alive until the run
  // is over.
  void begin(std::shared_ptr<GroupTransport> transport, void* const* buffers,
             std::size_t num_buffers, const RunOptions& options);

  // Goes on for about `slice_ns`; returns whether the run is over. 0 never waits. Throws what ended
  // the run.
  bool progress(std::int64_t slice_ns);

  // Ends the current run, if any, and stops its transport with `reason`.
  void cancel(const std::string& reason);

  bool is_running() const { return is_running_; }

  // Of the last run that was completed.
  const RunStats& stats() const { return stats_; }

 private:
  // What is done next for the slot that is being queued.
  enum class Step { kPack, kExchange, kPosted, kUnpack };

  void set_buffers(void* const* buffers, std::size_t num_buffers);
  void bind(const GroupTransport& transport);
  void check_members(const GroupTransport& transport) const;
  void check_arguments();
  void begin_workers();
  std::size_t worker_of(std::uint32_t buffer) const;
  bool step();
  bool step_slot();
  void enter_channel();
  bool post_next_group();
  void leave_channel();
  bool all_over(std::size_t slot) const;
  CudaStream caller_stream(std::size_t worker) const;
  [[noreturn]] void throw_timeout() const;
  Error located(const Error& error) const;
  void finish(std::int64_t now);
  void fail(const Error& error);
  void drain_workers();
  void end_run();

  const Program& program_;
  RoundSchedule schedule_;
  std::vector<std::unique_ptr<GpuWorker>> workers_;
  std::uint64_t bound_transport_ = 0;  // id of the transport that the workers belong to; 0: none

  std::shared_ptr<GroupTransport> transport_;  // of the current run
  std::vector<CudaAddress> addresses_;
  RunOptions options_{};
  Step step_ = Step::kPack;
  std::size_t slot_ = 0;      // that is being queued
  std::size_t num_over_ = 0;  // slots that are over on all workers
  Channel channel_ = Channel::kNetwork;
  std::vector<std::int64_t> numbers_;  // of the groups of the channel in the slot
  std::size_t next_group_ = 0;
  bool is_queued_ = false;  // everything is
  std::vector<GroupMessage> messages_;
  std::int64_t start_ns_ = 0;
  std::int64_t deadline_ns_ = 0;
  std::int64_t wait_ns_ = 0;
  bool is_running_ = false;
  RunStats stats_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_

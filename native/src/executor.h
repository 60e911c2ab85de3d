// Runs a program, one run at a time: what runs over all kinds of transports have in common.
//
// States: idle -> (begin) running -> (progress) idle. An error in a run leaves the executor idle
// and its transport aborted: it refuses later runs.
#ifndef RESHARD_NATIVE_SRC_EXECUTOR_H_
#define RESHARD_NATIVE_SRC_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "program.h"
#include "run_options.h"
#include "transport/transport.h"

namespace reshard {

class Executor {
 public:
  explicit Executor(const Program& program) : program_(program) {}
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts a run. Keeps the transport alive until the run is over. What is wrong with the call is
  // thrown before anything moves, and leaves the transport good.
  void begin(std::shared_ptr<Transport> transport, void* const* buffers, std::size_t num_buffers,
             const RunOptions& options);

  // Goes on for about `slice_ns`; returns whether the run is over. 0 never waits. Throws what ended
  // the run.
  bool progress(std::int64_t slice_ns);

  // Ends the current run, if any, and aborts its transport with `reason`.
  void cancel(const std::string& reason);

  bool is_running() const { return is_running_; }

  // Of the last run that was completed.
  const RunStats& stats() const { return stats_; }

 protected:
  // Begins a run with the state below set; what it throws ends the run. `transport` is null where
  // none was given.
  virtual void start(Transport* transport, void* const* buffers) = 0;

  // As progress; whatever it throws fails the run.
  virtual bool run_slice(std::int64_t slice_ns) = 0;

  // An error of the run as it is told.
  virtual Error located(const Error& error) const { return error; }

  // Aborts the transport and clears up.
  virtual void give_up(const Error& error) = 0;

  // Throws kInvalidState.
  static void check_connected(const Transport& transport);

  const Program& program_;
  RunOptions options_{};
  std::int64_t start_ns_ = 0;
  std::int64_t deadline_ns_ = 0;
  std::int64_t wait_ns_ = 0;
  RunStats stats_;

 private:
  void check_buffers(void* const* buffers, std::size_t num_buffers) const;
  void fail(const Error& error);
  void end_run();

  std::shared_ptr<Transport> transport_;  // of the current run
  bool is_running_ = false;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_EXECUTOR_H_

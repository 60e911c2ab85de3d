#include "executor.h"

#include <exception>
#include <utility>

#include "clock.h"
#include "status.h"

namespace reshard {

void Executor::begin(std::shared_ptr<Transport> transport, void* const* buffers,
                     std::size_t num_buffers, const RunOptions& options) {
  if (is_running_) {
    throw Error(StatusCode::kInvalidState,
                "program: a run is under way. Finish or cancel it before the next one.");
  }
  check_options(options);
  check_buffers(buffers, num_buffers);
  if (transport != nullptr && !transport->try_use()) {
    throw Error(StatusCode::kInvalidState,
                "communicator: another run is under way on it. Use one communicator per concurrent "
                "run.");
  }
  transport_ = std::move(transport);
  options_ = options;
  start_ns_ = monotonic_ns();
  deadline_ns_ = deadline_of(start_ns_, options.timeout_ns);
  wait_ns_ = 0;
  try {
    start(transport_.get(), buffers);
  } catch (...) {
    end_run();
    throw;
  }
  is_running_ = true;
}

void Executor::check_buffers(void* const* buffers, std::size_t num_buffers) const {
  if (num_buffers != program_.num_buffers) {
    throw Error(StatusCode::kInvalidArgument, text("program: ", num_buffers, " buffers given but ",
                                                   program_.num_buffers, " needed."));
  }
  for (std::size_t i = 0; i < num_buffers; ++i) {
    if (buffers[i] == nullptr && program_.buffer_is_used[i]) {
      throw Error(StatusCode::kInvalidArgument,
                  text("program: buffer ", i, " is null but operations refer to it."));
    }
  }
}

void Executor::check_connected(const Transport& transport) {
  if (transport.is_connected()) return;
  throw Error(StatusCode::kInvalidState,
              "communicator: not connected. Call connect on every process first.");
}

bool Executor::progress(std::int64_t slice_ns) {
  if (!is_running_) {
    throw Error(StatusCode::kInvalidState, "program: no run is under way. Begin one first.");
  }
  try {
    const bool is_over = run_slice(slice_ns);
    if (is_over) end_run();
    return is_over;
  } catch (const Error& error) {
    const Error full = located(error);
    fail(full);
    throw full;
  } catch (const std::exception& error) {
    fail(Error(StatusCode::kInternal, error.what()));
    throw;
  }
}

void Executor::cancel(const std::string& reason) {
  if (is_running_) fail(Error(StatusCode::kAborted, reason));
}

void Executor::fail(const Error& error) {
  give_up(error);
  end_run();
}

void Executor::end_run() {
  is_running_ = false;
  if (transport_ == nullptr) return;
  transport_->end_use();
  transport_.reset();
}

}  // namespace reshard

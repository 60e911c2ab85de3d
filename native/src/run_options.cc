#include "run_options.h"

#include <limits>

namespace reshard {

void check_options(const RunOptions& options) {
  if (options.timeout_ns <= 0 || options.num_threads < 1 || options.num_threads > kMaxThreads) {
    throw Error(StatusCode::kInvalidArgument,
                text("program: timeout ", options.timeout_ns, " ns is not above 0 or num_threads ",
                     options.num_threads, " is not in 1..", kMaxThreads, "."));
  }
}

std::int64_t deadline_of(std::int64_t start_ns, std::int64_t timeout_ns) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  return timeout_ns > kNever - start_ns ? kNever : start_ns + timeout_ns;
}

}  // namespace reshard

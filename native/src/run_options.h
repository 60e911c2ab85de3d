// What a run is given besides buffers, and what it tells.
#ifndef RESHARD_NATIVE_SRC_RUN_OPTIONS_H_
#define RESHARD_NATIVE_SRC_RUN_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "status.h"

namespace reshard {

constexpr std::int32_t kMaxThreads = 256;

struct RunOptions {
  std::uint64_t run_id;
  std::int64_t timeout_ns;
  std::int32_t num_threads;
  // Of each local rank the stream that its caller's work is on; empty: the default stream of each.
  std::vector<std::uint64_t> streams = {};
};

struct RunStats {
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t bytes_local = 0;
  std::int64_t chunks = 0;
  std::int64_t ns_pack = 0;
  std::int64_t ns_unpack = 0;
  std::int64_t ns_wait = 0;
  std::int64_t ns_total = 0;
  std::int64_t peak_staging_bytes = 0;
};

// Throws kInvalidArgument for limits that are out of range.
void check_options(const RunOptions& options);

// When a run that starts now has to be over.
std::int64_t deadline_of(std::int64_t start_ns, std::int64_t timeout_ns);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_RUN_OPTIONS_H_

// The monotonic clock, in nanoseconds; the only clock that the library reads.
#ifndef RESHARD_NATIVE_SRC_CLOCK_H_
#define RESHARD_NATIVE_SRC_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace reshard {

inline std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CLOCK_H_

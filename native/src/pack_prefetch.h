// Requests for cache lines ahead of their use. They never fault, whatever the address.
#ifndef RESHARD_NATIVE_SRC_PACK_PREFETCH_H_
#define RESHARD_NATIVE_SRC_PACK_PREFETCH_H_

#include <cstddef>
#include <cstdint>

namespace reshard {

// GCC 12 takes a function that only calls __builtin_prefetch for one without effects and drops the
// call, so on x86 these are volatile assembly.

// Into the first-level cache.
inline void prefetch_near(const std::byte* at) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" : : "m"(*at));
#else
  __builtin_prefetch(at, 0, 3);
#endif
}

// Into the second-level cache: for many lines, which would push each other out of the first.
inline void prefetch_far(const std::byte* at) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %0" : : "m"(*at));
#else
  __builtin_prefetch(at, 0, 2);
#endif
}

// Every line of [at, at + size), size > 0, into the second-level cache.
inline void prefetch_run_far(const std::byte* at, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += 64) prefetch_far(at + i);
  prefetch_far(at + size - 1);
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_PREFETCH_H_

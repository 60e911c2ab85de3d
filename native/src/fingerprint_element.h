// What one element adds to a fingerprint. Compiled for the host and, by NVRTC, for the device.
#ifndef RESHARD_NATIVE_SRC_FINGERPRINT_ELEMENT_H_
#define RESHARD_NATIVE_SRC_FINGERPRINT_ELEMENT_H_

#include <cstdint>

namespace reshard {

constexpr std::uint64_t kIndexStep = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kValueStep = 0x9FB21C651E98DF25U;

// The contribution of one element. `index_term` is seed + index * kIndexStep; all modulo 2**64.
inline std::uint64_t mix(std::uint64_t index_term, std::uint64_t bits) {
  const std::uint64_t b = index_term ^ (index_term >> 31);
  const std::uint64_t c = b + bits * kValueStep;
  return (c & 0xFFFFFFFFU) * (c >> 32) + c;
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_FINGERPRINT_ELEMENT_H_

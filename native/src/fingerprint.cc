#include "fingerprint.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "cast.h"

namespace reshard {
namespace {

constexpr std::uint64_t kIndexStep = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kValueStep = 0x9FB21C651E98DF25U;
constexpr std::uint64_t kMask32 = 0xFFFFFFFFU;

std::uint64_t mix(std::uint64_t seed, std::uint64_t index, std::uint64_t bits) {
  const std::uint64_t a = seed + index * kIndexStep;
  const std::uint64_t b = a ^ (a >> 31);
  const std::uint64_t c = b + bits * kValueStep;
  return (c & kMask32) * (c >> 32) + c;
}

}  // namespace

std::uint64_t fingerprint(const FingerprintRegion& region) {
  const CastFunction cast = cast_function(region.memory, region.stored);
  if (cast == nullptr && region.memory != region.stored) {
    throw std::invalid_argument(std::string("fingerprint has no cast from ") +
                                name_of(region.memory) + " to " + name_of(region.stored));
  }
  const FloatEnvironment environment;
  std::int64_t total = 1;
  for (int k = 0; k < region.ndim; ++k) total *= region.size[k];
  std::int64_t at[kMaxDims] = {};
  std::uint64_t sum = 0;
  for (std::int64_t n = 0; n < total; ++n) {
    std::int64_t offset = 0;
    auto index = static_cast<std::uint64_t>(region.index_base);
    for (int k = 0; k < region.ndim; ++k) {
      offset += at[k] * region.stride[k];
      index += static_cast<std::uint64_t>(at[k]) * static_cast<std::uint64_t>(region.index_stride[k]);
    }
    std::uint64_t words[2] = {0, 0};
    auto* const bytes = reinterpret_cast<std::byte*>(words);
    if (cast != nullptr) {
      cast(region.base + offset, bytes, 1, false);
    } else {
      std::memcpy(bytes, region.base + offset, static_cast<std::size_t>(size_of(region.memory)));
    }
    if (size_of(region.stored) == 16) {
      sum += mix(region.seed, 2 * index, words[0]) + mix(region.seed, 2 * index + 1, words[1]);
    } else {
      sum += mix(region.seed, index, words[0]);
    }
    for (int k = region.ndim - 1; k >= 0; --k) {
      if (++at[k] < region.size[k]) break;
      at[k] = 0;
    }
  }
  return sum;
}

}  // namespace reshard

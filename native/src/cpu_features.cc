#include "cpu_features.h"

#include <atomic>

namespace reshard {
namespace {

enum : unsigned { kAvx2 = 1U, kF16c = 2U };

unsigned detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned bits = 0;
  // GCC 12's test for avx2 includes the check that the operating system saves AVX state.
  if (__builtin_cpu_supports("avx2") != 0) bits |= kAvx2;
  if (bits != 0 && __builtin_cpu_supports("f16c") != 0) bits |= kF16c;
  return bits;
#else
  return 0;
#endif
}

std::atomic<unsigned>& features_in_use() {
  static std::atomic<unsigned> bits{detect()};
  return bits;
}

}  // namespace

CpuFeatures cpu_features() {
  const unsigned bits = features_in_use().load(std::memory_order_relaxed);
  return {(bits & kAvx2) != 0, (bits & kF16c) != 0};
}

void restrict_cpu_features(CpuFeatures allowed) {
  const unsigned mask = (allowed.avx2 ? kAvx2 : 0U) | (allowed.f16c ? kF16c : 0U);
  features_in_use().store(detect() & mask, std::memory_order_relaxed);
}

std::string describe_cpu_features() {
  const CpuFeatures features = cpu_features();
  std::string text;
  if (features.avx2) text += "avx2";
  if (features.f16c) text += text.empty() ? "f16c" : " f16c";
  return text.empty() ? "baseline" : text;
}

}  // namespace reshard

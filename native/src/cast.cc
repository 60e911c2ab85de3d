#include "cast.h"

#include "cast_avx2.h"
#include "cast_plain.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace reshard {
namespace {

struct PlainCast {
  template <DType from, DType to>
  static CastFunction function() {
    return cast_plain<from, to>;
  }
};

}  // namespace

CastFunction cast_function(DType from, DType to) {
  if (from == to || !can_cast(from, to)) return nullptr;
  const CastFunction fast = vector_cast(from, to);
  return fast != nullptr ? fast : select_cast<PlainCast>(from, to);
}

#if defined(__x86_64__)
namespace {
constexpr std::uint32_t kControlBits = 0xFFC0U;     // the rest are flags of past exceptions
constexpr std::uint32_t kDefaultControl = 0x1F80U;  // all exceptions masked, nearest even

bool is_default(std::uint32_t control) { return (control & kControlBits) == kDefaultControl; }
}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) {
  if (!is_default(saved_)) _mm_setcsr(kDefaultControl);
}

FloatEnvironment::~FloatEnvironment() {
  if (!is_default(saved_)) _mm_setcsr(saved_);
}
#else
FloatEnvironment::FloatEnvironment() : saved_(0) {}
FloatEnvironment::~FloatEnvironment() = default;
#endif

}  // namespace reshard

#include "cast.h"

#include <cstring>

#include "cast_scalar.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace reshard {
namespace {

template <DType from, DType to>
void cast_plain(const std::byte* in, std::byte* out, std::int64_t count, bool /*streaming*/) {
  using From = typename Codec<from>::Bits;
  using To = typename Codec<to>::Bits;
  using Result = decltype(Codec<to>::decode(To{}));
  for (std::int64_t i = 0; i < count; ++i) {
    From bits;
    std::memcpy(&bits, in + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    const To result = Codec<to>::encode(static_cast<Result>(Codec<from>::decode(bits)));
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(To)), &result, sizeof(To));
  }
}

template <DType from>
CastFunction plain_cast_to(DType to) {
  switch (to) {
    case DType::kF16: return cast_plain<from, DType::kF16>;
    case DType::kBF16: return cast_plain<from, DType::kBF16>;
    case DType::kF32: return cast_plain<from, DType::kF32>;
    case DType::kF64: return cast_plain<from, DType::kF64>;
    case DType::kF8E4M3FN: return cast_plain<from, DType::kF8E4M3FN>;
    case DType::kF8E5M2: return cast_plain<from, DType::kF8E5M2>;
    default: return nullptr;
  }
}

CastFunction plain_cast(DType from, DType to) {
  switch (from) {
    case DType::kF16: return plain_cast_to<DType::kF16>(to);
    case DType::kBF16: return plain_cast_to<DType::kBF16>(to);
    case DType::kF32: return plain_cast_to<DType::kF32>(to);
    case DType::kF64: return plain_cast_to<DType::kF64>(to);
    case DType::kF8E4M3FN: return plain_cast_to<DType::kF8E4M3FN>(to);
    case DType::kF8E5M2: return plain_cast_to<DType::kF8E5M2>(to);
    default: return nullptr;
  }
}

}  // namespace

CastFunction cast_function(DType from, DType to) {
  if (from == to || !can_cast(from, to)) return nullptr;
  return plain_cast(from, to);
}

#if defined(__x86_64__)
namespace {
constexpr std::uint32_t kDefaultEnvironment = 0x1F80U;  // all exceptions masked, nearest even
}

FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) {
  if (saved_ != kDefaultEnvironment) _mm_setcsr(kDefaultEnvironment);
}

FloatEnvironment::~FloatEnvironment() {
  if (saved_ != kDefaultEnvironment) _mm_setcsr(saved_);
}
#else
FloatEnvironment::FloatEnvironment() : saved_(0) {}
FloatEnvironment::~FloatEnvironment() = default;
#endif

}  // namespace reshard

// Casts one element at a time, and the choice of a function by a pair of dtypes.
#ifndef RESHARD_NATIVE_SRC_CAST_PLAIN_H_
#define RESHARD_NATIVE_SRC_CAST_PLAIN_H_

#include <cstdint>
#include <cstring>

#include "cast.h"
#include "cast_scalar.h"

namespace reshard {

template <DType from, DType to>
void cast_plain(const std::byte* in, std::byte* out, std::int64_t count, bool /*streaming*/) {
  using From = typename Codec<from>::Bits;
  using To = typename Codec<to>::Bits;
  for (std::int64_t i = 0; i < count; ++i) {
    From bits;
    std::memcpy(&bits, in + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    const To result = convert<from, to>(bits);
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(To)), &result, sizeof(To));
  }
}

// Kind::function<from, to>() for the pair, or nullptr when either is not castable.
template <typename Kind, DType from>
CastFunction select_cast_to(DType to) {
  switch (to) {
    case DType::kF16:
      return Kind::template function<from, DType::kF16>();
    case DType::kBF16:
      return Kind::template function<from, DType::kBF16>();
    case DType::kF32:
      return Kind::template function<from, DType::kF32>();
    case DType::kF64:
      return Kind::template function<from, DType::kF64>();
    case DType::kF8E4M3FN:
      return Kind::template function<from, DType::kF8E4M3FN>();
    case DType::kF8E5M2:
      return Kind::template function<from, DType::kF8E5M2>();
    default:
      return nullptr;
  }
}

template <typename Kind>
CastFunction select_cast(DType from, DType to) {
  switch (from) {
    case DType::kF16:
      return select_cast_to<Kind, DType::kF16>(to);
    case DType::kBF16:
      return select_cast_to<Kind, DType::kBF16>(to);
    case DType::kF32:
      return select_cast_to<Kind, DType::kF32>(to);
    case DType::kF64:
      return select_cast_to<Kind, DType::kF64>(to);
    case DType::kF8E4M3FN:
      return select_cast_to<Kind, DType::kF8E4M3FN>(to);
    case DType::kF8E5M2:
      return select_cast_to<Kind, DType::kF8E5M2>(to);
    default:
      return nullptr;
  }
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CAST_PLAIN_H_

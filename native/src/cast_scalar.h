// Conversions of single floats, in integer arithmetic where the processor's own would depend on its
// rounding or flush-to-zero mode. These define the values; the vector code must agree bit for bit.
//
// Every conversion to a narrower type rounds to nearest even, once, from float32. A float64 becomes
// float32 first, so it is rounded twice on the way to a 16- or 8-bit type, as in torch 2.13.
// A NaN stays a NaN and keeps its sign; its payload is unspecified, because torch's own differs
// between its scalar and vector code.
//
// Compiled for the host and, by NVRTC, for the device (native/kernels).
#ifndef RESHARD_NATIVE_SRC_CAST_SCALAR_H_
#define RESHARD_NATIVE_SRC_CAST_SCALAR_H_

#include <cstdint>
#include <cstring>

#include "dtype.h"

namespace reshard {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint64_t bits_of(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline double double_of(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr std::uint32_t kF32Infinity = 0x7F800000U;

// The shape of a binary float narrower than float32 with `mantissa` bits after the point and
// exponent bias `bias`; exponents below 1 - bias are subnormal.
struct NarrowFloat {
  int mantissa;
  int bias;
};

// Rounds |value| (float32 bits without sign) to nearest even and returns the narrow bits without
// sign, carrying into the exponent. The caller handles overflow and NaN.
inline std::uint32_t round_to_narrow(std::uint32_t magnitude, NarrowFloat narrow) {
  const int drop = 23 - narrow.mantissa;
  const int exponent = static_cast<int>(magnitude >> 23);
  const int min_normal = 128 - narrow.bias;  // float32 exponent field of the smallest normal
  if (exponent >= min_normal) {
    const std::uint32_t rebias = static_cast<std::uint32_t>(127 - narrow.bias) << 23;
    const std::uint32_t odd = (magnitude >> drop) & 1U;
    return (magnitude - rebias + ((1U << (drop - 1)) - 1U) + odd) >> drop;
  }
  // Subnormal: the result counts units of 2**(1 - bias - mantissa).
  const int shift = drop + (min_normal - exponent);
  if (shift > 24) return 0;  // below half a unit (a float32 subnormal always is)
  const std::uint32_t significand = (magnitude & 0x007FFFFFU) | 0x00800000U;
  const std::uint32_t odd = (significand >> shift) & 1U;
  return (significand + ((1U << (shift - 1)) - 1U) + odd) >> shift;
}

// Narrow magnitude bits of a finite or NaN-free narrow float to float32 bits without sign. Exact.
inline std::uint32_t widen_from_narrow(std::uint32_t magnitude, NarrowFloat narrow) {
  const int drop = 23 - narrow.mantissa;
  const std::uint32_t rebias = static_cast<std::uint32_t>(127 - narrow.bias) << 23;
  if ((magnitude >> narrow.mantissa) != 0) return (magnitude << drop) + rebias;
  if (magnitude == 0) return 0;
  int shift = 0;
  while (((magnitude << shift) >> narrow.mantissa) == 0) ++shift;
  // Normalised: the leading one moves into the implied bit, the exponent drops by one per shift
  // (a subnormal's exponent is that of the smallest normal, which is one above its field).
  const std::uint32_t exponent = static_cast<std::uint32_t>(127 - narrow.bias + 1 - shift);
  return (exponent << 23) | ((magnitude << (drop + shift)) & 0x007FFFFFU);
}

constexpr NarrowFloat kHalf = {10, 15};
constexpr NarrowFloat kE4M3 = {3, 7};
constexpr NarrowFloat kE5M2 = {2, 15};

inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > kF32Infinity) {  // quiet, upper payload bits kept, as F16C does
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x01FFU));
  }
  std::uint32_t half = 0x7C00U;
  if (magnitude < 0x47800000U) half = round_to_narrow(magnitude, kHalf);  // below 65536
  return static_cast<std::uint16_t>(sign | half);
}

inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude >= 0x7C00U) {
    const std::uint32_t quiet = magnitude > 0x7C00U ? 0x00400000U : 0U;
    return float_of(sign | kF32Infinity | quiet | ((magnitude & 0x03FFU) << 13));
  }
  return float_of(sign | widen_from_narrow(magnitude, kHalf));
}

inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFU) > kF32Infinity) {
    return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x7FC0U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float bf16_to_f32(std::uint16_t bits) {
  return float_of(static_cast<std::uint32_t>(bits) << 16);
}

// float8_e4m3fn has no infinity. Out of range, infinity included, becomes the largest finite value
// 448, as torch 2.13 does; earlier torch and ml_dtypes give NaN from 464 on.
inline std::uint8_t f32_to_f8_e4m3fn(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t narrow = 0x7FU;
  if (magnitude <= kF32Infinity) {
    narrow = 0x7EU;
    if (magnitude < 0x43E80000U) narrow = round_to_narrow(magnitude, kE4M3);  // below 464
  }
  return static_cast<std::uint8_t>(sign | narrow);
}

inline float f8_e4m3fn_to_f32(std::uint8_t narrow) {
  const std::uint32_t sign = static_cast<std::uint32_t>(narrow & 0x80U) << 24;
  const std::uint32_t magnitude = narrow & 0x7FU;
  if (magnitude == 0x7FU) return float_of(sign | 0x7FF00000U);
  return float_of(sign | widen_from_narrow(magnitude, kE4M3));
}

inline std::uint8_t f32_to_f8_e5m2(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t narrow = 0x7FU;
  if (magnitude <= kF32Infinity) {
    narrow = 0x7CU;
    if (magnitude < 0x47800000U) narrow = round_to_narrow(magnitude, kE5M2);  // below 65536
  }
  return static_cast<std::uint8_t>(sign | narrow);
}

// float8_e5m2 is the upper byte of a float16.
inline float f8_e5m2_to_f32(std::uint8_t narrow) {
  return f16_to_f32(static_cast<std::uint16_t>(narrow << 8));
}

// How each castable dtype is stored and which of float and double holds it exactly.
template <DType dtype>
struct Codec;

template <>
struct Codec<DType::kF16> {
  using Bits = std::uint16_t;
  static float decode(Bits bits) { return f16_to_f32(bits); }
  static Bits encode(float value) { return f32_to_f16(value); }
};

template <>
struct Codec<DType::kBF16> {
  using Bits = std::uint16_t;
  static float decode(Bits bits) { return bf16_to_f32(bits); }
  static Bits encode(float value) { return f32_to_bf16(value); }
};

template <>
struct Codec<DType::kF32> {
  using Bits = std::uint32_t;
  static float decode(Bits bits) { return float_of(bits); }
  static Bits encode(float value) { return bits_of(value); }
};

template <>
struct Codec<DType::kF64> {
  using Bits = std::uint64_t;
  static double decode(Bits bits) { return double_of(bits); }
  static Bits encode(double value) { return bits_of(value); }
};

template <>
struct Codec<DType::kF8E4M3FN> {
  using Bits = std::uint8_t;
  static float decode(Bits bits) { return f8_e4m3fn_to_f32(bits); }
  static Bits encode(float value) { return f32_to_f8_e4m3fn(value); }
};

template <>
struct Codec<DType::kF8E5M2> {
  using Bits = std::uint8_t;
  static float decode(Bits bits) { return f8_e5m2_to_f32(bits); }
  static Bits encode(float value) { return f32_to_f8_e5m2(value); }
};

// Between float32 and float64. The processor's own conversion rounds as it should on either side,
// but a device's drops the sign of a NaN.
inline float to_f32(float value) { return value; }
inline double to_f64(double value) { return value; }

inline float to_f32(double value) {
  const std::uint64_t bits = bits_of(value);
  const auto sign = static_cast<std::uint32_t>(bits >> 32) & 0x80000000U;
  if ((bits & 0x7FFFFFFFFFFFFFFFU) > 0x7FF0000000000000U) {
    return float_of(sign | 0x7FC00000U | (static_cast<std::uint32_t>(bits >> 29) & 0x003FFFFFU));
  }
  return static_cast<float>(value);
}

inline double to_f64(float value) {
  const std::uint64_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFU) > kF32Infinity) {
    return double_of(((bits & 0x80000000U) << 32) | 0x7FF8000000000000U |
                     ((bits & 0x003FFFFFU) << 29));
  }
  return static_cast<double>(value);
}

// The cast of a pair.
template <DType from, DType to>
typename Codec<to>::Bits convert(typename Codec<from>::Bits bits) {
  if constexpr (to == DType::kF64) {
    return Codec<to>::encode(to_f64(Codec<from>::decode(bits)));
  } else {
    return Codec<to>::encode(to_f32(Codec<from>::decode(bits)));
  }
}

// The same for a pair that is known only when it runs; each dtype in the low bits. The two differ,
// so there is a float32 between them.
inline float decode(DType from, std::uint64_t bits) {
  switch (from) {
    case DType::kF16:
      return f16_to_f32(static_cast<std::uint16_t>(bits));
    case DType::kBF16:
      return bf16_to_f32(static_cast<std::uint16_t>(bits));
    case DType::kF64:
      return to_f32(double_of(bits));
    case DType::kF8E4M3FN:
      return f8_e4m3fn_to_f32(static_cast<std::uint8_t>(bits));
    case DType::kF8E5M2:
      return f8_e5m2_to_f32(static_cast<std::uint8_t>(bits));
    default:
      return float_of(static_cast<std::uint32_t>(bits));
  }
}

inline std::uint64_t encode(DType to, float value) {
  switch (to) {
    case DType::kF16:
      return f32_to_f16(value);
    case DType::kBF16:
      return f32_to_bf16(value);
    case DType::kF64:
      return bits_of(to_f64(value));
    case DType::kF8E4M3FN:
      return f32_to_f8_e4m3fn(value);
    case DType::kF8E5M2:
      return f32_to_f8_e5m2(value);
    default:
      return bits_of(value);
  }
}

inline std::uint64_t convert(DType from, DType to, std::uint64_t bits) {
  return encode(to, decode(from, bits));
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CAST_SCALAR_H_

// The values of floats and the rounding of casts, by definition: in float64 arithmetic, so that the
// oracle shares no bit trick with the code.
#ifndef RESHARD_NATIVE_TESTS_FLOAT_ORACLE_H_
#define RESHARD_NATIVE_TESTS_FLOAT_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dtype.h"

namespace reshard::float_oracle {

constexpr DType kFloats[] = {DType::kF16, DType::kBF16,     DType::kF32,
                             DType::kF64, DType::kF8E4M3FN, DType::kF8E5M2};

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

inline Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {5, 10, true};
    case DType::kBF16:
      return {8, 7, true};
    case DType::kF32:
      return {8, 23, true};
    case DType::kF64:
      return {11, 52, true};
    case DType::kF8E4M3FN:
      return {4, 3, false};
    default:
      return {5, 2, true};
  }
}

inline std::uint64_t bits_at(DType dtype, const std::byte* at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<std::size_t>(size_of(dtype)));
  return bits;
}

// The value of bits by the definition of a binary float.
inline double value_of(DType dtype, std::uint64_t bits) {
  const Format format = format_of(dtype);
  const int width = 1 + format.exponent_bits + format.mantissa_bits;
  const double sign = (bits >> (width - 1)) & 1U ? -1.0 : 1.0;
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  const auto exponent = static_cast<int>((bits >> format.mantissa_bits) &
                                         ((std::uint64_t{1} << format.exponent_bits) - 1));
  const int top = (1 << format.exponent_bits) - 1;
  const int bias = top / 2;
  if (format.has_infinity && exponent == top) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (!format.has_infinity && (bits & 0x7FU) == 0x7FU) return std::nan("");
  const double units =
      static_cast<double>(mantissa) + (exponent == 0 ? 0.0 : std::ldexp(1.0, format.mantissa_bits));
  return sign * std::ldexp(units, std::max(exponent, 1) - bias - format.mantissa_bits);
}

// Nearest value of `to`, ties to the even mantissa, by way of the spacing of `to` around it.
inline double round_to(DType to, double value) {
  if (std::isnan(value) || value == 0) return value;
  const Format format = format_of(to);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double largest =
      format.has_infinity ? std::ldexp(2.0 - std::ldexp(1.0, -format.mantissa_bits), bias) : 448.0;
  const int exponent = std::isinf(value) ? bias : std::ilogb(value);
  const double unit = std::ldexp(1.0, std::max(exponent, 1 - bias) - format.mantissa_bits);
  const double rounded = std::isinf(value) ? value : std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) <= largest) return rounded;
  const double over = format.has_infinity ? std::numeric_limits<double>::infinity() : largest;
  return std::copysign(over, value);
}

inline double expected_value(DType from, DType to, double value) {
  if (from == DType::kF64 && to != DType::kF64) value = round_to(DType::kF32, value);
  return round_to(to, value);
}

inline bool same_value(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

}  // namespace reshard::float_oracle

#endif  // RESHARD_NATIVE_TESTS_FLOAT_ORACLE_H_

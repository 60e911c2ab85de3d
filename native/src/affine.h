// Elementwise changes of values: what the two sides of a refit declare, one after the other.
//
// A rule says how a stored element becomes one of the canonical tensor: x * scale / divisor +
// offset. The source's rule is followed and the destination's undone, in float64, each step rounded
// once. What is 1, or 0 for an offset, does nothing, so that -0 stays -0. The result is rounded by
// the cast that follows: to float32 first, unless the destination's dtype is float64. So a single
// step of float32 operands gives what float32 arithmetic gives, bit for bit.
//
// Compiled for the host and, by NVRTC, for the device (native/kernels).
#ifndef RESHARD_NATIVE_SRC_AFFINE_H_
#define RESHARD_NATIVE_SRC_AFFINE_H_

#include <cstdint>

#include "cast_scalar.h"

namespace reshard {

struct AffineRule {
  double scale = 1.0;
  double divisor = 1.0;
  double offset = 0.0;
};

struct Affine {
  AffineRule source;
  AffineRule destination;

  bool is_identity() const {
    return source.scale == 1.0 && source.divisor == 1.0 && source.offset == 0.0 &&
           destination.scale == 1.0 && destination.divisor == 1.0 && destination.offset == 0.0;
  }
};

// Float64 numbers of an Affine, in the order of its fields.
constexpr int kAffineNumbers = 6;

// A device would make one rounding of a product and a sum. The host's compiler is told not to
// (-ffp-contract=off).
inline double rounded_product(double a, double b) {
#if defined(__CUDACC__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

inline double rounded_sum(double a, double b) {
#if defined(__CUDACC__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// One value. A NaN stays as it is: a device would drop its sign.
inline double changed(double value, const Affine& affine) {
  if (value != value) return value;
  const AffineRule& source = affine.source;
  const AffineRule& destination = affine.destination;
  if (source.scale != 1.0) value = rounded_product(value, source.scale);
  if (source.divisor != 1.0) value = value / source.divisor;
  if (source.offset != 0.0) value = rounded_sum(value, source.offset);
  if (destination.offset != 0.0) value = rounded_sum(value, -destination.offset);
  if (destination.divisor != 1.0) value = rounded_product(value, destination.divisor);
  if (destination.scale != 1.0) value = value / destination.scale;
  return value;
}

// The change and the cast of an element of any pair of floats that have casts, equal ones included;
// each dtype in the low bits.
inline std::uint64_t convert(DType from, DType to, std::uint64_t bits, const Affine& affine) {
  const double value = from == DType::kF64 ? double_of(bits) : to_f64(decode(from, bits));
  const double result = changed(value, affine);
  return to == DType::kF64 ? bits_of(result) : encode(to, to_f32(result));
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_AFFINE_H_

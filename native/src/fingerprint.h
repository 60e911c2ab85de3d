// The layout-independent sum of a region's elements; reshard/fingerprint.py defines the numbers.
#ifndef RESHARD_NATIVE_SRC_FINGERPRINT_H_
#define RESHARD_NATIVE_SRC_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>

#include "affine.h"
#include "dtype.h"
#include "strided_box.h"

namespace reshard {

// Elements of one tensor in the memory of one rank. Element (i0, i1, ...) lies at
// base + sum of i_k * stride[k] (bytes) and has the index index_base + sum of i_k * index_stride[k]
// in the canonical tensor. Strides of both kinds may be negative or zero.
struct FingerprintRegion {
  const std::byte* base;
  DType memory;
  DType stored;  // what the elements are cast to before they are mixed
  std::uint64_t seed;
  int ndim;
  std::int64_t size[kMaxDims];
  std::int64_t stride[kMaxDims];
  std::int64_t index_stride[kMaxDims];
  std::int64_t index_base;
  Affine affine{};  // before the cast
};

// The sum modulo 2**64 of mix(seed, index, stored bits) over the region. An element of 16 bytes
// counts as two of 8 bytes at 2*index and 2*index + 1. Throws std::invalid_argument when
// there is no such cast or change of values.
std::uint64_t fingerprint(const FingerprintRegion& region);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_FINGERPRINT_H_

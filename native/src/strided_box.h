// A box of elements in strided memory, dims in wire order (outermost first).
#ifndef RESHARD_NATIVE_SRC_STRIDED_BOX_H_
#define RESHARD_NATIVE_SRC_STRIDED_BOX_H_

#include <cstdint>

namespace reshard {

constexpr int kMaxDims = 16;

// Element (i0, i1, ...) lies at base + sum of i_k * stride[k]. Strides are in bytes and may be
// negative or zero. ndim 0 is one element. The wire holds the elements densely in row-major order.
struct StridedBox {
  int ndim;
  std::int64_t size[kMaxDims];
  std::int64_t stride[kMaxDims];
};

// Product of the sizes; 1 when ndim is 0. The caller has checked that it fits.
std::int64_t num_elements(const StridedBox& box);

// The same elements in the same order with as few dims as possible: dims of size 1 go, and a dim
// merges into the one after it when the step over it is a whole number of its runs. The result has
// at least one dim; a box of one or no element becomes one dim with stride `element_size`.
StridedBox coalesce(const StridedBox& box, std::int64_t element_size);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_STRIDED_BOX_H_

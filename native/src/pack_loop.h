// The loop over the outer dims of a copy.
#ifndef RESHARD_NATIVE_SRC_PACK_LOOP_H_
#define RESHARD_NATIVE_SRC_PACK_LOOP_H_

#include <cstddef>
#include <cstdint>

#include "pack_copy.h"

namespace reshard {

// Calls visit(dst, src) at every index of dims[0..ndim), last dim fastest. No size is zero.
template <typename Visit>
void for_each_index(const CopyDim* dims, int ndim, std::byte* dst, const std::byte* src,
                    const Visit& visit) {
  if (ndim == 0) return visit(dst, src);
  const CopyDim& last = dims[ndim - 1];
  std::int64_t at[kMaxDims];
  for (int k = 0; k < ndim - 1; ++k) at[k] = 0;
  for (;;) {
    for (std::int64_t i = 0; i < last.size; ++i) visit(dst + i * last.dst, src + i * last.src);
    int k = ndim - 2;
    for (; k >= 0; --k) {
      if (++at[k] < dims[k].size) {
        dst += dims[k].dst;
        src += dims[k].src;
        break;
      }
      at[k] = 0;
      dst -= (dims[k].size - 1) * dims[k].dst;
      src -= (dims[k].size - 1) * dims[k].src;
    }
    if (k < 0) return;
  }
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_LOOP_H_

#include "strided_box.h"

namespace reshard {

std::int64_t num_elements(const StridedBox& box) {
  std::int64_t total = 1;
  for (int k = 0; k < box.ndim; ++k) total *= box.size[k];
  return total;
}

StridedBox coalesce(const StridedBox& box, std::int64_t element_size) {
  StridedBox out = {};
  for (int k = 0; k < box.ndim; ++k) {
    if (box.size[k] == 0) {
      out.ndim = 1;
      out.size[0] = 0;
      out.stride[0] = element_size;
      return out;
    }
    if (box.size[k] == 1) continue;
    const int last = out.ndim - 1;
    std::int64_t run = 0;
    const bool overflows = __builtin_mul_overflow(box.size[k], box.stride[k], &run);
    if (last >= 0 && !overflows && out.stride[last] == run) {
      out.size[last] *= box.size[k];
      out.stride[last] = box.stride[k];
    } else {
      out.size[out.ndim] = box.size[k];
      out.stride[out.ndim] = box.stride[k];
      ++out.ndim;
    }
  }
  if (out.ndim == 0) {
    out.ndim = 1;
    out.size[0] = 1;
    out.stride[0] = element_size;
  }
  return out;
}

}  // namespace reshard

// A range of a box's elements as boxes that are strided on both sides.
#ifndef RESHARD_NATIVE_SRC_PACK_PARTS_H_
#define RESHARD_NATIVE_SRC_PACK_PARTS_H_

#include <cstdint>
#include <cstdlib>

#include "pack_copy.h"
#include "pack_split.h"
#include "strided_box.h"

namespace reshard {

// The strides of a box on the wire, where it is dense.
struct WireBox {
  std::int64_t wire_stride[kMaxDims];

  WireBox(const StridedBox& box, std::int64_t wire_width) {
    std::int64_t step = wire_width;
    for (int k = box.ndim - 1; k >= 0; --k) {
      wire_stride[k] = step;
      step *= box.size[k];
    }
  }
};

// The dim whose incomplete indices stay with their neighbours: the one along which memory is
// closest together, if a cache line holds several of its elements and the wire has it further out.
inline int banded_dim(const StridedBox& box) {
  int closest = box.ndim - 1;
  for (int k = 0; k < box.ndim; ++k) {
    if (std::llabs(box.stride[k]) < std::llabs(box.stride[closest])) closest = k;
  }
  return closest < box.ndim - 1 && std::llabs(box.stride[closest]) < 64 ? closest : -1;
}

// Calls visit(part, memory offset, wire offset from element `first`) with boxes that make up the
// range; dst is the wire side of part's dims.
template <typename Visit>
void for_each_part(const StridedBox& box, std::int64_t wire_width, std::int64_t first,
                   std::int64_t count, const Visit& visit) {
  const WireBox wire(box, wire_width);
  const auto visit_part = [&](const BoxPart& part) {
    CopyBox copy;
    copy.ndim = box.ndim;
    std::int64_t memory_offset = 0;
    std::int64_t wire_offset = -first * wire_width;
    for (int k = 0; k < box.ndim; ++k) {
      copy.dims[k] = {part.size[k], wire.wire_stride[k], box.stride[k]};
      memory_offset += part.start[k] * box.stride[k];
      wire_offset += part.start[k] * wire.wire_stride[k];
    }
    visit(copy, memory_offset, wire_offset);
  };
  RangeSplit(box, banded_dim(box), visit_part).split(first, count);
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_PARTS_H_

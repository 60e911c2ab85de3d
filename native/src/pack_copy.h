// Strided-to-strided copies: what pack and unpack come down to once a chunk is cut into boxes.
#ifndef RESHARD_NATIVE_SRC_PACK_COPY_H_
#define RESHARD_NATIVE_SRC_PACK_COPY_H_

#include <cstddef>
#include <cstdint>

#include "pack_stores.h"
#include "strided_box.h"

namespace reshard {

// Strides in bytes.
struct CopyDim {
  std::int64_t size;
  std::int64_t dst;
  std::int64_t src;
};

struct CopyBox {
  int ndim;
  CopyDim dims[kMaxDims];
};

// Copies every element (`width` bytes each) from its place in `src` to its place in `dst`. The two
// do not overlap. The order of writing is free, so an element must not have two sources. After
// streaming stores the caller fences.
void copy_box(const CopyBox& box, std::byte* dst, const std::byte* src, std::int64_t width,
              Stores stores);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_COPY_H_

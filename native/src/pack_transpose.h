// Transposes of small elements in tiles of whole cache lines.
#ifndef RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_
#define RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_

#include <cstddef>
#include <cstdint>

#include "pack_stores.h"

namespace reshard {

// dst[c * dst_step + r * width] = src[r * src_step + c * width] for r < rows, c < columns: rows of
// the source, contiguous along the columns, become columns of the destination.
struct Transpose {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t dst_step;
  std::int64_t src_step;
};

using TransposeFunction = void (*)(const Transpose& transpose, std::byte* dst,
                                   const std::byte* src, Stores stores);

// The function for elements of `width` bytes, or nullptr where the processor has no fast one.
TransposeFunction transpose_function(std::int64_t width);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_

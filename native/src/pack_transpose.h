// Transposes of small elements in tiles of whole cache lines.
#ifndef RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_
#define RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_

#include <cstddef>
#include <cstdint>

#include "pack_stores.h"

namespace reshard {

class Conversion;

// dst[c * dst_step + r * dst_width] = src[r * src_step + c * width] for r < rows, c < columns: rows
// of the source, contiguous along the columns, become columns of the destination. With a conversion
// the elements are converted on their way out of the tile, and dst_width is what it makes of them.
struct Transpose {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t dst_step;
  std::int64_t src_step;
  const Conversion* conversion;  // nullptr: none
};

using TransposeFunction = void (*)(const Transpose& transpose, std::byte* dst, const std::byte* src,
                                   Stores stores);

// The function for source elements of `width` bytes; nullptr where the processor has no fast one.
TransposeFunction transpose_function(std::int64_t width);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_TRANSPOSE_H_

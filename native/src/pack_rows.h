// Copies of byte runs that are contiguous on both sides: one run, or equal runs at two steps.
#ifndef RESHARD_NATIVE_SRC_PACK_ROWS_H_
#define RESHARD_NATIVE_SRC_PACK_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "pack_stores.h"

namespace reshard {

// Makes this thread's streaming stores visible before its later stores. A no-op where there are no
// streaming stores.
void fence_streaming_stores();

// Copies `size` bytes; the ranges do not overlap.
void copy_run(std::byte* dst, const std::byte* src, std::int64_t size, Stores stores);

// Copies `count` runs of `run` bytes, from src + i * src_step to dst + i * dst_step.
using RowsFunction = void (*)(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                              std::int64_t src_step, std::int64_t count, std::int64_t run);

// The function for runs of `run` bytes, chosen once per box: short runs have code of their own
// width, because a call of memcpy costs more than the copy.
RowsFunction rows_function(std::int64_t run, Stores stores);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_ROWS_H_

#include "pack_copy.h"

#include <algorithm>
#include <cstdlib>

#include "pack_loop.h"
#include "pack_rows.h"
#include "pack_transpose.h"

namespace reshard {
namespace {

// The dim along which neighbours lie closest together on one side.
template <typename StrideOf>
int closest_dim(const CopyDim* dims, int ndim, const StrideOf& stride_of) {
  int best = ndim - 1;
  for (int k = ndim - 2; k >= 0; --k) {
    if (std::llabs(stride_of(dims[k])) < std::llabs(stride_of(dims[best]))) best = k;
  }
  return best;
}

// A tile covers about one cache line of the source per row and this many rows, so that both sides
// of it stay in the first-level cache.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileLine = 64;

// Any width and any steps: rows of the destination (dim `row`) inside tiles over (row, column).
void copy_tiled(const CopyDim& row, const CopyDim& column, std::byte* dst, const std::byte* src,
                std::int64_t width, Stores stores) {
  const RowsFunction copy_rows = rows_function(width, stores);
  const std::int64_t step = std::max<std::int64_t>(std::llabs(column.src), 1);
  const std::int64_t columns_at_once = std::max<std::int64_t>(kTileLine / step, 1);
  for (std::int64_t r = 0; r < row.size; r += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, row.size - r);
    for (std::int64_t c = 0; c < column.size; c += columns_at_once) {
      const std::int64_t end = std::min(column.size, c + columns_at_once);
      for (std::int64_t i = c; i < end; ++i) {
        copy_rows(dst + r * row.dst + i * column.dst, row.dst, src + r * row.src + i * column.src,
                  row.src, rows, width);
      }
    }
  }
}

// Runs shorter than this use only part of a cache line; where the two sides are in different order
// the rest of the line must still be cached when its turn comes, hence tiles.
constexpr std::int64_t kMinUntiledRun = 64;

}  // namespace

void copy_box(const CopyBox& box, std::byte* dst, const std::byte* src, std::int64_t width,
              Stores stores) {
  CopyDim dims[kMaxDims];
  int ndim = 0;
  for (int k = 0; k < box.ndim; ++k) {
    if (box.dims[k].size == 0) return;
    if (box.dims[k].size > 1) dims[ndim++] = box.dims[k];
  }
  std::int64_t run = width;
  while (ndim > 0 && dims[ndim - 1].dst == run && dims[ndim - 1].src == run) {
    run *= dims[--ndim].size;
  }
  if (ndim == 0) return copy_run(dst, src, run, stores);

  const int row = closest_dim(dims, ndim, [](const CopyDim& dim) { return dim.dst; });
  const int column = closest_dim(dims, ndim, [](const CopyDim& dim) { return dim.src; });
  if (run >= kMinUntiledRun || row == column) {
    const int inner = run >= kMinUntiledRun ? ndim - 1 : row;
    const CopyDim rows = dims[inner];
    for (int k = inner; k + 1 < ndim; ++k) dims[k] = dims[k + 1];
    const RowsFunction copy_rows = rows_function(run, stores);
    for_each_index(dims, ndim - 1, dst, src, [&](std::byte* to, const std::byte* from) {
      copy_rows(to, rows.dst, from, rows.src, rows.size, run);
    });
    return;
  }

  const CopyDim rows = dims[row];
  const CopyDim columns = dims[column];
  int rest = 0;
  for (int k = 0; k < ndim; ++k) {
    if (k != row && k != column) dims[rest++] = dims[k];
  }
  const TransposeFunction transpose =
      rows.dst == run && columns.src == run ? transpose_function(run) : nullptr;
  if (transpose != nullptr) {
    const Transpose shape = {rows.size, columns.size, columns.dst, rows.src, nullptr};
    for_each_index(dims, rest, dst, src, [&](std::byte* to, const std::byte* from) {
      transpose(shape, to, from, stores);
    });
  } else {
    for_each_index(dims, rest, dst, src, [&](std::byte* to, const std::byte* from) {
      copy_tiled(rows, columns, to, from, run, stores);
    });
  }
}

}  // namespace reshard

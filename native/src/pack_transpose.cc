#include "pack_transpose.h"

#include "cpu_features.h"
#include "pack_convert.h"
#include "pack_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#include "pack_moves.h"
#include "pack_prefetch.h"
#endif

namespace reshard {

#if defined(__x86_64__)
namespace {

// Called only after a look at the processor; inlining needs it on callers and callees alike.
#define RESHARD_AVX2 __attribute__((target("avx2")))

constexpr std::int64_t kCacheLine = 64;

// A tile is one cache line wide in the source and this wide in the destination. Wider tiles save
// nothing and need more source rows at once; those are often a multiple of 4 KiB apart and then
// compete for a few ways of each cache.
constexpr std::int64_t kTileBytes = 256;
constexpr std::int64_t kMaxTileRows = 128;

// Source rows are prefetched into the second-level cache one tile ahead and into the first-level
// cache this many rows ahead. A tile touches up to a hundred pages, which no hardware prefetcher
// follows; without this a transpose runs at a third of the speed.
constexpr std::int64_t kNearRows = 16;

// A block is n rows by 2n columns, n elements being 16 bytes: columns c and c + n share a register,
// one in each half, because AVX2 shuffles within halves.
template <int width>
constexpr int kBlock = 16 / width;

template <int width>
RESHARD_AVX2 inline __m256i unpack_low(__m256i a, __m256i b) {
  if constexpr (width == 1) return _mm256_unpacklo_epi8(a, b);
  if constexpr (width == 2) return _mm256_unpacklo_epi16(a, b);
  if constexpr (width == 4) return _mm256_unpacklo_epi32(a, b);
  return _mm256_unpacklo_epi64(a, b);
}

template <int width>
RESHARD_AVX2 inline __m256i unpack_high(__m256i a, __m256i b) {
  if constexpr (width == 1) return _mm256_unpackhi_epi8(a, b);
  if constexpr (width == 2) return _mm256_unpackhi_epi16(a, b);
  if constexpr (width == 4) return _mm256_unpackhi_epi32(a, b);
  return _mm256_unpackhi_epi64(a, b);
}

// Transposes the n x n matrix in each half. Interleaving row i with row i + n/2 rotates the bits
// of an element's (row, column) index by one; log2(n) times swaps row and column.
template <int width>
RESHARD_AVX2 inline void transpose_halves(__m256i* rows) {
  constexpr int n = kBlock<width>;
#pragma GCC unroll 4
  for (int stage = 1; stage < n; stage *= 2) {
    __m256i next[n];
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = unpack_low<width>(rows[i], rows[i + n / 2]);
      next[2 * i + 1] = unpack_high<width>(rows[i], rows[i + n / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
}

// Columns [0, 2n) of n rows into 2n rows of a tile, `pitch` bytes apart.
template <int width>
RESHARD_AVX2 inline void transpose_block(const std::byte* const* rows, std::int64_t offset,
                                         std::byte* tile, std::int64_t pitch) {
  constexpr int n = kBlock<width>;
  __m256i block[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    block[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + offset));
  }
  transpose_halves<width>(block);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    auto* const low = reinterpret_cast<__m128i*>(tile + i * pitch);
    auto* const high = reinterpret_cast<__m128i*>(tile + (i + n) * pitch);
    _mm_store_si128(low, _mm256_castsi256_si128(block[i]));
    _mm_store_si128(high, _mm256_extracti128_si256(block[i], 1));
  }
}

// Both ends of aligned, whole cache lines.
RESHARD_AVX2 inline void stream_lines(std::byte* dst, const std::byte* src, std::int64_t size) {
  for (std::int64_t at = 0; at < size; at += 32) {
    const __m256i value = _mm256_load_si256(reinterpret_cast<const __m256i*>(src + at));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + at), value);
  }
}

std::int64_t misalignment(const std::byte* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer) % 64);
}

// How many elements to take first so that the following tiles begin at a cache line, if one start
// serves all rows.
std::int64_t first_extent(std::int64_t full, std::int64_t width, const std::byte* start,
                          std::int64_t step) {
  const std::int64_t over = misalignment(start) % (full * width);
  if (step % kCacheLine != 0 || over % width != 0) return full;
  return full - over / width;
}

// Rows and columns of the source.
struct Tile {
  std::int64_t row;
  std::int64_t rows;
  std::int64_t column;
  std::int64_t columns;
};

template <int width>
class TiledTranspose {
 public:
  TiledTranspose(const Transpose& shape, std::byte* dst, const std::byte* src, Stores stores)
      : shape_(shape),
        dst_(dst),
        src_(src),
        stores_(stores),
        dst_width_(shape.conversion == nullptr ? width : shape.conversion->to_width()),
        streams_lines_(stores == Stores::kStreaming && shape.dst_step % kCacheLine == 0 &&
                       shape.conversion == nullptr),
        full_rows_(std::min(kTileBytes / dst_width_, kMaxTileRows)),
        first_rows_(first_extent(full_rows_, dst_width_, dst, shape.dst_step)),
        first_columns_(first_extent(kFullColumns, width, src, shape.src_step)) {}

  void run() {
    Tile tile = {0, std::min(first_rows_, shape_.rows), 0,
                 std::min(first_columns_, shape_.columns)};
    while (tile.rows > 0) {
      const Tile next = after(tile);
      const std::byte* const columns = load(tile);
      store(tile, columns, next);
      tile = next;
    }
  }

 private:
  static constexpr std::int64_t n = kBlock<width>;
  static constexpr std::int64_t kFullColumns = kCacheLine / width;
  static constexpr std::int64_t kPitch = kMaxTileRows * width;

  // Along the cache lines of the same source rows first: their pages stay in the TLB. After the
  // last tile comes one without rows.
  Tile after(const Tile& tile) const {
    const std::int64_t column = tile.column + tile.columns;
    if (column < shape_.columns) {
      return {tile.row, tile.rows, column, std::min(kFullColumns, shape_.columns - column)};
    }
    const std::int64_t row = tile.row + tile.rows;
    return {row, std::min(full_rows_, shape_.rows - row), 0,
            std::min(first_columns_, shape_.columns)};
  }

  const std::byte* source(std::int64_t row, std::int64_t column) const {
    return src_ + row * shape_.src_step + column * width;
  }

  std::byte* destination(std::int64_t row, std::int64_t column) const {
    return dst_ + column * shape_.dst_step + row * dst_width_;
  }

  // Transposes into tile_ and returns where its first column is.
  RESHARD_AVX2 const std::byte* load(const Tile& tile) {
    // Fewer columns than a block has: start earlier and transpose some again, or pad.
    const std::int64_t columns = std::max(tile.columns, std::min(2 * n, shape_.columns));
    const std::int64_t column = std::min(tile.column, shape_.columns - columns);
    const std::byte* const src = source(tile.row, column);
    const std::int64_t last_byte = columns * width - 1;
    for (std::int64_t r = 0; r < tile.rows; r += n) {
      const std::byte* rows[n];
      alignas(32) std::byte padded[n][32];
      for (std::int64_t i = 0; i < n; ++i) {
        rows[i] = src + std::min(r + i, tile.rows - 1) * shape_.src_step;
        if (r + i + kNearRows < tile.rows) {
          prefetch_near(rows[i] + kNearRows * shape_.src_step);
          prefetch_near(rows[i] + kNearRows * shape_.src_step + last_byte);
        }
        if (columns < 2 * n) {
          move_below_64(padded[i], rows[i], columns * width);
          rows[i] = padded[i];
        }
      }
      for (std::int64_t c = 0; c < columns; c += 2 * n) {
        // The last block overlaps the one before it when the columns are no whole blocks.
        const std::int64_t at = std::max<std::int64_t>(std::min(c, columns - 2 * n), 0);
        transpose_block<width>(rows, at * width, tile_ + at * kPitch + r * width, kPitch);
      }
    }
    return tile_ + (tile.column - column) * kPitch;
  }

  // Writes the tile out, and spreads the prefetches for the next one over it.
  RESHARD_AVX2 void store(const Tile& tile, const std::byte* columns, const Tile& next) {
    const std::int64_t run = tile.rows * dst_width_;
    const bool whole_lines = streams_lines_ && run % kCacheLine == 0 &&
                             misalignment(destination(tile.row, tile.column)) == 0;
    const RowsFunction copy_rows = rows_function(run, stores_);
    const std::int64_t rows_per_column = (next.rows + tile.columns - 1) / tile.columns;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      const std::int64_t end = std::min(next.rows, (c + 1) * rows_per_column);
      for (std::int64_t r = c * rows_per_column; r < end; ++r) {
        prefetch_far(source(next.row + r, next.column));
        prefetch_far(source(next.row + r, next.column + next.columns) - 1);
      }
      std::byte* const to = destination(tile.row, tile.column + c);
      if (whole_lines) {
        stream_lines(to, columns + c * kPitch, run);
        continue;
      }
      if (next.rows > 0 && c < next.columns) {
        prefetch_run_far(destination(next.row, next.column + c), next.rows * dst_width_);
      }
      if (shape_.conversion != nullptr) {
        shape_.conversion->run(columns + c * kPitch, to, tile.rows, stores_);
      } else {
        copy_rows(to, 0, columns + c * kPitch, 0, 1, run);
      }
    }
  }

  const Transpose shape_;
  std::byte* const dst_;
  const std::byte* const src_;
  const Stores stores_;
  const std::int64_t dst_width_;
  const bool streams_lines_;
  const std::int64_t full_rows_;
  const std::int64_t first_rows_;
  const std::int64_t first_columns_;
  alignas(64) std::byte tile_[kFullColumns * kPitch];
};

template <int width>
void transpose_in_tiles(const Transpose& shape, std::byte* dst, const std::byte* src,
                        Stores stores) {
  TiledTranspose<width>(shape, dst, src, stores).run();
}

}  // namespace

TransposeFunction transpose_function(std::int64_t width) {
  if (!cpu_features().avx2) return nullptr;
  switch (width) {
    case 1:
      return transpose_in_tiles<1>;
    case 2:
      return transpose_in_tiles<2>;
    case 4:
      return transpose_in_tiles<4>;
    case 8:
      return transpose_in_tiles<8>;
    case 16:
      return transpose_in_tiles<16>;
    default:
      return nullptr;
  }
}

#else

TransposeFunction transpose_function(std::int64_t /*width*/) { return nullptr; }

#endif  // defined(__x86_64__)

}  // namespace reshard

// Moves whose sides are in different order: through a tile in the memory that a block shares, so
// that both sides are touched along the dim in which their elements are close together.
#ifndef RESHARD_NATIVE_KERNELS_TRANSPOSE_H_
#define RESHARD_NATIVE_KERNELS_TRANSPOSE_H_

#include <cstdint>

#include "cast_scalar.h"
#include "kernels/cast_rows.h"
#include "kernels/copy_rows.h"
#include "kernels/memory_access.h"
#include "kernels/move_tile.h"

namespace reshard::kernels {

// Large enough for every tile: see edge_log2_of and pitch_of.
constexpr std::uint32_t kSharedBytes = 16896;

// Tiles of 128 x 128 elements of 1 byte, 64 x 64 of 2 and 4, 32 x 32 of 8 and 16: at least 128
// bytes in a row on both sides, and enough work for a block. `width` is the larger of the two.
inline int edge_log2_of(std::int64_t width) {
  if (width == 1) return 7;
  return width <= 4 ? 6 : 5;
}

// Elements below 4 bytes go through the tile in words of 4: a word holds `kPerWord` elements that
// are neighbours in the source, and a block of kPerWord words becomes as many words of the
// destination.
template <int width>
constexpr std::uint32_t kPerWord = width < 4 ? 4 / width : 1;

template <int width>
constexpr int kWordBytes = width < 4 ? 4 : width;

// Words from one row of a tile to the next; odd, so that a column lies in all banks.
template <int width>
std::uint32_t pitch_of(int edge_log2) {
  return ((1U << edge_log2) / kPerWord<width>)+1;
}

struct PlaneDim {
  std::uint32_t size;
  std::int64_t src;
  std::int64_t dst;
};

// One tile: rows and columns of the source. Columns are close together in the source, rows in the
// destination.
struct Plane {
  const std::uint8_t* src;
  std::uint8_t* dst;
  PlaneDim row;
  PlaneDim column;
  int edge_log2;
  DType from;
  DType to;
  bool has_cast;
  const std::uint64_t* affine;  // the numbers by which values change, or null; then has_cast
  std::uint32_t src_bits;  // addresses of elements are multiples of the powers of two dividing this
  std::uint32_t dst_bits;
};

inline std::int64_t tile_extent(std::int64_t size, std::int64_t first, int edge_log2) {
  const std::int64_t rest = size - first;
  const std::int64_t edge = std::int64_t{1} << edge_log2;
  return rest < edge ? rest : edge;
}

template <Way way>
Plane plane_of(const Launch& launch, const Tile& tile, const Shape& shape) {
  const std::uint64_t* const record = tile.record;
  Sides sides = sides_of<way>(launch, record);
  const std::uint32_t inner_tiles = high_half(record[kBlockWord]);
  const std::uint32_t outer_tiles = low_half(record[kBlockWord]);
  const std::uint32_t rest = tile.index / inner_tiles;
  advance_outer(sides, record, shape.ndim - 2, rest / outer_tiles);
  const MoveDim near_memory = dim_of(record, shape.ndim - 2);
  const MoveDim near_wire = dim_of(record, shape.ndim - 1);
  const std::int64_t first_memory = static_cast<std::int64_t>(rest % outer_tiles)
                                    << shape.edge_log2;
  const std::int64_t first_wire = static_cast<std::int64_t>(tile.index % inner_tiles)
                                  << shape.edge_log2;
  sides.advance(first_memory, near_memory);
  sides.advance(first_wire, near_wire);
  const auto memory_size =
      static_cast<std::uint32_t>(tile_extent(near_memory.size, first_memory, shape.edge_log2));
  const auto wire_size =
      static_cast<std::uint32_t>(tile_extent(near_wire.size, first_wire, shape.edge_log2));
  const std::uint32_t memory_bits = low_bits(sides.memory) | shape.memory_stride_bits;
  const std::uint32_t wire_bits = low_bits(sides.wire) | shape.wire_stride_bits;
  const bool has_cast = record[kRunWord] == 0;
  const std::uint64_t* const affine = shape.is_changed ? affine_words(record, shape.ndim) : nullptr;
  if constexpr (way == Way::kPack) {
    return {sides.memory,
            sides.wire,
            {wire_size, near_wire.memory, near_wire.wire},
            {memory_size, near_memory.memory, near_memory.wire},
            shape.edge_log2,
            shape.memory,
            shape.wire,
            has_cast,
            affine,
            memory_bits,
            wire_bits};
  }
  return {sides.wire,
          sides.memory,
          {memory_size, near_memory.wire, near_memory.memory},
          {wire_size, near_wire.wire, near_wire.memory},
          shape.edge_log2,
          shape.wire,
          shape.memory,
          has_cast,
          affine,
          wire_bits,
          memory_bits};
}

// Where the tile holds an element.
template <int width>
std::uint32_t shared_place(const Plane& plane, std::uint32_t row, std::uint32_t column) {
  return row * (pitch_of<width>(plane.edge_log2) * kWordBytes<width>)+column * width;
}

// One element after the other: for any strides and alignment, and for what is no whole word.
template <int width>
void load_elements(const Plane& plane, std::uint32_t first_column, const Thread& thread,
                   std::uint8_t* shared) {
  const std::uint32_t columns = plane.column.size - first_column;
  const bool is_aligned = plane.src_bits % width == 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t at = thread.index; at < plane.row.size * columns; at += thread.count) {
    const std::uint32_t row = at / columns;
    const std::uint32_t column = first_column + at % columns;
    const std::uint8_t* const address = plane.src + row * plane.row.src + column * plane.column.src;
    store_shared<width>(shared + shared_place<width>(plane, row, column),
                        load_element<width>(address, is_aligned));
  }
}

// The same with a cast of any pair.
template <int width>
void load_cast_elements(const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  const std::uint32_t columns = plane.column.size;
  const std::uint32_t src_width = width_of(plane.from);
  const bool is_aligned = plane.src_bits % src_width == 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t at = thread.index; at < plane.row.size * columns; at += thread.count) {
    const std::uint32_t row = at / columns;
    const std::uint32_t column = at % columns;
    const std::uint8_t* const address = plane.src + row * plane.row.src + column * plane.column.src;
    const std::uint64_t bits =
        convert(plane.from, plane.to, load_bits(address, src_width, is_aligned));
    store_shared<width>(shared + shared_place<width>(plane, row, column),
                        static_cast<Word<width>>(bits));
  }
}

// Whole words of the source's rows. Returns how many columns these are.
template <int width>
std::uint32_t load_words(const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  constexpr int bytes = kWordBytes<width>;
  // The step from column to column is the width of an element, so it does not count here.
  const std::uint32_t bits = low_bits(plane.src) | static_cast<std::uint32_t>(plane.row.src);
  if (plane.column.src != width || bits % bytes != 0) return 0;
  const std::uint32_t per_row = (1U << plane.edge_log2) / kPerWord<width>;
  const std::uint32_t used = plane.column.size / kPerWord<width>;
  const std::uint32_t total = plane.row.size * per_row;
  RESHARD_NO_UNROLL
  for (std::uint32_t first = thread.index; first < total; first += kBatch * thread.count) {
    Word<bytes> words[kBatch] = {};
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t at = first + i * thread.count;
      if (at >= total || at % per_row >= used) continue;
      words[i] = load<bytes>(plane.src + at / per_row * plane.row.src + at % per_row * bytes);
    }
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t at = first + i * thread.count;
      if (at >= total || at % per_row >= used) continue;
      const std::uint32_t place =
          shared_place<width>(plane, at / per_row, at % per_row * kPerWord<width>);
      store_shared<bytes>(shared + place, words[i]);
    }
  }
  return used * kPerWord<width>;
}

// Elements of a pair that is known here, so that several loads are under way at once.
template <DType from, DType to>
void load_cast(const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  constexpr int src_width = kWidth<from>;
  constexpr int width = kWidth<to>;
  const std::uint32_t edge = 1U << plane.edge_log2;
  const std::uint32_t total = plane.row.size * edge;
  RESHARD_NO_UNROLL
  for (std::uint32_t first = thread.index; first < total; first += kBatch * thread.count) {
    Word<src_width> elements[kBatch] = {};
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t at = first + i * thread.count;
      if (at >= total || at % edge >= plane.column.size) continue;
      elements[i] =
          load<src_width>(plane.src + at / edge * plane.row.src + at % edge * plane.column.src);
    }
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t at = first + i * thread.count;
      if (at >= total || at % edge >= plane.column.size) continue;
      store_shared<width>(shared + shared_place<width>(plane, at / edge, at % edge),
                          convert<from, to>(elements[i]));
    }
  }
}

// Returns whether it was such a pair, and aligned.
template <int width>
bool load_known_cast(const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  if (plane.src_bits % width_of(plane.from) != 0) return false;
  const auto is = [&](DType from, DType to) { return plane.from == from && plane.to == to; };
  constexpr DType f32 = DType::kF32;
  constexpr DType bf16 = DType::kBF16;
  constexpr DType f16 = DType::kF16;
  if constexpr (width == 2) {
    if (is(f32, bf16)) return load_cast<f32, bf16>(plane, thread, shared), true;
    if (is(f32, f16)) return load_cast<f32, f16>(plane, thread, shared), true;
  } else if constexpr (width == 4) {
    if (is(bf16, f32)) return load_cast<bf16, f32>(plane, thread, shared), true;
    if (is(f16, f32)) return load_cast<f16, f32>(plane, thread, shared), true;
  }
  return false;
}

template <int width>
void load_plane(const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  if constexpr (width <= 8) {
    if (plane.has_cast) {
      if (load_known_cast<width>(plane, thread, shared)) return;
      return load_cast_elements<width>(plane, thread, shared);
    }
  }
  const std::uint32_t done = load_words<width>(plane, thread, shared);
  if (done < plane.column.size) load_elements<width>(plane, done, thread, shared);
}

// Whole words of the destination's columns. Returns how many rows these are.
//
// Lane l of a warp takes the rows of word l % (32 / kPerWord) and one of kPerWord neighbouring
// columns of words: these lie in different banks, and stores still make whole sectors.
template <int width>
std::uint32_t store_words(const Plane& plane, const Thread& thread, const std::uint8_t* shared) {
  constexpr int bytes = kWordBytes<width>;
  constexpr std::uint32_t per_word = kPerWord<width>;
  constexpr std::uint32_t lanes = 32 / per_word;
  const std::uint32_t bits = low_bits(plane.dst) | static_cast<std::uint32_t>(plane.column.dst);
  if (plane.row.dst != width || bits % bytes != 0) return 0;
  const std::uint32_t words = (1U << plane.edge_log2) / per_word;  // of a row, and of a column
  const std::uint32_t steps = words / lanes;
  const std::uint32_t rows = plane.row.size - plane.row.size % per_word;
  for (std::uint32_t at = thread.index; at < words * words; at += thread.count) {
    const std::uint32_t row = (at % lanes + lanes * (at / 32 % steps)) * per_word;
    const std::uint32_t column = (at / lanes % per_word + per_word * (at / 32 / steps)) * per_word;
    if (row >= rows || column >= plane.column.size) continue;
    Word<bytes> block[per_word];
    for (std::uint32_t i = 0; i < per_word; ++i) {
      block[i] = load_shared<bytes>(shared + shared_place<width>(plane, row + i, column));
    }
    for (std::uint32_t j = 0; j < per_word; ++j) {
      if (column + j >= plane.column.size) break;
      Word<bytes> word = {};
      for (std::uint32_t i = 0; i < per_word; ++i) {
        set_part<bytes, width>(word, static_cast<int>(i),
                               part_of<bytes, width>(block[i], static_cast<int>(j)));
      }
      store<bytes>(plane.dst + row * width + (column + j) * plane.column.dst, word);
    }
  }
  return rows;
}

template <int width>
void store_elements(const Plane& plane, std::uint32_t first_row, const Thread& thread,
                    const std::uint8_t* shared) {
  const std::uint32_t rows = plane.row.size - first_row;
  const bool is_aligned = plane.dst_bits % width == 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t at = thread.index; at < plane.column.size * rows; at += thread.count) {
    const std::uint32_t row = first_row + at % rows;
    const std::uint32_t column = at / rows;
    store_element<width>(plane.dst + row * plane.row.dst + column * plane.column.dst,
                         load_shared<width>(shared + shared_place<width>(plane, row, column)),
                         is_aligned);
  }
}

template <int width>
void store_plane(const Plane& plane, const Thread& thread, const std::uint8_t* shared) {
  const std::uint32_t done = store_words<width>(plane, thread, shared);
  if (done < plane.row.size) store_elements<width>(plane, done, thread, shared);
}

// Elements whose values change, of any pair. One function for all widths: the steps are long code.
inline void load_changed_elements(const Plane& plane, std::uint32_t width, const Thread& thread,
                                  std::uint8_t* shared) {
  const ChangeAndCast change = {plane.from, plane.to, plane.affine};
  const std::uint32_t columns = plane.column.size;
  const std::uint32_t src_width = width_of(plane.from);
  const bool is_aligned = plane.src_bits % src_width == 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t at = thread.index; at < plane.row.size * columns; at += thread.count) {
    const std::uint32_t row = at / columns;
    const std::uint32_t column = at % columns;
    const std::uint8_t* const address = plane.src + row * plane.row.src + column * plane.column.src;
    const std::uint64_t bits = change(load_bits(address, src_width, is_aligned));
    switch (width) {
      case 1:
        store_shared<1>(shared + shared_place<1>(plane, row, column), static_cast<Word<1>>(bits));
        break;
      case 2:
        store_shared<2>(shared + shared_place<2>(plane, row, column), static_cast<Word<2>>(bits));
        break;
      case 4:
        store_shared<4>(shared + shared_place<4>(plane, row, column), static_cast<Word<4>>(bits));
        break;
      default:
        store_shared<8>(shared + shared_place<8>(plane, row, column), bits);
    }
  }
}

enum class Phase { kLoad, kStore };

template <int width>
void run_phase(Phase phase, const Plane& plane, const Thread& thread, std::uint8_t* shared) {
  if (phase == Phase::kLoad) return load_plane<width>(plane, thread, shared);
  store_plane<width>(plane, thread, shared);
}

// The two halves of a transpose; all threads finish the first before any begins the second.
template <Way way>
void transpose(Phase phase, const Launch& launch, const Tile& tile, const Shape& shape,
               const Thread& thread, std::uint8_t* shared) {
  const Plane plane = plane_of<way>(launch, tile, shape);
  const std::uint32_t width =
      plane.has_cast ? width_of(plane.to) : static_cast<std::uint32_t>(tile.record[kRunWord]);
  if (phase == Phase::kLoad && plane.affine != nullptr) {
    return load_changed_elements(plane, width, thread, shared);
  }
  switch (width) {
    case 1:
      return run_phase<1>(phase, plane, thread, shared);
    case 2:
      return run_phase<2>(phase, plane, thread, shared);
    case 4:
      return run_phase<4>(phase, plane, thread, shared);
    case 8:
      return run_phase<8>(phase, plane, thread, shared);
    default:
      return run_phase<16>(phase, plane, thread, shared);
  }
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_TRANSPOSE_H_

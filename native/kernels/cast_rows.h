// Moves of runs of elements that change their dtype on the way.
#ifndef RESHARD_NATIVE_KERNELS_CAST_ROWS_H_
#define RESHARD_NATIVE_KERNELS_CAST_ROWS_H_

#include <cstdint>

#include "affine.h"
#include "cast_scalar.h"
#include "kernels/copy_rows.h"
#include "kernels/memory_access.h"
#include "kernels/move_tile.h"

namespace reshard::kernels {

template <DType dtype>
constexpr int kWidth = static_cast<int>(sizeof(typename Codec<dtype>::Bits));

template <DType from, DType to, int count>
Word<count * kWidth<to>> convert_word(const Word<count * kWidth<from>>& word) {
  Word<count * kWidth<to>> out = {};
  for (int i = 0; i < count; ++i) {
    set_part<count * kWidth<to>, kWidth<to>>(
        out, i, convert<from, to>(part_of<count * kWidth<from>, kWidth<from>>(word, i)));
  }
  return out;
}

inline std::uint32_t width_of(DType castable) {
  if (castable == DType::kF64) return 8;
  if (castable == DType::kF32) return 4;
  return castable == DType::kF16 || castable == DType::kBF16 ? 2 : 1;
}

// One tile of casts, as the elements go.
struct CastTile {
  const std::uint8_t* src;
  std::uint8_t* dst;
  std::uint32_t src_bits;  // addresses of runs are multiples of the powers of two that divide this
  std::uint32_t dst_bits;
};

template <Way way>
CastTile cast_tile_of(const Shape& shape, const RowsTile& rows) {
  const std::uint32_t memory_bits = low_bits(rows.sides.memory) | shape.memory_stride_bits;
  const std::uint32_t wire_bits = low_bits(rows.sides.wire) | shape.wire_stride_bits;
  if constexpr (way == Way::kPack) {
    return {rows.sides.memory, rows.sides.wire, memory_bits, wire_bits};
  }
  return {rows.sides.wire, rows.sides.memory, wire_bits, memory_bits};
}

// What happens to the bits of an element of any pair.
struct CastAlone {
  DType from;
  DType to;
  std::uint64_t operator()(std::uint64_t bits) const { return convert(from, to, bits); }
};

struct ChangeAndCast {
  DType from;
  DType to;
  const std::uint64_t* numbers;  // stay in memory: they would be twelve registers
  std::uint64_t operator()(std::uint64_t bits) const {
    return convert(from, to, bits, affine_of(numbers));
  }
};

inline const std::uint64_t* affine_words(const std::uint64_t* record, int ndim) {
  return record + kFirstDimWord + kWordsPerDim * ndim;
}

// Elements one at a time, of any pair and any alignment; of each run those from `first` on.
template <Way way, typename Convert>
void cast_elements(const Tile& tile, const Shape& shape, const RowsTile& rows, std::uint32_t first,
                   const Thread& thread, const Convert& convert_bits) {
  const CastTile cast = cast_tile_of<way>(shape, rows);
  const std::uint32_t from_width = width_of(convert_bits.from);
  const std::uint32_t to_width = width_of(convert_bits.to);
  const bool is_src_aligned = cast.src_bits % from_width == 0;
  const bool is_dst_aligned = cast.dst_bits % to_width == 0;
  const UnitsOfDims units(tile, shape, rows.rows, static_cast<std::uint32_t>(rows.run));
  RESHARD_NO_UNROLL
  for (std::uint32_t i = first + thread.index; i < units.total(); i += thread.count) {
    const Offsets at = units.at(i, width_of(shape.memory), width_of(shape.wire));
    const std::uint8_t* const src = cast.src + (way == Way::kPack ? at.memory : at.wire);
    std::uint8_t* const dst = cast.dst + (way == Way::kPack ? at.wire : at.memory);
    const std::uint64_t bits = convert_bits(load_bits(src, from_width, is_src_aligned));
    store_bits(dst, bits, to_width, is_dst_aligned);
  }
}

// Vectors of elements, for the pairs that weights are cast between. Returns how many elements of
// each run that did: all, or none where the addresses do not allow it, or all but the end of a
// single run.
template <Way way, DType from, DType to>
std::uint32_t cast_vectors(const Tile& tile, const Shape& shape, const RowsTile& rows,
                           const Thread& thread) {
  constexpr bool packs = way == Way::kPack;
  constexpr std::uint32_t width = kWidth<from> > kWidth<to> ? kWidth<from> : kWidth<to>;
  constexpr std::uint32_t count = 16 / width;
  constexpr int src_bytes = count * kWidth<from>;
  constexpr int dst_bytes = count * kWidth<to>;
  // Loads under way at once; more elements in each make up for fewer of them.
  constexpr std::uint32_t batch = count > 4 ? 2 : 4;
  const CastTile cast = cast_tile_of<way>(shape, rows);
  const auto run = static_cast<std::uint32_t>(rows.run);
  const bool is_one_run = shape.split == shape.ndim;
  if (cast.src_bits % src_bytes != 0 || cast.dst_bits % dst_bytes != 0 || run < count ||
      (run % count != 0 && !is_one_run) || num_tile_dims(shape) > 1) {
    return 0;
  }
  const Units units(tile, shape, rows.rows, run / count, packs ? src_bytes : dst_bytes,
                    packs ? dst_bytes : src_bytes);
  RESHARD_NO_UNROLL
  for (std::uint32_t first = thread.index; first < units.total(); first += batch * thread.count) {
    Word<src_bytes> words[batch] = {};
    std::int64_t to_offsets[batch] = {};
    for (std::uint32_t i = 0; i < batch; ++i) {
      const std::uint32_t unit = first + i * thread.count;
      if (unit >= units.total()) continue;
      const Offsets at = units.at(unit);
      to_offsets[i] = packs ? at.wire : at.memory;
      words[i] = load<src_bytes>(cast.src + (packs ? at.memory : at.wire));
    }
    for (std::uint32_t i = 0; i < batch; ++i) {
      if (first + i * thread.count >= units.total()) continue;
      store<dst_bytes>(cast.dst + to_offsets[i],
                       convert_word<from, to, static_cast<int>(count)>(words[i]));
    }
  }
  return run - run % count;
}

template <Way way>
std::uint32_t cast_known_vectors(const Tile& tile, const Shape& shape, const RowsTile& rows,
                                 const Thread& thread) {
  const auto is = [&](DType memory, DType wire) {
    return shape.memory == memory && shape.wire == wire;
  };
  constexpr DType f32 = DType::kF32;
  constexpr DType bf16 = DType::kBF16;
  constexpr DType f16 = DType::kF16;
  constexpr DType e4m3 = DType::kF8E4M3FN;
  if constexpr (way == Way::kPack) {
    if (is(f32, bf16)) return cast_vectors<way, f32, bf16>(tile, shape, rows, thread);
    if (is(f32, f16)) return cast_vectors<way, f32, f16>(tile, shape, rows, thread);
    if (is(f32, e4m3)) return cast_vectors<way, f32, e4m3>(tile, shape, rows, thread);
    if (is(bf16, e4m3)) return cast_vectors<way, bf16, e4m3>(tile, shape, rows, thread);
  } else {
    if (is(f32, bf16)) return cast_vectors<way, bf16, f32>(tile, shape, rows, thread);
    if (is(f32, f16)) return cast_vectors<way, f16, f32>(tile, shape, rows, thread);
    if (is(f32, e4m3)) return cast_vectors<way, e4m3, f32>(tile, shape, rows, thread);
    if (is(bf16, e4m3)) return cast_vectors<way, e4m3, bf16>(tile, shape, rows, thread);
  }
  return 0;
}

template <Way way>
void cast_rows(const Launch& launch, const Tile& tile, const Shape& shape, const Thread& thread) {
  const RowsTile rows = rows_tile(sides_of<way>(launch, tile.record), shape, tile,
                                  width_of(shape.memory), width_of(shape.wire));
  const DType from = way == Way::kPack ? shape.memory : shape.wire;
  const DType to = way == Way::kPack ? shape.wire : shape.memory;
  if (shape.is_changed) {
    const ChangeAndCast change = {from, to, affine_words(tile.record, shape.ndim)};
    return cast_elements<way>(tile, shape, rows, 0, thread, change);
  }
  const std::uint32_t done = cast_known_vectors<way>(tile, shape, rows, thread);
  if (done == rows.run) return;
  cast_elements<way>(tile, shape, rows, done, thread, CastAlone{from, to});
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_CAST_ROWS_H_

// Moves of runs of bytes.
#ifndef RESHARD_NATIVE_KERNELS_COPY_ROWS_H_
#define RESHARD_NATIVE_KERNELS_COPY_ROWS_H_

#include <cstdint>

#include "kernels/memory_access.h"
#include "kernels/move_tile.h"

namespace reshard::kernels {

// Loads of a thread that are under way at once: their latency is what a copy waits for.
constexpr std::uint32_t kBatch = 4;

// The threads that work on a tile, and which of them this one is.
struct Thread {
  std::uint32_t index;
  std::uint32_t count;
};

template <Way way, int size>
void move_units(const Units& units, const Sides& sides, const Thread& thread) {
  const std::uint8_t* const src = way == Way::kPack ? sides.memory : sides.wire;
  std::uint8_t* const dst = way == Way::kPack ? sides.wire : sides.memory;
  RESHARD_NO_UNROLL
  for (std::uint32_t first = thread.index; first < units.total(); first += kBatch * thread.count) {
    Word<size> words[kBatch] = {};
    std::int64_t to[kBatch] = {};
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t unit = first + i * thread.count;
      if (unit >= units.total()) continue;
      const Offsets at = units.at(unit);
      to[i] = way == Way::kPack ? at.wire : at.memory;
      words[i] = load<size>(src + (way == Way::kPack ? at.memory : at.wire));
    }
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      if (first + i * thread.count < units.total()) store<size>(dst + to[i], words[i]);
    }
  }
}

template <Way way>
void move_bytes(const Sides& sides, std::uint32_t begin, std::uint32_t end, const Thread& thread) {
  const std::uint8_t* const src = way == Way::kPack ? sides.memory : sides.wire;
  std::uint8_t* const dst = way == Way::kPack ? sides.wire : sides.memory;
  RESHARD_NO_UNROLL
  for (std::uint32_t i = begin + thread.index; i < end; i += thread.count) {
    store<1>(dst + i, load<1>(src + i));
  }
}

// Units of `size` bytes, one after the other.
template <Way way>
void move_units_of_dims(std::uint32_t size, const Tile& tile, const Shape& shape,
                        const RowsTile& rows, const Thread& thread) {
  const std::uint8_t* const src = way == Way::kPack ? rows.sides.memory : rows.sides.wire;
  std::uint8_t* const dst = way == Way::kPack ? rows.sides.wire : rows.sides.memory;
  const UnitsOfDims units(tile, shape, rows.rows, static_cast<std::uint32_t>(rows.run) / size);
  RESHARD_NO_UNROLL
  for (std::uint32_t i = thread.index; i < units.total(); i += thread.count) {
    const Offsets at = units.at(i, size, size);
    const std::uint8_t* const from = src + (way == Way::kPack ? at.memory : at.wire);
    std::uint8_t* const to = dst + (way == Way::kPack ? at.wire : at.memory);
    if (size == 16) {
      store<16>(to, load<16>(from));
    } else {
      store_bits(to, load_bits(from, size, true), size, true);
    }
  }
}

// The largest power of two up to 16 that divides everything whose low bits are or-ed in `bits`.
inline std::uint32_t common_alignment(std::uint32_t bits) {
  const std::uint32_t all = bits | 16U;
  return all & (0U - all);
}

template <Way way>
void move_units_of(std::uint32_t size, const Tile& tile, const Shape& shape, const RowsTile& rows,
                   const Thread& thread) {
  if (num_tile_dims(shape) > 1) {
    return move_units_of_dims<way>(size, tile, shape, rows, thread);
  }
  const auto run = static_cast<std::uint32_t>(rows.run);
  const auto units = [&](std::uint32_t width) {
    return Units(tile, shape, rows.rows, run / width, width, width);
  };
  switch (size) {
    case 16:
      return move_units<way, 16>(units(16), rows.sides, thread);
    case 8:
      return move_units<way, 8>(units(8), rows.sides, thread);
    case 4:
      return move_units<way, 4>(units(4), rows.sides, thread);
    case 2:
      return move_units<way, 2>(units(2), rows.sides, thread);
    default:
      return move_units<way, 1>(units(1), rows.sides, thread);
  }
}

// One run, or a part of it: up to 15 bytes at either end are moved one by one, so that the rest is
// aligned if both sides can be aligned at once.
template <Way way>
void move_run(const Tile& tile, const Shape& shape, const RowsTile& rows, const Thread& thread) {
  const std::uint32_t difference = low_bits(rows.sides.memory) ^ low_bits(rows.sides.wire);
  const std::uint32_t size = common_alignment(difference);
  const auto run = static_cast<std::uint32_t>(rows.run);
  std::uint32_t head = (0U - low_bits(rows.sides.memory)) & (size - 1);
  if (head > run) head = run;
  const std::uint32_t body = (run - head) & ~(size - 1);
  move_bytes<way>(rows.sides, 0, head, thread);
  move_bytes<way>(rows.sides, head + body, run, thread);
  if (body == 0) return;
  RowsTile aligned = rows;
  aligned.sides.advance(head, {0, 1, 1});
  aligned.run = body;
  move_units_of<way>(size, tile, shape, aligned, thread);
}

template <Way way>
void move_rows(const Launch& launch, const Tile& tile, const Shape& shape, const Thread& thread) {
  const RowsTile rows = rows_tile(sides_of<way>(launch, tile.record), shape, tile, 1, 1);
  if (shape.split == shape.ndim) return move_run<way>(tile, shape, rows, thread);
  const std::uint32_t bits = low_bits(rows.sides.memory) | shape.memory_stride_bits |
                             low_bits(rows.sides.wire) | shape.wire_stride_bits |
                             static_cast<std::uint32_t>(rows.run);
  move_units_of<way>(common_alignment(bits), tile, shape, rows, thread);
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_COPY_ROWS_H_

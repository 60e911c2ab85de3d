// Which part of which move a tile is, and where its units lie.
#ifndef RESHARD_NATIVE_KERNELS_MOVE_TILE_H_
#define RESHARD_NATIVE_KERNELS_MOVE_TILE_H_

#include <cstdint>

#include "kernels/memory_access.h"
#include "kernels/move_record.h"

namespace reshard::kernels {

// Which side is read.
enum class Way { kPack, kUnpack };

// The parameters of a kernel.
struct Launch {
  const std::uint64_t* table;
  const std::uint64_t* addresses;
  std::uint8_t* message;
  std::uint32_t num_moves;
  std::uint32_t num_tiles;
};

struct Tile {
  std::uint32_t move;
  std::uint32_t index;  // in its move
  const std::uint64_t* record;
};

// The move of a tile. Tiles are asked for in ascending order, so the search begins at the move of
// the last one.
inline Tile find_tile(const Launch& launch, std::uint32_t tile, std::uint32_t first_move) {
  std::uint32_t low = first_move;
  std::uint32_t high = launch.num_moves;  // the first tile of move `low` is not after the tile
  // Often it is the same move again, or the next.
  if (low + 1 < high && high_half(launch.table[low + 1]) > tile) high = low + 1;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (high_half(launch.table[middle]) <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::uint64_t entry = launch.table[low];
  return {low, tile - high_half(entry), launch.table + low_half(entry)};
}

// Both sides of a move.
struct Sides {
  std::uint8_t* memory;
  std::uint8_t* wire;

  void advance(std::int64_t index, const MoveDim& dim) {
    memory += index * dim.memory;
    wire += index * dim.wire;
  }
};

inline std::uint8_t* address_of(std::uint64_t number) {
  return reinterpret_cast<std::uint8_t*>(number);
}

template <Way way>
Sides sides_of(const Launch& launch, const std::uint64_t* record) {
  const std::uint64_t buffers = record[kBuffersWord];
  const auto memory_offset = static_cast<std::int64_t>(record[kMemoryOffsetWord]);
  std::uint8_t* const memory = address_of(launch.addresses[low_half(buffers)]) + memory_offset;
  const std::uint32_t other = high_half(buffers);
  std::uint8_t* const wire =
      other == kStaging ? launch.message : address_of(launch.addresses[other]);
  return {memory, wire + static_cast<std::int64_t>(record[kWireOffsetWord])};
}

// Advances to the index of the dims before `num_dims` that is number `index` in row-major order. A
// move has less than 2**32 tiles, so these sizes fit into 32 bits.
inline void advance_outer(Sides& sides, const std::uint64_t* record, int num_dims,
                          std::uint32_t index) {
  RESHARD_NO_UNROLL
  for (int k = num_dims - 1; k >= 0; --k) {
    const MoveDim dim = dim_of(record, k);
    const auto size = static_cast<std::uint32_t>(dim.size);
    const std::uint32_t rest = index / size;
    sides.advance(index - rest * size, dim);
    index = rest;
  }
}

// The part of a move of rows or casts that is one tile.
struct RowsTile {
  Sides sides;
  std::uint64_t run;   // bytes or elements of each run
  std::uint32_t rows;  // indices of the dim that is cut; 1 where the run is cut
};

// `memory_step` and `wire_step` are the bytes from one unit of the run to the next.
inline RowsTile rows_tile(const Sides& start, const Shape& shape, const Tile& tile,
                          std::int64_t memory_step, std::int64_t wire_step) {
  const std::uint64_t* const record = tile.record;
  const std::uint32_t block = low_half(record[kBlockWord]);
  const std::uint32_t num_blocks = high_half(record[kBlockWord]);
  const std::uint32_t outer = tile.index / num_blocks;
  const std::int64_t first = static_cast<std::int64_t>(tile.index - outer * num_blocks) * block;
  RowsTile out = {start, record[kRunWord], 1};
  advance_outer(out.sides, record, shape.split, outer);
  if (shape.split == shape.ndim) {
    out.sides.advance(first, {0, memory_step, wire_step});
    const std::uint64_t rest = out.run - static_cast<std::uint64_t>(first);
    out.run = rest < block ? rest : block;
  } else {
    const MoveDim dim = dim_of(record, shape.split);
    out.sides.advance(first, dim);
    const std::int64_t rest = dim.size - first;
    out.rows = rest < block ? static_cast<std::uint32_t>(rest) : block;
  }
  return out;
}

// Relative to the start of a tile.
struct Offsets {
  std::int64_t memory;
  std::int64_t wire;
};

// Of index number `row`, in row-major order, of the record's dims from `first` to `last`.
inline Offsets offsets_of_row(const std::uint64_t* record, int first, int last, std::uint32_t row) {
  Offsets out = {0, 0};
  RESHARD_NO_UNROLL
  for (int k = last; k > first; --k) {
    const MoveDim dim = dim_of(record, k);
    const auto size = static_cast<std::uint32_t>(dim.size);
    const std::uint32_t rest = row / size;
    out.memory += (row - rest * size) * dim.memory;
    out.wire += (row - rest * size) * dim.wire;
    row = rest;
  }
  const MoveDim dim = dim_of(record, first);
  return {out.memory + row * dim.memory, out.wire + row * dim.wire};
}

// Dims that a tile has.
inline int num_tile_dims(const Shape& shape) { return shape.ndim - shape.split; }

// Where the units of a tile of at most one dim lie. A unit is what one thread moves at once; a tile
// has at most 2**15.
class Units {
 public:
  Units(const Tile& tile, const Shape& shape, std::uint32_t rows, std::uint32_t units_per_run,
        std::int64_t memory_step, std::int64_t wire_step)
      : units_per_run_(units_per_run),
        total_(rows * units_per_run),
        memory_step_(memory_step),
        wire_step_(wire_step),
        row_({0, 0, 0}) {
    if (num_tile_dims(shape) == 0) return;
    // Rounded up, so that the product's upper half is the quotient: exact while dividend * divisor
    // is below 2**32. Zero stands for 2**32, which is what a divisor of 1 needs.
    reciprocal_ = 0xFFFFFFFFU / units_per_run + 1;
    row_ = dim_of(tile.record, shape.split);
  }

  std::uint32_t total() const { return total_; }

  Offsets at(std::uint32_t unit) const {
    const std::uint32_t row =
        reciprocal_ == 0
            ? unit
            : static_cast<std::uint32_t>((static_cast<std::uint64_t>(unit) * reciprocal_) >> 32);
    const std::uint32_t column = unit - row * units_per_run_;
    return {row * row_.memory + column * memory_step_, row * row_.wire + column * wire_step_};
  }

 private:
  std::uint32_t units_per_run_;
  std::uint32_t total_;
  std::int64_t memory_step_;
  std::int64_t wire_step_;
  MoveDim row_;
  std::uint32_t reciprocal_ = 1;  // of a number that is larger than any unit: one row
};

// The same for any number of dims: short runs of small dims, so speed is not made here.
class UnitsOfDims {
 public:
  UnitsOfDims(const Tile& tile, const Shape& shape, std::uint32_t rows, std::uint32_t units_per_run)
      : units_per_run_(units_per_run),
        total_(rows * units_per_run),
        record_(tile.record),
        first_(shape.split),
        last_(shape.ndim - 1) {
    RESHARD_NO_UNROLL
    for (int k = first_ + 1; k <= last_; ++k) {
      total_ *= static_cast<std::uint32_t>(dim_of(record_, k).size);
    }
  }

  std::uint32_t total() const { return total_; }

  Offsets at(std::uint32_t unit, std::int64_t memory_step, std::int64_t wire_step) const {
    const std::uint32_t row = unit / units_per_run_;
    const std::uint32_t column = unit - row * units_per_run_;
    Offsets out = {0, 0};
    if (first_ <= last_) out = offsets_of_row(record_, first_, last_, row);
    return {out.memory + column * memory_step, out.wire + column * wire_step};
  }

 private:
  std::uint32_t units_per_run_;
  std::uint32_t total_;
  const std::uint64_t* record_;
  int first_;  // the dims of the tile
  int last_;
};

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_MOVE_TILE_H_

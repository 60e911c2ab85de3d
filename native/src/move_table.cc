#include "move_table.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/transpose.h"
#include "pack_parts.h"

namespace reshard {

using kernels::MoveDim;
using kernels::MoveKind;
using kernels::Shape;

// A box that is strided on both sides.
struct MoveTable::Box {
  std::uint32_t memory_buffer;
  std::uint32_t wire_buffer;
  std::int64_t memory_offset;
  std::int64_t wire_offset;
  DType memory;
  DType wire;
  std::int64_t memory_width;  // of an element
  std::int64_t wire_width;
  const Affine& affine;
  int ndim;
  MoveDim dims[kMaxDims];

  bool is_changed() const { return !affine.is_identity(); }
  bool is_converted() const { return memory != wire || is_changed(); }

  std::int64_t num_elements() const {
    std::int64_t total = 1;
    for (int k = 0; k < ndim; ++k) total *= dims[k].size;
    return total;
  }

  // Drops dims of size 1 and merges dims that are one on both sides.
  void merge_dims() {
    int merged = 0;
    for (int k = 0; k < ndim; ++k) {
      const MoveDim inner = dims[k];
      if (inner.size == 1) continue;
      std::int64_t memory_run = 0;
      std::int64_t wire_run = 0;
      if (merged > 0 && !__builtin_mul_overflow(inner.size, inner.memory, &memory_run) &&
          !__builtin_mul_overflow(inner.size, inner.wire, &wire_run) &&
          dims[merged - 1].memory == memory_run && dims[merged - 1].wire == wire_run) {
        dims[merged - 1] = {dims[merged - 1].size * inner.size, inner.memory, inner.wire};
      } else {
        dims[merged++] = inner;
      }
    }
    ndim = merged;
  }

  // Takes the innermost dim away if it is a dense run on both sides, and returns its size, else 1.
  std::int64_t take_run() {
    if (ndim == 0) return 1;
    const MoveDim& last = dims[ndim - 1];
    if (last.memory != memory_width || last.wire != wire_width) return 1;
    return dims[--ndim].size;
  }
};

namespace {

// What a block does before it looks for the next tile. Large moves take long steps; of small ones
// there should be enough tiles for all multiprocessors.
std::int64_t tile_bytes(std::int64_t nbytes) {
  if (nbytes >= std::int64_t{4} << 20) return 32 << 10;
  return nbytes >= std::int64_t{512} << 10 ? 16 << 10 : 8 << 10;
}

// Accesses below 8 bytes are many; a tile of them is smaller.
constexpr std::int64_t kMaxTileUnits = 4096;

constexpr std::int64_t kMinPart = 4;

// A transpose pays where both sides are denser than this along their own dim, in bytes from one
// element to the next, and have at least so many of them.
constexpr std::int64_t kMaxNearStride = 64;
constexpr std::int64_t kMinTransposed = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The dim along which one side is closest together; repeated elements (stride 0) do not count.
template <typename StrideOf>
int nearest_dim(const MoveDim* dims, int ndim, const StrideOf& stride_of) {
  int best = ndim - 1;
  for (int k = ndim - 2; k >= 0; --k) {
    const std::int64_t stride = std::llabs(stride_of(dims[k]));
    const std::int64_t best_stride = std::llabs(stride_of(dims[best]));
    if (stride != 0 && (best_stride == 0 || stride < best_stride)) best = k;
  }
  return best;
}

void move_to_end(MoveDim* dims, int ndim, int k) {
  std::rotate(dims + k, dims + k + 1, dims + ndim);
}

}  // namespace

void MoveTable::add(const Operation& operation, const Segment& segment, std::int64_t message_offset,
                    std::uint32_t message_buffer) {
  const std::int64_t wire_width = size_of(operation.wire);
  const StridedBox box = coalesce(operation.box, size_of(operation.memory));
  for_each_part(box, wire_width, segment.first, segment.count,
                [&](const CopyBox& part, std::int64_t memory, std::int64_t wire) {
                  Box move = {operation.buffer,
                              message_buffer,
                              operation.offset_bytes + memory,
                              message_offset + wire,
                              operation.memory,
                              operation.wire,
                              size_of(operation.memory),
                              wire_width,
                              operation.affine,
                              part.ndim,
                              {}};
                  for (int k = 0; k < part.ndim; ++k) {
                    move.dims[k] = {part.dims[k].size, part.dims[k].src, part.dims[k].dst};
                  }
                  add_box(move);
                });
}

void MoveTable::add_box(Box& box) {
  if (box.num_elements() == 0) return;
  box.merge_dims();
  const std::int64_t run = box.take_run();
  if (box.is_converted()) {
    if (run == 1 && add_transpose(box, 0)) return;
    return add_rows(box, MoveKind::kCast, run, std::max(box.memory_width, box.wire_width));
  }
  const std::int64_t run_bytes = run * box.memory_width;
  const bool is_word = run_bytes <= 16 && (run_bytes & (run_bytes - 1)) == 0;
  if (is_word && add_transpose(box, run_bytes)) return;
  add_rows(box, MoveKind::kRows, run_bytes, 1);
}

// `run` counts units of `unit` bytes, on the wider side.
void MoveTable::add_rows(Box& box, MoveKind kind, std::int64_t run, std::int64_t unit) {
  std::int64_t rows = 1;
  for (int k = 0; k < box.ndim; ++k) rows *= box.dims[k].size;
  const std::int64_t bytes = tile_bytes(rows * run * unit);
  const std::int64_t capacity = std::min(bytes, kMaxTileUnits * run * unit) / unit;
  std::int64_t held = run;  // by one index of dim `split`
  int split = box.ndim;
  if (run < capacity) {
    while (split > 0) {
      --split;
      const std::int64_t with_dim = held * box.dims[split].size;
      if (split == 0 || with_dim > capacity) break;
      // A tile of one dim is fast, so it may be smaller.
      if (split == box.ndim - 1 && with_dim >= capacity / kMinPart) break;
      held = with_dim;
    }
  }
  std::int64_t size = run;
  std::int64_t block = bytes / unit;
  std::uint64_t num_blocks = 0;
  if (split < box.ndim) {
    size = box.dims[split].size;
    block = std::clamp<std::int64_t>(capacity / held, 1, size);
    block = ceil_div(size, ceil_div(size, block));  // tiles of about the same size
  }
  num_blocks = static_cast<std::uint64_t>(ceil_div(size, block));
  const Shape shape = {kind, box.ndim, split, box.memory, box.wire, 0, 0, 0, box.is_changed()};
  std::uint64_t num_tiles = num_blocks;
  for (int k = 0; k < split; ++k) num_tiles *= static_cast<std::uint64_t>(box.dims[k].size);
  const std::uint64_t block_word = kernels::word_of_halves(static_cast<std::uint32_t>(block),
                                                           static_cast<std::uint32_t>(num_blocks));
  add_record(shape, box, static_cast<std::uint64_t>(run), block_word, num_tiles);
}

// Adds the box if it is one whose sides are close together along different dims. `unit` is the
// width of what moves, 0 where it is cast.
bool MoveTable::add_transpose(Box& box, std::int64_t unit) {
  const auto memory_of = [](const MoveDim& dim) { return dim.memory; };
  const auto wire_of = [](const MoveDim& dim) { return dim.wire; };
  if (box.ndim < 2) return false;
  const int near_memory = nearest_dim(box.dims, box.ndim, memory_of);
  int near_wire = nearest_dim(box.dims, box.ndim, wire_of);
  const MoveDim memory = box.dims[near_memory];
  const MoveDim wire = box.dims[near_wire];
  if (near_memory == near_wire || memory.size < kMinTransposed || wire.size < kMinTransposed ||
      memory.memory == 0 || std::llabs(memory.memory) > kMaxNearStride ||
      std::llabs(wire.wire) > kMaxNearStride) {
    return false;
  }
  move_to_end(box.dims, box.ndim, near_memory);
  if (near_wire > near_memory) --near_wire;
  move_to_end(box.dims, box.ndim, near_wire);
  const int edge_log2 =
      kernels::edge_log2_of(unit == 0 ? std::max(box.memory_width, box.wire_width) : unit);
  const std::int64_t edge = std::int64_t{1} << edge_log2;
  const auto tiles_memory = static_cast<std::uint64_t>(ceil_div(memory.size, edge));
  const auto tiles_wire = static_cast<std::uint64_t>(ceil_div(wire.size, edge));
  std::uint64_t num_tiles = tiles_memory * tiles_wire;
  for (int k = 0; k < box.ndim - 2; ++k) num_tiles *= static_cast<std::uint64_t>(box.dims[k].size);
  const Shape shape = {MoveKind::kTranspose, box.ndim, 0, box.memory, box.wire, 0, 0, edge_log2,
                       box.is_changed()};
  const std::uint64_t block_word = kernels::word_of_halves(static_cast<std::uint32_t>(tiles_memory),
                                                           static_cast<std::uint32_t>(tiles_wire));
  add_record(shape, box, static_cast<std::uint64_t>(unit), block_word, num_tiles);
  return true;
}

void MoveTable::add_record(const Shape& shape, const Box& box, std::uint64_t run,
                           std::uint64_t block, std::uint64_t num_tiles) {
  begin_record(num_tiles, "Use a smaller staging buffer.");
  Shape with_bits = shape;
  for (int k = 0; k < box.ndim; ++k) {
    with_bits.memory_stride_bits |= static_cast<std::uint32_t>(box.dims[k].memory) & 15U;
    with_bits.wire_stride_bits |= static_cast<std::uint32_t>(box.dims[k].wire) & 15U;
  }
  push(word_of(with_bits));
  push(kernels::word_of_halves(box.memory_buffer, box.wire_buffer));
  push(box.memory_offset);
  push(box.wire_offset);
  push(run);
  push(block);
  for (int k = 0; k < box.ndim; ++k) {
    push(box.dims[k].size);
    push(box.dims[k].memory);
    push(box.dims[k].wire);
  }
  if (box.is_changed()) push(box.affine);
}

}  // namespace reshard

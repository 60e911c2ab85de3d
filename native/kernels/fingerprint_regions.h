// Fingerprints on the device: sums over regions, tile by tile, added up with atomics.
#ifndef RESHARD_NATIVE_KERNELS_FINGERPRINT_REGIONS_H_
#define RESHARD_NATIVE_KERNELS_FINGERPRINT_REGIONS_H_

#include <cstdint>

#include "affine.h"
#include "cast_scalar.h"
#include "fingerprint_element.h"
#include "kernels/cast_rows.h"
#include "kernels/copy_rows.h"
#include "kernels/memory_access.h"
#include "kernels/move_tile.h"
#include "kernels/region_record.h"

namespace reshard::kernels {

// A dim of a region; the two strides stand where a move has its memory and its wire stride.
struct RegionDim {
  std::uint32_t size;
  std::int64_t stride;
  std::uint64_t index_stride;
};

inline RegionDim region_dim(const std::uint64_t* record, int k) {
  const std::uint64_t* const words = record + kRegionFirstDim + kWordsPerDim * k;
  return {static_cast<std::uint32_t>(words[0]), static_cast<std::int64_t>(words[1]), words[2]};
}

// Where an element is, and its index in the canonical tensor.
struct Position {
  const std::uint8_t* address;
  std::uint64_t index;

  void advance(std::int64_t by, const RegionDim& dim) {
    address += by * dim.stride;
    index += static_cast<std::uint64_t>(by) * dim.index_stride;
  }
};

struct RegionTile {
  Position start;
  int first_dim;
  int last_dim;
  std::uint32_t total;  // elements
  RegionDim run;        // the last dim, as far as it is in the tile
};

inline RegionTile region_tile(const Launch& launch, const Tile& tile) {
  const std::uint64_t* const record = tile.record;
  const std::uint64_t shape = record[kRegionShapeWord];
  RegionTile out;
  out.last_dim = static_cast<int>(field_of(shape, 0)) - 1;
  out.first_dim = static_cast<int>(field_of(shape, 1));
  out.start = {address_of(launch.addresses[low_half(record[kRegionPlaceWord])]) +
                   static_cast<std::int64_t>(record[kRegionOffsetWord]),
               record[kRegionIndexWord]};
  const std::uint32_t block = low_half(record[kRegionBlockWord]);
  const std::uint32_t num_blocks = high_half(record[kRegionBlockWord]);
  std::uint32_t outer = tile.index / num_blocks;
  const std::int64_t first = static_cast<std::int64_t>(tile.index % num_blocks) * block;
  // The dim that is cut may have more than 2**32 indices.
  const std::int64_t size = dim_of(record, out.first_dim).size;
  out.start.advance(first, region_dim(record, out.first_dim));
  out.total = size - first < block ? static_cast<std::uint32_t>(size - first) : block;
  RESHARD_NO_UNROLL
  for (int k = out.first_dim - 1; k >= 0; --k) {
    const RegionDim dim = region_dim(record, k);
    out.start.advance(outer % dim.size, dim);
    outer /= dim.size;
  }
  out.run = region_dim(record, out.last_dim);
  if (out.first_dim == out.last_dim) out.run.size = out.total;
  RESHARD_NO_UNROLL
  for (int k = out.first_dim + 1; k <= out.last_dim; ++k) {
    out.total *= region_dim(record, k).size;
  }
  return out;
}

inline Position position_in(const RegionTile& tile, const std::uint64_t* record,
                            std::uint32_t element) {
  Position out = tile.start;
  std::uint32_t row = element / tile.run.size;
  out.advance(element - row * tile.run.size, tile.run);
  RESHARD_NO_UNROLL
  for (int k = tile.last_dim - 1; k >= tile.first_dim; --k) {
    const RegionDim dim = region_dim(record, k);
    const std::uint32_t rest = k == tile.first_dim ? 0 : row / dim.size;
    out.advance(row - rest * dim.size, dim);
    row = rest;
  }
  return out;
}

// The sum over a thread's elements of a tile.
inline std::uint64_t sum_of(const RegionTile& region, const Tile& tile, std::uint32_t width,
                            const Thread& thread) {
  const std::uint64_t seed = tile.record[kRegionSeedWord];
  std::uint64_t sum = 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t first = thread.index; first < region.total; first += kBatch * thread.count) {
    std::uint64_t bits[kBatch] = {};
    std::uint64_t terms[kBatch] = {};
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t element = first + i * thread.count;
      if (element >= region.total) continue;
      const Position at = position_in(region, tile.record, element);
      terms[i] = seed + at.index * kIndexStep;
      bits[i] = load_bits(at.address, width, low_bits(at.address) % width == 0);
    }
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      if (first + i * thread.count < region.total) sum += mix(terms[i], bits[i]);
    }
  }
  return sum;
}

// The same over elements that are cast first.
template <typename Convert>
std::uint64_t sum_of_cast(const RegionTile& region, const Tile& tile, std::uint32_t width,
                          const Thread& thread, const Convert& convert_bits) {
  const std::uint64_t seed = tile.record[kRegionSeedWord];
  std::uint64_t sum = 0;
  RESHARD_NO_UNROLL
  for (std::uint32_t i = thread.index; i < region.total; i += thread.count) {
    const Position at = position_in(region, tile.record, i);
    const std::uint64_t bits = load_bits(at.address, width, low_bits(at.address) % width == 0);
    sum += mix(seed + at.index * kIndexStep, convert_bits(bits));
  }
  return sum;
}

inline std::uint64_t sum_of_region(const Launch& launch, const Tile& tile, const Thread& thread) {
  const RegionTile region = region_tile(launch, tile);
  const std::uint64_t* const record = tile.record;
  const std::uint64_t shape = record[kRegionShapeWord];
  const auto memory = static_cast<DType>(field_of(shape, 2));
  const auto stored = static_cast<DType>(field_of(shape, 3));
  const std::uint32_t width = field_of(shape, 4);
  if (field_of(shape, 6) != 0) {
    const auto ndim = static_cast<int>(field_of(shape, 0));
    const std::uint64_t* const numbers = record + kRegionFirstDim + kWordsPerDim * ndim;
    return sum_of_cast(region, tile, width, thread, ChangeAndCast{memory, stored, numbers});
  }
  if (field_of(shape, 5) != 0) {
    return sum_of_cast(region, tile, width, thread, CastAlone{memory, stored});
  }
  return sum_of(region, tile, width, thread);
}

// Each thread's sum, into its place of the shared memory.
inline void begin_region_tile(const Launch& launch, const Tile& tile, const Thread& thread,
                              std::uint8_t* shared) {
  store_shared<8>(shared + 8 * thread.index, sum_of_region(launch, tile, thread));
}

inline void add_to_sum(std::uint64_t* sum, std::uint64_t value) {
#if defined(__CUDACC__)
  atomicAdd(sum, value);
#else
  *sum += value;
#endif
}

// A few threads add up those of all: one would take long, and all would queue for one sum.
inline void end_region_tile(const Launch& launch, const Tile& tile, const Thread& thread,
                            const std::uint8_t* shared) {
  constexpr std::uint32_t kAdders = 16;
  if (thread.index >= kAdders) return;
  std::uint64_t sum = 0;
  for (std::uint32_t i = thread.index; i < thread.count; i += kAdders) {
    sum += load_shared<8>(shared + 8 * i);
  }
  auto* const sums = reinterpret_cast<std::uint64_t*>(launch.message);
  add_to_sum(sums + high_half(tile.record[kRegionPlaceWord]), sum);
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_FINGERPRINT_REGIONS_H_

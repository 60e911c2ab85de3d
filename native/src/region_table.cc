#include "region_table.h"

#include <algorithm>

#include "kernels/region_record.h"
#include "pack.h"
#include "status.h"

namespace reshard {
namespace {

struct Dim {
  std::int64_t size;
  std::int64_t stride;
  std::uint64_t index_stride;
};

std::int64_t magnitude(std::int64_t stride) { return stride < 0 ? -stride : stride; }

// The region's dims in the order of its memory, since a sum has none: neighbouring threads read
// neighbouring elements. Repeated elements (stride 0) come last. Returns how many there are.
int dims_of(const FingerprintRegion& region, Dim* dims) {
  int ndim = 0;
  const bool is_wide = size_of(region.memory) == 16;  // counts as two elements of 8 bytes
  for (int k = 0; k < region.ndim; ++k) {
    if (region.size[k] == 1) continue;
    const auto index_stride = static_cast<std::uint64_t>(region.index_stride[k]);
    dims[ndim++] = {region.size[k], region.stride[k], is_wide ? 2 * index_stride : index_stride};
  }
  if (is_wide) dims[ndim++] = {2, 8, 1};
  std::stable_sort(dims, dims + ndim, [](const Dim& a, const Dim& b) {
    if (a.stride == 0 || b.stride == 0) return a.stride == 0 && b.stride != 0;
    return magnitude(a.stride) > magnitude(b.stride);
  });
  int merged = 0;
  for (int k = 0; k < ndim; ++k) {
    const Dim inner = dims[k];
    std::int64_t run = 0;
    if (merged > 0 && !__builtin_mul_overflow(inner.size, inner.stride, &run) &&
        dims[merged - 1].stride == run &&
        dims[merged - 1].index_stride ==
            static_cast<std::uint64_t>(inner.size) * inner.index_stride) {
      dims[merged - 1] = {dims[merged - 1].size * inner.size, inner.stride, inner.index_stride};
    } else {
      dims[merged++] = inner;
    }
  }
  if (merged == 0) dims[merged++] = {1, 0, 0};
  return merged;
}

std::uint64_t shape_word(const FingerprintRegion& region, int ndim, int split) {
  const std::int64_t width = std::min<std::int64_t>(size_of(region.memory), 8);
  const std::uint64_t bytes[] = {
      static_cast<std::uint64_t>(ndim),          static_cast<std::uint64_t>(split),
      static_cast<std::uint64_t>(region.memory), static_cast<std::uint64_t>(region.stored),
      static_cast<std::uint64_t>(width),         region.memory != region.stored ? 1U : 0U,
      region.affine.is_identity() ? 0U : 1U};
  std::uint64_t word = 0;
  for (int i = 6; i >= 0; --i) word = (word << 8) | bytes[i];
  return word;
}

}  // namespace

void RegionTable::add(const FingerprintRegion& region, std::uint32_t buffer,
                      std::int64_t offset_bytes, std::uint32_t slot) {
  const bool is_changed = !region.affine.is_identity();
  if (!can_cast(region.memory, region.stored) ||
      (is_changed && !can_apply_affine(region.memory, region.stored))) {
    throw Error(StatusCode::kUnsupported, text("fingerprint: no cast from ", name_of(region.memory),
                                               " to ", name_of(region.stored), "."));
  }
  for (int k = 0; k < region.ndim; ++k) {
    if (region.size[k] == 0) return;
  }
  Dim dims[kMaxDims + 1];
  const int ndim = dims_of(region, dims);
  std::int64_t held = 1;  // elements of one index of dim `split`
  int split = ndim - 1;
  while (split > 0 && held * dims[split].size <= kernels::kRegionTile) held *= dims[split--].size;
  const std::int64_t size = dims[split].size;
  const std::int64_t block = std::clamp<std::int64_t>(kernels::kRegionTile / held, 1, size);
  const std::int64_t num_blocks = (size + block - 1) / block;
  auto num_tiles = static_cast<std::uint64_t>(num_blocks);
  for (int k = 0; k < split; ++k) num_tiles *= static_cast<std::uint64_t>(dims[k].size);
  begin_record(num_tiles, "Launch fewer regions at once.");
  const auto base = static_cast<std::uint64_t>(region.index_base);
  push(shape_word(region, ndim, split));
  push(kernels::word_of_halves(buffer, slot));
  push(offset_bytes);
  push(region.seed);
  push(size_of(region.memory) == 16 ? 2 * base : base);
  push(kernels::word_of_halves(static_cast<std::uint32_t>(block),
                               static_cast<std::uint32_t>(num_blocks)));
  for (int k = 0; k < ndim; ++k) {
    push(dims[k].size);
    push(dims[k].stride);
    push(dims[k].index_stride);
  }
  if (is_changed) push(region.affine);
}

}  // namespace reshard

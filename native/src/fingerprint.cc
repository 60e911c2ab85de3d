#include "fingerprint.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "cast.h"
#include "fingerprint_mix.h"
#include "pack.h"
#include "pack_prefetch.h"
#include "pack_rows.h"

namespace reshard {
namespace {

// Elements gathered or cast at a time; the block stays in the first-level cache.
constexpr std::int64_t kBlock = 1024;

constexpr std::int64_t kAhead = 4096;

// One dim of the region, with what it adds to the address and to the index.
struct Dim {
  std::int64_t size;
  std::int64_t stride;
  std::uint64_t index_stride;
};

// A region in the order of its memory: a sum has no order, so the dims may be sorted and walked
// forward whatever their order and direction in the tensor. One dim more than a box has, for
// elements of 16 bytes.
struct MemoryOrder {
  const std::byte* base;
  std::uint64_t index;
  std::int64_t width;  // in memory
  int ndim = 0;
  Dim dims[kMaxDims + 1];
  bool is_empty = false;

  explicit MemoryOrder(const FingerprintRegion& region)
      : base(region.base),
        index(static_cast<std::uint64_t>(region.index_base)),
        width(size_of(region.memory)) {
    for (int k = 0; k < region.ndim; ++k) {
      add({region.size[k], region.stride[k], static_cast<std::uint64_t>(region.index_stride[k])});
    }
    if (width == 16) split_16_bytes();
    std::sort(dims, dims + ndim, [](const Dim& a, const Dim& b) {
      // A repeated element (stride 0) is walked last, so it counts as the outermost dim.
      return a.stride != 0 && b.stride != 0 ? a.stride > b.stride : a.stride < b.stride;
    });
    merge();
  }

  void add(Dim dim) {
    if (dim.size == 0) is_empty = true;
    if (dim.size <= 1) return;
    if (dim.stride < 0) {
      base += (dim.size - 1) * dim.stride;
      index += static_cast<std::uint64_t>(dim.size - 1) * dim.index_stride;
      dim.stride = -dim.stride;
      dim.index_stride = -dim.index_stride;
    }
    dims[ndim++] = dim;
  }

  // Element i becomes elements 2i and 2i + 1 of 8 bytes.
  void split_16_bytes() {
    for (int k = 0; k < ndim; ++k) dims[k].index_stride *= 2;
    index *= 2;
    width = 8;
    dims[ndim++] = {2, 8, 1};
  }

  void merge() {
    int merged = 0;
    for (int k = 0; k < ndim; ++k) {
      const Dim inner = dims[k];
      if (merged > 0) {
        Dim& outer = dims[merged - 1];
        if (outer.stride == inner.size * inner.stride &&
            outer.index_stride == static_cast<std::uint64_t>(inner.size) * inner.index_stride) {
          outer = {outer.size * inner.size, inner.stride, inner.index_stride};
          continue;
        }
      }
      dims[merged++] = inner;
    }
    ndim = merged;
    if (ndim == 0) dims[ndim++] = {1, width, 0};
  }
};

class RegionSum {
 public:
  RegionSum(const FingerprintRegion& region, const MemoryOrder& order)
      : order_(order),
        inner_(order.dims[order.ndim - 1]),
        seed_(region.seed),
        conversion_(conversion_of(region)),
        is_dense_(inner_.stride == order.width || inner_.size == 1),
        gather_(rows_function(order.width, Stores::kCached)),
        mixer_(conversion_ ? size_of(region.stored) : order.width, inner_.index_stride) {}

  std::uint64_t run() { return sum_dim(0, order_.base, order_.index); }

 private:
  static std::optional<Conversion> conversion_of(const FingerprintRegion& region) {
    if (!region.affine.is_identity()) {
      return Conversion(region.memory, region.stored, region.affine);
    }
    if (region.memory != region.stored) return Conversion(region.memory, region.stored);
    return std::nullopt;
  }

  std::uint64_t sum_dim(int k, const std::byte* base, std::uint64_t index) {
    if (k == order_.ndim - 1) return sum_run(base, index);
    const Dim& dim = order_.dims[k];
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < dim.size; ++i) {
      if (k + 2 == order_.ndim) prefetch_row(base + i * dim.stride, dim, i);
      sum += sum_dim(k + 1, base + i * dim.stride, index);
      index += dim.index_stride;
    }
    return sum;
  }

  // Fetches the row that lies about kAhead bytes further on: the hardware does not guess where the
  // next one starts.
  void prefetch_row(const std::byte* row, const Dim& dim, std::int64_t i) const {
    const std::int64_t size = inner_.size * std::max(inner_.stride, order_.width);
    const std::int64_t ahead = std::min(kAhead / size + 1, dim.size - 1 - i);
    if (size > kAhead || ahead == 0) return;
    const std::byte* const next = row + ahead * dim.stride;
    for (std::int64_t at = 0; at < size; at += 64) prefetch_near(next + at);
  }

  std::uint64_t sum_run(const std::byte* base, std::uint64_t index) {
    if (is_dense_ && !conversion_) return mixer_.sum(base, inner_.size, term_of(index));
    std::uint64_t sum = 0;
    for (std::int64_t done = 0; done < inner_.size; done += kBlock) {
      const std::int64_t count = std::min(kBlock, inner_.size - done);
      const std::byte* block = base + done * inner_.stride;
      if (!is_dense_) {
        gather_(gathered_, order_.width, block, inner_.stride, count, order_.width);
        block = gathered_;
      }
      if (conversion_) {
        conversion_->run(block, stored_, count, Stores::kCached);
        block = stored_;
      }
      const std::uint64_t first = index + static_cast<std::uint64_t>(done) * inner_.index_stride;
      sum += mixer_.sum(block, count, term_of(first));
    }
    return sum;
  }

  std::uint64_t term_of(std::uint64_t index) const { return seed_ + index * kIndexStep; }

  const MemoryOrder& order_;
  const Dim inner_;
  const std::uint64_t seed_;
  const std::optional<Conversion> conversion_;
  const bool is_dense_;
  const RowsFunction gather_;
  const RunMixer mixer_;
  alignas(64) std::byte gathered_[kBlock * 8];
  alignas(64) std::byte stored_[kBlock * 8];
};

}  // namespace

std::uint64_t fingerprint(const FingerprintRegion& region) {
  if (!can_cast(region.memory, region.stored) ||
      (!region.affine.is_identity() && !can_apply_affine(region.memory, region.stored))) {
    throw std::invalid_argument(std::string("fingerprint: no conversion from ") +
                                name_of(region.memory) + " to " + name_of(region.stored) +
                                "; check the pair before calling");
  }
  const MemoryOrder order(region);
  if (order.is_empty) return 0;
  const FloatEnvironment environment;
  return RegionSum(region, order).run();
}

}  // namespace reshard

#include "pack_convert.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "pack_loop.h"
#include "pack_prefetch.h"
#include "pack_transpose.h"

namespace reshard {
namespace {

// Elements whose values change at a time; small enough to stay in the first-level cache.
constexpr std::int64_t kAffineBlock = 512;

// Bytes of memory dtype gathered at a time.
constexpr std::int64_t kStageBytes = 16 * 1024;

// A block spans whole cache lines on both sides where the dims allow it.
constexpr std::int64_t kStageRow = 64;
constexpr std::int64_t kStageColumn = 64;

// Shorter runs are gathered first and converted many at a time.
constexpr std::int64_t kMinDirectRun = 32;

// How far ahead of the conversion the source is prefetched.
constexpr std::int64_t kAhead = 8 * 1024;

// `changed` of many values: a loop per step, which the compiler makes vectors of.
void change(double* values, std::int64_t count, const Affine& affine) {
  const auto each = [&](const auto& step) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = step(values[i]);
  };
  const auto [scale, divisor, offset] = affine.source;
  const auto [last_divisor, factor, shift] = affine.destination;
  if (scale != 1.0) each([by = scale](double value) { return value * by; });
  if (divisor != 1.0) each([by = divisor](double value) { return value / by; });
  if (offset != 0.0) each([by = offset](double value) { return value + by; });
  if (shift != 0.0) each([by = shift](double value) { return value - by; });
  if (factor != 1.0) each([by = factor](double value) { return value * by; });
  if (last_divisor != 1.0) each([by = last_divisor](double value) { return value / by; });
}

}  // namespace

Conversion::Conversion(DType from, DType to)
    : from_width_(size_of(from)),
      to_width_(size_of(to)),
      is_affine_(false),
      load_(cast_function(from, to)),
      store_(nullptr) {}

Conversion::Conversion(DType from, DType to, const Affine& affine)
    : from_width_(size_of(from)),
      to_width_(size_of(to)),
      is_affine_(true),
      affine_(affine),
      load_(cast_function(from, DType::kF64)),
      store_(cast_function(DType::kF64, to)) {}

void Conversion::run(const std::byte* in, std::byte* out, std::int64_t count, Stores stores) const {
  if (!is_affine_) return load_(in, out, count, stores == Stores::kStreaming);
  for (std::int64_t done = 0; done < count; done += kAffineBlock) {
    const std::int64_t part = std::min(kAffineBlock, count - done);
    run_affine(in + done * from_width_, out + done * to_width_, part);
  }
}

void Conversion::run_affine(const std::byte* in, std::byte* out, std::int64_t count) const {
  double values[kAffineBlock];
  auto* const bytes = reinterpret_cast<std::byte*>(values);
  if (load_ != nullptr) {
    load_(in, bytes, count, false);
  } else {
    std::memcpy(bytes, in, static_cast<std::size_t>(count * from_width_));
  }
  change(values, count, affine_);
  if (store_ != nullptr) {
    store_(bytes, out, count, false);
  } else {
    std::memcpy(out, bytes, static_cast<std::size_t>(count * to_width_));
  }
}

namespace {

// Gathers blocks of the strided side into a dense stage in wire order and converts between stage
// and wire (or the reverse).
class StagedConversion {
 public:
  StagedConversion(const CopyDim* dims, int ndim, const Conversion& conversion, WireSide wire,
                   Stores stores)
      : dims_(dims),
        ndim_(ndim),
        conversion_(conversion),
        wire_(wire),
        stores_(stores),
        width_(wire == WireSide::kDestination ? conversion.from_width() : conversion.to_width()) {
    choose_extents();
  }

  void run(std::byte* dst, const std::byte* src) { run_dim(0, dst, src); }

 private:
  std::int64_t memory_stride(const CopyDim& dim) const {
    return std::llabs(wire_ == WireSide::kDestination ? dim.src : dim.dst);
  }

  void choose_extents() {
    int closest = ndim_ - 1;
    for (int k = 0; k < ndim_; ++k) {
      extent_[k] = 1;
      if (memory_stride(dims_[k]) < memory_stride(dims_[closest])) closest = k;
    }
    std::int64_t room = kStageBytes / width_;
    const auto grow = [&](int k, std::int64_t limit) {
      room *= extent_[k];
      extent_[k] = std::min({dims_[k].size, limit, room});
      room /= extent_[k];
    };
    if (closest != ndim_ - 1) {
      grow(ndim_ - 1, kStageRow);
      grow(closest, kStageColumn);
    }
    for (int k = ndim_ - 1; k >= 0; --k) grow(k, dims_[k].size);
  }

  void run_dim(int k, std::byte* dst, const std::byte* src) {
    if (k == ndim_) return run_block(dst, src);
    for (std::int64_t at = 0; at < dims_[k].size; at += extent_[k]) {
      size_[k] = std::min(extent_[k], dims_[k].size - at);
      run_dim(k + 1, dst + at * dims_[k].dst, src + at * dims_[k].src);
    }
  }

  void run_block(std::byte* dst, const std::byte* src) {
    CopyBox strided = {};     // memory to stage, or stage to memory
    CopyDim dense[kMaxDims];  // between stage and wire
    strided.ndim = ndim_;
    std::int64_t step = width_;
    for (int k = ndim_ - 1; k >= 0; --k) {
      if (wire_ == WireSide::kDestination) {
        strided.dims[k] = {size_[k], step, dims_[k].src};
        dense[k] = {size_[k], dims_[k].dst, step};
      } else {
        strided.dims[k] = {size_[k], dims_[k].dst, step};
        dense[k] = {size_[k], step, dims_[k].src};
      }
      step *= size_[k];
    }
    if (wire_ == WireSide::kDestination) {
      copy_box(strided, stage_, src, width_, Stores::kCached);
      convert(dense, dst, stage_);
    } else {
      convert(dense, stage_, src);
      copy_box(strided, dst, stage_, width_, stores_);
    }
  }

  // Both sides are dense up to gaps on the wire.
  void convert(const CopyDim* dims, std::byte* dst, const std::byte* src) {
    std::int64_t run = 1;
    int outer = ndim_;
    while (outer > 0 &&
           (dims[outer - 1].size == 1 || (dims[outer - 1].dst == run * conversion_.to_width() &&
                                          dims[outer - 1].src == run * conversion_.from_width()))) {
      run *= dims[--outer].size;
    }
    const Stores stores = wire_ == WireSide::kDestination ? stores_ : Stores::kCached;
    // The next block is further along the same rows of the wire, more than the hardware follows.
    const bool fetches = wire_ == WireSide::kSource && size_[ndim_ - 1] < dims_[ndim_ - 1].size;
    const std::int64_t nbytes = run * conversion_.from_width();
    for_each_index(dims, outer, dst, src, [&](std::byte* to, const std::byte* from) {
      if (fetches) prefetch_run_far(from + nbytes, nbytes);
      conversion_.run(from, to, run, stores);
    });
  }

  const CopyDim* const dims_;
  const int ndim_;
  const Conversion& conversion_;
  const WireSide wire_;
  const Stores stores_;
  const std::int64_t width_;  // of an element in memory
  std::int64_t extent_[kMaxDims];
  std::int64_t size_[kMaxDims];
  alignas(64) std::byte stage_[kStageBytes];
};

// Runs that are dense on both sides, one conversion each, with the run some way on prefetched: the
// hardware does not guess where the next one starts.
void convert_rows(const CopyDim* dims, int ndim, std::byte* dst, const std::byte* src,
                  const Conversion& conversion, std::int64_t run, Stores stores) {
  if (ndim == 0) return conversion.run(src, dst, run, stores);
  const CopyDim rows = dims[ndim - 1];
  const std::int64_t nbytes = run * conversion.from_width();
  const std::int64_t fetched = std::min(nbytes, kAhead);
  const std::int64_t ahead = kAhead / nbytes + 1;
  for_each_index(dims, ndim - 1, dst, src, [&](std::byte* to, const std::byte* from) {
    for (std::int64_t i = 0; i < rows.size; ++i) {
      if (i + ahead < rows.size) prefetch_run_far(from + (i + ahead) * rows.src, fetched);
      conversion.run(from + i * rows.src, to + i * rows.dst, run, stores);
    }
  });
}

// The dim that is contiguous in the source if there is a fast transpose that converts, or -1. The
// last dim is contiguous in the destination.
int transposed_dim(const CopyDim* dims, int ndim, const Conversion& conversion) {
  if (dims[ndim - 1].dst != conversion.to_width()) return -1;
  for (int k = 0; k + 1 < ndim; ++k) {
    if (dims[k].src == conversion.from_width()) return k;
  }
  return -1;
}

}  // namespace

void convert_box(const CopyBox& box, std::byte* dst, const std::byte* src,
                 const Conversion& conversion, WireSide wire, Stores stores) {
  CopyDim dims[kMaxDims];
  int ndim = 0;
  for (int k = 0; k < box.ndim; ++k) {
    if (box.dims[k].size == 0) return;
    if (box.dims[k].size > 1) dims[ndim++] = box.dims[k];
  }
  if (ndim == 0) return conversion.run(src, dst, 1, Stores::kCached);
  const CopyDim last = dims[ndim - 1];
  if (last.dst == conversion.to_width() && last.src == conversion.from_width() &&
      (ndim == 1 || last.size >= kMinDirectRun)) {
    return convert_rows(dims, ndim - 1, dst, src, conversion, last.size, stores);
  }
  const TransposeFunction transpose = transpose_function(conversion.from_width());
  const int column = transposed_dim(dims, ndim, conversion);
  if (wire == WireSide::kSource || column < 0 || transpose == nullptr) {
    return StagedConversion(dims, ndim, conversion, wire, stores).run(dst, src);
  }
  const Transpose shape = {last.size, dims[column].size, dims[column].dst, last.src, &conversion};
  for (int k = column; k + 2 < ndim; ++k) dims[k] = dims[k + 1];
  for_each_index(dims, ndim - 2, dst, src,
                 [&](std::byte* to, const std::byte* from) { transpose(shape, to, from, stores); });
}

}  // namespace reshard

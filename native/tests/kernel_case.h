// Random boxes in memory, and what moving ranges of them through a message must give.
#ifndef RESHARD_NATIVE_TESTS_KERNEL_CASE_H_
#define RESHARD_NATIVE_TESTS_KERNEL_CASE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cast_scalar.h"
#include "check.h"
#include "move_table.h"
#include "pack.h"

namespace reshard_test {

using reshard::Affine;
using reshard::AffineRule;
using reshard::DType;
using reshard::Operation;
using reshard::Segment;
using reshard::StridedBox;
using Bytes = std::vector<std::byte>;

// Memory whose first byte is `shift` bytes after a multiple of 16.
class Memory {
 public:
  Memory(std::size_t size, std::size_t shift, std::uint64_t salt)
      : bytes_(hashed_bytes(size + 32, salt)), size_(size) {
    const auto over = reinterpret_cast<std::uintptr_t>(bytes_.data()) % 16;
    start_ = (16 - over) % 16 + shift % 16;
  }
  Memory(const Memory& other) : Memory(other.size_, 0, 0) { *this = other; }
  Memory(Memory&&) = default;
  // Copies the bytes, not the alignment.
  Memory& operator=(const Memory& other) {
    std::memcpy(data(), other.data(), size_);
    return *this;
  }
  std::byte* data() { return bytes_.data() + start_; }
  const std::byte* data() const { return bytes_.data() + start_; }
  std::size_t size() const { return size_; }

  bool operator==(const Memory& other) const {
    return size_ == other.size_ && std::memcmp(data(), other.data(), size_) == 0;
  }
  std::string first_difference(const Memory& other) const {
    for (std::size_t i = 0; i < size_; ++i) {
      if (data()[i] != other.data()[i]) return "byte " + std::to_string(i);
    }
    return "none";
  }

 private:
  Bytes bytes_;
  std::size_t size_;
  std::size_t start_ = 0;
};

enum class Strides { kAny, kDistinct };  // kAny: also 0

struct RandomDims {
  int ndim;
  std::int64_t budget;  // elements at most
  std::int64_t largest;
};

// Dims in random order in memory with random gaps and signs. Returns the box, with the offset of
// its element 0 and the bytes that it spans.
struct PlacedBox {
  StridedBox box;
  std::int64_t base;
  std::int64_t span;
};

inline PlacedBox random_placed_box(Random& random, std::int64_t width, RandomDims dims,
                                   Strides strides) {
  PlacedBox out = {};
  out.box.ndim = dims.ndim;
  int order[reshard::kMaxDims];
  for (int k = 0; k < dims.ndim; ++k) order[k] = k;
  for (int k = dims.ndim - 1; k > 0; --k) std::swap(order[k], order[random.between(0, k)]);
  if (random.one_in(2)) {  // the order of the wire, from the innermost dim on
    for (int k = 0; k < dims.ndim; ++k) order[k] = dims.ndim - 1 - k;
  }
  std::int64_t step = width * (random.one_in(6) ? random.between(2, 4) : 1);
  const bool has_odd_gaps = random.one_in(4);
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (int i = 0; i < dims.ndim; ++i) {
    const int k = order[i];
    std::int64_t size = random.between(1, random.one_in(3) ? dims.largest : 9);
    if (random.one_in(60)) size = 0;
    size = std::min(size, std::max<std::int64_t>(dims.budget, 1));
    dims.budget /= std::max<std::int64_t>(size, 1);
    out.box.size[k] = size;
    out.box.stride[k] = random.one_in(8) ? -step : step;
    if (strides == Strides::kAny && random.one_in(12)) {
      out.box.stride[k] = 0;
      continue;
    }
    const std::int64_t reach = std::max<std::int64_t>(size - 1, 0) * out.box.stride[k];
    (reach < 0 ? low : high) += reach;
    step *= std::max<std::int64_t>(size, 1);
    if (random.one_in(3)) step += random.between(0, 40) * (has_odd_gaps ? 1 : 16);
  }
  out.base = -low;
  out.span = high - low + width;
  return out;
}

inline DType random_dtype(Random& random) {
  constexpr DType kDTypes[] = {DType::kU8,  DType::kBF16, DType::kF32,
                               DType::kI64, DType::kC128, DType::kF8E4M3FN};
  return kDTypes[random.between(0, 5)];
}

// Two dtypes between which there is a cast.
inline std::pair<DType, DType> random_cast(Random& random) {
  constexpr DType kFloats[] = {DType::kF16, DType::kBF16,     DType::kF32,
                               DType::kF64, DType::kF8E4M3FN, DType::kF8E5M2};
  for (;;) {
    const DType from = kFloats[random.between(0, 5)];
    const DType to = kFloats[random.between(0, 5)];
    if (from != to && can_cast(from, to)) return {from, to};
  }
}

// Nothing, or rules of either side or of both, of which some do nothing.
inline Affine random_affine(Random& random) {
  Affine affine;
  for (AffineRule* rule : {&affine.source, &affine.destination}) {
    if (random.one_in(3)) rule->scale = 0.1 * static_cast<double>(random.between(1, 50));
    if (random.one_in(3)) rule->divisor = -0.7 * static_cast<double>(random.between(1, 50));
    if (random.one_in(3)) rule->offset = 0.3 * static_cast<double>(random.between(-9, 9));
  }
  return affine;
}

inline bool is_float(DType dtype) { return reshard::can_apply_affine(dtype, dtype); }

// Makes numbers of what may be NaNs, whose payload the vector code of the host is free to choose.
inline void remove_nans(std::byte* data, std::size_t size, DType dtype) {
  const auto width = static_cast<std::size_t>(size_of(dtype));
  for (std::size_t i = 0; i + width <= size; i += width) {
    std::byte& top = data[i + width - 1];
    if ((top & std::byte{0x7C}) == std::byte{0x7C}) top &= std::byte{0xBF};
  }
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_KERNEL_CASE_H_

#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "cast.h"
#include "cast_scalar.h"

namespace reshard {
namespace {

// Calls visit(memory offset in bytes, index on the wire relative to first) for every element.
template <typename Visit>
void for_each_element(const StridedBox& box, std::int64_t first, std::int64_t count,
                      const Visit& visit) {
  std::int64_t at[kMaxDims] = {};
  std::int64_t rest = first;
  for (int k = box.ndim - 1; k >= 0 && count > 0; --k) {
    at[k] = rest % box.size[k];
    rest /= box.size[k];
  }
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (int k = 0; k < box.ndim; ++k) offset += at[k] * box.stride[k];
    visit(offset, n);
    for (int k = box.ndim - 1; k >= 0; --k) {
      if (++at[k] < box.size[k]) break;
      at[k] = 0;
    }
  }
}

[[noreturn]] void refuse(const char* what, DType from, DType to) {
  throw std::invalid_argument(std::string(what) + " has no cast from " + name_of(from) + " to " +
                              name_of(to));
}

}  // namespace

bool can_apply_affine(DType mem, DType wire) {
  return can_cast(mem, DType::kF64) && can_cast(DType::kF64, wire);
}

void pack(const StridedBox& box, const std::byte* base, DType mem, DType wire, std::int64_t first,
          std::int64_t count, std::byte* out) {
  const CastFunction cast = cast_function(mem, wire);
  if (cast == nullptr && mem != wire) refuse("pack", mem, wire);
  const std::int64_t width = size_of(wire);
  const FloatEnvironment environment;
  for_each_element(box, first, count, [&](std::int64_t offset, std::int64_t n) {
    if (cast != nullptr) {
      cast(base + offset, out + n * width, 1, false);
    } else {
      std::memcpy(out + n * width, base + offset, static_cast<std::size_t>(width));
    }
  });
}

void unpack(const StridedBox& box, std::byte* base, DType mem, DType wire, std::int64_t first,
            std::int64_t count, const std::byte* in) {
  const CastFunction cast = cast_function(wire, mem);
  if (cast == nullptr && mem != wire) refuse("unpack", wire, mem);
  const std::int64_t width = size_of(wire);
  const FloatEnvironment environment;
  for_each_element(box, first, count, [&](std::int64_t offset, std::int64_t n) {
    if (cast != nullptr) {
      cast(in + n * width, base + offset, 1, false);
    } else {
      std::memcpy(base + offset, in + n * width, static_cast<std::size_t>(width));
    }
  });
}

void pack_affine(const StridedBox& box, const std::byte* base, DType mem, DType wire,
                 const Affine& affine, std::int64_t first, std::int64_t count, std::byte* out) {
  if (!can_apply_affine(mem, wire)) refuse("pack_affine", mem, wire);
  const DType middle =
      mem == DType::kF64 || wire == DType::kF64 ? DType::kF64 : DType::kF32;
  const CastFunction load = cast_function(mem, middle);
  const CastFunction store = cast_function(middle, wire);
  const std::int64_t width = size_of(wire);
  const FloatEnvironment environment;
  for_each_element(box, first, count, [&](std::int64_t offset, std::int64_t n) {
    alignas(8) std::byte value[8];
    if (load != nullptr) {
      load(base + offset, value, 1, false);
    } else {
      std::memcpy(value, base + offset, static_cast<std::size_t>(size_of(mem)));
    }
    if (middle == DType::kF64) {
      double x;
      std::memcpy(&x, value, sizeof(x));
      x = x * affine.scale;
      x = x + affine.offset;
      std::memcpy(value, &x, sizeof(x));
    } else {
      float x;
      std::memcpy(&x, value, sizeof(x));
      x = x * static_cast<float>(affine.scale);
      x = x + static_cast<float>(affine.offset);
      std::memcpy(value, &x, sizeof(x));
    }
    if (store != nullptr) {
      store(value, out + n * width, 1, false);
    } else {
      std::memcpy(out + n * width, value, static_cast<std::size_t>(width));
    }
  });
}

void fill_zero(const StridedBox& box, std::byte* base, std::int64_t element_size) {
  for_each_element(box, 0, num_elements(box), [&](std::int64_t offset, std::int64_t) {
    std::memset(base + offset, 0, static_cast<std::size_t>(element_size));
  });
}

}  // namespace reshard

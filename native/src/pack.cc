#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "cast.h"
#include "pack_copy.h"
#include "pack_parts.h"
#include "pack_rows.h"

namespace reshard {
namespace {

[[noreturn]] void refuse(const char* what, DType from, DType to) {
  throw std::invalid_argument(std::string(what) + ": no conversion from " + name_of(from) + " to " +
                              name_of(to) + "; check the pair before calling");
}

CopyBox reversed(const CopyBox& box) {
  CopyBox out;
  out.ndim = box.ndim;
  for (int k = 0; k < box.ndim; ++k) {
    const CopyDim& dim = box.dims[k];
    out.dims[k] = {dim.size, dim.src, dim.dst};
  }
  return out;
}

// One chunk's choice of stores, and the fence that goes with it.
class StoreScope {
 public:
  StoreScope(Stores wanted, std::int64_t nbytes)
      : stores_(nbytes < kMinStreamingTotal ? Stores::kCached : wanted) {}
  ~StoreScope() {
    if (stores_ == Stores::kStreaming) fence_streaming_stores();
  }
  StoreScope(const StoreScope&) = delete;
  StoreScope& operator=(const StoreScope&) = delete;
  Stores stores() const { return stores_; }

 private:
  const Stores stores_;
};

void pack_converted(const StridedBox& box, const std::byte* base, const Conversion& conversion,
                    std::int64_t first, std::int64_t count, std::byte* out, Stores wanted) {
  const FloatEnvironment environment;
  const StoreScope scope(wanted, count * conversion.to_width());
  for_each_part(box, conversion.to_width(), first, count,
                [&](const CopyBox& part, std::int64_t memory, std::int64_t wire) {
                  convert_box(part, out + wire, base + memory, conversion, WireSide::kDestination,
                              scope.stores());
                });
}

void unpack_converted(const StridedBox& box, std::byte* base, const Conversion& conversion,
                      std::int64_t first, std::int64_t count, const std::byte* in, Stores wanted) {
  const FloatEnvironment environment;
  const StoreScope scope(wanted, count * conversion.to_width());
  for_each_part(box, conversion.from_width(), first, count,
                [&](const CopyBox& part, std::int64_t memory, std::int64_t wire) {
                  convert_box(reversed(part), base + memory, in + wire, conversion,
                              WireSide::kSource, scope.stores());
                });
}

}  // namespace

bool can_apply_affine(DType from, DType to) {
  return can_cast(from, DType::kF64) && can_cast(DType::kF64, to);
}

void pack(const StridedBox& box, const std::byte* base, DType mem, DType wire, std::int64_t first,
          std::int64_t count, std::byte* out, Stores stores) {
  if (mem != wire) {
    if (!can_cast(mem, wire)) refuse("pack", mem, wire);
    return pack_converted(box, base, Conversion(mem, wire), first, count, out, stores);
  }
  const std::int64_t width = size_of(wire);
  const StoreScope scope(stores, count * width);
  for_each_part(box, width, first, count,
                [&](const CopyBox& part, std::int64_t memory, std::int64_t offset) {
                  copy_box(part, out + offset, base + memory, width, scope.stores());
                });
}

void unpack(const StridedBox& box, std::byte* base, DType mem, DType wire, std::int64_t first,
            std::int64_t count, const std::byte* in, Stores stores) {
  if (mem != wire) {
    if (!can_cast(wire, mem)) refuse("unpack", wire, mem);
    return unpack_converted(box, base, Conversion(wire, mem), first, count, in, stores);
  }
  const std::int64_t width = size_of(wire);
  const StoreScope scope(stores, count * width);
  for_each_part(box, width, first, count,
                [&](const CopyBox& part, std::int64_t memory, std::int64_t offset) {
                  copy_box(reversed(part), base + memory, in + offset, width, scope.stores());
                });
}

void pack_affine(const StridedBox& box, const std::byte* base, DType mem, DType wire,
                 const Affine& affine, std::int64_t first, std::int64_t count, std::byte* out,
                 Stores stores) {
  if (!can_apply_affine(mem, wire)) refuse("pack_affine", mem, wire);
  pack_converted(box, base, Conversion(mem, wire, affine), first, count, out, stores);
}

void unpack_affine(const StridedBox& box, std::byte* base, DType mem, DType wire,
                   const Affine& affine, std::int64_t first, std::int64_t count,
                   const std::byte* in, Stores stores) {
  if (!can_apply_affine(wire, mem)) refuse("unpack_affine", wire, mem);
  unpack_converted(box, base, Conversion(wire, mem, affine), first, count, in, stores);
}

void fill_zero(const StridedBox& box, std::byte* base, std::int64_t element_size) {
  StridedBox rest = coalesce(box, element_size);
  std::int64_t run = element_size;
  const int last = rest.ndim - 1;
  if (rest.stride[last] == element_size) {
    run *= rest.size[last];
    rest.size[last] = 1;
  }
  if (num_elements(rest) == 0) return;
  std::int64_t at[kMaxDims] = {};
  for (int k = 0; k >= 0;) {
    std::memset(base, 0, static_cast<std::size_t>(run));
    for (k = last; k >= 0; --k) {
      base += rest.stride[k];
      if (++at[k] < rest.size[k]) break;
      at[k] = 0;
      base -= rest.size[k] * rest.stride[k];
    }
  }
}

}  // namespace reshard

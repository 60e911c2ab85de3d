// Strided memory to dense wire bytes and back, with an optional cast or change of values on the
// way.
//
// These are the only functions that touch the bytes of a tensor while a refit runs, so their speed
// is the speed of a refit. They allocate nothing, take no lock and may run in several threads at
// once on different memory. Arguments are trusted: the program is checked when it is created.
#ifndef RESHARD_NATIVE_SRC_PACK_H_
#define RESHARD_NATIVE_SRC_PACK_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "pack_convert.h"
#include "pack_stores.h"
#include "strided_box.h"

namespace reshard {

// Whether the values of a pair's elements can be changed on the way: both are floats that have
// casts.
bool can_apply_affine(DType from, DType to);

// Copies elements [first, first+count) (row-major order of `box`) from strided memory at `base`
// (dtype `mem`) into dense `out` (dtype `wire`). `base` and `out` need no alignment. The written
// bytes are visible to another process once it learns of them through an ordinary store or a lock.
// Ask for Stores::kCached when the reader of `out` comes at once, as with a slot of a ring.
// Throws std::invalid_argument when !can_cast(mem, wire).
void pack(const StridedBox& box, const std::byte* base, DType mem, DType wire, std::int64_t first,
          std::int64_t count, std::byte* out, Stores stores = Stores::kStreaming);

// The reverse: dense `in` (dtype `wire`) to elements [first, first+count) of strided memory. Every
// element has its own address (no zero strides). Throws std::invalid_argument when
// !can_cast(wire, mem).
void unpack(const StridedBox& box, std::byte* base, DType mem, DType wire, std::int64_t first,
            std::int64_t count, const std::byte* in, Stores stores = Stores::kStreaming);

// pack and unpack with a change of values before the cast. Slower than these. They throw
// std::invalid_argument when !can_apply_affine of what is read and what is written.
void pack_affine(const StridedBox& box, const std::byte* base, DType mem, DType wire,
                 const Affine& affine, std::int64_t first, std::int64_t count, std::byte* out,
                 Stores stores = Stores::kStreaming);
void unpack_affine(const StridedBox& box, std::byte* base, DType mem, DType wire,
                   const Affine& affine, std::int64_t first, std::int64_t count,
                   const std::byte* in, Stores stores = Stores::kStreaming);

// Zeroes every element of the box.
void fill_zero(const StridedBox& box, std::byte* base, std::int64_t element_size);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_H_

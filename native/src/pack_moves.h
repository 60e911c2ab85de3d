// Copies of a few bytes without a call.
#ifndef RESHARD_NATIVE_SRC_PACK_MOVES_H_
#define RESHARD_NATIVE_SRC_PACK_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace reshard {

// A copy whose width the compiler knows becomes one or a few moves.
template <std::int64_t width>
inline void move(std::byte* dst, const std::byte* src) {
  std::memcpy(dst, src, static_cast<std::size_t>(width));
}

// `size` in [width, 2 * width]: two moves that may overlap.
template <std::int64_t width>
inline void move_pair(std::byte* dst, const std::byte* src, std::int64_t size) {
  const std::int64_t last = size - width;
  std::byte tail[static_cast<std::size_t>(width)];
  move<width>(tail, src + last);
  move<width>(dst, src);
  move<width>(dst + last, tail);
}

inline void move_below_64(std::byte* dst, const std::byte* src, std::int64_t size) {
  if (size >= 32) return move_pair<32>(dst, src, size);
  if (size >= 16) return move_pair<16>(dst, src, size);
  if (size >= 8) return move_pair<8>(dst, src, size);
  if (size >= 4) return move_pair<4>(dst, src, size);
  if (size >= 2) return move_pair<2>(dst, src, size);
  if (size == 1) *dst = *src;
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_MOVES_H_

// What the compiler of the device does not bring: it has no system headers, so the few names that
// the shared headers take from them are defined here. Put in front of everything else; the host
// never includes it.
#ifndef RESHARD_NATIVE_KERNELS_DEVICE_PRELUDE_H_
#define RESHARD_NATIVE_KERNELS_DEVICE_PRELUDE_H_

namespace std {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using size_t = decltype(sizeof(0));

// Always called with a constant size of a few bytes, which becomes a move between registers.
inline void* memcpy(void* dst, const void* src, size_t size) { return ::memcpy(dst, src, size); }

}  // namespace std

#endif  // RESHARD_NATIVE_KERNELS_DEVICE_PRELUDE_H_

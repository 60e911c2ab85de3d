// Element types as the C border numbers them, their widths, and which casts exist.
#ifndef RESHARD_NATIVE_SRC_DTYPE_H_
#define RESHARD_NATIVE_SRC_DTYPE_H_

#include <cstdint>

namespace reshard {

// The values are the codes of reshard.h and reshard/dtypes.py. An fp8 type that has no cast is
// still moved, as bytes.
enum class DType : std::int32_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kU16 = 3,
  kI16 = 4,
  kU32 = 5,
  kI32 = 6,
  kU64 = 7,
  kI64 = 8,
  kF16 = 9,
  kBF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 13,
  kC128 = 14,
  kF8E4M3FN = 15,
  kF8E5M2 = 16,
  kF8E4M3FNUZ = 17,
  kF8E5M2FNUZ = 18,
  kF8E8M0FNU = 19,
  kF8E4M3 = 20,
  kF8E3M4 = 21,
  kF8E4M3B11FNUZ = 22,
};

constexpr std::int32_t kNumDTypes = 23;

// Whether `code` is one of the values of DType.
bool is_dtype(std::int64_t code);

// Bytes of one element: 1, 2, 4, 8 or 16. Zero for a code that is no dtype.
std::int64_t size_of(DType dtype);

// Name for messages, such as "bfloat16"; "unknown" for a code that is no dtype.
const char* name_of(DType dtype);

// Whether pack and unpack can convert: equal types always (bytes move), the four floats among
// each other, and the four floats from and to float8_e4m3fn and float8_e5m2.
bool can_cast(DType from, DType to);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_DTYPE_H_

#include "dtype.h"

namespace reshard {
namespace {

struct DTypeFacts {
  const char* name;
  std::int64_t size;
};

constexpr DTypeFacts kFacts[kNumDTypes] = {
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float8_e4m3", 1},
    {"float8_e3m4", 1},
    {"float8_e4m3b11fnuz", 1},
};

bool is_wide_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

bool is_castable_float8(DType dtype) {
  return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2;
}

}  // namespace

bool is_dtype(std::int64_t code) { return code >= 0 && code < kNumDTypes; }

std::int64_t size_of(DType dtype) {
  const auto code = static_cast<std::int64_t>(dtype);
  return is_dtype(code) ? kFacts[code].size : 0;
}

const char* name_of(DType dtype) {
  const auto code = static_cast<std::int64_t>(dtype);
  return is_dtype(code) ? kFacts[code].name : "unknown";
}

bool can_cast(DType from, DType to) {
  if (from == to) return is_dtype(static_cast<std::int64_t>(from));
  if (is_wide_float(from)) return is_wide_float(to) || is_castable_float8(to);
  return is_castable_float8(from) && is_wide_float(to);
}

}  // namespace reshard

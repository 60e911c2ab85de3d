#include "table_reader.h"

#include <cmath>
#include <limits>

#include "pack.h"
#include "status.h"

namespace reshard {

void refuse(const std::string& message) { throw Error(StatusCode::kInvalidArgument, message); }

const std::int64_t* TableReader::take(std::int64_t count, std::int64_t row) {
  const std::size_t left = table_.length - position_;
  if (static_cast<std::size_t>(count) > left) {
    refuse(text(name_, " table, row ", row, ": ", count, " more values expected but ", left,
                " are left of ", table_.length, "."));
  }
  const std::int64_t* values = table_.data + position_;
  position_ += static_cast<std::size_t>(count);
  return values;
}

int read_ndim(const std::string& where, std::int64_t ndim) {
  if (ndim < 0 || ndim > kMaxDims) {
    refuse(text(where, "ndim ", ndim, " is not in 0..", kMaxDims, "."));
  }
  return static_cast<int>(ndim);
}

DType read_dtype(const std::string& where, const char* which, std::int64_t code) {
  if (!is_dtype(code)) {
    refuse(text(where, which, " dtype code ", code, " is not in 0..", kNumDTypes - 1, "."));
  }
  return static_cast<DType>(code);
}

std::size_t read_index(const std::string& where, const char* what, std::int64_t value,
                       std::int64_t limit) {
  if (value < 0 || value >= limit) {
    refuse(text(where, what, " ", value, " is not in 0..", limit - 1, "."));
  }
  return static_cast<std::size_t>(value);
}

StridedBox read_box(const std::string& where, int ndim, const std::int64_t* sizes,
                    const std::int64_t* strides) {
  StridedBox box{};
  box.ndim = ndim;
  for (int dim = 0; dim < ndim; ++dim) {
    if (sizes[dim] < 0) refuse(text(where, "size ", sizes[dim], " of dim ", dim, " is negative."));
    box.size[dim] = sizes[dim];
    box.stride[dim] = strides[dim];
  }
  return box;
}

Affine read_affine(const std::string& where, RulesTable rules, std::int64_t row, DType from,
                   DType to) {
  if (row == -1) return {};
  const auto num_rules = static_cast<std::int64_t>(rules.length / kAffineNumbers);
  const double* numbers = rules.data + kAffineNumbers * read_index(where, "rule", row, num_rules);
  const Affine affine = {{numbers[0], numbers[1], numbers[2]},
                         {numbers[3], numbers[4], numbers[5]}};
  for (const AffineRule& rule : {affine.source, affine.destination}) {
    const bool is_finite =
        std::isfinite(rule.scale) && std::isfinite(rule.divisor) && std::isfinite(rule.offset);
    if (!is_finite || rule.scale == 0.0 || rule.divisor == 0.0) {
      refuse(text(where, "scale ", rule.scale, ", divisor ", rule.divisor, " and offset ",
                  rule.offset, " are no rule: all are finite, scale and divisor not 0."));
    }
  }
  if (!affine.is_identity() && !can_apply_affine(from, to)) {
    throw Error(StatusCode::kUnsupported,
                text(where, "the values of ", name_of(from), " or ", name_of(to),
                     " cannot be changed. That is for float16, bfloat16, float32, float64, "
                     "float8_e4m3fn and float8_e5m2."));
  }
  return affine;
}

std::int64_t count_elements(const std::string& where, const StridedBox& box,
                            std::int64_t element_size) {
  constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max() >> 1;
  std::int64_t elements = 1;
  for (int dim = 0; dim < box.ndim; ++dim) {
    if (box.size[dim] == 0) return 0;
  }
  for (int dim = 0; dim < box.ndim; ++dim) {
    std::int64_t nbytes = 0;
    if (__builtin_mul_overflow(elements, box.size[dim], &elements) ||
        __builtin_mul_overflow(elements, element_size, &nbytes) || nbytes > kMaxBytes) {
      refuse(text(where, "the sizes multiply to more than 2^62 bytes."));
    }
  }
  return elements;
}

}  // namespace reshard

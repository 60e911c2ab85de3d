// Casts of dense runs of floats.
#ifndef RESHARD_NATIVE_SRC_CAST_H_
#define RESHARD_NATIVE_SRC_CAST_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace reshard {

// Converts `count` dense elements; the two sides need no alignment and do not overlap. With
// `streaming` the stores may bypass the caches, and the caller fences before it hands `out` on.
using CastFunction = void (*)(const std::byte* in, std::byte* out, std::int64_t count,
                              bool streaming);

// The cast of a pair, or nullptr when there is none or the types are equal. It is exact only inside
// a FloatEnvironment.
CastFunction cast_function(DType from, DType to);

// While it lives, this thread rounds to nearest and flushes no subnormals, whatever the program
// around it has set (x86; elsewhere the default environment is assumed).
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  [[maybe_unused]] std::uint32_t saved_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CAST_H_

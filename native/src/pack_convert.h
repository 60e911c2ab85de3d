// Strided copies that change the dtype on the way.
#ifndef RESHARD_NATIVE_SRC_PACK_CONVERT_H_
#define RESHARD_NATIVE_SRC_PACK_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "affine.h"
#include "cast.h"
#include "pack_copy.h"

namespace reshard {

// What happens to an element between memory and wire. Needs a FloatEnvironment while it runs.
class Conversion {
 public:
  // A cast; the two dtypes differ.
  Conversion(DType from, DType to);
  // A change of values in float64, and a cast; the two dtypes may be equal.
  Conversion(DType from, DType to, const Affine& affine);

  // Converts a dense run. After streaming stores the caller fences.
  void run(const std::byte* in, std::byte* out, std::int64_t count, Stores stores) const;

  std::int64_t from_width() const { return from_width_; }
  std::int64_t to_width() const { return to_width_; }

 private:
  void run_affine(const std::byte* in, std::byte* out, std::int64_t count) const;

  std::int64_t from_width_;
  std::int64_t to_width_;
  bool is_affine_;
  Affine affine_;
  CastFunction load_;   // from -> float64; the whole cast where values do not change
  CastFunction store_;  // float64 -> to
};

// Converts every element of the box. One side is the wire, dense in the order of the dims except
// for gaps where the box is part of a larger one; the other side is strided memory.
enum class WireSide { kDestination, kSource };
void convert_box(const CopyBox& box, std::byte* dst, const std::byte* src,
                 const Conversion& conversion, WireSide wire, Stores stores);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_CONVERT_H_

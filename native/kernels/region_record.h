// The table that the fingerprint kernel reads. Its directory is that of a table of moves
// (move_record.h); native/src/region_table.cc writes it.
#ifndef RESHARD_NATIVE_KERNELS_REGION_RECORD_H_
#define RESHARD_NATIVE_KERNELS_REGION_RECORD_H_

#include <cstdint>

#include "kernels/move_record.h"

namespace reshard::kernels {

// Words of a record.
enum RegionWord : int {
  kRegionShapeWord = 0,   // bytes: ndim, dim that is cut, memory dtype, stored dtype, width of an
                          // element in memory, whether it is cast, whether values change
  kRegionPlaceWord = 1,   // buffer, upper half: slot of the sum
  kRegionOffsetWord = 2,  // of element 0 in its buffer, in bytes
  kRegionSeedWord = 3,
  kRegionIndexWord = 4,  // of element 0
  kRegionBlockWord = 5,  // indices of the cut dim in a tile, upper half: tiles along it
  kRegionFirstDim = 6,   // three words a dim, outermost first: size, stride, stride of the index;
                         // then, where values change, the numbers of their Affine
};

// Elements of a tile, at most.
constexpr std::int64_t kRegionTile = 16384;

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_REGION_RECORD_H_

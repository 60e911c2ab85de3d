// The table of a launch of the device's fingerprint kernel.
#ifndef RESHARD_NATIVE_SRC_REGION_TABLE_H_
#define RESHARD_NATIVE_SRC_REGION_TABLE_H_

#include <cstdint>

#include "fingerprint.h"
#include "launch_table.h"

namespace reshard {

// Regions for reshard_fingerprint_regions; its `message` is an array of 64-bit sums, to which the
// kernel adds.
class RegionTable final : public LaunchTable {
 public:
  // Adds the fingerprint of a region whose element (0, ...) is `offset_bytes` from
  // addresses[buffer] to sums[slot]; region.base is not looked at. Throws kUnsupported when there
  // is no such cast or change of values or the launch would have 2**32 tiles.
  void add(const FingerprintRegion& region, std::uint32_t buffer, std::int64_t offset_bytes,
           std::uint32_t slot);
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_REGION_TABLE_H_

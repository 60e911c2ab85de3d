// The table of a launch of the device's fingerprint kernel.
#ifndef RESHARD_NATIVE_SRC_REGION_TABLE_H_
#define RESHARD_NATIVE_SRC_REGION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fingerprint.h"

namespace reshard {

// Regions for reshard_fingerprint_regions; its `message` is an array of 64-bit sums, to which the
// kernel adds. Not thread-safe.
class RegionTable {
 public:
  // Adds the fingerprint of a region whose element (0, ...) is `offset_bytes` from
  // addresses[buffer] to sums[slot]; region.base is not looked at. Throws kUnsupported when there
  // is no such cast or the launch would have 2**32 tiles.
  void add(const FingerprintRegion& region, std::uint32_t buffer, std::int64_t offset_bytes,
           std::uint32_t slot);

  // What is uploaded as `table`; valid until the table changes.
  const std::vector<std::uint64_t>& words() const;
  std::size_t num_words() const { return entries_.size() + records_.size(); }
  std::uint32_t num_moves() const { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t num_tiles() const { return static_cast<std::uint32_t>(num_tiles_); }
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    std::uint32_t first_tile;
    std::uint32_t record;
  };

  std::vector<Entry> entries_;
  std::vector<std::uint64_t> records_;
  std::uint64_t num_tiles_ = 0;
  mutable std::vector<std::uint64_t> words_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_REGION_TABLE_H_

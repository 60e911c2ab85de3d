// Reads the region table of a fingerprint request and adds up its rows.
#ifndef RESHARD_NATIVE_SRC_FINGERPRINT_TABLE_H_
#define RESHARD_NATIVE_SRC_FINGERPRINT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fingerprint.h"
#include "table_reader.h"

namespace reshard {

// A region with elements, and the slot that its sum is added to; region.base is not set.
struct FingerprintRow {
  std::size_t slot;
  std::size_t buffer;
  std::int64_t offset_bytes;
  std::int64_t elements;
  FingerprintRegion region;
};

// The rows of a table that have elements. Throws kInvalidArgument or kUnsupported naming the row.
std::vector<FingerprintRow> read_fingerprint_rows(Table table, RulesTable rules,
                                                  void* const* buffers, std::size_t num_buffers,
                                                  std::size_t num_slots);

// Adds the fingerprint of every region to sums[slot]. The layout of the table is documented at
// reshard_fingerprint in reshard.h. Throws kInvalidArgument or kUnsupported naming the row; sums
// are unchanged then.
void add_fingerprints(Table table, RulesTable rules, void* const* buffers, std::size_t num_buffers,
                      std::uint64_t* sums, std::size_t num_slots);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_FINGERPRINT_TABLE_H_

#include "fingerprint_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "status.h"

namespace reshard {
namespace {

constexpr std::int64_t kHeadColumns = 8;

FingerprintRow read_row(TableReader& reader, RulesTable rules, std::int64_t number,
                        void* const* buffers, std::size_t num_buffers, std::size_t num_slots) {
  const std::string where = text("regions table, row ", number, ": ");
  const std::int64_t* head = reader.take(kHeadColumns, number);
  FingerprintRow row{};
  row.slot = read_index(where, "slot", head[0], static_cast<std::int64_t>(num_slots));
  row.buffer = read_index(where, "buffer", head[1], static_cast<std::int64_t>(num_buffers));
  row.offset_bytes = head[2];
  FingerprintRegion& region = row.region;
  region.memory = read_dtype(where, "memory", head[3]);
  region.stored = read_dtype(where, "stored", head[4]);
  if (!can_cast(region.memory, region.stored)) {
    throw Error(StatusCode::kUnsupported, text(where, "no cast from ", name_of(region.memory),
                                               " to ", name_of(region.stored), "."));
  }
  region.affine = read_affine(where, rules, head[5], region.memory, region.stored);
  region.seed = static_cast<std::uint64_t>(head[6]);
  region.ndim = read_ndim(where, head[7]);
  const std::int64_t* dims = reader.take(3 * region.ndim + 1, number);
  const StridedBox box = read_box(where, region.ndim, dims, dims + region.ndim);
  row.elements = count_elements(where, box, size_of(region.memory));
  std::copy_n(box.size, region.ndim, region.size);
  std::copy_n(box.stride, region.ndim, region.stride);
  std::copy_n(dims + 2 * region.ndim, region.ndim, region.index_stride);
  region.index_base = dims[3 * region.ndim];
  if (buffers[row.buffer] == nullptr && row.elements > 0) {
    refuse(
        text(where, "buffer ", row.buffer, " is null but has ", row.elements, " elements here."));
  }
  return row;
}

}  // namespace

std::vector<FingerprintRow> read_fingerprint_rows(Table table, RulesTable rules,
                                                  void* const* buffers, std::size_t num_buffers,
                                                  std::size_t num_slots) {
  TableReader reader("regions", table);
  std::vector<FingerprintRow> rows;
  for (std::int64_t number = 0; !reader.at_end(); ++number) {
    FingerprintRow row = read_row(reader, rules, number, buffers, num_buffers, num_slots);
    if (row.elements > 0) rows.push_back(row);
  }
  return rows;
}

void add_fingerprints(Table table, RulesTable rules, void* const* buffers, std::size_t num_buffers,
                      std::uint64_t* sums, std::size_t num_slots) {
  for (FingerprintRow& row : read_fingerprint_rows(table, rules, buffers, num_buffers, num_slots)) {
    row.region.base = static_cast<const std::byte*>(buffers[row.buffer]) + row.offset_bytes;
    sums[row.slot] += fingerprint(row.region);
  }
}

}  // namespace reshard

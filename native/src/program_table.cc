#include "program_table.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "status.h"

namespace reshard {
namespace {

constexpr std::int64_t kStreamColumns = 3;
constexpr std::int64_t kOperationColumns = 6;
constexpr std::int64_t kZeroColumns = 4;
constexpr std::int64_t kSpanColumns = 3;
constexpr std::int64_t kMaxRounds = std::int64_t{1} << 20;
constexpr std::int64_t kMaxGroups = std::int64_t{1} << 20;
constexpr std::int64_t kMaxHop = std::int64_t{1} << 20;
constexpr std::int64_t kMinChunkBytes = 16;  // the widest element
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxRank = std::numeric_limits<std::int32_t>::max();

struct Extent {
  std::int64_t low;
  std::int64_t high;
};

// Byte range that a box touches, relative to the buffer's pointer: [low, high).
// Returns false when it does not fit 64 bits.
bool touched_range(const StridedBox& box, std::int64_t offset, std::int64_t element_size,
                   Extent* range) {
  range->low = offset;
  if (__builtin_add_overflow(offset, element_size, &range->high)) return false;
  for (int dim = 0; dim < box.ndim; ++dim) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(box.size[dim] - 1, box.stride[dim], &reach)) return false;
    std::int64_t& end = reach < 0 ? range->low : range->high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  return true;
}

void check_no_double_write(const std::string& where, const StridedBox& box) {
  for (int dim = 0; dim < box.ndim; ++dim) {
    if (box.size[dim] > 1 && box.stride[dim] == 0) {
      refuse(text(where, "dim ", dim, " of size ", box.size[dim],
                  " has stride 0, so elements would be written more than once. Only a send may "
                  "repeat elements."));
    }
  }
}

class ProgramReader {
 public:
  explicit ProgramReader(const ProgramTables& tables) : tables_(tables) {}

  Program read() {
    read_limits();
    read_times();
    read_streams();
    read_operations();
    read_zeros();
    if (!is_timed()) cut_streams(program_);
    pair_local_streams();
    return std::move(program_);
  }

 private:
  void read_limits() {
    if (tables_.chunk_bytes < kMinChunkBytes || tables_.chunk_bytes > kMaxChunkBytes) {
      refuse(text("program: chunk_bytes ", tables_.chunk_bytes, " is not in ", kMinChunkBytes, "..",
                  kMaxChunkBytes, "."));
    }
    if (tables_.num_buffers < 0 || tables_.num_buffers > kMaxRank) {
      refuse(text("program: num_buffers ", tables_.num_buffers, " is not in 0..", kMaxRank, "."));
    }
    const auto num_buffers = static_cast<std::size_t>(tables_.num_buffers);
    if (tables_.extents.length != 2 * num_buffers) {
      refuse(text("extents table: ", tables_.extents.length, " values for ", num_buffers,
                  " buffers; two per buffer (low, high) are needed."));
    }
    for (std::size_t buffer = 0; buffer < num_buffers; ++buffer) {
      const Extent extent{tables_.extents.data[2 * buffer], tables_.extents.data[2 * buffer + 1]};
      if (extent.low > extent.high) {
        refuse(text("extents table, buffer ", buffer, ": low ", extent.low, " is above high ",
                    extent.high, "."));
      }
      extents_.push_back(extent);
    }
    program_.chunk_bytes = tables_.chunk_bytes;
    program_.num_buffers = static_cast<std::uint32_t>(num_buffers);
    program_.buffer_is_used.assign(num_buffers, false);
  }

  bool is_timed() const { return tables_.num_rounds > 0; }

  // Rounds, groups and the tables that go with them; without rounds there must be none.
  void read_times() {
    const std::int64_t least = is_timed() ? 1 : 0;
    const auto check = [&](const char* name, std::int64_t value, std::int64_t low,
                           std::int64_t high) {
      if (value >= low && value <= high) return;
      refuse(text("program: ", name, " ", value, " is not in ", low, "..", high, "."));
    };
    check("num_rounds", tables_.num_rounds, 0, kMaxRounds);
    check("num_groups", tables_.num_groups, least, kMaxGroups);
    check("messages_per_pair", tables_.messages_per_pair, least, kMaxGroups);
    const std::size_t num_streams = tables_.streams.length / kStreamColumns;
    if (tables_.hops.length != (is_timed() ? num_streams : 0)) {
      refuse(text("hops table: ", tables_.hops.length, " values for ", num_streams, " streams and ",
                  tables_.num_rounds,
                  " rounds; one per stream is needed where there are rounds, "
                  "else none."));
    }
    program_.num_rounds = tables_.num_rounds;
    program_.num_groups = tables_.num_groups;
    program_.messages_per_pair = tables_.messages_per_pair;
  }

  std::int64_t read_hop(std::int64_t row) const {
    if (!is_timed()) return 0;
    const std::int64_t hop = tables_.hops.data[row];
    if (hop < 0 || hop > kMaxHop) {
      refuse(text("hops table, row ", row, ": ", hop, " is not in 0..", kMaxHop, "."));
    }
    return hop;
  }

  // The span of the operation in a row of its table.
  Span read_span(const std::string& where, std::int64_t row) const {
    if (!is_timed()) return {};
    const auto first = static_cast<std::size_t>(row) * kSpanColumns;
    if (first + kSpanColumns > tables_.spans.length) {
      refuse(text("spans table: ", tables_.spans.length, " values; ", kSpanColumns,
                  " per row of the operations table are needed."));
    }
    const std::int64_t* values = tables_.spans.data + first;
    const Span span{values[0], values[1], values[2]};
    if (span.start < 0 || span.stop <= span.start || span.total < span.stop) {
      refuse(text(where, "it moves from ", span.start, " to ", span.stop, " of ", span.total,
                  ", which is no span of time."));
    }
    return span;
  }

  void read_streams() {
    TableReader reader("streams", tables_.streams);
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, std::int64_t> seen;
    for (std::int64_t row = 0; !reader.at_end(); ++row) {
      const std::int64_t* values = reader.take(kStreamColumns, row);
      if (values[0] != 0 && values[0] != 1) {
        refuse(text("streams table, row ", row, ": direction ", values[0],
                    " is neither 0 (send) nor 1 (receive)."));
      }
      for (int column = 1; column < kStreamColumns; ++column) {
        if (values[column] < 0 || values[column] > kMaxRank) {
          refuse(text("streams table, row ", row, ": rank ", values[column], " is not in 0..",
                      kMaxRank, "."));
        }
      }
      const std::int64_t hop = read_hop(row);
      const auto [place, is_new] =
          seen.emplace(std::make_tuple(values[0], values[1], values[2], hop), row);
      if (!is_new) {
        refuse(text("streams table, row ", row, ": direction ", values[0], ", rank ", values[1],
                    " -> rank ", values[2], " is in row ", place->second, " already."));
      }
      program_.streams.push_back(
          {static_cast<Direction>(values[0]), values[1], values[2], 0, 0, 0, hop});
    }
  }

  // What the operation in a row of its table does to values.
  Affine read_change(const std::string& where, std::int64_t row, DType from, DType to) const {
    if (tables_.changes.length == 0) return {};
    if (static_cast<std::size_t>(row) >= tables_.changes.length) {
      refuse(text("changes table: ", tables_.changes.length,
                  " values; one per row of the operations table is needed, or none."));
    }
    return read_affine(where, tables_.rules, tables_.changes.data[row], from, to);
  }

  void read_operations() {
    TableReader reader("operations", tables_.operations);
    std::int64_t row = 0;
    for (; !reader.at_end(); ++row) read_operation(reader, row);
    const auto num_values = static_cast<std::size_t>(is_timed() ? row * kSpanColumns : 0);
    if (tables_.spans.length != num_values) {
      refuse(text("spans table: ", tables_.spans.length, " values, but ", num_values,
                  " are needed for ", row, " operations and ", tables_.num_rounds, " rounds."));
    }
    if (tables_.changes.length > static_cast<std::size_t>(row)) {
      refuse(text("changes table: ", tables_.changes.length, " values for ", row, " operations."));
    }
    std::stable_sort(program_.operations.begin(), program_.operations.end(),
                     [](const Operation& a, const Operation& b) { return a.stream < b.stream; });
  }

  void read_operation(TableReader& reader, std::int64_t row) {
    const std::int64_t* head = reader.take(kOperationColumns, row);
    const auto num_streams = static_cast<std::int64_t>(program_.streams.size());
    const std::size_t s =
        read_index(text("operations table, row ", row, ": "), "stream", head[0], num_streams);
    const Stream& stream = program_.streams[s];
    const std::string where = text("operations table, row ", row, ", ", describe(stream), ": ");
    Operation operation{};
    operation.stream = static_cast<std::uint32_t>(s);
    operation.buffer = read_buffer(where, head[1]);
    operation.offset_bytes = head[2];
    operation.memory = read_dtype(where, "memory", head[3]);
    operation.wire = read_dtype(where, "wire", head[4]);
    const bool is_send = stream.direction == Direction::kSend;
    const DType from = is_send ? operation.memory : operation.wire;
    const DType to = is_send ? operation.wire : operation.memory;
    check_cast(where, from, to);
    operation.affine = read_change(where, row, from, to);
    const int ndim = read_ndim(where, head[5]);
    const std::int64_t* dims = reader.take(2 * ndim, row);
    const StridedBox box = read_box(where, ndim, dims, dims + ndim);
    operation.elements =
        count_elements(where, box, std::max(size_of(operation.memory), size_of(operation.wire)));
    if (operation.elements == 0) return;
    if (stream.direction == Direction::kReceive) check_no_double_write(where, box);
    check_extent(where, box, operation.offset_bytes, size_of(operation.memory), operation.buffer);
    operation.box = coalesce(box, size_of(operation.memory));
    operation.span = read_span(where, row);
    program_.operations.push_back(operation);
  }

  void check_cast(const std::string& where, DType from, DType to) {
    if (from != to && !can_cast(from, to)) {
      throw Error(StatusCode::kUnsupported,
                  text(where, "no cast from ", name_of(from), " to ", name_of(to),
                       ". Casts are between float16, bfloat16, float32, float64 and to or from "
                       "float8_e4m3fn and float8_e5m2."));
    }
  }

  void read_zeros() {
    TableReader reader("zeros", tables_.zeros);
    for (std::int64_t row = 0; !reader.at_end(); ++row) {
      const std::int64_t* head = reader.take(kZeroColumns, row);
      const std::string where = text("zeros table, row ", row, ": ");
      ZeroRegion region{};
      region.buffer = read_buffer(where, head[0]);
      region.offset_bytes = head[1];
      region.element_size = head[2];
      if (head[2] < 1 || head[2] > kMinChunkBytes) {
        refuse(text(where, "element size ", head[2], " is not in 1..", kMinChunkBytes, "."));
      }
      const int ndim = read_ndim(where, head[3]);
      const std::int64_t* dims = reader.take(2 * ndim, row);
      const StridedBox box = read_box(where, ndim, dims, dims + ndim);
      if (count_elements(where, box, region.element_size) == 0) continue;
      check_extent(where, box, region.offset_bytes, region.element_size, region.buffer);
      region.box = coalesce(box, region.element_size);
      program_.zero_regions.push_back(region);
    }
  }

  std::uint32_t read_buffer(const std::string& where, std::int64_t buffer) const {
    return static_cast<std::uint32_t>(read_index(where, "buffer", buffer, tables_.num_buffers));
  }

  // Every element must lie inside the extent that the caller gave for the buffer.
  void check_extent(const std::string& where, const StridedBox& box, std::int64_t offset,
                    std::int64_t element_size, std::uint32_t buffer) {
    Extent range{};
    if (!touched_range(box, offset, element_size, &range)) {
      refuse(text(where, "the byte range that it touches does not fit 64 bits."));
    }
    const Extent& extent = extents_[buffer];
    if (range.low < extent.low || range.high > extent.high) {
      refuse(text(where, "bytes [", range.low, ", ", range.high, ") of buffer ", buffer,
                  " are touched but its extent is [", extent.low, ", ", extent.high, ")."));
    }
    program_.buffer_is_used[buffer] = true;
  }

  // A stream with both ends here is served inside the process; both ends must agree by themselves.
  void pair_local_streams() {
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::uint32_t> sends;
    for (std::uint32_t s = 0; s < program_.streams.size(); ++s) {
      const Stream& stream = program_.streams[s];
      if (stream.direction == Direction::kSend) {
        sends[{stream.src_rank, stream.dst_rank, stream.hop}] = s;
      }
    }
    std::vector<bool> is_local(program_.streams.size(), false);
    for (std::uint32_t s = 0; s < program_.streams.size(); ++s) {
      const Stream& stream = program_.streams[s];
      if (stream.direction != Direction::kReceive) continue;
      const auto send = sends.find({stream.src_rank, stream.dst_rank, stream.hop});
      if (send == sends.end()) continue;
      check_local_pair(send->second, s);
      is_local[send->second] = true;
      is_local[s] = true;
      program_.local_streams.push_back({send->second, s});
    }
    for (std::uint32_t s = 0; s < program_.streams.size(); ++s) {
      if (!is_local[s]) program_.remote_streams.push_back(s);
    }
  }

  void check_local_pair(std::uint32_t send, std::uint32_t receive) {
    const auto send_range = operations_of(send);
    const auto receive_range = operations_of(receive);
    const auto num_sends = send_range.second - send_range.first;
    const auto num_receives = receive_range.second - receive_range.first;
    const std::string where = text("program, rank ", program_.streams[send].src_rank, " -> rank ",
                                   program_.streams[send].dst_rank, " inside the process: ");
    if (num_sends != num_receives) {
      refuse(text(where, num_sends, " operations with elements are sent but ", num_receives,
                  " received."));
    }
    for (std::size_t i = 0; i < num_sends; ++i) {
      const Operation& a = program_.operations[send_range.first + i];
      const Operation& b = program_.operations[receive_range.first + i];
      if (a.span.start != b.span.start || a.span.stop != b.span.stop ||
          a.span.total != b.span.total) {
        refuse(text(where, "operation ", i, " is sent and received at different times."));
      }
      if (a.elements != b.elements || a.wire != b.wire) {
        refuse(text(where, "operation ", i, " sends ", a.elements, " elements of ", name_of(a.wire),
                    " but receives ", b.elements, " of ", name_of(b.wire), "."));
      }
    }
  }

  // Index range of a stream's operations (they are sorted by stream).
  std::pair<std::size_t, std::size_t> operations_of(std::uint32_t stream) const {
    const auto less = [](const Operation& a, std::uint32_t s) { return a.stream < s; };
    const auto begin = program_.operations.begin();
    const auto end = program_.operations.end();
    const auto first = std::lower_bound(begin, end, stream, less);
    const auto last = std::lower_bound(first, end, stream + 1, less);
    return {static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - begin)};
  }

  const ProgramTables& tables_;
  std::vector<Extent> extents_;
  Program program_;
};

}  // namespace

Program read_program(const ProgramTables& tables) { return ProgramReader(tables).read(); }

}  // namespace reshard

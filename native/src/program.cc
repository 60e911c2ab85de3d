#include "program.h"

#include <algorithm>
#include <cstddef>

#include "status.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxSegments = std::size_t{1} << 24;  // 512 MiB of table

// Builds the chunks of one stream; `finish` closes the last one.
class ChunkWriter {
 public:
  ChunkWriter(Program& program, Stream& stream) : program_(program), stream_(stream) {
    stream_.first_chunk = index(program_.chunks.size());
    stream_.num_chunks = 0;
    stream_.nbytes = 0;
  }

  void add(std::uint32_t operation) {
    const std::int64_t element_size = size_of(program_.operations[operation].wire);
    const std::int64_t elements = program_.operations[operation].elements;
    std::int64_t first = 0;
    while (first < elements) {
      if (nbytes_ + element_size > program_.chunk_bytes) finish();
      const std::int64_t room = (program_.chunk_bytes - nbytes_) / element_size;
      const std::int64_t count = std::min(room, elements - first);
      if (num_segments_ == 0) first_segment_ = index(program_.segments.size());
      program_.segments.push_back({operation, first, count, nbytes_});
      ++num_segments_;
      nbytes_ += count * element_size;
      first += count;
    }
  }

  void finish() {
    if (num_segments_ == 0) return;
    program_.chunks.push_back({first_segment_, num_segments_, nbytes_});
    ++stream_.num_chunks;
    stream_.nbytes += nbytes_;
    num_segments_ = 0;
    nbytes_ = 0;
  }

 private:
  static std::uint32_t index(std::size_t value) {
    if (value >= kMaxSegments) {
      throw Error(StatusCode::kUnsupported,
                  text("program: the operations cut into more than ", kMaxSegments,
                       " pieces. Use larger chunk_bytes or several programs."));
    }
    return static_cast<std::uint32_t>(value);
  }

  Program& program_;
  Stream& stream_;
  std::uint32_t first_segment_ = 0;
  std::uint32_t num_segments_ = 0;
  std::int64_t nbytes_ = 0;
};

}  // namespace

std::string describe(const Stream& stream) {
  return text("rank ", stream.src_rank, " -> rank ", stream.dst_rank,
              stream.direction == Direction::kSend ? " (send)" : " (receive)");
}

void cut_streams(Program& program) {
  program.segments.clear();
  program.chunks.clear();
  std::uint32_t operation = 0;
  for (std::uint32_t s = 0; s < program.streams.size(); ++s) {
    ChunkWriter writer(program, program.streams[s]);
    for (; operation < program.operations.size() && program.operations[operation].stream == s;
         ++operation) {
      writer.add(operation);
    }
    writer.finish();
  }
}

}  // namespace reshard

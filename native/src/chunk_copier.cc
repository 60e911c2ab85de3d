#include "chunk_copier.h"

#include <algorithm>

namespace reshard {
namespace {

// Sharing less than this per thread costs more than it gains.
constexpr std::int64_t kMinShareBytes = 64 * 1024;

}  // namespace

void ChunkCopier::set_num_threads(int num_threads) {
  const int current = workers_ == nullptr ? 1 : workers_->num_threads();
  if (num_threads == current) return;
  workers_.reset();
  if (num_threads > 1) workers_ = std::make_unique<WorkerPool>(num_threads);
}

void ChunkCopier::pack(const Chunk& chunk, const std::vector<std::byte*>& buffers,
                       std::byte* message) {
  for_each_piece(chunk, [&](std::uint32_t, const Segment& piece) {
    const Operation& operation = program_.operations[piece.operation];
    device_.pack(operation, piece, buffers[operation.buffer], message,
                 /*is_read_next=*/true);
  });
}

void ChunkCopier::unpack(const Chunk& chunk, const std::vector<std::byte*>& buffers,
                         const std::byte* message) {
  for_each_piece(chunk, [&](std::uint32_t, const Segment& piece) {
    const Operation& operation = program_.operations[piece.operation];
    device_.unpack(operation, piece, buffers[operation.buffer], message);
  });
}

bool ChunkCopier::is_shared(const Chunk& chunk) const {
  return workers_ != nullptr && chunk.nbytes >= kMinShareBytes * workers_->num_threads();
}

Segment piece_of(const Segment& segment, std::int64_t element_size, std::int64_t low,
                 std::int64_t high) {
  // The first element that starts at or after `at`.
  const auto first_from = [&](std::int64_t at) {
    const std::int64_t bytes = std::max<std::int64_t>(at - segment.offset, 0);
    return std::min((bytes + element_size - 1) / element_size, segment.count);
  };
  const std::int64_t begin = first_from(low);
  return {segment.operation, segment.first + begin, first_from(high) - begin,
          segment.offset + begin * element_size};
}

}  // namespace reshard

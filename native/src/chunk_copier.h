// Copies whole messages: all segments of a chunk, on one thread or shared among several.
#ifndef RESHARD_NATIVE_SRC_CHUNK_COPIER_H_
#define RESHARD_NATIVE_SRC_CHUNK_COPIER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "device.h"
#include "program.h"
#include "worker_pool.h"

namespace reshard {

// The elements of `segment` that start in bytes [low, high) of the chunk; count 0 when there are
// none.
Segment piece_of(const Segment& segment, std::int64_t element_size, std::int64_t low,
                 std::int64_t high);

class ChunkCopier {
 public:
  ChunkCopier(const Program& program, Device& device) : program_(program), device_(device) {}

  // Threads that later copies may use; keeps them between runs.
  void set_num_threads(int num_threads);

  // Buffers are the base pointers of the program's buffers.
  void pack(const Chunk& chunk, const std::vector<std::byte*>& buffers, std::byte* message);
  void unpack(const Chunk& chunk, const std::vector<std::byte*>& buffers, const std::byte* message);

  // Calls copy(number, piece) for pieces that together are the chunk, possibly on several threads
  // at once. `number` is that of the segment inside the chunk; equal chunks have equal pieces.
  template <typename Copy>
  void for_each_piece(const Chunk& chunk, const Copy& copy) {
    const Segment* segments = program_.segments.data() + chunk.first_segment;
    if (!is_shared(chunk)) {
      for (std::uint32_t i = 0; i < chunk.num_segments; ++i) copy(i, segments[i]);
      return;
    }
    const int parts = workers_->num_threads();
    const auto copy_part = [&](int part) {
      const std::int64_t low = chunk.nbytes * part / parts;
      const std::int64_t high = chunk.nbytes * (part + 1) / parts;
      for (std::uint32_t i = 0; i < chunk.num_segments; ++i) {
        const DType wire = program_.operations[segments[i].operation].wire;
        const Segment piece = piece_of(segments[i], size_of(wire), low, high);
        if (piece.count > 0) copy(i, piece);
      }
    };
    workers_->run(std::ref(copy_part));
  }

 private:
  // Whether the chunk is worth sharing among threads.
  bool is_shared(const Chunk& chunk) const;

  const Program& program_;
  Device& device_;
  std::unique_ptr<WorkerPool> workers_;  // null: one thread
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CHUNK_COPIER_H_

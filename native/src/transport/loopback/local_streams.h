// Serves the streams of a program whose both ends are in this process: memory to memory, no slots.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_LOOPBACK_LOCAL_STREAMS_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_LOOPBACK_LOCAL_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chunk_copier.h"
#include "device.h"
#include "program.h"

namespace reshard {

class LocalStreams {
 public:
  LocalStreams(const Program& program, Device& device, ChunkCopier& copier);

  void begin();
  bool is_done() const { return next_ == chunks_.size(); }

  // Moves the next chunk. `buffers` are the base pointers of the program's buffers.
  void step(const std::vector<std::byte*>& buffers);

  std::int64_t nbytes() const { return nbytes_; }
  std::int64_t num_chunks() const { return static_cast<std::int64_t>(chunks_.size()); }
  std::int64_t staging_bytes() const { return static_cast<std::int64_t>(bounce_.size()); }

 private:
  // Both ends of one chunk; they hold the same number of segments with the same counts.
  struct LocalChunk {
    const Chunk* send;
    const Chunk* receive;
  };

  void move(const Segment& from, const Segment& to, const std::vector<std::byte*>& buffers);

  const Program& program_;
  Device& device_;
  ChunkCopier& copier_;
  std::vector<LocalChunk> chunks_;
  std::vector<std::byte> bounce_;  // empty when every segment can be copied directly
  std::int64_t nbytes_ = 0;
  std::size_t next_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_LOOPBACK_LOCAL_STREAMS_H_

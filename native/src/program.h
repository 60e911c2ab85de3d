// A program: what one process sends, receives and zero-fills in every run, checked once.
//
// Built from flat int64 tables (program_table.h), immutable afterwards. Streams are cut here into
// chunks, or, where operations have their time, in round_schedule.h into rounds, so that both ends
// of a stream, which have the same operations in the same order, get the same pieces without
// talking to each other.
#ifndef RESHARD_NATIVE_SRC_PROGRAM_H_
#define RESHARD_NATIVE_SRC_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "affine.h"
#include "dtype.h"
#include "strided_box.h"

namespace reshard {

enum class Direction : std::int32_t { kSend = 0, kReceive = 1 };

// When an operation moves: evenly from start / total to stop / total of the whole time.
struct Span {
  std::int64_t start = 0;
  std::int64_t stop = 1;
  std::int64_t total = 1;
};

// A box of one local buffer that is `elements` consecutive elements of a stream.
struct Operation {
  std::uint32_t stream;
  std::uint32_t buffer;
  std::int64_t offset_bytes;
  DType memory;
  DType wire;
  std::int64_t elements;
  StridedBox box;
  Span span;
  Affine affine{};  // from what is read to what is written, before the cast

  // Whether the bytes in memory are those on the wire.
  bool moves_bytes() const { return memory == wire && affine.is_identity(); }
};

// Elements [first, first + count) of an operation, at byte `offset` of a chunk.
struct Segment {
  std::uint32_t operation;
  std::int64_t first;
  std::int64_t count;
  std::int64_t offset;
};

// One message: consecutive segments of one stream.
struct Chunk {
  std::uint32_t first_segment;
  std::uint32_t num_segments;
  std::int64_t nbytes;
};

// All bytes that go from one rank to another in one run, at one hop: 0 where they are read from
// what a source holds, else how many transfers must have brought them to the sender.
struct Stream {
  Direction direction;
  std::int64_t src_rank;
  std::int64_t dst_rank;
  std::uint32_t first_chunk;
  std::uint32_t num_chunks;
  std::int64_t nbytes;
  std::int64_t hop = 0;
};

// The two ends of a stream whose source and destination rank are both in this process.
struct LocalStream {
  std::uint32_t send;
  std::uint32_t receive;
};

// A region that is filled with zeros in every run (declared padding).
struct ZeroRegion {
  std::uint32_t buffer;
  std::int64_t offset_bytes;
  std::int64_t element_size;
  StridedBox box;
};

struct Program {
  std::uint32_t num_buffers = 0;
  std::int64_t chunk_bytes = 0;
  std::int64_t num_rounds = 0;         // above 0: the whole time has so many; there are no chunks
  std::int64_t num_groups = 1;         // groups of sends and receives of a slot, by pairs of ranks
  std::int64_t messages_per_pair = 1;  // in one group at most
  std::vector<bool> buffer_is_used;    // by an operation or zero region with elements
  std::vector<Operation> operations;   // grouped by stream, canonical order inside
  std::vector<Segment> segments;       // grouped by chunk
  std::vector<Chunk> chunks;           // grouped by stream
  std::vector<Stream> streams;
  std::vector<LocalStream> local_streams;
  std::vector<std::uint32_t> remote_streams;  // all others; need a communicator
  std::vector<ZeroRegion> zero_regions;
};

// "rank 3 -> rank 7 (send)"
std::string describe(const Stream& stream);

// Cuts the operations of every stream into chunks of at most `chunk_bytes` and fills segments,
// chunks and the chunk fields of streams. An operation may be cut between any two elements. Depends
// on nothing but each operation's element count and wire dtype.
void cut_streams(Program& program);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PROGRAM_H_

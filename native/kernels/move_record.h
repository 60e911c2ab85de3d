// The table that the kernels read: which bytes go where, cut into tiles.
//
// Words of 64 bits. First one word per move: its first tile in the upper half, the place of its
// record (in words, from the start of the table) in the lower half. Then the records, of variable
// length. native/src/launch_table.cc and move_table.cc write tables; nothing else knows the layout.
//
// A record names a strided side, the memory, and a side that is dense or part of something dense,
// the wire. Packing reads the memory and writes the wire, unpacking the reverse, so the table of
// either looks the same.
#ifndef RESHARD_NATIVE_KERNELS_MOVE_RECORD_H_
#define RESHARD_NATIVE_KERNELS_MOVE_RECORD_H_

#include <cstdint>

#include "affine.h"
#include "dtype.h"

namespace reshard::kernels {

// Threads of a block. The kernels work with any number; this one is what they are tuned for.
constexpr std::uint32_t kBlockThreads = 256;

// In place of a buffer: the wire side is the message.
constexpr std::uint32_t kStaging = 0xFFFFFFFFU;

enum class MoveKind : std::uint32_t {
  kRows = 0,  // runs of bytes that are contiguous on both sides, one for each index of the dims
  kCast = 1,  // the same with elements that change their dtype on the way
  kTranspose = 2,  // the last two dims are the ones that are close together, each on one side
};

// Words of a record.
enum RecordWord : int {
  kShapeWord = 0,         // see Shape
  kBuffersWord = 1,       // buffer of the memory, upper half: buffer of the wire or kStaging
  kMemoryOffsetWord = 2,  // in bytes
  kWireOffsetWord = 3,    // in bytes
  kRunWord = 4,           // kRows: bytes; kCast: elements; kTranspose: bytes of an element if all
                          // that happens to it is that it moves, else 0
  kBlockWord = 5,         // see Shape::split; kTranspose: tiles along the last two dims
  kFirstDimWord = 6,      // three words a dim, outermost first: size, memory stride, wire stride;
                          // then, where values change, the numbers of their Affine
};

constexpr int kWordsPerDim = 3;

// The fields of kShapeWord, eight bits each; those of strides share one.
struct Shape {
  MoveKind kind;
  int ndim;
  // The dim that is cut into tiles, as many indices each as the lower half of kBlockWord says; the
  // upper half is how many tiles that makes. A tile has all of the dims after it. ndim means that
  // the run itself is cut.
  int split;
  DType memory;
  DType wire;
  // All strides of a side or-ed together: which powers of two, up to 16, divide them all.
  std::uint32_t memory_stride_bits;
  std::uint32_t wire_stride_bits;
  int edge_log2;  // kTranspose: a tile has at most 2**edge_log2 indices of each of its dims
  bool is_changed = false;  // values change, before the cast if there is one
};

inline std::uint64_t word_of(const Shape& shape) {
  const std::uint32_t fields[8] = {static_cast<std::uint32_t>(shape.kind),
                                   static_cast<std::uint32_t>(shape.ndim),
                                   static_cast<std::uint32_t>(shape.split),
                                   static_cast<std::uint32_t>(shape.memory),
                                   static_cast<std::uint32_t>(shape.wire),
                                   (shape.memory_stride_bits & 15U) | (shape.wire_stride_bits & 15U)
                                                                          << 4,
                                   static_cast<std::uint32_t>(shape.edge_log2),
                                   shape.is_changed ? 1U : 0U};
  std::uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = (word << 8) | (fields[i] & 0xFFU);
  return word;
}

inline std::uint32_t field_of(std::uint64_t word, int i) {
  return static_cast<std::uint32_t>(word >> (8 * i)) & 0xFFU;
}

inline Shape shape_of(std::uint64_t word) {
  return {static_cast<MoveKind>(field_of(word, 0)),
          static_cast<int>(field_of(word, 1)),
          static_cast<int>(field_of(word, 2)),
          static_cast<DType>(field_of(word, 3)),
          static_cast<DType>(field_of(word, 4)),
          field_of(word, 5) & 15U,
          field_of(word, 5) >> 4,
          static_cast<int>(field_of(word, 6)),
          field_of(word, 7) != 0};
}

inline std::uint32_t low_half(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
inline std::uint32_t high_half(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

inline std::uint64_t word_of_halves(std::uint32_t low, std::uint32_t high) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// One dim of a record.
struct MoveDim {
  std::int64_t size;
  std::int64_t memory;
  std::int64_t wire;
};

inline MoveDim dim_of(const std::uint64_t* record, int k) {
  const std::uint64_t* const words = record + kFirstDimWord + kWordsPerDim * k;
  return {static_cast<std::int64_t>(words[0]), static_cast<std::int64_t>(words[1]),
          static_cast<std::int64_t>(words[2])};
}

// The numbers that follow the dims of a record.
inline Affine affine_of(const std::uint64_t* words) {
  return {{double_of(words[0]), double_of(words[1]), double_of(words[2])},
          {double_of(words[3]), double_of(words[4]), double_of(words[5])}};
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_MOVE_RECORD_H_

// Tables to programs: what is refused, how streams are cut, and that both ends cut alike.
#include <random>

#include "fixtures.h"

namespace reshard_test {
namespace {

using Values = std::vector<std::int64_t>;

Program read(const Values& streams, const Values& operations, const Values& extents,
             std::int64_t chunk_bytes = 64) {
  return read_program({{streams.data(), streams.size()},
                       {operations.data(), operations.size()},
                       {nullptr, 0},
                       {extents.data(), extents.size()},
                       static_cast<std::int64_t>(extents.size() / 2),
                       chunk_bytes});
}

constexpr std::int64_t kBool = 0, kU8 = 1, kF16 = 9, kBF16 = 10, kF32 = 11, kC128 = 14;
constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();

TEST(chunks_are_full_and_hold_whole_elements) {
  // 3 bytes, then 20 float32, then 2 complex128, in chunks of at most 32 bytes.
  const Program program = read({0, 0, 1}, {0, 0, 0, kBool, kBool, 1, 3,  1,  //
                                           0, 0, 0, kF32,  kF32,  1, 20, 4,  //
                                           0, 0, 0, kC128, kC128, 1, 2,  16},
                               {0, 1000}, 32);
  Values sizes;
  for (const Chunk& chunk : program.chunks) sizes.push_back(chunk.nbytes);
  // 3 + 7 * 4 = 31; 8 * 4 = 32; 5 * 4 = 20, where no complex128 fits; 2 * 16 = 32.
  CHECK_TRUE(sizes == Values({31, 32, 20, 32}));
  CHECK_EQ(program.streams[0].nbytes, 3 + 80 + 32);
  CHECK_EQ(program.segments[1].offset, 3);
}

TEST(many_small_operations_share_a_chunk) {
  Values operations;
  for (int i = 0; i < 100; ++i) {
    operations.insert(operations.end(), {0, 0, 16 * i, kU8, kU8, 1, 16, 1});
  }
  const Program program = read({0, 0, 1}, operations, {0, 1600}, 1024);
  CHECK_EQ(program.chunks.size(), 2U);
  CHECK_EQ(program.chunks[0].num_segments, 64U);
}

TEST(empty_operations_and_streams_move_nothing) {
  const Program program = read({0, 0, 1, 1, 2, 0}, {0, 0, 500, kU8, kU8, 2, 0, 7, 1, 1}, {0, 0});
  CHECK_EQ(program.chunks.size(), 0U);
  CHECK_EQ(program.operations.size(), 0U);
  CHECK_EQ(program.remote_streams.size(), 2U);
}

TEST(operations_of_a_stream_keep_their_order_when_streams_alternate) {
  const Program program = read({0, 0, 1, 0, 0, 2}, {1, 0, 0, kU8, kU8, 1, 5, 1,  //
                                                    0, 0, 0, kU8, kU8, 1, 6, 1,  //
                                                    1, 0, 0, kU8, kU8, 1, 7, 1,  //
                                                    0, 0, 0, kU8, kU8, 1, 8, 1},
                               {0, 100});
  Values elements;
  for (const Operation& operation : program.operations) elements.push_back(operation.elements);
  CHECK_TRUE(elements == Values({6, 8, 5, 7}));
}

// Whatever the memory on either side looks like, cuts depend on element counts and wire dtypes
// only.
TEST(both_ends_cut_alike) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 200; ++round) {
    Values send;
    Values receive;
    const std::int64_t chunk_bytes = 16 + static_cast<std::int64_t>(random() % 200);
    const int count = static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i) {
      const std::int64_t rows = random() % 6;
      const std::int64_t cols = random() % 9;
      const std::int64_t dtypes[] = {kU8, kF32, kC128};
      const std::int64_t dtype = dtypes[random() % 3];
      const std::int64_t width = size_of(static_cast<DType>(dtype));
      send.insert(send.end(), {0, 0, 0, dtype, dtype, 2, rows, cols, cols * width, width});
      receive.insert(receive.end(), {0, 0, 0, dtype, dtype, 2, rows, cols, width, rows * width});
    }
    const Program a = read({0, 3, 4}, send, {0, 10000}, chunk_bytes);
    const Program b = read({1, 3, 4}, receive, {0, 10000}, chunk_bytes);
    CHECK_EQ(a.chunks.size(), b.chunks.size());
    std::int64_t total = 0;
    for (std::size_t i = 0; i < a.chunks.size(); ++i) {
      CHECK_EQ(a.chunks[i].nbytes, b.chunks[i].nbytes);
      CHECK_TRUE(a.chunks[i].nbytes <= chunk_bytes);
      total += a.chunks[i].nbytes;
    }
    CHECK_EQ(total, a.streams[0].nbytes);
    CHECK_EQ(a.segments.size(), b.segments.size());
    for (std::size_t i = 0; i < a.segments.size(); ++i) {
      CHECK_EQ(a.segments[i].first, b.segments[i].first);
      CHECK_EQ(a.segments[i].count, b.segments[i].count);
      CHECK_EQ(a.segments[i].offset, b.segments[i].offset);
    }
  }
}

// What a send packs is unpacked as it is: wider elements would be read from beyond the chunk.
TEST(both_ends_inside_the_process_must_agree) {
  const auto refused = [](std::int64_t count, std::int64_t memory, std::int64_t wire) {
    return error_of([&] {
      read({0, 0, 1, 1, 0, 1},
           {0, 0, 0, kF32, kBF16, 1, 4, 4,  //
            1, 1, 0, memory, wire, 1, count, 4},
           {0, 16, 0, 16});
    });
  };
  CHECK_CONTAINS(refused(3, kF32, kBF16).message(), "4 elements of bfloat16 but receives 3");
  CHECK_CONTAINS(refused(4, kF32, kF32).message(), "of bfloat16 but receives 4 of float32");
  // Of the same width: the bytes would fit, the values would not.
  const Error error = refused(4, kF32, kF16);
  CHECK_EQ(error.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(error.message(), "rank 0 -> rank 1 inside the process: operation 0 sends 4");
  CHECK_CONTAINS(error.message(), "of bfloat16 but receives 4 of float16");
}

TEST(extreme_values_are_refused_without_overflow) {
  const Values extents = {kLow, kHigh};
  const Values stream = {0, 0, 1};
  const auto refused = [&](const Values& row) {
    return error_of([&] { read(stream, row, extents); }).message();
  };
  CHECK_CONTAINS(refused({0, 0, 0, kU8, kU8, 2, kHigh, kHigh, 1, 1}), "2^62");
  CHECK_CONTAINS(refused({0, 0, kHigh, kU8, kU8, 1, 1, 1}), "64 bits");
  CHECK_CONTAINS(refused({0, 0, 0, kU8, kU8, 1, 3, kHigh}), "64 bits");
  CHECK_CONTAINS(refused({0, 0, -10, kU8, kU8, 1, 2, kLow}), "64 bits");
  CHECK_CONTAINS(refused({kLow, 0, 0, kU8, kU8, 0}), "stream");
  CHECK_CONTAINS(refused({0, kHigh, 0, kU8, kU8, 0}), "buffer");
  CHECK_CONTAINS(refused({0, 0, 0, kU8, kU8, kHigh}), "ndim");
  CHECK_CONTAINS(refused({0, 0, 0, kU8, kU8, kLow}), "ndim");
  CHECK_CONTAINS(refused({0, 0, 0, kU8, kU8, 1, kLow, 1}), "negative");
}

TEST(a_program_of_too_many_pieces_is_refused_before_it_fills_memory) {
  const Error error = error_of([] {
    read({0, 0, 1}, {0, 0, 0, kU8, kU8, 1, std::int64_t{1} << 40, 1}, {0, std::int64_t{1} << 40},
         16);
  });
  CHECK_EQ(error.code(), StatusCode::kUnsupported);
  CHECK_CONTAINS(error.message(), "larger chunk_bytes");
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

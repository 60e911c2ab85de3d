// Sharing a copy among threads: the pool, the cut of a chunk into pieces, and runs that use them.
#include <numeric>

#include "chunk_copier.h"
#include "fixtures.h"

namespace reshard_test {
namespace {

TEST(every_part_runs_once_per_round) {
  for (const int num_threads : {1, 2, 5}) {
    WorkerPool pool(num_threads);
    std::vector<int> calls(static_cast<std::size_t>(num_threads));
    for (int round = 0; round < 200; ++round) {
      pool.run([&](int part) { ++calls[static_cast<std::size_t>(part)]; });
    }
    for (const int count : calls) CHECK_EQ(count, 200);
  }
}

TEST(an_exception_of_any_part_reaches_the_caller_and_the_pool_goes_on) {
  WorkerPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    const Error error = error_of([&] {
      pool.run([&](int part) {
        if (part == thrower) throw Error(StatusCode::kInternal, "from a part");
      });
    });
    CHECK_CONTAINS(error.message(), "from a part");
  }
  std::atomic<int> calls{0};
  pool.run([&](int) { ++calls; });
  CHECK_EQ(calls.load(), 3);
}

TEST(pieces_cover_every_element_once) {
  Random random(20240607);
  for (int round = 0; round < 500; ++round) {
    const std::int64_t element_size = std::int64_t{1} << random.between(0, 4);
    const Segment segment{7, random.between(0, 50), random.between(1, 300), random.between(0, 999)};
    const std::int64_t total = segment.offset + segment.count * element_size;
    const std::int64_t parts = random.between(1, 9);
    std::int64_t next = segment.first;
    for (std::int64_t part = 0; part < parts; ++part) {
      const Segment piece =
          piece_of(segment, element_size, total * part / parts, total * (part + 1) / parts);
      CHECK_TRUE(piece.count >= 0);
      if (piece.count == 0) continue;
      CHECK_EQ(piece.first, next);
      CHECK_EQ(piece.offset, segment.offset + (next - segment.first) * element_size);
      next += piece.count;
    }
    CHECK_EQ(next, segment.first + segment.count);
  }
}

// A transposed copy and a plain one inside the process, with chunks large enough to be shared.
TEST(local_copies_on_several_threads_are_exact) {
  constexpr std::int64_t kRows = 700;
  constexpr std::int64_t kCols = 900;
  constexpr std::int64_t kBytes = kRows * kCols * 2;
  const std::vector<std::int64_t> streams = {0, 0, 1, 1, 0, 1, 0, 2, 3, 1, 2, 3};
  const std::vector<std::int64_t> operations = {
      0, 0,     0,     3,         3,
      2, kRows, kCols, kCols * 2, 2,  //
      1, 1,     0,     3,         3,
      2, kRows, kCols, 2,         kRows * 2,  //
      2, 1,     0,     3,         3,
      2, kCols, kRows, 2,         kCols * 2,  // reads the transposed copy's memory, strided
      3, 2,     0,     3,         3,
      2, kCols, kRows, kRows * 4, 4};
  const std::vector<std::int64_t> extents = {0, kBytes, 0, kBytes, 0, 2 * kBytes};
  const Program program = read_program({{streams.data(), streams.size()},
                                        {operations.data(), operations.size()},
                                        {nullptr, 0},
                                        {extents.data(), extents.size()},
                                        3,
                                        300'001});
  std::vector<std::uint16_t> source(kRows * kCols);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint16_t>(hash(i));
  std::vector<std::vector<std::uint16_t>> transposed;
  std::vector<std::vector<std::uint16_t>> spread;
  ChunkExecutor executor(program, host_device());
  for (const int num_threads : {1, 3, 2, 4}) {
    transposed.emplace_back(kRows * kCols);
    spread.emplace_back(2 * kRows * kCols);
    void* buffers[] = {source.data(), transposed.back().data(), spread.back().data()};
    executor.begin(nullptr, buffers, 3, {1, kSecond * 60, num_threads});
    while (!executor.progress(kSecond)) {
    }
    CHECK_TRUE(transposed.back() == transposed.front());
    CHECK_TRUE(spread.back() == spread.front());
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      CHECK_EQ(transposed[0][static_cast<std::size_t>(c * kRows + r)],
               source[static_cast<std::size_t>(r * kCols + c)]);
    }
  }
}

TEST(wrong_numbers_of_threads_are_refused) {
  ByteStreams streams;
  const Program program = streams.program(16);
  ChunkExecutor executor(program, host_device());
  for (const int num_threads : {0, -1, 257}) {
    const Error error =
        error_of([&] { executor.begin(nullptr, nullptr, 0, {1, kSecond, num_threads}); });
    CHECK_EQ(error.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(error.message(), text("num_threads ", num_threads));
  }
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

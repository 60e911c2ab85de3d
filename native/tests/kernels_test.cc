// The device kernels, run on the host, against the host's own packing: thousands of tables of
// random boxes, ranges, dtypes, casts, changes of values and alignments, on random grids.
#include <sys/mman.h>

#include "kernels/host_kernels.h"
#include "move_case.h"

namespace reshard_test {
namespace {

using reshard::MoveTable;
using reshard::kernels::misaligned_accesses;
using reshard::kernels::ThreadOrder;

struct Grid {
  unsigned blocks;
  unsigned threads;
  ThreadOrder order;
};

Grid random_grid(Random& random) {
  constexpr unsigned kThreads[] = {256, 256, 256, 32, 64, 100, 1};
  return {static_cast<unsigned>(random.between(1, random.one_in(3) ? 1 : 40)),
          kThreads[random.between(0, 6)],
          random.one_in(2) ? ThreadOrder::kForward : ThreadOrder::kBackward};
}

void run(const char* name, const MoveTable& table, std::vector<std::uint64_t>& addresses,
         std::byte* message, const Grid& grid) {
  const std::uint64_t* words = table.words().data();
  const std::uint64_t* bases = addresses.data();
  std::uint32_t num_moves = table.num_moves();
  std::uint32_t num_tiles = table.num_tiles();
  void* params[] = {&words, &bases, &message, &num_moves, &num_tiles};
  CHECK(reshard::kernels::run_on_host(name, grid.blocks, grid.threads, params, grid.order), name);
}

MoveTable table_of(const MoveCase& test, std::uint32_t message_buffer) {
  MoveTable out;
  for (std::size_t i = 0; i < test.segments.size(); ++i) {
    const Segment& segment = test.segments[i];
    out.add(test.operations[segment.operation], segment, test.message_offsets[i], message_buffer);
  }
  return out;
}

void check_pack(Random& random, MoveCase& test) {
  const auto size = static_cast<std::size_t>(test.message_size + 40);
  const auto shift = static_cast<std::size_t>(random.one_in(2) ? 0 : random.between(0, 15));
  Memory actual(size, shift, 7);
  Memory expected = actual;
  test.pack_on_host(expected);
  std::vector<std::uint64_t> addresses = test.addresses();
  const bool to_buffer = random.one_in(3);
  const auto buffer = static_cast<std::uint32_t>(addresses.size());
  addresses.push_back(reinterpret_cast<std::uintptr_t>(actual.data()));
  const MoveTable table = table_of(test, to_buffer ? buffer : MoveTable::kStaging);
  run("reshard_pack", table, addresses, to_buffer ? nullptr : actual.data(), random_grid(random));
  CHECK(actual == expected, "pack " + actual.first_difference(expected) + ": " + test.describe());
}

void check_unpack(Random& random, MoveCase& test) {
  const auto shift = static_cast<std::size_t>(random.one_in(2) ? 0 : random.between(0, 15));
  Memory message(static_cast<std::size_t>(test.message_size), shift, random.next());
  for (std::size_t i = 0; i < test.segments.size(); ++i) {
    const Segment& segment = test.segments[i];
    const Operation& operation = test.operations[segment.operation];
    if (operation.moves_bytes()) continue;
    const auto size = static_cast<std::size_t>(segment.count * size_of(operation.wire));
    remove_nans(message.data() + test.message_offsets[i], size, operation.wire);
  }
  const std::vector<Memory> expected = test.unpacked_on_host(message);
  std::vector<std::uint64_t> addresses = test.addresses();
  run("reshard_unpack", table_of(test, MoveTable::kStaging), addresses, message.data(),
      random_grid(random));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(test.memory[i] == expected[i], "unpack, memory " + std::to_string(i) + " " +
                                             test.memory[i].first_difference(expected[i]) + ": " +
                                             test.describe());
  }
}

void test_random_tables(Random& random, int rounds, bool has_casts) {
  for (int round = 0; round < rounds && num_failures() == 0; ++round) {
    MoveCase any = random_move_case(random, {Strides::kAny, has_casts});
    check_pack(random, any);
    MoveCase distinct = random_move_case(random, {Strides::kDistinct, has_casts});
    check_pack(random, distinct);
    check_unpack(random, distinct);
  }
}

// Two dims in the order that needs a transpose, for every width and with every cast.
void check_transpose(Random& random, DType memory, DType wire, const Affine& affine = {}) {
  MoveCase test;
  Operation operation = {};
  operation.memory = memory;
  operation.wire = wire;
  operation.affine = affine;
  const std::int64_t width = size_of(memory);
  const std::int64_t rows = random.between(8, 300);
  const std::int64_t columns = random.between(8, 300);
  const std::int64_t pitch = (rows + (random.one_in(2) ? random.between(0, 9) : 0)) * width;
  operation.box = {3, {2, rows, columns}, {columns * pitch, width, pitch}};
  operation.elements = 2 * rows * columns;
  const auto size = static_cast<std::size_t>(2 * columns * pitch);
  test.memory.emplace_back(size, static_cast<std::size_t>(random.between(0, 15)), random.next());
  if (!operation.moves_bytes()) remove_nans(test.memory[0].data(), size, memory);
  test.operations.push_back(operation);
  const std::int64_t first = random.one_in(2) ? 0 : random.between(0, operation.elements - 1);
  const std::int64_t count =
      random.one_in(2) ? operation.elements - first : random.between(1, operation.elements - first);
  test.segments.push_back({0, first, count, 0});
  test.message_offsets.push_back(0);
  test.message_size = count * size_of(wire);
  check_pack(random, test);
  check_unpack(random, test);
}

void test_transposes(Random& random, int rounds) {
  for (int round = 0; round < rounds && num_failures() == 0; ++round) {
    for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64, DType::kC128}) {
      check_transpose(random, dtype, dtype);
    }
    const auto [memory, wire] = random_cast(random);
    check_transpose(random, memory, wire);
    check_transpose(random, memory, wire, random_affine(random));
    check_transpose(random, DType::kBF16, DType::kBF16, random_affine(random));
  }
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  using namespace reshard_test;
  Random random(start(argc, argv));
  test_random_tables(random, 1200, false);
  test_random_tables(random, 1200, true);
  test_transposes(random, 60);
  CHECK(misaligned_accesses() == 0, std::to_string(misaligned_accesses()));
  return finish();
}

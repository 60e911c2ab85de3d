// The device kernels, run on the host, against the host's own packing: thousands of tables of
// random boxes, ranges, dtypes, casts and alignments, on random grids.
#include <sys/mman.h>

#include <tuple>

#include "kernel_case.h"
#include "kernels/host_kernels.h"

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

// One launch: several operations, each with memory of its own, and one message.
struct Case {
  std::vector<Operation> operations;
  std::vector<Segment> segments;
  std::vector<std::int64_t> message_offsets;
  std::vector<Memory> memory;
  std::int64_t message_size = 0;

  MoveTable table(std::uint32_t message_buffer) const {
    MoveTable out;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      out.add(operations[segments[i].operation], segments[i], message_offsets[i], message_buffer);
    }
    return out;
  }

  std::vector<std::uint64_t> addresses() {
    std::vector<std::uint64_t> out;
    for (Memory& one : memory) out.push_back(reinterpret_cast<std::uintptr_t>(one.data()));
    return out;
  }

  std::string describe() const {
    std::string text;
    for (const Segment& segment : segments) {
      const Operation& operation = operations[segment.operation];
      text += std::string(name_of(operation.memory)) + "->" + name_of(operation.wire) + " box";
      for (int k = 0; k < operation.box.ndim; ++k) {
        text += " " + std::to_string(operation.box.size[k]) + "*" +
                std::to_string(operation.box.stride[k]);
      }
      text +=
          " range " + std::to_string(segment.first) + "+" + std::to_string(segment.count) + "; ";
    }
    return text;
  }
};

struct Kind {
  Strides strides;
  bool has_casts;
};

void add_operation(Case& test, Random& random, const Kind& kind) {
  Operation operation = {};
  operation.memory = operation.wire = random_dtype(random);
  if (kind.has_casts && random.one_in(2)) {
    std::tie(operation.memory, operation.wire) = random_cast(random);
  }
  RandomDims dims = {static_cast<int>(random.between(0, 5)), 3000, 100};
  if (random.one_in(6)) dims = {static_cast<int>(random.between(6, 16)), 3000, 5};
  if (random.one_in(8)) dims = {static_cast<int>(random.between(1, 3)), 40000, 400};
  const std::int64_t width = size_of(operation.memory);
  const PlacedBox placed = random_placed_box(random, width, dims, kind.strides);
  operation.box = placed.box;
  operation.buffer = static_cast<std::uint32_t>(test.memory.size());
  operation.offset_bytes = placed.base + (random.one_in(3) ? random.between(0, 20) : 0) * width;
  operation.elements = num_elements(placed.box);
  const auto size = static_cast<std::size_t>(placed.span + operation.offset_bytes - placed.base);
  const std::int64_t shift = random.one_in(2) ? 0 : random.between(0, 15);
  test.memory.emplace_back(size, static_cast<std::size_t>(shift), random.next());
  if (operation.memory != operation.wire) {
    // NaNs at any place that an element may have: gaps need not be whole elements.
    std::memset(test.memory.back().data(), 0, size);
    Bytes numbers =
        hashed_bytes(static_cast<std::size_t>(operation.elements * width), random.next());
    remove_nans(numbers.data(), numbers.size(), operation.memory);
    unpack(operation.box, test.memory.back().data() + operation.offset_bytes, operation.memory,
           operation.memory, 0, kind.strides == Strides::kDistinct ? operation.elements : 0,
           numbers.data());
  }
  const auto index = static_cast<std::uint32_t>(test.operations.size());
  test.operations.push_back(operation);
  std::int64_t first = 0;
  while (first < operation.elements) {
    const std::int64_t rest = operation.elements - first;
    const std::int64_t count = random.one_in(2) ? rest : random.between(1, rest);
    if (random.one_in(4)) test.message_size += random.between(0, 40);
    test.segments.push_back({index, first, count, 0});
    test.message_offsets.push_back(test.message_size);
    test.message_size += count * size_of(operation.wire);
    if (random.one_in(8)) break;
    first += count;
  }
}

Case random_case(Random& random, const Kind& kind) {
  Case test;
  const std::int64_t count = random.between(1, random.one_in(4) ? 12 : 3);
  for (std::int64_t i = 0; i < count; ++i) add_operation(test, random, kind);
  return test;
}

void check_pack(Random& random, Case& test) {
  const auto size = static_cast<std::size_t>(test.message_size + 40);
  const auto shift = static_cast<std::size_t>(random.one_in(2) ? 0 : random.between(0, 15));
  Memory actual(size, shift, 7);
  Memory expected = actual;
  for (std::size_t i = 0; i < test.segments.size(); ++i) {
    const Segment& segment = test.segments[i];
    const Operation& operation = test.operations[segment.operation];
    pack(operation.box, test.memory[operation.buffer].data() + operation.offset_bytes,
         operation.memory, operation.wire, segment.first, segment.count,
         expected.data() + test.message_offsets[i]);
  }
  std::vector<std::uint64_t> addresses = test.addresses();
  const bool to_buffer = random.one_in(3);
  const auto buffer = static_cast<std::uint32_t>(addresses.size());
  addresses.push_back(reinterpret_cast<std::uintptr_t>(actual.data()));
  const MoveTable table = test.table(to_buffer ? buffer : MoveTable::kStaging);
  run("reshard_pack", table, addresses, to_buffer ? nullptr : actual.data(), random_grid(random));
  CHECK(actual == expected, "pack " + actual.first_difference(expected) + ": " + test.describe());
}

void check_unpack(Random& random, Case& test) {
  const auto shift = static_cast<std::size_t>(random.one_in(2) ? 0 : random.between(0, 15));
  Memory message(static_cast<std::size_t>(test.message_size), shift, random.next());
  std::vector<Memory> expected = test.memory;
  for (std::size_t i = 0; i < test.segments.size(); ++i) {
    const Segment& segment = test.segments[i];
    const Operation& operation = test.operations[segment.operation];
    std::byte* const wire = message.data() + test.message_offsets[i];
    if (operation.memory != operation.wire) {
      const auto size = static_cast<std::size_t>(segment.count * size_of(operation.wire));
      remove_nans(wire, size, operation.wire);
    }
    unpack(operation.box, expected[operation.buffer].data() + operation.offset_bytes,
           operation.memory, operation.wire, segment.first, segment.count, wire);
  }
  std::vector<std::uint64_t> addresses = test.addresses();
  run("reshard_unpack", test.table(MoveTable::kStaging), addresses, message.data(),
      random_grid(random));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(test.memory[i] == expected[i], "unpack, memory " + std::to_string(i) + " " +
                                             test.memory[i].first_difference(expected[i]) + ": " +
                                             test.describe());
  }
}

void test_random_tables(Random& random, int rounds, bool has_casts) {
  for (int round = 0; round < rounds && num_failures() == 0; ++round) {
    Case any = random_case(random, {Strides::kAny, has_casts});
    check_pack(random, any);
    Case distinct = random_case(random, {Strides::kDistinct, has_casts});
    check_pack(random, distinct);
    check_unpack(random, distinct);
  }
}

// Two dims in the order that needs a transpose, for every width and with every cast.
void check_transpose(Random& random, DType memory, DType wire) {
  Case test;
  Operation operation = {};
  operation.memory = memory;
  operation.wire = wire;
  const std::int64_t width = size_of(memory);
  const std::int64_t rows = random.between(8, 300);
  const std::int64_t columns = random.between(8, 300);
  const std::int64_t pitch = (rows + (random.one_in(2) ? random.between(0, 9) : 0)) * width;
  operation.box = {3, {2, rows, columns}, {columns * pitch, width, pitch}};
  operation.elements = 2 * rows * columns;
  const auto size = static_cast<std::size_t>(2 * columns * pitch);
  test.memory.emplace_back(size, static_cast<std::size_t>(random.between(0, 15)), random.next());
  if (memory != wire) remove_nans(test.memory[0].data(), size, memory);
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

// Tables of moves: boxes beyond 2^32 bytes, every value of every cast, sizes; and that the
// comparison of kernels_test sees what it must see.
#include "move_table.h"

#include <sys/mman.h>

#include <chrono>

#include "kernel_case.h"
#include "kernels/host_kernels.h"
#include "named_tests.h"
#include "status.h"

namespace reshard_test {
namespace {

using reshard::MoveTable;
using reshard::kernels::Launch;
using reshard::kernels::Way;

Operation operation_of(DType memory, DType wire, const StridedBox& box) {
  Operation operation = {};
  operation.memory = memory;
  operation.wire = wire;
  operation.elements = num_elements(box);
  operation.box = box;
  return operation;
}

Segment all_of(const Operation& operation) { return {0, 0, operation.elements, 0}; }

void run(const char* name, const MoveTable& table, std::byte* memory, std::byte* message) {
  const std::uint64_t* words = table.words().data();
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uint64_t* addresses = &address;
  std::uint32_t num_moves = table.num_moves();
  std::uint32_t num_tiles = table.num_tiles();
  void* params[] = {&words, &addresses, &message, &num_moves, &num_tiles};
  CHECK_TRUE(reshard::kernels::run_on_host(name, 3, 64, params));
}

TEST(an_unknown_kernel_is_told) {
  CHECK_TRUE(!reshard::kernels::run_on_host("reshard_nothing", 1, 1, nullptr));
}

// All 2^16 patterns of two-byte floats, NaNs too, and as many of the others, through vectors,
// single elements and transposes: bit by bit what cast_scalar.h says.
void check_values(DType from, DType to, const StridedBox& box, std::size_t shift, bool packs) {
  const DType memory = packs ? from : to;
  const DType wire = packs ? to : from;
  const auto count = static_cast<std::size_t>(num_elements(box));
  const auto from_width = static_cast<std::size_t>(size_of(from));
  const auto to_width = static_cast<std::size_t>(size_of(to));
  Memory in(count * from_width, shift, 11);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = from_width <= 2 ? i : hash(i);
    if (i % 5 == 0 && from_width > 2) bits |= from_width == 8 ? 0x7FFULL << 52 : 0xFFULL << 23;
    if (from == DType::kF32 && i % 3 == 0) bits = (i << 16) | (hash(i) & 0xFFFF);
    std::memcpy(in.data() + i * from_width, &bits, from_width);
  }
  Memory out(count * to_width, shift, 12);
  const Operation operation = operation_of(memory, wire, box);
  MoveTable table;
  table.add(operation, all_of(operation), 0);
  run(packs ? "reshard_pack" : "reshard_unpack", table, packs ? in.data() : out.data(),
      packs ? out.data() : in.data());
  for (std::size_t i = 0; i < count; ++i) {  // element i of the wire
    std::int64_t offset = 0;
    auto rest = static_cast<std::int64_t>(i);
    for (int k = box.ndim - 1; k >= 0; --k) {
      offset += rest % box.size[k] * box.stride[k];
      rest /= box.size[k];
    }
    const auto place = static_cast<std::size_t>(offset);
    std::uint64_t bits = 0;
    std::uint64_t found = 0;
    std::memcpy(&bits, in.data() + (packs ? place : i * from_width), from_width);
    std::memcpy(&found, out.data() + (packs ? i * to_width : place), to_width);
    if (found != reshard::convert(from, to, bits)) {
      fail(__FILE__, __LINE__, name_of(from), " ", bits, " to ", name_of(to), " is ", found);
    }
  }
}

TEST(casts_give_what_the_header_says_for_every_value) {
  constexpr DType kFloats[] = {DType::kF16, DType::kBF16,     DType::kF32,
                               DType::kF64, DType::kF8E4M3FN, DType::kF8E5M2};
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      if (from == to || !can_cast(from, to)) continue;
      for (const bool packs : {true, false}) {
        const std::int64_t width = size_of(packs ? from : to);
        check_values(from, to, {1, {65536}, {width}}, 0, packs);
        check_values(from, to, {1, {5003}, {width}}, 1, packs);
        check_values(from, to, {2, {256, 256}, {width, 256 * width}}, 0, packs);
        check_values(from, to, {2, {67, 131}, {width, 67 * width}}, 3, packs);
      }
    }
  }
}

// Memory of which only the touched pages exist.
class Sparse {
 public:
  explicit Sparse(std::size_t size) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    CHECK_TRUE(data_ != MAP_FAILED);
  }
  ~Sparse() { munmap(data_, size_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::size_t size_;
};

constexpr std::size_t kGiB = std::size_t{1} << 30;

TEST(strides_beyond_4_gib) {
  Sparse memory(12 * kGiB + 4096);
  std::vector<std::byte> message(3 * 1000);
  const auto stride = static_cast<std::int64_t>(6 * kGiB);
  for (std::size_t row = 0; row < 3; ++row) {
    const Bytes content = hashed_bytes(1000, row);
    std::memcpy(memory.data() + row * 6 * kGiB, content.data(), content.size());
  }
  const StridedBox box = {2, {3, 1000}, {-stride, 1}};
  Operation operation = operation_of(DType::kU8, DType::kU8, box);
  operation.offset_bytes = 2 * stride;
  MoveTable table;
  table.add(operation, all_of(operation), 0);
  run("reshard_pack", table, memory.data(), message.data());
  for (std::size_t row = 0; row < 3; ++row) {
    const Bytes content = hashed_bytes(1000, 2 - row);
    CHECK_EQ(std::memcmp(message.data() + row * 1000, content.data(), 1000), 0);
  }
}

// One run of 6 GiB: only its last tile is run, which must be the end of both sides.
TEST(runs_beyond_4_gib) {
  const std::size_t size = 6 * kGiB + 6;
  Sparse memory(size);
  Sparse message(size);
  const Bytes content = hashed_bytes(5000, 3);
  std::memcpy(memory.data() + size - content.size(), content.data(), content.size());
  const StridedBox box = {1, {static_cast<std::int64_t>(size / 2)}, {2}};
  const Operation operation = operation_of(DType::kBF16, DType::kBF16, box);
  MoveTable table;
  table.add(operation, all_of(operation), 0);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory.data());
  const Launch launch = {table.words().data(), &address,
                         reinterpret_cast<std::uint8_t*>(message.data()), table.num_moves(),
                         table.num_tiles()};
  for (std::uint32_t i = table.num_tiles() - 2; i < table.num_tiles(); ++i) {
    const reshard::kernels::Tile tile = find_tile(launch, i, 0);
    reshard::kernels::begin_tile<Way::kPack>(launch, tile, {0, 1}, nullptr);
  }
  CHECK_EQ(std::memcmp(message.data() + size - content.size(), content.data(), content.size()), 0);
}

TEST(a_table_of_a_thousand_boxes_is_small_and_soon_made) {
  const StridedBox box = {2, {512, 1024}, {4096, 2}};
  const Operation operation = operation_of(DType::kBF16, DType::kBF16, box);
  MoveTable table;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < 1000; ++i) {
    table.add(operation, all_of(operation), i * (1 << 20));
  }
  const std::size_t nbytes = table.words().size() * 8;
  const auto end = std::chrono::steady_clock::now();
  std::printf("1,000 boxes: %zu bytes, %lld us\n", nbytes,
              static_cast<long long>(
                  std::chrono::duration_cast<std::chrono::microseconds>(end - start).count()));
  CHECK_EQ(table.num_moves(), 1000U);
  CHECK_TRUE(nbytes <= 104'000);
  table.clear();
  CHECK_TRUE(table.empty() && table.words().empty() && table.num_tiles() == 0);
}

TEST(a_launch_beyond_the_counts_of_a_table_is_refused) {
  // Repeated elements: as large as one likes without memory.
  const StridedBox box = {1, {std::int64_t{1} << 50}, {0}};
  const Operation operation = operation_of(DType::kU8, DType::kU8, box);
  MoveTable table;
  try {
    table.add(operation, all_of(operation), 0);
  } catch (const reshard::Error& error) {
    CHECK_CONTAINS(error.message(), "Use a smaller staging buffer");
    return;
  }
  fail(__FILE__, __LINE__, "not refused");
}

// Every word of a table matters, and two elements that changed places are seen.
TEST(the_comparison_sees_swapped_elements_and_wrong_tables) {
  const StridedBox box = {2, {40, 33}, {2, 80}};  // a transpose
  const Operation operation = operation_of(DType::kBF16, DType::kBF16, box);
  const auto size = static_cast<std::size_t>(2 * operation.elements);
  Memory memory(size, 0, 5);
  Memory expected(size, 0, 6);
  pack(box, memory.data(), DType::kBF16, DType::kBF16, 0, operation.elements, expected.data());
  MoveTable table;
  table.add(operation, all_of(operation), 0);
  Memory actual(size, 0, 7);
  run("reshard_pack", table, memory.data(), actual.data());
  CHECK_TRUE(actual == expected);
  std::swap_ranges(actual.data() + 10, actual.data() + 12, actual.data() + 100);
  CHECK_EQ(actual.first_difference(expected), std::string("byte 10"));

  const StridedBox other = {2, {40, 33}, {80, 2}};  // dims exchanged
  MoveTable wrong;
  Sparse large(1 << 16);
  std::memcpy(large.data(), memory.data(), size);
  const Operation exchanged = operation_of(DType::kBF16, DType::kBF16, other);
  wrong.add(exchanged, all_of(exchanged), 0);
  run("reshard_pack", wrong, large.data(), actual.data());
  CHECK_TRUE(!(actual == expected));
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

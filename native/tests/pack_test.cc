// pack, unpack, fill_zero and coalesce against a loop over single elements.
//
// Memory is exactly as large as the box's extent, so that the address sanitizer sees any access
// beyond it, and dense buffers are compared whole, including guard bytes around them.

#include "pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "cpu_features.h"

namespace reshard {
namespace {

using reshard_test::hashed_bytes;
using reshard_test::Random;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kGuard = 96;
constexpr std::byte kUntouched{0x5A};
constexpr DType kByWidth[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64, DType::kC128};

// A box, memory that it just fits into, and where its base is in there.
struct Case {
  StridedBox box;
  DType dtype;
  Bytes memory;
  std::int64_t base;
};

std::string to_string(const StridedBox& box) {
  std::string text = "box";
  for (int k = 0; k < box.ndim; ++k) {
    text += " " + std::to_string(box.size[k]) + "*" + std::to_string(box.stride[k]);
  }
  return text;
}

std::string describe(const Case& test, std::int64_t first, std::int64_t count) {
  return to_string(test.box) + " " + name_of(test.dtype) + " base " + std::to_string(test.base) +
         " range " + std::to_string(first) + "+" + std::to_string(count) + " cpu " +
         describe_cpu_features();
}

// Byte offset of element `index` (row-major) from the base.
std::int64_t offset_of(const StridedBox& box, std::int64_t index) {
  std::int64_t offset = 0;
  for (int k = box.ndim - 1; k >= 0; --k) {
    offset += index % box.size[k] * box.stride[k];
    index /= box.size[k];
  }
  return offset;
}

// Gives the case memory of just its extent plus `slack` bytes in front, for all misalignments.
void allocate(Case& test, std::int64_t slack, std::uint64_t salt) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (int k = 0; k < test.box.ndim; ++k) {
    const std::int64_t span = std::max<std::int64_t>(test.box.size[k] - 1, 0) * test.box.stride[k];
    (span < 0 ? low : high) += span;
  }
  test.base = slack - low;
  const std::int64_t size = test.base + high + size_of(test.dtype);
  test.memory = hashed_bytes(static_cast<std::size_t>(size), salt);
}

enum class Layout { kAny, kNoOverlap };

// Random dims in random memory order with random gaps and signs; `budget` elements at most.
Case random_case(Random& random, std::int64_t budget, Layout layout) {
  Case test = {};
  test.dtype = kByWidth[random.between(0, 4)];
  test.box.ndim = static_cast<int>(random.between(0, 5));
  int order[kMaxDims];
  for (int k = 0; k < test.box.ndim; ++k) order[k] = k;
  for (int k = test.box.ndim - 1; k > 0; --k) std::swap(order[k], order[random.between(0, k)]);
  std::int64_t step = size_of(test.dtype);
  if (random.one_in(4)) step += random.between(1, 3) * (random.one_in(2) ? size_of(test.dtype) : 1);
  for (int i = 0; i < test.box.ndim; ++i) {
    const int k = order[i];
    std::int64_t size = random.between(1, random.one_in(3) ? 100 : 9);
    if (random.one_in(12)) size = 1;
    if (random.one_in(40)) size = 0;
    size = std::min(size, std::max<std::int64_t>(budget, 1));
    budget /= std::max<std::int64_t>(size, 1);
    test.box.size[k] = size;
    test.box.stride[k] = random.one_in(6) ? -step : step;
    if (layout == Layout::kAny && random.one_in(12)) {
      test.box.stride[k] = 0;
      continue;
    }
    step *= std::max<std::int64_t>(size, 1);
    if (random.one_in(3)) step += random.between(0, 70) * (random.one_in(3) ? 1 : 16);
  }
  allocate(test, random.between(0, 70), random.next());
  return test;
}

// The dense elements, one at a time.
Bytes dense_oracle(const Case& test) {
  const std::int64_t width = size_of(test.dtype);
  const std::int64_t total = num_elements(test.box);
  Bytes dense(static_cast<std::size_t>(total * width));
  for (std::int64_t i = 0; i < total; ++i) {
    std::memcpy(dense.data() + i * width, test.memory.data() + test.base + offset_of(test.box, i),
                static_cast<std::size_t>(width));
  }
  return dense;
}

// Where two buffers first differ, or -1.
std::int64_t first_difference(const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return static_cast<std::int64_t>(std::min(a.size(), b.size()));
  const auto where = std::mismatch(a.begin(), a.end(), b.begin());
  return where.first == a.end() ? -1 : where.first - a.begin();
}

// Packs a range between guards at a misaligned address and compares every byte.
void check_pack(const Case& test, const StridedBox& box, const Bytes& dense, std::int64_t first,
                std::int64_t count, std::int64_t shift, Stores stores) {
  const std::int64_t width = size_of(test.dtype);
  Bytes actual(static_cast<std::size_t>(count * width + 2 * kGuard), kUntouched);
  Bytes expected = actual;
  std::copy(dense.begin() + first * width, dense.begin() + (first + count) * width,
            expected.begin() + kGuard - shift);
  pack(box, test.memory.data() + test.base, test.dtype, test.dtype, first, count,
       actual.data() + kGuard - shift, stores);
  CHECK(first_difference(actual, expected) == -1,
        describe(test, first, count) + " differs at byte " +
            std::to_string(first_difference(actual, expected) - kGuard + shift));
}

// Unpacks a range into stale memory and compares all of that memory.
void check_unpack(const Case& test, const StridedBox& box, const Bytes& dense, std::int64_t first,
                  std::int64_t count, Stores stores) {
  const std::int64_t width = size_of(test.dtype);
  const Bytes wire(dense.begin() + first * width, dense.begin() + (first + count) * width);
  Bytes actual(test.memory.size(), kUntouched);
  Bytes expected = actual;
  for (std::int64_t i = first; i < first + count; ++i) {
    std::memcpy(expected.data() + test.base + offset_of(test.box, i), dense.data() + i * width,
                static_cast<std::size_t>(width));
  }
  unpack(box, actual.data() + test.base, test.dtype, test.dtype, first, count, wire.data(), stores);
  CHECK(first_difference(actual, expected) == -1,
        describe(test, first, count) + " differs at memory byte " +
            std::to_string(first_difference(actual, expected)));
}

void check_range(const Case& test, const Bytes& dense, std::int64_t first, std::int64_t count,
                 Random& random, Layout layout) {
  const Stores stores = random.one_in(2) ? Stores::kStreaming : Stores::kCached;
  const StridedBox coalesced = coalesce(test.box, size_of(test.dtype));
  const StridedBox& box = random.one_in(4) ? test.box : coalesced;
  check_pack(test, box, dense, first, count, random.between(0, 64), stores);
  if (layout == Layout::kNoOverlap) check_unpack(test, box, dense, first, count, stores);
}

void test_random_boxes(Random& random, int rounds, std::int64_t budget) {
  for (int round = 0; round < rounds; ++round) {
    const Layout layout = random.one_in(3) ? Layout::kAny : Layout::kNoOverlap;
    const Case test = random_case(random, budget, layout);
    const Bytes dense = dense_oracle(test);
    const std::int64_t total = num_elements(test.box);
    check_range(test, dense, 0, total, random, layout);
    for (int i = 0; i < 4; ++i) {
      const std::int64_t first = random.between(0, total);
      check_range(test, dense, first, random.between(0, total - first), random, layout);
    }
  }
}

// Every range of small boxes, so every head, middle and tail.
void test_all_ranges(Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const Case test = random_case(random, 40, Layout::kNoOverlap);
    const Bytes dense = dense_oracle(test);
    const std::int64_t total = num_elements(test.box);
    for (std::int64_t first = 0; first <= total; ++first) {
      for (std::int64_t count = 0; first + count <= total; ++count) {
        check_range(test, dense, first, count, random, Layout::kNoOverlap);
      }
    }
  }
}

// Transposes and permutations large enough for whole tiles, in chunks as the executor cuts them.
void test_transposes(Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Case test = {};
    test.dtype = kByWidth[random.between(0, 4)];
    const std::int64_t width = size_of(test.dtype);
    test.box.ndim = 3;
    const std::int64_t outer = random.between(1, 3);
    const std::int64_t rows = random.between(1, 300);
    const std::int64_t columns = random.between(1, 300);
    const std::int64_t gap = random.one_in(2) ? 0 : random.between(0, 9) * width;
    const std::int64_t pitch =
        random.one_in(2) ? (rows * width + 63) / 64 * 64 : rows * width + gap;
    const bool outer_last = random.one_in(2);
    test.box.size[0] = outer_last ? rows : outer;
    test.box.stride[0] = outer_last ? width : pitch * columns;
    test.box.size[1] = outer_last ? columns : rows;
    test.box.stride[1] = outer_last ? pitch : width;
    test.box.size[2] = outer_last ? outer : columns;
    test.box.stride[2] = outer_last ? pitch * columns : pitch;
    allocate(test, random.one_in(2) ? random.between(0, 64) : 0, random.next());
    const Bytes dense = dense_oracle(test);
    const std::int64_t total = num_elements(test.box);
    const std::int64_t chunk = random.between(1, total);
    for (std::int64_t first = 0; first < total; first += chunk) {
      check_range(test, dense, first, std::min(chunk, total - first), random, Layout::kNoOverlap);
      if (first / chunk > 12) break;
    }
  }
}

void test_fill_zero(Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const Case test = random_case(random, 2000, Layout::kAny);
    Bytes actual = test.memory;
    Bytes expected = test.memory;
    const std::int64_t width = size_of(test.dtype);
    for (std::int64_t i = 0; i < num_elements(test.box); ++i) {
      std::memset(expected.data() + test.base + offset_of(test.box, i), 0,
                  static_cast<std::size_t>(width));
    }
    fill_zero(test.box, actual.data() + test.base, width);
    CHECK(actual == expected, describe(test, 0, num_elements(test.box)));
  }
}

void test_coalesce() {
  const StridedBox dense = {3, {2, 3, 4}, {24, 8, 2}};
  const StridedBox merged = coalesce(dense, 2);
  CHECK(merged.ndim == 1 && merged.size[0] == 24 && merged.stride[0] == 2, to_string(merged));
  const StridedBox gapped = {4, {2, 1, 3, 4}, {100, 7, 8, 2}};
  const StridedBox partly = coalesce(gapped, 2);
  CHECK(partly.ndim == 2 && partly.size[0] == 2 && partly.size[1] == 12 && partly.stride[1] == 2,
        to_string(partly));
  const StridedBox backward = {2, {3, 4}, {-8, -2}};
  CHECK(coalesce(backward, 2).ndim == 1, to_string(coalesce(backward, 2)));
  const StridedBox repeated = {2, {3, 4}, {0, 0}};
  CHECK(coalesce(repeated, 2).ndim == 1, to_string(coalesce(repeated, 2)));
  const StridedBox scalar = {0, {}, {}};
  CHECK(num_elements(coalesce(scalar, 4)) == 1, to_string(coalesce(scalar, 4)));
  const StridedBox empty = {2, {3, 0}, {8, 8}};
  CHECK(num_elements(coalesce(empty, 4)) == 0, to_string(coalesce(empty, 4)));
  const StridedBox huge = {2, {2, std::int64_t{1} << 40}, {8, std::int64_t{1} << 40}};
  CHECK(coalesce(huge, 4).ndim == 2, "a run of 2**80 bytes overflows and must not merge");
}

void test_refused_pairs() {
  const StridedBox box = {1, {4}, {4}};
  std::byte bytes[64] = {};
  bool thrown = false;
  try {
    pack(box, bytes, DType::kI32, DType::kF32, 0, 4, bytes + 32);
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  CHECK(thrown, "int32 to float32 has no cast");
}

// The comparison must notice what a wrong kernel would do.
void test_negative_controls(Random& random) {
  Case test = {};
  test.dtype = DType::kBF16;
  test.box = {2, {16, 24}, {2, 32}};
  allocate(test, 0, random.next());
  const Bytes dense = dense_oracle(test);

  Bytes one_byte = dense;
  one_byte[random.next() % one_byte.size()] ^= std::byte{1};
  CHECK(first_difference(one_byte, dense) >= 0, "one changed byte");

  Case rotated = test;
  std::swap(rotated.box.size[0], rotated.box.size[1]);
  std::swap(rotated.box.stride[0], rotated.box.stride[1]);
  CHECK(first_difference(dense_oracle(rotated), dense) >= 0, "swapped axes");

  Bytes swapped = dense;
  std::swap_ranges(swapped.begin(), swapped.begin() + 48, swapped.begin() + 48);
  CHECK(first_difference(swapped, dense) >= 0, "two swapped rows");

  Case stale = test;
  allocate(stale, 0, random.next());
  CHECK(first_difference(dense_oracle(stale), dense) >= 0, "stale memory");

  Bytes longer = dense;
  longer.push_back(std::byte{0});
  CHECK(first_difference(longer, dense) >= 0, "one byte more");
}

void test_all(Random& random) {
  test_all_ranges(random, 30);
  test_random_boxes(random, 2000, 300);
  test_random_boxes(random, 80, 60000);
  test_transposes(random, 40);
  test_fill_zero(random, 300);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard_test::Random random(reshard_test::start(argc, argv));
  reshard::test_coalesce();
  reshard::test_refused_pairs();
  reshard::test_negative_controls(random);
  reshard::test_all(random);
  reshard::restrict_cpu_features({false, false});
  reshard::test_all(random);
  return reshard_test::finish();
}

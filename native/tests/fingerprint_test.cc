// The fingerprint against a loop over single elements, which itself is checked against values that
// reshard/fingerprint.py computed.

#include "fingerprint.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cast.h"
#include "check.h"
#include "cpu_features.h"
#include "pack.h"

namespace reshard {
namespace {

using reshard_test::hashed_bytes;
using reshard_test::Random;
using Bytes = std::vector<std::byte>;

// Written out once more, in the words of fingerprint.py, so that the two cannot err alike.
std::uint64_t mix_oracle(std::uint64_t seed, std::uint64_t index, std::uint64_t bits) {
  const std::uint64_t a = seed + index * 0x9E3779B97F4A7C15U;
  const std::uint64_t b = a ^ (a >> 31);
  const std::uint64_t c = b + bits * 0x9FB21C651E98DF25U;
  return (c & 0xFFFFFFFFU) * (c >> 32) + c;
}

std::uint64_t element_oracle(const FingerprintRegion& region, std::uint64_t index,
                             const std::byte* element) {
  std::uint64_t words[2] = {0, 0};
  auto* const stored = reinterpret_cast<std::byte*>(words);
  if (!region.affine.is_identity()) {
    const Conversion change(region.memory, region.stored, region.affine);
    change.run(element, stored, 1, Stores::kCached);
  } else if (region.memory == region.stored) {
    std::memcpy(stored, element, static_cast<std::size_t>(size_of(region.memory)));
  } else {
    cast_function(region.memory, region.stored)(element, stored, 1, false);
  }
  if (size_of(region.stored) != 16) return mix_oracle(region.seed, index, words[0]);
  return mix_oracle(region.seed, 2 * index, words[0]) +
         mix_oracle(region.seed, 2 * index + 1, words[1]);
}

std::uint64_t oracle(const FingerprintRegion& region) {
  std::int64_t total = 1;
  for (int k = 0; k < region.ndim; ++k) total *= region.size[k];
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < total; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    auto index = static_cast<std::uint64_t>(region.index_base);
    for (int k = region.ndim - 1; k >= 0; --k) {
      const std::int64_t at = rest % region.size[k];
      rest /= region.size[k];
      offset += at * region.stride[k];
      index += static_cast<std::uint64_t>(at) * static_cast<std::uint64_t>(region.index_stride[k]);
    }
    sum += element_oracle(region, index, region.base + offset);
  }
  return sum;
}

struct Case {
  FingerprintRegion region;
  Bytes memory;  // just the extent of the region
};

struct Pair {
  DType memory;
  DType stored;
};

constexpr Pair kPairs[] = {
    {DType::kU8, DType::kU8},        {DType::kBF16, DType::kBF16}, {DType::kF32, DType::kF32},
    {DType::kI64, DType::kI64},      {DType::kC64, DType::kC64},   {DType::kC128, DType::kC128},
    {DType::kF32, DType::kBF16},     {DType::kF64, DType::kF32},   {DType::kBF16, DType::kF64},
    {DType::kF16, DType::kF8E4M3FN}, {DType::kF8E5M2, DType::kF32}};

std::string describe(const FingerprintRegion& region) {
  std::string text = std::string(name_of(region.memory)) + " as " + name_of(region.stored);
  for (int k = 0; k < region.ndim; ++k) {
    text += " " + std::to_string(region.size[k]) + "*" + std::to_string(region.stride[k]) + "/" +
            std::to_string(region.index_stride[k]);
  }
  return text + " cpu " + describe_cpu_features();
}

// Memory of just the extent, hashed; `slack` bytes in front for all misalignments.
void allocate(Case& test, std::int64_t slack, std::uint64_t salt) {
  FingerprintRegion& region = test.region;
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (int k = 0; k < region.ndim; ++k) {
    const std::int64_t span = std::max<std::int64_t>(region.size[k] - 1, 0) * region.stride[k];
    (span < 0 ? low : high) += span;
  }
  const std::int64_t size = slack - low + high + size_of(region.memory);
  test.memory = hashed_bytes(static_cast<std::size_t>(size), salt);
  region.base = test.memory.data() + slack - low;
}

// Dims in random memory order, some padded, backward or repeated; indices of a larger tensor, or
// anything.
Case random_case(Random& random, std::int64_t budget) {
  Case test = {};
  FingerprintRegion& region = test.region;
  const Pair pair = kPairs[random.between(0, 10)];
  region.memory = pair.memory;
  region.stored = pair.stored;
  if (can_apply_affine(region.memory, region.stored) && random.one_in(2)) {
    region.affine.source.offset = 0.5;
    region.affine.destination.scale = 1.7;
  }
  region.seed = random.next();
  region.ndim = static_cast<int>(random.between(0, 5));
  region.index_base = static_cast<std::int64_t>(random.next() >> 2);
  std::int64_t index_step = random.one_in(3) ? random.between(1, 9) : 1;
  for (int k = region.ndim - 1; k >= 0; --k) {
    region.size[k] = random.one_in(40) ? 0 : random.between(1, random.one_in(3) ? 200 : 9);
    region.size[k] = std::min(region.size[k], std::max<std::int64_t>(budget, 1));
    budget /= std::max<std::int64_t>(region.size[k], 1);
    region.index_stride[k] = random.one_in(8) ? -index_step : index_step;
    index_step *= std::max<std::int64_t>(region.size[k], 1) + (random.one_in(3) ? 3 : 0);
  }
  int order[kMaxDims];
  for (int k = 0; k < region.ndim; ++k) order[k] = k;
  if (random.one_in(2)) {
    for (int k = region.ndim - 1; k > 0; --k) std::swap(order[k], order[random.between(0, k)]);
  }
  std::int64_t step = size_of(region.memory) * (random.one_in(4) ? random.between(1, 3) : 1);
  for (int i = region.ndim - 1; i >= 0; --i) {
    const int k = order[i];
    region.stride[k] = random.one_in(12) ? 0 : random.one_in(6) ? -step : step;
    if (region.stride[k] == 0) continue;
    step *= std::max<std::int64_t>(region.size[k], 1);
    if (random.one_in(3)) step += random.between(0, 5) * size_of(region.memory);
  }
  allocate(test, random.between(0, 40), random.next());
  return test;
}

void test_published_values() {
  CHECK(mix_oracle(0, 0, 0) == 0x0000000000000000U, "zeros");
  CHECK(mix_oracle(1, 2, 3) == 0x33D311E0D81F469AU, "small");
  CHECK(mix_oracle(~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}) == 0xDDCB7891B848AC44U,
        "all ones");
  CHECK(mix_oracle(0x0123456789ABCDEFU, std::uint64_t{1} << 40, 0x3F80U) == 0x035AA932E5A38960U,
        "a large index");
  std::vector<std::uint32_t> values(1000);
  for (std::uint32_t i = 0; i < 1000; ++i) values[i] = 3 * i;
  FingerprintRegion region = {};
  region.base = reinterpret_cast<const std::byte*>(values.data());
  region.memory = DType::kU32;
  region.stored = DType::kU32;
  region.seed = 0x0123456789ABCDEFU;
  region.ndim = 1;
  region.size[0] = 1000;
  region.stride[0] = 4;
  region.index_stride[0] = 1;
  region.index_base = 5;
  CHECK(fingerprint(region) == 0xAAD19E05C040E8E2U, "a run of 1000");
}

void test_random_regions(Random& random, int rounds, std::int64_t budget) {
  for (int round = 0; round < rounds; ++round) {
    const Case test = random_case(random, budget);
    CHECK(fingerprint(test.region) == oracle(test.region), describe(test.region));
  }
}

// Every length around the vector width, for every width of element.
void test_run_lengths(Random& random) {
  for (const Pair& pair : kPairs) {
    for (std::int64_t size = 0; size <= 140; ++size) {
      Case test = {};
      test.region.memory = pair.memory;
      test.region.stored = pair.stored;
      test.region.seed = random.next();
      test.region.ndim = 1;
      test.region.size[0] = size;
      test.region.stride[0] = size_of(pair.memory);
      test.region.index_stride[0] = 1;
      allocate(test, random.between(0, 33), random.next());
      CHECK(fingerprint(test.region) == oracle(test.region), describe(test.region));
    }
  }
}

// A tensor's fingerprint is the sum of those of its parts, whatever their layout.
void test_parts_add_up(Random& random) {
  Case whole = {};
  whole.region = {
      nullptr, DType::kBF16, DType::kBF16, random.next(), 2, {60, 84}, {168, 2}, {84, 1}, 0};
  allocate(whole, 0, random.next());
  std::uint64_t sum = 0;
  for (std::int64_t row = 0; row < 60; row += 20) {
    for (std::int64_t column = 0; column < 84; column += 28) {
      FingerprintRegion part = whole.region;
      part.size[0] = 20;
      part.size[1] = 28;
      part.base += row * 168 + column * 2;
      part.index_base = row * 84 + column;
      sum += fingerprint(part);
    }
  }
  CHECK(sum == fingerprint(whole.region), "9 boxes of a tensor");
}

// What a fingerprint must notice.
void test_negative_controls(Random& random) {
  Case test = {};
  test.region = {nullptr, DType::kBF16, DType::kBF16, random.next(), 2, {16, 24}, {48, 2}, {24, 1},
                 0};
  allocate(test, 0, random.next());
  const std::uint64_t right = fingerprint(test.region);

  for (std::size_t bit = 0; bit < test.memory.size() * 8; ++bit) {
    const std::byte flip{static_cast<unsigned char>(1U << (bit % 8))};
    test.memory[bit / 8] ^= flip;
    CHECK(fingerprint(test.region) != right, "bit " + std::to_string(bit) + " changed");
    test.memory[bit / 8] ^= flip;
  }
  std::swap_ranges(test.memory.begin(), test.memory.begin() + 48, test.memory.begin() + 48);
  CHECK(fingerprint(test.region) != right, "two swapped rows");
  std::swap_ranges(test.memory.begin(), test.memory.begin() + 48, test.memory.begin() + 48);

  FingerprintRegion changed = test.region;
  std::swap(changed.stride[0], changed.stride[1]);
  std::swap(changed.size[0], changed.size[1]);
  CHECK(fingerprint(changed) != right, "transposed");
  changed = test.region;
  changed.seed += 1;
  CHECK(fingerprint(changed) != right, "another name");
  changed = test.region;
  changed.index_base = 1;
  CHECK(fingerprint(changed) != right, "shifted by one");
  CHECK(fingerprint(test.region) == right, "restored");
}

void test_refused_pairs() {
  FingerprintRegion region = {};
  region.memory = DType::kI32;
  region.stored = DType::kF32;
  bool thrown = false;
  try {
    fingerprint(region);
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  CHECK(thrown, "int32 has no cast to float32");
}

void test_all(Random& random) {
  test_published_values();
  test_run_lengths(random);
  test_random_regions(random, 3000, 400);
  test_random_regions(random, 200, 20000);
  test_parts_add_up(random);
  test_negative_controls(random);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard_test::Random random(reshard_test::start(argc, argv));
  reshard::test_refused_pairs();
  reshard::test_all(random);
  reshard::restrict_cpu_features({false, false});
  reshard::test_all(random);
  return reshard_test::finish();
}

// The device's fingerprints, run on the host, against the host's own.
#include "region_table.h"

#include "kernel_case.h"
#include "kernels/host_kernels.h"
#include "named_tests.h"
#include "status.h"

namespace reshard_test {
namespace {

using reshard::FingerprintRegion;
using reshard::RegionTable;
using reshard::kernels::ThreadOrder;

struct Region {
  FingerprintRegion region;
  Memory memory;
  std::int64_t base;
};

Region random_region(Random& random) {
  FingerprintRegion region = {};
  region.memory = region.stored = random_dtype(random);
  if (random.one_in(3)) std::tie(region.memory, region.stored) = random_cast(random);
  if (is_float(region.memory) && is_float(region.stored)) region.affine = random_affine(random);
  RandomDims dims = {static_cast<int>(random.between(0, 5)), 3000, 100};
  if (random.one_in(4)) dims = {static_cast<int>(random.between(1, 3)), 60000, 500};
  if (random.one_in(8)) dims = {16, 3000, 4};
  const PlacedBox placed = random_placed_box(random, size_of(region.memory), dims, Strides::kAny);
  region.ndim = placed.box.ndim;
  for (int k = 0; k < region.ndim; ++k) {
    region.size[k] = placed.box.size[k];
    region.stride[k] = placed.box.stride[k];
    region.index_stride[k] = random.between(-5, 5000);
  }
  // As in a whole tensor, so that dims merge.
  std::int64_t step = 1;
  for (int k = region.ndim - 1; k >= 0 && random.between(0, 9) != 0; --k) {
    region.index_stride[k] = step;
    step *= region.size[k];
  }
  region.seed = random.next();
  region.index_base = random.between(0, 1'000'000);
  Memory memory(static_cast<std::size_t>(placed.span),
                static_cast<std::size_t>(random.between(0, 15)), random.next());
  if (region.memory != region.stored || !region.affine.is_identity()) {  // elements may be anywhere
    for (std::size_t i = 0; i < memory.size(); ++i) memory.data()[i] &= std::byte{0x33};
  }
  return {region, std::move(memory), placed.base};
}

TEST(sums_are_those_of_the_host) {
  Random random(std::random_device{}());
  for (int round = 0; round < 500; ++round) {
    std::vector<Region> regions;
    for (std::int64_t i = random.between(1, 5); i > 0; --i) {
      regions.push_back(random_region(random));
    }
    RegionTable table;
    std::vector<std::uint64_t> addresses;
    std::vector<std::uint64_t> expected = {1, 2, 3};  // the kernel adds
    std::vector<std::uint64_t> actual = expected;
    for (Region& one : regions) {
      const auto slot = static_cast<std::uint32_t>(random.between(0, 2));
      table.add(one.region, static_cast<std::uint32_t>(addresses.size()), one.base, slot);
      addresses.push_back(reinterpret_cast<std::uintptr_t>(one.memory.data()));
      one.region.base = one.memory.data() + one.base;
      expected[slot] += fingerprint(one.region);
    }
    const std::uint64_t* words = table.words().data();
    const std::uint64_t* bases = addresses.data();
    std::uint64_t* sums = actual.data();
    std::uint32_t num_moves = table.num_moves();
    std::uint32_t num_tiles = table.num_tiles();
    void* params[] = {&words, &bases, &sums, &num_moves, &num_tiles};
    const unsigned threads = random.one_in(2) ? 256 : 7;
    const auto order = random.one_in(2) ? ThreadOrder::kForward : ThreadOrder::kBackward;
    CHECK_TRUE(reshard::kernels::run_on_host("reshard_fingerprint_regions",
                                             static_cast<unsigned>(random.between(1, 9)), threads,
                                             params, order));
    for (std::size_t i = 0; i < actual.size(); ++i) CHECK_EQ(actual[i], expected[i]);
  }
  CHECK_EQ(reshard::kernels::misaligned_accesses().load(), std::uint64_t{0});
}

TEST(a_pair_without_a_cast_is_refused) {
  FingerprintRegion region = {};
  region.memory = DType::kI64;
  region.stored = DType::kF32;
  RegionTable table;
  try {
    table.add(region, 0, 0, 0);
  } catch (const reshard::Error& error) {
    CHECK_CONTAINS(error.message(), "no cast from int64 to float32");
    return;
  }
  fail(__FILE__, __LINE__, "not refused");
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

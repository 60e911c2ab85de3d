// Kernels on the double of the CUDA driver: launched as on a device, with their rules enforced.
#include <array>
#include <cstdint>

#include "doubles/world.h"
#include "fingerprint.h"
#include "move_table.h"
#include "region_table.h"

namespace reshard_test {
namespace {

using reshard::DType;
using reshard::MoveTable;
using reshard::Operation;

constexpr std::int64_t kRows = 40;
constexpr std::int64_t kColumns = 24;
constexpr std::int64_t kPitch = 100;
constexpr std::int64_t kNumElements = kRows * kColumns;
constexpr std::size_t kNumBytes = std::size_t{kRows} * kPitch;

// Rows of a matrix whose elements have two bytes.
Operation matrix() {
  Operation operation{};
  operation.memory = operation.wire = DType::kBF16;
  operation.box.ndim = 2;
  operation.box.size[0] = kRows;
  operation.box.size[1] = kColumns;
  operation.box.stride[0] = kPitch;
  operation.box.stride[1] = 2;
  return operation;
}

// What cuLaunchKernel is given: the table and the addresses on the device.
class Launch {
 public:
  template <typename Table>
  Launch(const Table& table, const std::vector<std::uint64_t>& addresses, const Memory& message,
         std::size_t missing_words = 0)
      : table_(bytes_of({table.words().begin(),
                         table.words().end() - static_cast<std::ptrdiff_t>(missing_words)})),
        addresses_(bytes_of(addresses)),
        values_{table_.address(), addresses_.address(), message.address()},
        num_moves_(table.num_moves()),
        num_tiles_(table.num_tiles()) {}

  int run(CUfunction function, CUstream stream) {
    void* params[] = {&values_[0], &values_[1], &values_[2], &num_moves_, &num_tiles_};
    return cuLaunchKernel(function, 2, 1, 1, 256, 1, 1, 0, stream, params, nullptr);
  }

 private:
  static Bytes bytes_of(const std::vector<std::uint64_t>& words) {
    Bytes bytes(words.size() * sizeof(std::uint64_t));
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
  }

  Memory table_;
  Memory addresses_;
  std::array<std::uint64_t, 3> values_;
  std::uint32_t num_moves_;
  std::uint32_t num_tiles_;
};

struct Kernels {
  Kernels() {
    CHECK_EQ(cuModuleLoadData(&module, "reshard double"), 0);
    CHECK_EQ(cuModuleGetFunction(&pack, module, "reshard_pack"), 0);
    CHECK_EQ(cuModuleGetFunction(&unpack, module, "reshard_unpack"), 0);
  }
  ~Kernels() { cuModuleUnload(module); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  CUmodule module = nullptr;
  CUfunction pack = nullptr;
  CUfunction unpack = nullptr;
};

}  // namespace

TEST(kernels_pack_and_unpack) {
  const CleanTest clean;
  {
    const OnDevice device(0);
    const Kernels kernels;
    const Stream stream;
    const Memory source(hashed_bytes(kNumBytes, 1));
    const Memory destination(kNumBytes);
    const Memory message(std::size_t{kNumElements} * 2);
    MoveTable table;
    table.add(matrix(), {0, 0, kNumElements, 0}, 0);
    Launch pack(table, {source.address()}, message);
    Launch unpack(table, {destination.address()}, message);
    CHECK_EQ(pack.run(kernels.pack, stream.get()), 0);
    CHECK_EQ(unpack.run(kernels.unpack, stream.get()), 0);
    CHECK_TRUE(stream.finishes());
    Bytes expected(kNumBytes, std::byte{0xCB});
    for (std::size_t i = 0; i < kNumBytes; ++i) {
      if (i % kPitch < std::size_t{kColumns} * 2) expected[i] = source.bytes()[i];
    }
    CHECK_TRUE(destination.bytes() == expected);
    CHECK_EQ(cudaDoubleGet("launches", -1), 2);
    CHECK_EQ(cudaDoubleGet("modules", 0), 1);
  }
  CHECK_EQ(cuda_violations(), "");
}

TEST(what_a_kernel_touches_is_inside_of_allocations) {
  for (const char* what : {"memory", "message", "record of the table", "addresses"}) {
    const CleanTest clean;
    const OnDevice device(0);
    const Kernels kernels;
    const Stream stream;
    const auto is = [&](const char* text) { return std::string(what) == text; };
    // The last row has only its columns.
    const std::size_t needed = kNumBytes - kPitch + std::size_t{kColumns} * 2;
    const Memory source(is("memory") ? needed - 1 : needed);
    const Memory message(std::size_t{kNumElements} * 2 - (is("message") ? 1 : 0));
    MoveTable table;
    Operation operation = matrix();
    operation.buffer = is("addresses") ? 1 : 0;
    table.add(operation, {0, 0, kNumElements, 0}, 0);
    Launch pack(table, {source.address()}, message, is("record of the table") ? 1 : 0);
    CHECK_EQ(pack.run(kernels.pack, stream.get()), 0);
    CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 1; }));
    CHECK_CONTAINS(cuda_violations(), std::string("reshard_pack, ") + what + ": ");
    cudaDoubleReset();
  }
}

TEST(fingerprints_are_summed_up) {
  const CleanTest clean;
  const OnDevice device(0);
  const Kernels kernels;
  const Stream stream;
  CUfunction function = nullptr;
  CHECK_EQ(cuModuleGetFunction(&function, kernels.module, "reshard_fingerprint_regions"), 0);
  const Memory source(hashed_bytes(kNumBytes, 8));
  reshard::FingerprintRegion region{};
  region.base = static_cast<const std::byte*>(source.data());
  region.memory = region.stored = DType::kBF16;
  region.seed = 77;
  region.ndim = 2;
  region.size[0] = kRows;
  region.size[1] = kColumns;
  region.stride[0] = kPitch;
  region.stride[1] = 2;
  region.index_stride[0] = kColumns;
  region.index_stride[1] = 1;
  for (const std::uint32_t slot : {1U, 2U}) {
    const Memory sums(Bytes(16, std::byte{0}));
    reshard::RegionTable table;
    table.add(region, 0, 0, slot);
    Launch launch(table, {source.address()}, sums);
    CHECK_EQ(launch.run(function, stream.get()), 0);
    if (slot == 1) {
      CHECK_TRUE(stream.finishes());
      std::uint64_t sum = 0;
      std::memcpy(&sum, sums.bytes().data() + 8, sizeof(sum));
      CHECK_EQ(sum, fingerprint(region));
      CHECK_EQ(cuda_violations(), "");
    } else {
      CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 1; }));
      CHECK_CONTAINS(cuda_violations(), "reshard_fingerprint_regions, sums: ");
      cudaDoubleReset();
    }
  }
}

TEST(modules_and_functions_are_checked) {
  const CleanTest clean;
  const OnDevice device(0);
  CUmodule module = nullptr;
  CHECK_EQ(cuModuleLoadData(&module, "something else"), 200);
  CHECK_EQ(cuModuleLoadData(&module, "\177ELF and more"), 0);
  CUfunction function = nullptr;
  CHECK_EQ(cuModuleGetFunction(&function, module, "another_kernel"), 500);
  CHECK_EQ(cuModuleGetFunction(&function, module, "reshard_pack"), 0);
  CHECK_EQ(cuda_violations(), "");
  void* params[5] = {};
  CHECK_EQ(cuLaunchKernel(function, 0, 1, 1, 256, 1, 1, 0, nullptr, params, nullptr), 1);
  CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 512, 1, 1, 0, nullptr, params, nullptr), 1);
  CHECK_EQ(cuModuleUnload(module), 0);
  CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, nullptr, params, nullptr), 400);
  CHECK_EQ(cuModuleUnload(module), 400);
  CHECK_EQ(cudaDoubleGet("violations", -1), 4);
}

TEST(a_module_stays_until_its_launches_have_run) {
  const CleanTest clean;
  cudaDoubleSetDelay(2, 50000);
  const OnDevice device(0);
  const Memory source(kNumBytes);
  const Memory message(std::size_t{kNumElements} * 2);
  MoveTable table;
  table.add(matrix(), {0, 0, kNumElements, 0}, 0);
  Launch pack(table, {source.address()}, message);
  const Stream stream;
  {
    const Kernels kernels;
    for (int i = 0; i < 10; ++i) CHECK_EQ(pack.run(kernels.pack, stream.get()), 0);
  }
  CHECK_CONTAINS(cuda_violations(), " launches of it have not run");
  CHECK_TRUE(stream.finishes());
}

}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

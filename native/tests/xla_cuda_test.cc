// Versions in the memory of a GPU, on the double of the CUDA driver.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "doubles/world.h"
#include "gpu_leftovers.h"
#include "status.h"
#include "xla/version_reader.h"

namespace reshard_test {
namespace {

using reshard::CudaDriver;
using reshard::CudaVersionReader;
using reshard::Error;
using reshard::StatusCode;
using reshard::XlaBuffer;

constexpr std::int64_t kSecond = 1'000'000'000;

XlaBuffer buffer_of(const Memory& memory) {
  return {sizeof(XlaBuffer), nullptr, reshard::kXlaInt64, memory.data(), 0, nullptr};
}

Bytes bytes_of(std::int64_t number) {
  Bytes bytes(sizeof(number));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

}  // namespace

TEST(a_version_is_read_when_its_stream_has_come_so_far) {
  const CleanTest clean;
  const auto driver = std::make_shared<const CudaDriver>(CUDA_DOUBLE_PATH);
  cudaDoubleSetDelay(7, 20000);
  {
    const OnDevice device(2);
    const Stream stream;
    const Memory source(bytes_of((std::int64_t{1} << 40) + 3));
    const Memory version(bytes_of(-1));
    CHECK_EQ(cuMemcpyDtoDAsync_v2(version.address(), source.address(), 8, stream.get()), 0);
    const CudaVersionReader reader(driver);
    const std::int64_t found = reader.read(buffer_of(version), stream.get(), 20 * kSecond);
    CHECK_EQ(found, (std::int64_t{1} << 40) + 3);
  }
  CHECK_EQ(cuda_violations(), "");
}

TEST(a_stream_that_is_stuck_ends_the_wait) {
  const CleanTest clean;
  const auto driver = std::make_shared<const CudaDriver>(CUDA_DOUBLE_PATH);
  const OnDevice device(1);
  {
    const Stream stream;
    const Memory version(bytes_of(5));
    const CudaVersionReader reader(driver);
    std::atomic<bool> goes_on{false};
    const auto wait = [](void* flag) {
      while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
    };
    cudaDoubleQueue(stream.get(), 1, wait, &goes_on, nullptr, 0);
    int code = 0;
    try {
      reader.read(buffer_of(version), stream.get(), kSecond / 100);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
      CHECK_CONTAINS(error.message(), "GPU 1: the work before the publish");
    }
    CHECK_EQ(code, static_cast<int>(StatusCode::kTimeout));
    CHECK_EQ(reshard::free_leftovers(), 1U);  // the copy will still write there
    goes_on = true;
    CHECK_TRUE(stream.finishes());
    CHECK_TRUE(becomes([] { return reshard::free_leftovers() == 0; }));
  }
  CHECK_EQ(cuda_violations(), "");
}

TEST(without_a_driver_it_says_so) {
  const CudaVersionReader reader(nullptr);
  std::int64_t number = 0;
  XlaBuffer buffer{sizeof(XlaBuffer), nullptr, reshard::kXlaInt64, &number, 0, nullptr};
  std::string message;
  try {
    reader.read(buffer, nullptr, kSecond);
  } catch (const Error& error) {
    message = error.message();
  }
  CHECK_CONTAINS(message, "not open");
}

}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);  // read when the double is used first
  return reshard_test::run_all(argc, argv);
}

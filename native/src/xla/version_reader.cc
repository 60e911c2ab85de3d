#include "xla/version_reader.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "clock.h"
#include "gpu_device.h"
#include "gpu_leftovers.h"
#include "status.h"

namespace reshard {
namespace {

constexpr std::chrono::microseconds kPollInterval{20};

// What the copy of one number needs; on the heap, as it may have to outlive its call.
struct Copy {
  Copy(std::shared_ptr<const CudaDriver> driver, int ordinal)
      : gpu(std::move(driver), ordinal), number(gpu, sizeof(std::int64_t)), end(gpu) {}

  GpuDevice gpu;
  PinnedMemory number;
  GpuEvent end;
};

}  // namespace

std::size_t VersionReader::width_of(const XlaBuffer& buffer) {
  std::int64_t count = 1;
  for (std::int64_t dim = 0; dim < buffer.ndim; ++dim) count *= buffer.dims[dim];
  if (count != 1 || (buffer.dtype != kXlaInt32 && buffer.dtype != kXlaInt64)) {
    throw Error(StatusCode::kInvalidArgument,
                text("the version is ", count, " elements of XLA's type ", buffer.dtype,
                     "; it has to be one int32 or int64."));
  }
  return buffer.dtype == kXlaInt32 ? sizeof(std::int32_t) : sizeof(std::int64_t);
}

std::int64_t VersionReader::number_at(const void* address, std::size_t nbytes) {
  if (nbytes == sizeof(std::int32_t)) {
    std::int32_t number = 0;
    std::memcpy(&number, address, sizeof(number));
    return number;
  }
  std::int64_t number = 0;
  std::memcpy(&number, address, sizeof(number));
  return number;
}

std::int64_t HostVersionReader::read(const XlaBuffer& buffer, void* /*stream*/,
                                     std::int64_t /*timeout_ns*/) const {
  return number_at(buffer.data, width_of(buffer));
}

// Asked of the memory itself, so that nothing hangs on how XLA counts devices.
int CudaVersionReader::ordinal_of(CudaAddress address) const {
  int ordinal = -1;
  driver_->check(
      driver_->functions().PointerGetAttribute(&ordinal, kCudaPointerDeviceOrdinal, address),
      "asking on which GPU the version is");
  return ordinal;
}

std::int64_t CudaVersionReader::read(const XlaBuffer& buffer, void* stream,
                                     std::int64_t timeout_ns) const {
  if (driver_ == nullptr) {
    throw Error(StatusCode::kUnsupported, "the CUDA driver is not open in this process.");
  }
  const std::int64_t deadline = monotonic_ns() + timeout_ns;
  const std::size_t nbytes = width_of(buffer);
  const auto address = reinterpret_cast<CudaAddress>(buffer.data);
  const auto queue = static_cast<CudaStream>(stream);
  const int ordinal = ordinal_of(address);
  const auto copy = std::make_shared<Copy>(driver_, ordinal);
  const GpuDevice& gpu = copy->gpu;
  const GpuDevice::Scope scope(gpu);
  gpu.check(gpu.cuda().MemcpyDtoHAsync(copy->number.data(), address, nbytes, queue),
            "reading the version");
  copy->end.record(queue);
  while (!copy->end.is_past()) {
    if (monotonic_ns() >= deadline) {
      free_when_idle(copy, [kept = copy.get()] { return !kept->end.is_pending(); });
      throw Error(StatusCode::kTimeout,
                  text("GPU ", ordinal, ": the work before the publish took longer than ",
                       static_cast<double>(timeout_ns) / 1e9, " s."));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return number_at(copy->number.data(), nbytes);
}

}  // namespace reshard

#include "cuda_driver.h"

#include "status.h"

namespace reshard {
namespace {

constexpr int kCudaSuccess = 0;

template <typename Function>
Function* require(const SharedLibrary& library, const char* symbol) {
  void* address = library.find(symbol);
  if (address == nullptr) {
    throw Error(StatusCode::kUnsupported,
                text(library.path(), " has no function ", symbol, ", so it is no CUDA driver."));
  }
  return reinterpret_cast<Function*>(address);
}

}  // namespace

CudaDriver::CudaDriver(const std::string& name) : library_(name) {
  auto* error_string =
      require<int(int result, const char** words)>(library_, "cuGetErrorString");
  const auto check = [&](const char* call, int result) {
    if (result == kCudaSuccess) return;
    const char* words = nullptr;
    if (error_string(result, &words) != kCudaSuccess || words == nullptr) words = "unknown error";
    throw Error(StatusCode::kUnsupported,
                text("the CUDA driver at ", path(), " cannot be used: ", call, " says ", result,
                     ", ", words, ". Look at nvidia-smi."));
  };
  check("cuInit", require<int(unsigned int flags)>(library_, "cuInit")(0));
  check("cuDriverGetVersion",
        require<int(int* version)>(library_, "cuDriverGetVersion")(&version_));
  check("cuDeviceGetCount", require<int(int* count)>(library_, "cuDeviceGetCount")(&num_devices_));
}

}  // namespace reshard

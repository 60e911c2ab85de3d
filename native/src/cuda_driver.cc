#include "cuda_driver.h"

#include "status.h"

namespace reshard {
namespace {

template <typename Function>
void set(const SharedLibrary& library, Function** pointer, const char* symbol) {
  void* address = library.find(symbol);
  if (address == nullptr) {
    throw Error(StatusCode::kUnsupported,
                text(library.path(), " has no function ", symbol,
                     ", so it is no CUDA driver, or one before CUDA 12."));
  }
  *pointer = reinterpret_cast<Function*>(address);
}

void set_context_functions(const SharedLibrary& library, CudaFunctions& functions) {
  set(library, &functions.DeviceGet, "cuDeviceGet");
  set(library, &functions.DeviceGetAttribute, "cuDeviceGetAttribute");
  set(library, &functions.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  set(library, &functions.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  set(library, &functions.CtxPushCurrent, "cuCtxPushCurrent_v2");
  set(library, &functions.CtxPopCurrent, "cuCtxPopCurrent_v2");
  set(library, &functions.StreamCreate, "cuStreamCreate");
  set(library, &functions.StreamDestroy, "cuStreamDestroy_v2");
  set(library, &functions.StreamWaitEvent, "cuStreamWaitEvent");
  set(library, &functions.EventCreate, "cuEventCreate");
  set(library, &functions.EventDestroy, "cuEventDestroy_v2");
  set(library, &functions.EventRecord, "cuEventRecord");
  set(library, &functions.EventQuery, "cuEventQuery");
}

void set_memory_functions(const SharedLibrary& library, CudaFunctions& functions) {
  set(library, &functions.MemAlloc, "cuMemAlloc_v2");
  set(library, &functions.MemFree, "cuMemFree_v2");
  set(library, &functions.MemAllocHost, "cuMemAllocHost_v2");
  set(library, &functions.MemFreeHost, "cuMemFreeHost");
  set(library, &functions.MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  set(library, &functions.MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  set(library, &functions.Memcpy3DAsync, "cuMemcpy3DAsync_v2");
  set(library, &functions.MemsetD2D8Async, "cuMemsetD2D8Async");
  set(library, &functions.PointerGetAttribute, "cuPointerGetAttribute");
  set(library, &functions.ModuleLoadData, "cuModuleLoadData");
  set(library, &functions.ModuleUnload, "cuModuleUnload");
  set(library, &functions.ModuleGetFunction, "cuModuleGetFunction");
  set(library, &functions.LaunchKernel, "cuLaunchKernel");
}

}  // namespace

CudaDriver::CudaDriver(const std::string& name) : library_(name) {
  int (*init)(unsigned flags) = nullptr;
  int (*get_version)(int* version) = nullptr;
  int (*get_count)(int* count) = nullptr;
  set(library_, &init, "cuInit");
  set(library_, &get_version, "cuDriverGetVersion");
  set(library_, &get_count, "cuDeviceGetCount");
  set(library_, &functions_.GetErrorString, "cuGetErrorString");
  set_context_functions(library_, functions_);
  set_memory_functions(library_, functions_);
  const auto require = [&](const char* call, int result) {
    if (result == kCudaSuccess) return;
    throw Error(StatusCode::kUnsupported,
                text("the CUDA driver at ", path(), " cannot be used: ", call, " says ",
                     words(result), ". Look at nvidia-smi."));
  };
  require("cuInit", init(0));
  require("cuDriverGetVersion", get_version(&version_));
  require("cuDeviceGetCount", get_count(&num_devices_));
}

void CudaDriver::raise(int result, const std::string& what) const {
  const StatusCode code =
      result == kCudaOutOfMemory ? StatusCode::kOutOfMemory : StatusCode::kSystem;
  throw Error(code, text(what, ": CUDA says ", words(result), "."));
}

std::string CudaDriver::words(int result) const {
  const char* found = nullptr;
  const bool is_known =
      functions_.GetErrorString(result, &found) == kCudaSuccess && found != nullptr;
  return text(result, ", ", is_known ? found : "unknown error");
}

}  // namespace reshard

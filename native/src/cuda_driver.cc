#include "cuda_driver.h"

#include "status.h"

namespace reshard {
namespace {

constexpr char kConsequence[] = "so it is no CUDA driver, or one before CUDA 12.";

void set_context_functions(const SharedLibrary& library, CudaFunctions& functions) {
  library.set(&functions.DeviceGet, "cuDeviceGet", kConsequence);
  library.set(&functions.DeviceGetAttribute, "cuDeviceGetAttribute", kConsequence);
  library.set(&functions.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", kConsequence);
  library.set(&functions.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", kConsequence);
  library.set(&functions.CtxPushCurrent, "cuCtxPushCurrent_v2", kConsequence);
  library.set(&functions.CtxPopCurrent, "cuCtxPopCurrent_v2", kConsequence);
  library.set(&functions.StreamCreate, "cuStreamCreate", kConsequence);
  library.set(&functions.StreamDestroy, "cuStreamDestroy_v2", kConsequence);
  library.set(&functions.StreamWaitEvent, "cuStreamWaitEvent", kConsequence);
  library.set(&functions.EventCreate, "cuEventCreate", kConsequence);
  library.set(&functions.EventDestroy, "cuEventDestroy_v2", kConsequence);
  library.set(&functions.EventRecord, "cuEventRecord", kConsequence);
  library.set(&functions.EventQuery, "cuEventQuery", kConsequence);
}

void set_memory_functions(const SharedLibrary& library, CudaFunctions& functions) {
  library.set(&functions.MemAlloc, "cuMemAlloc_v2", kConsequence);
  library.set(&functions.MemFree, "cuMemFree_v2", kConsequence);
  library.set(&functions.MemAllocHost, "cuMemAllocHost_v2", kConsequence);
  library.set(&functions.MemFreeHost, "cuMemFreeHost", kConsequence);
  library.set(&functions.MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", kConsequence);
  library.set(&functions.MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", kConsequence);
  library.set(&functions.Memcpy3DAsync, "cuMemcpy3DAsync_v2", kConsequence);
  library.set(&functions.MemsetD2D8Async, "cuMemsetD2D8Async", kConsequence);
  library.set(&functions.PointerGetAttribute, "cuPointerGetAttribute", kConsequence);
  library.set(&functions.ModuleLoadData, "cuModuleLoadData", kConsequence);
  library.set(&functions.ModuleUnload, "cuModuleUnload", kConsequence);
  library.set(&functions.ModuleGetFunction, "cuModuleGetFunction", kConsequence);
  library.set(&functions.LaunchKernel, "cuLaunchKernel", kConsequence);
}

}  // namespace

CudaDriver::CudaDriver(const std::string& name) : library_(name) {
  int (*init)(unsigned flags) = nullptr;
  int (*get_version)(int* version) = nullptr;
  int (*get_count)(int* count) = nullptr;
  library_.set(&init, "cuInit", kConsequence);
  library_.set(&get_version, "cuDriverGetVersion", kConsequence);
  library_.set(&get_count, "cuDeviceGetCount", kConsequence);
  library_.set(&functions_.GetErrorString, "cuGetErrorString", kConsequence);
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

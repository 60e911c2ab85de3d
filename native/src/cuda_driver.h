// The CUDA driver of this machine, opened at run time: its functions, and its errors as ours.
#ifndef RESHARD_NATIVE_SRC_CUDA_DRIVER_H_
#define RESHARD_NATIVE_SRC_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "shared_library.h"

namespace reshard {

// Names and layouts of cuda.h, as far as they are used here. Source: CUDA 12.0 to 13.0, cuda.h.
using CudaContext = struct CudaOpaqueContext*;
using CudaStream = struct CudaOpaqueStream*;
using CudaEvent = struct CudaOpaqueEvent*;
using CudaModule = struct CudaOpaqueModule*;
using CudaFunction = struct CudaOpaqueFunction*;
using CudaAddress = std::uint64_t;

constexpr int kCudaSuccess = 0;
constexpr int kCudaOutOfMemory = 2;
constexpr int kCudaNotReady = 600;
constexpr unsigned kCudaStreamNonBlocking = 1;
constexpr unsigned kCudaEventDisableTiming = 2;
constexpr int kCudaMemoryTypeDevice = 2;
constexpr int kCudaMaxPitch = 11;
constexpr int kCudaMultiprocessorCount = 16;
constexpr int kCudaComputeCapabilityMajor = 75;
constexpr int kCudaComputeCapabilityMinor = 76;
constexpr int kCudaPointerDeviceOrdinal = 9;

// One end of a three-dimensional copy.
struct CudaCopyEnd {
  std::size_t x_in_bytes;
  std::size_t y;
  std::size_t z;
  std::size_t level_of_detail;
  int memory_type;
  void* host;
  CudaAddress device;
  void* array;
  void* reserved;
  std::size_t pitch;
  std::size_t height;
};

struct CudaCopy3D {
  CudaCopyEnd source;
  CudaCopyEnd destination;
  std::size_t width_in_bytes;
  std::size_t height;
  std::size_t depth;
};

static_assert(sizeof(CudaCopyEnd) == 88 && sizeof(CudaCopy3D) == 200, "CUDA_MEMCPY3D of cuda.h");

// All of them are there: opening fails otherwise.
struct CudaFunctions {
  int (*GetErrorString)(int result, const char** words);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DevicePrimaryCtxRetain)(CudaContext* context, int device);
  int (*DevicePrimaryCtxRelease)(int device);
  int (*CtxPushCurrent)(CudaContext context);
  int (*CtxPopCurrent)(CudaContext* context);
  int (*StreamCreate)(CudaStream* stream, unsigned flags);
  int (*StreamDestroy)(CudaStream stream);
  int (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*EventCreate)(CudaEvent* event, unsigned flags);
  int (*EventDestroy)(CudaEvent event);
  int (*EventRecord)(CudaEvent event, CudaStream stream);
  int (*EventQuery)(CudaEvent event);
  int (*MemAlloc)(CudaAddress* address, std::size_t nbytes);
  int (*MemFree)(CudaAddress address);
  int (*MemAllocHost)(void** memory, std::size_t nbytes);
  int (*MemFreeHost)(void* memory);
  int (*MemcpyHtoDAsync)(CudaAddress to, const void* from, std::size_t nbytes, CudaStream stream);
  int (*MemcpyDtoHAsync)(void* to, CudaAddress from, std::size_t nbytes, CudaStream stream);
  int (*Memcpy3DAsync)(const CudaCopy3D* copy, CudaStream stream);
  int (*MemsetD2D8Async)(CudaAddress to, std::size_t pitch, unsigned char value, std::size_t width,
                         std::size_t height, CudaStream stream);
  int (*PointerGetAttribute)(void* value, int attribute, CudaAddress address);
  int (*ModuleLoadData)(CudaModule* module, const void* image);
  int (*ModuleUnload)(CudaModule module);
  int (*ModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name);
  int (*LaunchKernel)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      CudaStream stream, void** parameters, void** extra);
};

class CudaDriver {
 public:
  // Opens the driver and initialises it. Throws kUnsupported, saying what is missing.
  explicit CudaDriver(const std::string& name);

  const std::string& path() const { return library_.path(); }
  // 12080 for CUDA 12.8: the newest that the driver supports.
  int version() const { return version_; }
  int num_devices() const { return num_devices_; }
  const CudaFunctions& functions() const { return functions_; }

  // Throws kOutOfMemory or kSystem, with `what` ("GPU 0: allocating 64 bytes") and CUDA's words,
  // unless `result` is success.
  void check(int result, const std::string& what) const {
    if (result != kCudaSuccess) raise(result, what);
  }

 private:
  [[noreturn]] void raise(int result, const std::string& what) const;
  std::string words(int result) const;

  SharedLibrary library_;
  CudaFunctions functions_{};
  int version_ = 0;
  int num_devices_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CUDA_DRIVER_H_

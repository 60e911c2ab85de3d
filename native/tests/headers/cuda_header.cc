// cuda_driver.h against CUDA's own header; compiled for its static_asserts alone
// (tests/abi/test_nvidia_headers.py).
#include <cuda.h>

#include <cstddef>
#include <string_view>

#include "cuda_driver.h"
#include "headers/same_call.h"

namespace reshard {

static_assert(CUDA_VERSION >= 12000);
static_assert(kCudaSuccess == CUDA_SUCCESS);
static_assert(kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCudaEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCudaMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kCudaMaxPitch == CU_DEVICE_ATTRIBUTE_MAX_PITCH);
static_assert(kCudaMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kCudaComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kCudaComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kCudaPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(reshard_test::is_same_value<CudaAddress, CUdeviceptr>());
static_assert(sizeof(int) == sizeof(CUdevice));

static_assert(sizeof(CudaCopy3D) == sizeof(CUDA_MEMCPY3D));
#define SAME_END(our, their)                                     \
  SAME_FIELD(CudaCopy3D, source.our, CUDA_MEMCPY3D, src##their); \
  SAME_FIELD(CudaCopy3D, destination.our, CUDA_MEMCPY3D, dst##their)
SAME_END(x_in_bytes, XInBytes);
SAME_END(y, Y);
SAME_END(z, Z);
SAME_END(level_of_detail, LOD);
SAME_END(memory_type, MemoryType);
SAME_END(host, Host);
SAME_END(device, Device);
SAME_END(array, Array);
SAME_END(pitch, Pitch);
SAME_END(height, Height);
SAME_FIELD(CudaCopy3D, source.reserved, CUDA_MEMCPY3D, reserved0);
SAME_FIELD(CudaCopy3D, destination.reserved, CUDA_MEMCPY3D, reserved1);
SAME_FIELD(CudaCopy3D, width_in_bytes, CUDA_MEMCPY3D, WidthInBytes);
SAME_FIELD(CudaCopy3D, height, CUDA_MEMCPY3D, Height);
SAME_FIELD(CudaCopy3D, depth, CUDA_MEMCPY3D, Depth);

// A line for each function that cuda_driver.cc asks the library for. Their header maps a name to
// the symbol of its newest version, which is the one that we ask for.
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#define CALL(member, symbol, name)                                                         \
  static_assert(                                                                           \
      reshard_test::IsSameCall<decltype(CudaFunctions::member), decltype(&symbol)>::value, \
      #symbol);                                                                            \
  static_assert(std::string_view(TEXT(name)) == #symbol);
#include "calls.inc"

}  // namespace reshard

// Names and layouts of cuda.h, as far as the double has them. Source: CUDA 12, cuda.h.
#ifndef RESHARD_TESTS_DOUBLES_CUDA_CUDA_NAMES_H_
#define RESHARD_TESTS_DOUBLES_CUDA_CUDA_NAMES_H_

#include <stddef.h>

#define CUDA_DOUBLE_EXPORT __attribute__((visibility("default")))

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700
};

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

typedef struct {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  void* srcArray;
  void* reserved0;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  void* dstArray;
  void* reserved1;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

#ifdef __cplusplus
extern "C" {
#endif

CUDA_DOUBLE_EXPORT CUresult cuInit(unsigned flags);
CUDA_DOUBLE_EXPORT CUresult cuDriverGetVersion(int* version);
CUDA_DOUBLE_EXPORT CUresult cuGetErrorString(CUresult result, const char** text);
CUDA_DOUBLE_EXPORT CUresult cuDeviceGetCount(int* count);
CUDA_DOUBLE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUDA_DOUBLE_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
CUDA_DOUBLE_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device);
CUDA_DOUBLE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUDA_DOUBLE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUDA_DOUBLE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context);
CUDA_DOUBLE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context);
CUDA_DOUBLE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUDA_DOUBLE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUDA_DOUBLE_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags);
CUDA_DOUBLE_EXPORT CUresult cuEventDestroy_v2(CUevent event);
CUDA_DOUBLE_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuEventQuery(CUevent event);
CUDA_DOUBLE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t nbytes);
CUDA_DOUBLE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
CUDA_DOUBLE_EXPORT CUresult cuMemAllocHost_v2(void** address, size_t nbytes);
CUDA_DOUBLE_EXPORT CUresult cuMemFreeHost(void* address);
CUDA_DOUBLE_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t nbytes,
                                                 CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t nbytes,
                                                 CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t nbytes,
                                                 CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value,
                                              size_t width, size_t height, CUstream stream);
CUDA_DOUBLE_EXPORT CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address);
CUDA_DOUBLE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUDA_DOUBLE_EXPORT CUresult cuModuleUnload(CUmodule module);
CUDA_DOUBLE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                                const char* name);
CUDA_DOUBLE_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                           unsigned grid_z, unsigned block_x, unsigned block_y,
                                           unsigned block_z, unsigned shared_nbytes,
                                           CUstream stream, void** params, void** extra);

#ifdef __cplusplus
}
#endif

#endif  // RESHARD_TESTS_DOUBLES_CUDA_CUDA_NAMES_H_

/* A library with the functions of the CUDA driver that are used.
 *
 * CUDA_DOUBLE_RESULT: what cuInit returns.
 * CUDA_DOUBLE_HAS_NO_LAUNCH: cuLaunchKernel is missing.
 */
#define EXPORT __attribute__((visibility("default")))

#ifndef CUDA_DOUBLE_RESULT
#define CUDA_DOUBLE_RESULT 0
#endif

EXPORT int cuInit(unsigned int flags) {
  (void)flags;
  return CUDA_DOUBLE_RESULT;
}

EXPORT int cuGetErrorString(int result, const char** words) {
  *words = result == 100 ? "no CUDA-capable device is detected" : "no error";
  return 0;
}

EXPORT int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

/* All others are there and do nothing. */
#define REFUSED(name) \
  EXPORT int name(void) { return 100; }
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDeviceGetPCIBusId)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuDevicePrimaryCtxRelease_v2)
REFUSED(cuCtxPushCurrent_v2)
REFUSED(cuCtxPopCurrent_v2)
REFUSED(cuStreamCreate)
REFUSED(cuStreamDestroy_v2)
REFUSED(cuStreamWaitEvent)
REFUSED(cuEventCreate)
REFUSED(cuEventDestroy_v2)
REFUSED(cuEventRecord)
REFUSED(cuEventQuery)
REFUSED(cuMemAlloc_v2)
REFUSED(cuMemFree_v2)
REFUSED(cuMemAllocHost_v2)
REFUSED(cuMemFreeHost)
REFUSED(cuMemcpyHtoDAsync_v2)
REFUSED(cuMemcpyDtoHAsync_v2)
REFUSED(cuMemcpyDtoDAsync_v2)
REFUSED(cuMemcpy3DAsync_v2)
REFUSED(cuMemsetD2D8Async)
REFUSED(cuPointerGetAttribute)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleUnload)
REFUSED(cuModuleGetFunction)
#ifndef CUDA_DOUBLE_HAS_NO_LAUNCH
REFUSED(cuLaunchKernel)
#endif
/* NVRTC looks for a driver in its process and calls this without a look whether it is there. */
EXPORT int cuGetExportTable(const void** table, const void* id) {
  (void)id;
  *table = (const void*)0;
  return 500; /* not found */
}

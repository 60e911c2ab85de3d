/* A library with the functions of the CUDA driver that are used.
 *
 * CUDA_DOUBLE_RESULT: what cuInit returns.
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

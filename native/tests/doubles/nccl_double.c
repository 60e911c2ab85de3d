/* A library with the functions of NCCL that are used, to test how libraries are found and checked.
 *
 * NCCL_DOUBLE_VERSION: what it says its version is.
 * NCCL_DOUBLE_IS_BROKEN: ncclGetVersion fails.
 * NCCL_DOUBLE_HAS_NO_SPLIT: ncclCommSplit is missing.
 */
#define EXPORT __attribute__((visibility("default")))

#ifndef NCCL_DOUBLE_VERSION
#define NCCL_DOUBLE_VERSION 23203
#endif

/* Refused like all else that needs a GPU on a machine without one. */
enum { kUnhandledCudaError = 1 };

/* Called by its name, as NCCL calls functions of its own: another copy's may come first. */
EXPORT int ncclDoubleOwnVersion(void);
EXPORT int ncclDoubleOwnVersion(void) { return NCCL_DOUBLE_VERSION; }

EXPORT int ncclGetVersion(int* version) {
#ifdef NCCL_DOUBLE_IS_BROKEN
  (void)version;
  return kUnhandledCudaError;
#else
  *version = ncclDoubleOwnVersion();
  return 0;
#endif
}

#define REFUSED(name) \
  EXPORT int name(void) { return kUnhandledCudaError; }

EXPORT const char* ncclGetErrorString(int result) {
  return result == 0 ? "no error" : "unhandled cuda error";
}
EXPORT const char* ncclGetLastError(void* comm) {
  (void)comm;
  return "this is a double without a GPU";
}
REFUSED(ncclGetUniqueId)
REFUSED(ncclCommInitRankConfig)
#ifndef NCCL_DOUBLE_HAS_NO_SPLIT
REFUSED(ncclCommSplit)
#endif
REFUSED(ncclCommFinalize)
REFUSED(ncclCommDestroy)
REFUSED(ncclCommAbort)
REFUSED(ncclCommGetAsyncError)
REFUSED(ncclGroupStart)
REFUSED(ncclGroupEnd)
REFUSED(ncclSend)
REFUSED(ncclRecv)

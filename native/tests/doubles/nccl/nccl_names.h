// Names and layouts of nccl.h, as far as the double has them. Source: NCCL 2.18 to 2.32, nccl.h.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_NCCL_NAMES_H_
#define RESHARD_TESTS_DOUBLES_NCCL_NCCL_NAMES_H_

#include <limits.h>
#include <stddef.h>

#define NCCL_DOUBLE_EXPORT __attribute__((visibility("default")))

enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum { NCCL_SPLIT_NOCOLOR = -1, NCCL_CONFIG_UNDEF_INT = INT_MIN };
enum { ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclFloat32 = 7 };

typedef int ncclResult_t;
typedef struct ncclComm* ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;

/* The part that NCCL 2.18 has. */
typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
} ncclConfig_t;

#ifdef __cplusplus
extern "C" {
#endif

NCCL_DOUBLE_EXPORT ncclResult_t ncclGetVersion(int* version);
NCCL_DOUBLE_EXPORT const char* ncclGetErrorString(ncclResult_t result);
NCCL_DOUBLE_EXPORT const char* ncclGetLastError(ncclComm_t comm);
NCCL_DOUBLE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks,
                                                       ncclUniqueId id, int rank,
                                                       ncclConfig_t* config);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out,
                                              ncclConfig_t* config);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm);
NCCL_DOUBLE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result);
NCCL_DOUBLE_EXPORT ncclResult_t ncclGroupStart(void);
NCCL_DOUBLE_EXPORT ncclResult_t ncclGroupEnd(void);
NCCL_DOUBLE_EXPORT ncclResult_t ncclSend(const void* buffer, size_t count, int type, int peer,
                                         ncclComm_t comm, void* stream);
NCCL_DOUBLE_EXPORT ncclResult_t ncclRecv(void* buffer, size_t count, int type, int peer,
                                         ncclComm_t comm, void* stream);

#ifdef __cplusplus
}
#endif

#endif  // RESHARD_TESTS_DOUBLES_NCCL_NCCL_NAMES_H_

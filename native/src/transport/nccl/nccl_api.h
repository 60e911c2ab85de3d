// The entry points of one copy of NCCL.
//
// A process can have several copies open (torch's, JAX's, one of its own); all ranks of a
// communicator must run the same version, so a communicator names the copy that it is made with.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_API_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_API_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "shared_library.h"

namespace reshard {

// Names and layouts of nccl.h, as far as they are used here. Source: NCCL 2.18 to 2.32, nccl.h.
using NcclComm = struct NcclOpaqueComm*;

struct NcclUniqueId {
  char internal[128];
};

constexpr int kNcclUndefined = std::numeric_limits<int>::min();

// The first fields of ncclConfig_t. NCCL copies as many as `size` says and takes its own defaults
// for fields that are younger than `version`.
struct NcclConfig {
  std::size_t size = 48;
  unsigned magic = 0xCAFEBEEFU;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
};
static_assert(sizeof(NcclConfig) == 48 && offsetof(NcclConfig, split_share) == 40);

constexpr int kNcclSuccess = 0;
constexpr int kNcclRemoteError = 6;
constexpr int kNcclInProgress = 7;
constexpr int kNcclUint8 = 1;
constexpr int kNcclSplitNoColor = -1;
constexpr int kMinNcclVersion = 21800;

using NcclStream = struct CudaOpaqueStream*;

// All of them are there: opening fails otherwise.
struct NcclFunctions {
  int (*GetVersion)(int* version);
  const char* (*GetErrorString)(int result);
  const char* (*GetLastError)(NcclComm comm);
  int (*GetUniqueId)(NcclUniqueId* id);
  int (*CommInitRankConfig)(NcclComm* comm, int num_ranks, NcclUniqueId id, int rank,
                            NcclConfig* config);
  int (*CommSplit)(NcclComm comm, int color, int key, NcclComm* out, NcclConfig* config);
  int (*CommFinalize)(NcclComm comm);
  int (*CommDestroy)(NcclComm comm);
  int (*CommAbort)(NcclComm comm);
  int (*CommGetAsyncError)(NcclComm comm, int* result);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*Send)(const void* buffer, std::size_t count, int type, int peer, NcclComm comm,
              NcclStream stream);
  int (*Recv)(void* buffer, std::size_t count, int type, int peer, NcclComm comm,
              NcclStream stream);
};

class NcclApi {
 public:
  // Opens a file by its path or its name. Throws kUnsupported, saying what is missing: the file, a
  // function, or a version that is new enough.
  explicit NcclApi(const std::string& name);

  const std::string& path() const { return library_.path(); }
  int version() const { return version_; }

  // What names a new communicator. Throws kSystem.
  NcclUniqueId make_id() const;

  const NcclFunctions& functions() const { return functions_; }

 private:
  SharedLibrary library_;
  NcclFunctions functions_{};
  int version_ = 0;
};

// "2.32.3" for 23203.
std::string nccl_version_text(int version);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_API_H_

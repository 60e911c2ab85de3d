// nccl_api.h against NCCL's own header; compiled for its static_asserts alone
// (tests/abi/test_nvidia_headers.py).
#include <cstddef>
// nccl.h needs size_t.
#include <nccl.h>

#include "headers/same_call.h"
#include "transport/nccl/nccl_api.h"

namespace reshard {

static_assert(NCCL_VERSION_CODE >= kMinNcclVersion);
static_assert(kNcclSuccess == ncclSuccess);
static_assert(kNcclRemoteError == ncclRemoteError);
static_assert(kNcclInProgress == ncclInProgress);
static_assert(kNcclUint8 == ncclUint8);
static_assert(kNcclSplitNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(kNcclUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));

// What we set is what their initializer sets, but for `blocking` and what they alone have.
constexpr NcclConfig kOurs;
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kOurs.size <= kTheirs.size && kOurs.version <= kTheirs.version);
static_assert(kOurs.magic == kTheirs.magic);
static_assert(kOurs.cga_cluster_size == kTheirs.cgaClusterSize);
static_assert(kOurs.min_ctas == kTheirs.minCTAs && kOurs.max_ctas == kTheirs.maxCTAs);
static_assert(kOurs.net_name == kTheirs.netName);
static_assert(kOurs.split_share == kTheirs.splitShare);
SAME_FIELD(NcclConfig, size, ncclConfig_t, size);
SAME_FIELD(NcclConfig, magic, ncclConfig_t, magic);
SAME_FIELD(NcclConfig, version, ncclConfig_t, version);
SAME_FIELD(NcclConfig, blocking, ncclConfig_t, blocking);
SAME_FIELD(NcclConfig, cga_cluster_size, ncclConfig_t, cgaClusterSize);
SAME_FIELD(NcclConfig, min_ctas, ncclConfig_t, minCTAs);
SAME_FIELD(NcclConfig, max_ctas, ncclConfig_t, maxCTAs);
SAME_FIELD(NcclConfig, net_name, ncclConfig_t, netName);
SAME_FIELD(NcclConfig, split_share, ncclConfig_t, splitShare);

// A line for each function that nccl_api.cc asks the library for.
#define CALL(member, symbol)                                                               \
  static_assert(                                                                           \
      reshard_test::IsSameCall<decltype(NcclFunctions::member), decltype(&symbol)>::value, \
      #symbol);
#include "calls.inc"

}  // namespace reshard

#include "transport/nccl/nccl_api.h"

#include "status.h"

namespace reshard {
namespace {

// Sets a pointer of the table to a function that NCCL has since a version. The types are nccl.h's.
template <typename Function>
void set(const SharedLibrary& library, Function** pointer, const char* symbol, int since) {
  void* address = library.find(symbol);
  if (address == nullptr) {
    throw Error(StatusCode::kUnsupported, text(library.path(), " has no function ", symbol,
                                               ", which NCCL has since ", nccl_version_text(since),
                                               ". Install nvidia-nccl-cu12 anew, or name another "
                                               "file."));
  }
  *pointer = reinterpret_cast<Function*>(address);
}

}  // namespace

// NCCL calls its own functions by name, so that a second copy would call the first one's.
NcclApi::NcclApi(const std::string& name)
    : library_(name, /*is_private=*/name.find('/') != std::string::npos) {
  set(library_, &functions_.GetVersion, "ncclGetVersion", 2000);
  const int result = functions_.GetVersion(&version_);
  if (result != kNcclSuccess) {
    throw Error(StatusCode::kUnsupported,
                text(path(), " does not say its version: ncclGetVersion returned ", result, "."));
  }
  if (version_ < kMinNcclVersion) {
    throw Error(StatusCode::kUnsupported,
                text(path(), " is NCCL ", nccl_version_text(version_), ", but ",
                     nccl_version_text(kMinNcclVersion),
                     " or newer is needed. Install one, such as nvidia-nccl-cu12."));
  }
  set(library_, &functions_.GetErrorString, "ncclGetErrorString", 2000);
  set(library_, &functions_.GetLastError, "ncclGetLastError", 21300);
  set(library_, &functions_.GetUniqueId, "ncclGetUniqueId", 2000);
  set(library_, &functions_.CommInitRankConfig, "ncclCommInitRankConfig", 21400);
  set(library_, &functions_.CommSplit, "ncclCommSplit", 21800);
  set(library_, &functions_.CommFinalize, "ncclCommFinalize", 21400);
  set(library_, &functions_.CommDestroy, "ncclCommDestroy", 2000);
  set(library_, &functions_.CommAbort, "ncclCommAbort", 2400);
  set(library_, &functions_.CommGetAsyncError, "ncclCommGetAsyncError", 2400);
  set(library_, &functions_.GroupStart, "ncclGroupStart", 2000);
  set(library_, &functions_.GroupEnd, "ncclGroupEnd", 2000);
  set(library_, &functions_.Send, "ncclSend", 2700);
  set(library_, &functions_.Recv, "ncclRecv", 2700);
}

NcclUniqueId NcclApi::make_id() const {
  NcclUniqueId id{};
  const int result = functions_.GetUniqueId(&id);
  if (result != kNcclSuccess) {
    throw Error(StatusCode::kSystem,
                text("NCCL ", nccl_version_text(version_), " makes no id for a communicator: ",
                     functions_.GetErrorString(result), ", ", functions_.GetLastError(nullptr),
                     ". NCCL_SOCKET_IFNAME chooses the network that it meets on."));
  }
  return id;
}

std::string nccl_version_text(int version) {
  // Until 2.8 the minor number had one digit: 2708 is 2.7.8.
  if (version < 10000) {
    return text(version / 1000, ".", version / 100 % 10, ".", version % 100);
  }
  return text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace reshard

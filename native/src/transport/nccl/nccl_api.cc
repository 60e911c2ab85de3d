#include "transport/nccl/nccl_api.h"

#include "status.h"

namespace reshard {
// NCCL calls its own functions by name, so that a second copy would call the first one's.
NcclApi::NcclApi(const std::string& name) : library_(name, "ncclGetVersion") {
  const auto set = [this](auto** pointer, const char* symbol, int since) {
    library_.set(pointer, symbol,
                 text("which NCCL has since ", nccl_version_text(since),
                      ". Install nvidia-nccl-cu12 anew, or name another file."));
  };
  set(&functions_.GetVersion, "ncclGetVersion", 2000);
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
  set(&functions_.GetErrorString, "ncclGetErrorString", 2000);
  set(&functions_.GetLastError, "ncclGetLastError", 21300);
  set(&functions_.GetUniqueId, "ncclGetUniqueId", 2000);
  set(&functions_.CommInitRankConfig, "ncclCommInitRankConfig", 21400);
  set(&functions_.CommSplit, "ncclCommSplit", 21800);
  set(&functions_.CommFinalize, "ncclCommFinalize", 21400);
  set(&functions_.CommDestroy, "ncclCommDestroy", 2000);
  set(&functions_.CommAbort, "ncclCommAbort", 2400);
  set(&functions_.CommGetAsyncError, "ncclCommGetAsyncError", 2400);
  set(&functions_.GroupStart, "ncclGroupStart", 2000);
  set(&functions_.GroupEnd, "ncclGroupEnd", 2000);
  set(&functions_.Send, "ncclSend", 2700);
  set(&functions_.Recv, "ncclRecv", 2700);
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

// The functions of NCCL.
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/cuda_double.h"
#include "nccl/group.h"
#include "nccl/injections.h"
#include "nccl/library.h"

using doubles::Comm;
using doubles::CommPtr;
using doubles::Group;
using doubles::injections;
using doubles::Library;
using doubles::library;
using doubles::Meeting;
using doubles::MeetingId;
using doubles::Operation;

namespace {

constexpr char kIdMark[8] = {'d', 'o', 'u', 'b', 'l', 'e', 's', '1'};
constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr std::size_t kConfigNbytes = 48;  // of NCCL 2.18

// Null, and a violation, where it was destroyed or never made.
CommPtr find(const char* who, ncclComm_t handle) {
  CommPtr comm = library().comms.find(handle);
  if (comm == nullptr) {
    library().refuse(ncclInvalidArgument, std::string(who) + ": this is no live communicator");
  }
  return comm;
}

// Every communicator has to be made one that does not block, as only these can be aborted.
int check_config(const char* who, const ncclConfig_t* config, bool is_needed) {
  const std::string where = std::string(who) + ": ";
  if (config == nullptr) {
    return is_needed
               ? library().refuse(ncclInvalidArgument, where + "no configuration, so it blocks")
               : ncclSuccess;
  }
  if (config->size < kConfigNbytes || config->magic != kConfigMagic || config->version < 21800) {
    return library().refuse(ncclInvalidArgument, where +
                                                     "size, magic number or version of the "
                                                     "configuration");
  }
  const bool inherits = !is_needed && config->blocking == NCCL_CONFIG_UNDEF_INT;
  if (config->blocking != 0 && !inherits) {
    return library().refuse(ncclInvalidArgument,
                            where + "blocking communicators are not in this double");
  }
  return ncclSuccess;
}

// What NCCL calls ready: the call before has come to its end, as was asked.
int check_ready(const char* who, const Comm& comm) {
  const int result = comm.result();
  if (result == ncclInProgress) {
    return library().refuse(ncclInvalidArgument,
                            std::string(who) + ": the communicator is still in progress");
  }
  if (result == ncclSuccess && comm.is_finalized()) {
    return library().refuse(ncclInvalidArgument,
                            std::string(who) + ": the communicator was finalized");
  }
  return result;
}

int check_operation(const char* who, const Comm& comm, const Operation& operation) {
  const std::string where = std::string(who) + ": ";
  const int ready = check_ready(who, comm);
  if (ready != ncclSuccess) return ready;
  if (operation.peer < 0 || operation.peer >= comm.num_ranks()) {
    return library().refuse(ncclInvalidArgument, where + "no rank " +
                                                     std::to_string(operation.peer) + " among " +
                                                     std::to_string(comm.num_ranks()));
  }
  if (doubles::size_of_type(operation.type) == 0) {
    return library().refuse(ncclInvalidArgument,
                            where + "unknown type " + std::to_string(operation.type));
  }
  if (operation.count > 0 && operation.buffer == nullptr) {
    return library().refuse(ncclInvalidArgument, where + "no buffer");
  }
  if (cudaDoubleCheckStream(operation.stream, comm.device(), who) != 0) {
    return library().refuse(ncclInvalidUsage, where +
                                                  "the stream is none of the communicator's "
                                                  "device");
  }
  return ncclSuccess;
}

int operate(const char* who, ncclComm_t handle, const Operation& operation) {
  const std::lock_guard<std::mutex> lock(library().mutex);
  Group& group = Group::mine();
  const CommPtr comm = find(who, handle);
  if (comm == nullptr) return group.fail(ncclInvalidArgument);
  // NCCL ends by setting the device that was current; where there was none, that is device 0.
  if (cudaDoubleCurrentDevice() < 0) {
    library().violations.add(std::string(who) +
                             ": no context is current, and NCCL leaves one on device 0");
  }
  const int checked = check_operation(who, *comm, operation);
  return checked == ncclSuccess ? group.add_operation(comm, operation) : group.fail(checked);
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = library().version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const kWords[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  return result < 0 || result > ncclInProgress ? "unknown result code" : kWords[result];
}

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string text;
  text = library().last_error();
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  MeetingId made;
  if (!Meeting::create(&made)) return ncclSystemError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, kIdMark, sizeof(kIdMark));
  std::memcpy(id->internal + sizeof(kIdMark), &made, sizeof(made));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const char* who = "ncclCommInitRankConfig";
  const std::lock_guard<std::mutex> lock(library().mutex);
  Group& group = Group::mine();
  *out = nullptr;
  const int checked = check_config(who, config, true);
  if (checked != ncclSuccess) return group.fail(checked);
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks ||
      std::memcmp(id.internal, kIdMark, sizeof(kIdMark)) != 0) {
    return group.fail(library().refuse(
        ncclInvalidArgument, std::string(who) + ": rank " + std::to_string(rank) + " of " +
                                 std::to_string(num_ranks) + ", or this is no unique id"));
  }
  const int device = cudaDoubleCurrentDevice();
  if (device < 0) {
    return group.fail(
        library().refuse(ncclUnhandledCudaError, std::string(who) + ": no context is current"));
  }
  MeetingId meeting;
  std::memcpy(&meeting, id.internal + sizeof(kIdMark), sizeof(meeting));
  const auto comm = std::make_shared<Comm>(num_ranks, rank, device, meeting);
  *out = static_cast<ncclComm_t>(library().comms.add(comm));
  return group.add_start(comm, [comm] { comm->start_joining(); });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* out,
                           ncclConfig_t* config) {
  const char* who = "ncclCommSplit";
  const std::lock_guard<std::mutex> lock(library().mutex);
  Group& group = Group::mine();
  const CommPtr comm = find(who, handle);
  if (comm == nullptr) return group.fail(ncclInvalidArgument);
  int checked = check_config(who, config, false);
  if (checked == ncclSuccess) checked = check_ready(who, *comm);
  if (checked == ncclSuccess && color < NCCL_SPLIT_NOCOLOR) {
    checked = library().refuse(ncclInvalidArgument, "ncclCommSplit: a negative color");
  }
  if (checked != ncclSuccess) return group.fail(checked);
  *out = nullptr;
  return group.add_start(comm, [=] { comm->start_split(color, key, out); });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const std::lock_guard<std::mutex> lock(library().mutex);
  Group& group = Group::mine();
  const CommPtr comm = find("ncclCommFinalize", handle);
  if (comm == nullptr) return group.fail(ncclInvalidArgument);
  const int checked = check_ready("ncclCommFinalize", *comm);
  if (checked != ncclSuccess) return group.fail(checked);
  return group.add_start(comm, [comm] { comm->start_finalizing(); });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  std::unique_lock<std::mutex> lock(library().mutex);
  const CommPtr comm = find("ncclCommDestroy", handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (Group::mine().is_open()) {
    return library().refuse(ncclInvalidUsage, "ncclCommDestroy: inside of a group");
  }
  if (comm->result() == ncclInProgress || comm->has_jobs()) {
    library().violations.add("ncclCommDestroy: the communicator still has work; finalize it first");
  }
  library().comms.take(handle);
  comm->abort();
  if (comm->is_finalized()) injections().count_destroyed();
  lock.unlock();
  std::this_thread::sleep_for(injections().destroy_time());
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  std::unique_lock<std::mutex> lock(library().mutex);
  const CommPtr comm = find("ncclCommAbort", handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (Group::mine().is_open()) {
    return library().refuse(ncclInvalidUsage, "ncclCommAbort: inside of a group");
  }
  library().comms.take(handle);
  ncclComm_t* const place = comm->split_place();
  comm->abort();
  lock.unlock();
  std::this_thread::sleep_for(injections().abort_time());
  if (place != nullptr) *place = nullptr;  // as the thread of a split that failed does at its end
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  const std::lock_guard<std::mutex> lock(library().mutex);
  const CommPtr comm = find("ncclCommGetAsyncError", handle);
  if (comm == nullptr) return ncclInvalidArgument;
  // NCCL goes on with all communicators, whichever is asked.
  for (const CommPtr& other : library().comms.all()) {
    if (other != comm) other->advance();
  }
  *result = comm->poll();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  Group::mine().start();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::lock_guard<std::mutex> lock(library().mutex);
  return Group::mine().end();
}

ncclResult_t ncclSend(const void* buffer, size_t count, int type, int peer, ncclComm_t comm,
                      void* stream) {
  char* bytes = static_cast<char*>(const_cast<void*>(buffer));  // only read
  return operate("ncclSend", comm, {true, bytes, count, type, peer, stream});
}

ncclResult_t ncclRecv(void* buffer, size_t count, int type, int peer, ncclComm_t comm,
                      void* stream) {
  return operate("ncclRecv", comm, {false, static_cast<char*>(buffer), count, type, peer, stream});
}

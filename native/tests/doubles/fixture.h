// What the tests of the doubles share: a device to work on, ranks, waits with a limit.
#ifndef RESHARD_TESTS_DOUBLES_FIXTURE_H_
#define RESHARD_TESTS_DOUBLES_FIXTURE_H_

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../named_tests.h"
#include "cuda/cuda_double.h"
#include "nccl/nccl_double.h"

namespace reshard_test {

using Bytes = std::vector<std::byte>;

inline std::string cuda_violations() {
  std::string text(cudaDoubleViolations(nullptr, 0), '\0');
  text.resize(cudaDoubleViolations(text.data(), text.size()) - 1);
  return text;
}

inline std::string nccl_violations() {
  std::string text(ncclDoubleViolations(nullptr, 0), '\0');
  text.resize(ncclDoubleViolations(text.data(), text.size()) - 1);
  return text;
}

// Whether something becomes true within the time.
inline bool becomes(const std::function<bool()>& condition, int timeout_ms = 20000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// The primary context of a device, current for the thread that made this.
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    CHECK_EQ(cuInit(0), 0);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context_, device), 0);
    CHECK_EQ(cuCtxPushCurrent_v2(context_), 0);
  }
  ~OnDevice() {
    cuCtxPopCurrent_v2(nullptr);
    cuDevicePrimaryCtxRelease_v2(device_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  CUcontext context() const { return context_; }

 private:
  int device_;
  CUcontext context_ = nullptr;
};

class Stream {
 public:
  Stream() { CHECK_EQ(cuStreamCreate(&stream_, 1), 0); }
  ~Stream() { cuStreamDestroy_v2(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  // What is queued has run.
  bool finishes(int timeout_ms = 20000) const {
    CUevent event = nullptr;
    cuEventCreate(&event, 2);
    cuEventRecord(event, stream_);
    const bool done = becomes([&] { return cuEventQuery(event) != 600; }, timeout_ms);
    cuEventDestroy_v2(event);
    return done;
  }

 private:
  CUstream stream_ = nullptr;
};

// Device memory, which the host sees too.
class Memory {
 public:
  explicit Memory(std::size_t nbytes) : nbytes_(nbytes) {
    CHECK_EQ(cuMemAlloc_v2(&address_, nbytes), 0);
  }
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    std::memcpy(data(), bytes.data(), bytes.size());
  }
  ~Memory() { cuMemFree_v2(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  CUdeviceptr address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  Bytes bytes() const {
    Bytes made(nbytes_);
    if (nbytes_ > 0) std::memcpy(made.data(), data(), nbytes_);
    return made;
  }

 private:
  CUdeviceptr address_ = 0;
  std::size_t nbytes_;
};

inline ncclConfig_t config() {
  return {sizeof(ncclConfig_t), 0xcafebeef, 21800, 0, INT_MIN, INT_MIN, INT_MIN, nullptr, INT_MIN};
}

// The result that a communicator comes to.
inline int settled(ncclComm_t comm, int timeout_ms = 20000) {
  int result = ncclInProgress;
  becomes(
      [&] {
        const int asked = ncclCommGetAsyncError(comm, &result);
        if (asked != ncclSuccess) result = asked;
        return result != ncclInProgress;
      },
      timeout_ms);
  return result;
}

// All ranks of a communicator, one device each, begun by this thread in one group.
class Ranks {
 public:
  explicit Ranks(int num_ranks) {
    ncclUniqueId id;
    CHECK_EQ(ncclGetUniqueId(&id), 0);
    comms_.resize(static_cast<std::size_t>(num_ranks));
    ncclGroupStart();
    for (int rank = 0; rank < num_ranks; ++rank) {
      const OnDevice device(rank);
      ncclConfig_t used = config();
      CHECK_EQ(ncclCommInitRankConfig(&comms_[static_cast<std::size_t>(rank)], num_ranks, id, rank,
                                      &used),
               0);
    }
    const int result = ncclGroupEnd();
    CHECK_TRUE(result == ncclSuccess || result == ncclInProgress);
  }
  ~Ranks() { abort(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  ncclComm_t operator[](int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
  // The result that all of them come to.
  int result() const {
    int result = 0;
    for (const ncclComm_t comm : comms_) {
      if (const int one = settled(comm); one != 0) result = one;
    }
    return result;
  }
  void abort() {
    for (const ncclComm_t comm : comms_) ncclCommAbort(comm);
    comms_.clear();
  }
  void finalize() {
    for (const ncclComm_t comm : comms_) ncclCommFinalize(comm);
    CHECK_EQ(result(), 0);
    for (const ncclComm_t comm : comms_) CHECK_EQ(ncclCommDestroy(comm), 0);
    comms_.clear();
  }

 private:
  std::vector<ncclComm_t> comms_;
};

}  // namespace reshard_test

#endif  // RESHARD_TESTS_DOUBLES_FIXTURE_H_

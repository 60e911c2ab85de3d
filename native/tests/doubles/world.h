// All ranks of one communicator in this process: each with its device, one stream, and memory.
#ifndef RESHARD_TESTS_DOUBLES_WORLD_H_
#define RESHARD_TESTS_DOUBLES_WORLD_H_

#include <map>
#include <memory>
#include <vector>

#include "fixture.h"

namespace reshard_test {

// A test begins and ends without violations, delays and injections.
struct CleanTest {
  CleanTest() { reset(); }
  ~CleanTest() { reset(); }
  static void reset() {
    ncclDoubleReset();
    cudaDoubleReset();
    cudaDoubleSetDelay(1, 50);
  }
};

class World {
 public:
  explicit World(int num_ranks) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      devices_.push_back(std::make_unique<OnDevice>(rank));
      streams_.push_back(std::make_unique<Stream>());
    }
    ranks_ = std::make_unique<Ranks>(num_ranks);
  }
  ~World() {
    ranks_ = nullptr;
    cudaDoubleDrain(20000);
    while (!devices_.empty()) {
      memories_.erase(static_cast<int>(devices_.size()) - 1);
      streams_.pop_back();
      devices_.pop_back();
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  ncclComm_t comm(int rank) const { return (*ranks_)[rank]; }
  const Ranks& ranks() const { return *ranks_; }
  // Ends the communicator; the devices stay.
  void abort() { ranks_->abort(); }
  void finalize() { ranks_->finalize(); }
  CUstream stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]->get(); }

  // Memory of the rank's device, which lives as long as this.
  Memory& memory(int rank, const Bytes& bytes) {
    const OnCurrent current(*devices_[static_cast<std::size_t>(rank)]);
    return *memories_[rank].emplace_back(std::make_unique<Memory>(bytes));
  }
  Memory& memory(int rank, std::size_t nbytes) {
    return memory(rank, Bytes(nbytes, std::byte{0xEE}));
  }
  int send(int from, int to, const Memory& memory, std::size_t count, int type = ncclUint8) {
    return ncclSend(memory.data(), count, type, to, comm(from), stream(from));
  }
  int receive(int to, int from, const Memory& memory, std::size_t count, int type = ncclUint8) {
    return ncclRecv(memory.data(), count, type, from, comm(to), stream(to));
  }
  // Whether all that is queued for a rank ends.
  bool finishes(int rank, int timeout_ms = 20000) const {
    const OnCurrent current(*devices_[static_cast<std::size_t>(rank)]);
    return streams_[static_cast<std::size_t>(rank)]->finishes(timeout_ms);
  }
  CUcontext context(int rank) const { return devices_[static_cast<std::size_t>(rank)]->context(); }

  // The context of a rank, while this lives.
  struct OnCurrent {
    explicit OnCurrent(const OnDevice& device) { cuCtxPushCurrent_v2(device.context()); }
    explicit OnCurrent(CUcontext context) { cuCtxPushCurrent_v2(context); }
    ~OnCurrent() { cuCtxPopCurrent_v2(nullptr); }
    OnCurrent(const OnCurrent&) = delete;
    OnCurrent& operator=(const OnCurrent&) = delete;
  };

 private:
  std::vector<std::unique_ptr<OnDevice>> devices_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Ranks> ranks_;
  std::map<int, std::vector<std::unique_ptr<Memory>>> memories_;
};

}  // namespace reshard_test

#endif  // RESHARD_TESTS_DOUBLES_WORLD_H_

// Which addresses are memory of a device, and which work still uses them.
#ifndef RESHARD_TESTS_DOUBLES_CUDA_DEVICE_MEMORY_H_
#define RESHARD_TESTS_DOUBLES_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace doubles {

// Where an allocation is, besides the devices 0, 1, ...
constexpr int kHost = -1;

struct Range {
  std::uintptr_t start;
  std::size_t nbytes;
};

struct Allocation {
  enum class Kind { kDevice, kPinned, kRegistered };
  Allocation(Kind kind_, Range range_, int device_, int owner_, void* owned_)
      : kind(kind_), range(range_), device(device_), owner(owner_), owned(owned_) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const Kind kind;
  const Range range;
  const int device;       // kHost for pinned memory
  const int owner;        // the device whose context made it
  int registrations = 1;  // guarded by DeviceMemory
  void* const owned;      // what is freed at the end
};

using AllocationPtr = std::shared_ptr<Allocation>;

class DeviceMemory {
 public:
  // Null where the device has less left than that. The memory is filled with 0xCB.
  AllocationPtr allocate(Allocation::Kind kind, std::size_t nbytes, int device, std::size_t limit);
  // Takes an allocation out, by its start; null where there is none of the kind.
  AllocationPtr take(Allocation::Kind kind, std::uintptr_t start);
  std::vector<AllocationPtr> take_all(int owner);
  bool register_range(Range range, int device);
  bool unregister(std::uintptr_t start);

  // The allocation that holds the whole range; null where none does.
  AllocationPtr find(Range range) const;

  // Work that will use ranges, until `end_use`.
  std::uint64_t begin_use(std::vector<Range> ranges);
  void end_use(std::uint64_t use);
  // How much queued work uses a part of the range.
  int num_uses(Range range) const;

  // `owner` kHost: of all devices.
  std::size_t nbytes(Allocation::Kind kind, int owner) const;
  std::size_t peak_nbytes(Allocation::Kind kind, int owner) const;
  int count(int owner) const;
  void reset_peaks();

 private:
  struct Sums {
    std::size_t now = 0;
    std::size_t peak = 0;
  };
  using Key = std::pair<Allocation::Kind, int>;
  bool overlaps(Range range) const;
  void add(const AllocationPtr& allocation);
  void subtract(const Allocation& allocation);

  mutable std::mutex mutex_;  // guards all below
  std::map<std::uintptr_t, AllocationPtr> allocations_;
  std::map<Key, Sums> sums_;
  std::uint64_t next_use_ = 1;
  std::map<std::uint64_t, std::vector<Range>> uses_;
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_CUDA_DEVICE_MEMORY_H_

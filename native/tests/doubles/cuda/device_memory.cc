#include "cuda/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace doubles {
namespace {

constexpr std::size_t kAlignment = 512;  // what cuMemAlloc gives
constexpr int kPoison = 0xCB;

}  // namespace

Allocation::~Allocation() { std::free(owned); }

AllocationPtr DeviceMemory::allocate(Allocation::Kind kind, std::size_t nbytes, int device,
                                     std::size_t limit) {
  const bool is_device = kind == Allocation::Kind::kDevice;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_device && limit > 0 && sums_[Key(kind, device)].now + nbytes > limit) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, nbytes) != 0) return nullptr;
  std::memset(memory, kPoison, nbytes);
  auto made =
      std::make_shared<Allocation>(kind, Range{reinterpret_cast<std::uintptr_t>(memory), nbytes},
                                   is_device ? device : kHost, device, memory);
  add(made);
  return made;
}

void DeviceMemory::add(const AllocationPtr& allocation) {
  allocations_[allocation->range.start] = allocation;
  Sums& sums = sums_[Key(allocation->kind, allocation->owner)];
  sums.now += allocation->range.nbytes;
  sums.peak = std::max(sums.peak, sums.now);
}

void DeviceMemory::subtract(const Allocation& allocation) {
  sums_[Key(allocation.kind, allocation.owner)].now -= allocation.range.nbytes;
}

AllocationPtr DeviceMemory::take(Allocation::Kind kind, std::uintptr_t start) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(start);
  if (found == allocations_.end() || found->second->kind != kind) return nullptr;
  AllocationPtr allocation = std::move(found->second);
  allocations_.erase(found);
  subtract(*allocation);
  return allocation;
}

std::vector<AllocationPtr> DeviceMemory::take_all(int owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<AllocationPtr> taken;
  for (auto at = allocations_.begin(); at != allocations_.end();) {
    const Allocation& allocation = *at->second;
    if (allocation.owner != owner || allocation.kind == Allocation::Kind::kRegistered) {
      ++at;
      continue;
    }
    subtract(allocation);
    taken.push_back(std::move(at->second));
    at = allocations_.erase(at);
  }
  return taken;
}

bool DeviceMemory::overlaps(Range range) const {
  auto at = allocations_.lower_bound(range.start + range.nbytes);
  if (at == allocations_.begin()) return false;
  --at;
  return at->second->range.start + at->second->range.nbytes > range.start;
}

bool DeviceMemory::register_range(Range range, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(range.start);
  if (found != allocations_.end()) {
    Allocation& known = *found->second;
    const bool same = known.kind == Allocation::Kind::kRegistered && known.device == device &&
                      known.range.nbytes == range.nbytes;
    if (same) ++known.registrations;
    return same;
  }
  if (range.nbytes == 0 || overlaps(range)) return false;
  add(std::make_shared<Allocation>(Allocation::Kind::kRegistered, range, device, device, nullptr));
  return true;
}

bool DeviceMemory::unregister(std::uintptr_t start) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(start);
  if (found == allocations_.end() || found->second->kind != Allocation::Kind::kRegistered) {
    return false;
  }
  if (--found->second->registrations > 0) return true;
  subtract(*found->second);
  allocations_.erase(found);
  return true;
}

AllocationPtr DeviceMemory::find(Range range) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto at = allocations_.upper_bound(range.start);
  if (at == allocations_.begin()) return nullptr;
  --at;
  const Range& whole = at->second->range;
  const std::size_t offset = range.start - whole.start;
  if (offset >= whole.nbytes || range.nbytes > whole.nbytes - offset) return nullptr;
  return at->second;
}

std::uint64_t DeviceMemory::begin_use(std::vector<Range> ranges) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uses_[next_use_] = std::move(ranges);
  return next_use_++;
}

void DeviceMemory::end_use(std::uint64_t use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uses_.erase(use);
}

int DeviceMemory::num_uses(Range range) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int count = 0;
  for (const auto& [use, ranges] : uses_) {
    count += std::any_of(ranges.begin(), ranges.end(), [&](const Range& used) {
      return used.nbytes > 0 && used.start < range.start + range.nbytes &&
             range.start < used.start + used.nbytes;
    });
  }
  return count;
}

std::size_t DeviceMemory::nbytes(Allocation::Kind kind, int owner) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t total = 0;
  for (const auto& [key, sums] : sums_) {
    if (key.first == kind && (owner == kHost || key.second == owner)) total += sums.now;
  }
  return total;
}

std::size_t DeviceMemory::peak_nbytes(Allocation::Kind kind, int owner) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t total = 0;
  for (const auto& [key, sums] : sums_) {
    if (key.first == kind && (owner == kHost || key.second == owner)) total += sums.peak;
  }
  return total;
}

int DeviceMemory::count(int owner) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int count = 0;
  for (const auto& [start, allocation] : allocations_) {
    count += allocation->kind != Allocation::Kind::kRegistered &&
             (owner == kHost || allocation->owner == owner);
  }
  return count;
}

void DeviceMemory::reset_peaks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, sums] : sums_) sums.peak = sums.now;
}

}  // namespace doubles

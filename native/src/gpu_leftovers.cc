#include "gpu_leftovers.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "clock.h"

namespace reshard {
namespace {

constexpr std::chrono::microseconds kPollInterval{50};

// NCCL's kernels leave soon after an abort.
constexpr std::int64_t kPatienceNs = 300'000'000;

struct Leftover {
  std::shared_ptr<void> thing;
  std::function<bool()> is_idle;
};

// Never destroyed: at the end of a process the GPU may not be idle yet.
struct Leftovers {
  std::mutex mutex;  // guards the rest; is_idle is called under it, which takes no lock of ours
  std::vector<Leftover> kept;
};

Leftovers& leftovers() {
  static Leftovers& all = *new Leftovers;
  return all;
}

}  // namespace

void free_when_idle(std::shared_ptr<void> thing, std::function<bool()> is_idle) {
  const std::int64_t deadline = monotonic_ns() + kPatienceNs;
  bool is_past = is_idle();
  while (!is_past && monotonic_ns() < deadline) {
    std::this_thread::sleep_for(kPollInterval);
    is_past = is_idle();
  }
  if (!is_past) {
    Leftovers& all = leftovers();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.kept.push_back({std::move(thing), std::move(is_idle)});
  }
  free_leftovers();
}

std::size_t free_leftovers() {
  Leftovers& all = leftovers();
  std::vector<Leftover> idle;  // freed when the lock is open: to free memory may take a while
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto is_busy = [](const Leftover& each) { return !each.is_idle(); };
  const auto first_idle = std::partition(all.kept.begin(), all.kept.end(), is_busy);
  std::move(first_idle, all.kept.end(), std::back_inserter(idle));
  all.kept.erase(first_idle, all.kept.end());
  return all.kept.size();
}

}  // namespace reshard

#include "gpu_fingerprint.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "clock.h"
#include "gpu_leftovers.h"
#include "region_table.h"
#include "status.h"

namespace reshard {
namespace {

// What one launch needs on the device: its table, the addresses and the sums that this refers to.
// All launches use the same memory, one after the other.
constexpr std::size_t kBatchBytes = 80 << 10;
constexpr std::size_t kMostOfOneRow = 1 << 10;  // of a region of 16 dims
constexpr std::chrono::microseconds kPollInterval{50};
constexpr std::size_t kWord = sizeof(std::uint64_t);

// Numbers things in the order in which they come.
template <typename Value>
std::uint32_t number_of(std::map<std::size_t, std::uint32_t>& numbers, std::size_t key,
                        std::vector<Value>& values, Value value) {
  const auto [place, is_new] = numbers.emplace(key, static_cast<std::uint32_t>(values.size()));
  if (is_new) values.push_back(value);
  return place->second;
}

// The regions of one launch.
struct Batch {
  RegionTable table;
  std::vector<CudaAddress> addresses;
  std::vector<std::size_t> slots;  // of its sums
  std::map<std::size_t, std::uint32_t> buffer_numbers, slot_numbers;
  const std::uint64_t* sums = nullptr;  // pinned

  std::size_t nbytes() const {
    return (table.num_words() + addresses.size() + slots.size()) * kWord;
  }
};

}  // namespace

// One GPU: its regions are collected, then summed up by a few launches.
class GpuFingerprints::Worker {
 public:
  explicit Worker(const GpuRank& rank)
      : device_(rank.device),
        module_(*device_, rank.kernels),
        function_(module_.function("reshard_fingerprint_regions")),
        stream_(*device_),
        over_(*device_),
        memory_(*device_, kBatchBytes) {}

  const GpuDevice& device() const { return *device_; }
  bool is_used() const { return !batches_.empty(); }
  void clear() { batches_.clear(); }

  void collect(const FingerprintRow& row, void* buffer) {
    if (batches_.empty() || batches_.back().nbytes() > kBatchBytes - kMostOfOneRow) {
      batches_.emplace_back();
    }
    Batch& batch = batches_.back();
    const auto address = reinterpret_cast<CudaAddress>(buffer);
    const std::uint32_t place =
        number_of(batch.buffer_numbers, row.buffer, batch.addresses, address);
    const std::uint32_t sum = number_of(batch.slot_numbers, row.slot, batch.slots, row.slot);
    batch.table.add(row.region, place, row.offset_bytes, sum);
  }

  void begin() {
    const GpuDevice::Scope scope(*device_);
    std::size_t nbytes = 0;
    for (const Batch& batch : batches_) nbytes += batch.nbytes();
    if (pinned_ == nullptr || pinned_->nbytes() < nbytes) {
      pinned_.reset();
      pinned_ = std::make_unique<PinnedMemory>(*device_, nbytes);
    }
    auto* words = reinterpret_cast<std::uint64_t*>(pinned_->data());
    for (Batch& batch : batches_) words = run(batch, words);
    over_.record(stream_.get());
  }

  bool is_over() const {
    const GpuDevice::Scope scope(*device_);
    return over_.is_past();
  }

  // As those of GpuWorker.
  void mark_rest() noexcept {
    const GpuDevice::Scope scope(*device_, std::nothrow);
    if (scope.is_entered()) over_.try_record(stream_.get());
  }
  bool is_idle() const noexcept {
    const GpuDevice::Scope scope(*device_, std::nothrow);
    return !scope.is_entered() || !over_.is_pending();
  }

  void add_to(std::uint64_t* sums) const {
    for (const Batch& batch : batches_) {
      for (std::size_t i = 0; i < batch.slots.size(); ++i) sums[batch.slots[i]] += batch.sums[i];
    }
  }

 private:
  // Queues a launch, with what it needs at `words`; returns what is behind that.
  std::uint64_t* run(Batch& batch, std::uint64_t* words) {
    const std::vector<std::uint64_t>& table = batch.table.words();
    std::uint64_t* addresses = std::copy(table.begin(), table.end(), words);
    std::uint64_t* sums = std::copy(batch.addresses.begin(), batch.addresses.end(), addresses);
    std::uint64_t* end = std::fill_n(sums, batch.slots.size(), 0);
    batch.sums = sums;
    const auto on_device = [&](const std::uint64_t* word) {
      return memory_.address() + static_cast<CudaAddress>(word - words) * kWord;
    };
    const CudaFunctions& cuda = device_->cuda();
    device_->check(cuda.MemcpyHtoDAsync(memory_.address(), words, batch.nbytes(), stream_.get()),
                   "uploading a table");
    module_.launch(function_, memory_.address(), on_device(addresses), on_device(sums),
                   batch.table.num_moves(), batch.table.num_tiles(), stream_.get());
    device_->check(
        cuda.MemcpyDtoHAsync(sums, on_device(sums), batch.slots.size() * kWord, stream_.get()),
        "fetching sums");
    return end;
  }

  const std::shared_ptr<const GpuDevice> device_;
  const GpuModule module_;
  const CudaFunction function_;
  const GpuStream stream_;
  GpuEvent over_;
  const GpuMemory memory_;
  std::unique_ptr<PinnedMemory> pinned_;
  std::vector<Batch> batches_;
};

GpuFingerprints::GpuFingerprints(const std::vector<GpuRank>& ranks) : ranks_(ranks) {
  make_workers();
}

void GpuFingerprints::make_workers() {
  std::vector<std::unique_ptr<Worker>> made;
  for (const GpuRank& rank : ranks_) {
    if (rank.kernels.empty()) {
      throw Error(StatusCode::kUnsupported,
                  text("GPU ", rank.device->ordinal(),
                       ": to add up fingerprints takes compiled "
                       "kernels, and NVRTC is not there. Install nvidia-cuda-nvrtc-cu12, or "
                       "refit without verification."),
                  rank.rank);
    }
    made.push_back(std::make_unique<Worker>(rank));
  }
  workers_ = std::move(made);
}

GpuFingerprints::~GpuFingerprints() = default;

GpuFingerprints::Worker& GpuFingerprints::worker_of(void* buffer) const {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    const GpuDevice& device = worker->device();
    if (device.ordinal_of(reinterpret_cast<CudaAddress>(buffer)) == device.ordinal()) {
      return *worker;
    }
  }
  throw Error(StatusCode::kInvalidArgument,
              "regions table: a buffer lies on no GPU of this process's ranks.");
}

void GpuFingerprints::add(const std::vector<FingerprintRow>& rows, void* const* buffers,
                          std::uint64_t* sums, std::int64_t timeout_ns) {
  const std::int64_t deadline = monotonic_ns() + timeout_ns;
  if (workers_.empty()) make_workers();
  for (const std::unique_ptr<Worker>& worker : workers_) worker->clear();
  std::map<std::size_t, Worker*> owners;
  for (const FingerprintRow& row : rows) {
    Worker*& owner = owners[row.buffer];
    if (owner == nullptr) owner = &worker_of(buffers[row.buffer]);
    owner->collect(row, buffers[row.buffer]);
  }
  try {
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (worker->is_used()) worker->begin();
    }
    wait(deadline, timeout_ns);
  } catch (...) {
    give_up();
    throw;
  }
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->is_used()) worker->add_to(sums);
  }
}

void GpuFingerprints::wait(std::int64_t deadline, std::int64_t timeout_ns) const {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    while (worker->is_used() && !worker->is_over()) {
      if (monotonic_ns() >= deadline) {
        throw Error(StatusCode::kTimeout,
                    text("GPU ", worker->device().ordinal(), ": fingerprints took longer than ",
                         static_cast<double>(timeout_ns) / 1e9, " s."));
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

// What is queued goes on reading and writing what the workers own; the next call makes new ones.
void GpuFingerprints::give_up() {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->mark_rest();
  const auto all = std::make_shared<std::vector<std::unique_ptr<Worker>>>(std::move(workers_));
  workers_.clear();
  free_when_idle(all, [workers = all.get()] {
    return std::all_of(workers->begin(), workers->end(),
                       [](const auto& worker) { return worker->is_idle(); });
  });
}

}  // namespace reshard

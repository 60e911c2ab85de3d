#include "gpu_fingerprint.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "clock.h"
#include "region_table.h"
#include "status.h"

namespace reshard {
namespace {

constexpr std::size_t kTableBytes = 128 << 10;
constexpr std::size_t kMostOfOneRow = 1 << 10;  // words of a region of 16 dims
constexpr std::chrono::microseconds kPollInterval{50};
constexpr std::size_t kWord = sizeof(std::uint64_t);

// Memory that is made anew only to grow.
template <typename Memory>
Memory& at_least(const GpuDevice& device, std::unique_ptr<Memory>& memory, std::size_t nbytes) {
  if (memory == nullptr || memory->nbytes() < nbytes) {
    memory.reset();
    memory = std::make_unique<Memory>(device, nbytes);
  }
  return *memory;
}

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
        table_(*device_, kTableBytes) {}

  const GpuDevice& device() const { return *device_; }
  bool is_used() const { return !addresses_.empty(); }

  void clear() {
    places_.clear();
    addresses_.clear();
    tables_.clear();
  }

  void collect(const FingerprintRow& row, void* buffer) {
    const auto [place, is_new] =
        places_.emplace(row.buffer, static_cast<std::uint32_t>(addresses_.size()));
    if (is_new) addresses_.push_back(reinterpret_cast<CudaAddress>(buffer));
    if (tables_.empty() || tables_.back().words().size() * kWord > kTableBytes - kMostOfOneRow) {
      tables_.emplace_back();
    }
    tables_.back().add(row.region, place->second, row.offset_bytes,
                       static_cast<std::uint32_t>(row.slot));
  }

  void begin(std::size_t num_slots) {
    const GpuDevice::Scope scope(*device_);
    const CudaFunctions& cuda = device_->cuda();
    const std::size_t address_bytes = addresses_.size() * kWord;
    std::size_t pinned_bytes = address_bytes + num_slots * kWord;
    for (const RegionTable& table : tables_) pinned_bytes += table.words().size() * kWord;
    std::byte* pinned = at_least(*device_, pinned_, pinned_bytes).data();
    at_least(*device_, device_addresses_, address_bytes);
    at_least(*device_, device_sums_, num_slots * kWord);
    const auto upload = [&](CudaAddress to, const void* from, std::size_t nbytes) {
      std::memcpy(pinned, from, nbytes);
      device_->check(cuda.MemcpyHtoDAsync(to, pinned, nbytes, stream_.get()), "uploading a table");
      pinned += nbytes;
    };
    upload(device_addresses_->address(), addresses_.data(), address_bytes);
    device_->check(cuda.MemsetD2D8Async(device_sums_->address(), num_slots * kWord, 0,
                                        num_slots * kWord, 1, stream_.get()),
                   "clearing sums");
    for (const RegionTable& table : tables_) {
      upload(table_.address(), table.words().data(), table.words().size() * kWord);
      module_.launch(function_, table_.address(), device_addresses_->address(),
                     device_sums_->address(), table.num_moves(), table.num_tiles(), stream_.get());
    }
    sums_ = reinterpret_cast<const std::uint64_t*>(pinned);
    device_->check(
        cuda.MemcpyDtoHAsync(pinned, device_sums_->address(), num_slots * kWord, stream_.get()),
        "fetching sums");
    over_.record(stream_.get());
  }

  bool is_over() const {
    const GpuDevice::Scope scope(*device_);
    return over_.is_past();
  }

  void add_to(std::uint64_t* sums, std::size_t num_slots) const {
    for (std::size_t i = 0; i < num_slots; ++i) sums[i] += sums_[i];
  }

 private:
  const std::shared_ptr<const GpuDevice> device_;
  const GpuModule module_;
  const CudaFunction function_;
  const GpuStream stream_;
  GpuEvent over_;
  const GpuMemory table_;
  std::unique_ptr<GpuMemory> device_addresses_;
  std::unique_ptr<GpuMemory> device_sums_;
  std::unique_ptr<PinnedMemory> pinned_;
  std::map<std::size_t, std::uint32_t> places_;  // of a buffer among the addresses
  std::vector<CudaAddress> addresses_;
  std::vector<RegionTable> tables_;
  const std::uint64_t* sums_ = nullptr;
};

GpuFingerprints::GpuFingerprints(const std::vector<GpuRank>& ranks) {
  for (const GpuRank& rank : ranks) {
    if (rank.kernels.empty()) {
      throw Error(StatusCode::kUnsupported,
                  text("GPU ", rank.device->ordinal(),
                       ": to add up fingerprints takes compiled "
                       "kernels, and NVRTC is not there. Install nvidia-cuda-nvrtc-cu12, or "
                       "refit without verification."),
                  rank.rank);
    }
    workers_.push_back(std::make_unique<Worker>(rank));
  }
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
                          std::uint64_t* sums, std::size_t num_slots, std::int64_t timeout_ns) {
  const std::int64_t deadline = monotonic_ns() + timeout_ns;
  for (const std::unique_ptr<Worker>& worker : workers_) worker->clear();
  std::map<std::size_t, Worker*> owners;
  for (const FingerprintRow& row : rows) {
    Worker*& owner = owners[row.buffer];
    if (owner == nullptr) owner = &worker_of(buffers[row.buffer]);
    owner->collect(row, buffers[row.buffer]);
  }
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->is_used()) worker->begin(num_slots);
  }
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
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->is_used()) worker->add_to(sums, num_slots);
  }
}

}  // namespace reshard

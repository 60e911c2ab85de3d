#include "cuda/kernel_launch.h"

#include <cstring>
#include <utility>

#include "cuda/kernel_memory.h"
#include "cuda/machine.h"
#include "kernels/host_kernels.h"

namespace doubles {
namespace {

// Bytes of the parameters of all kernels: table, addresses, message, moves, tiles.
constexpr std::size_t kParams[] = {8, 8, 8, 4, 4};

}  // namespace

bool is_kernel(const std::string& name) {
  return name == "reshard_pack" || name == "reshard_unpack" ||
         name == "reshard_fingerprint_regions";
}

KernelLaunch::KernelLaunch(std::string name, unsigned grid, unsigned block, void** params)
    : name_(std::move(name)), grid_(grid), block_(block) {
  for (std::size_t i = 0; i < std::size(kParams); ++i) {
    std::memcpy(&values_[i], params[i], kParams[i]);
  }
}

std::vector<Range> KernelLaunch::ranges() const {
  // One byte of each: the sizes are in the table, which earlier work may still write.
  std::vector<Range> ranges{{values_[0], 1}, {values_[1], 1}};
  if (values_[2] != 0) ranges.push_back({values_[2], 1});
  return ranges;
}

void KernelLaunch::run(int device) {
  const KernelTable table{
      reinterpret_cast<const std::uint64_t*>(values_[0]),
      reinterpret_cast<const std::uint64_t*>(values_[1]),
      values_[2],
      static_cast<std::uint32_t>(values_[3]),
      name_ == "reshard_fingerprint_regions" ? RecordKind::kRegion : RecordKind::kMove,
  };
  std::vector<AllocationPtr> held;
  if (!hold_kernel_memory(table, device, name_, &held)) return;
  std::array<void*, kMaxParams> params{};
  for (std::size_t i = 0; i < kMaxParams; ++i) params[i] = &values_[i];
  // Threads between two barriers have no order: each launch takes one of two.
  static std::atomic<unsigned> num_launches{0};
  const auto order = num_launches++ % 2 == 0 ? reshard::kernels::ThreadOrder::kForward
                                             : reshard::kernels::ThreadOrder::kBackward;
  const std::uint64_t misaligned = reshard::kernels::misaligned_accesses();
  if (!reshard::kernels::run_on_host(name_.c_str(), grid_, block_, params.data(), order)) {
    machine().break_device(device, name_, "this kernel has no form that runs on the host");
  }
  // Of a launch on another stream, maybe: one of them is wrong.
  if (reshard::kernels::misaligned_accesses() != misaligned) {
    machine().break_device(device, name_, "an access is not aligned to its size");
  }
}

}  // namespace doubles

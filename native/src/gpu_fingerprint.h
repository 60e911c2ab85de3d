// Fingerprints of what lies in the memory of GPUs, by the kernel that adds them up there.
#ifndef RESHARD_NATIVE_SRC_GPU_FINGERPRINT_H_
#define RESHARD_NATIVE_SRC_GPU_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fingerprint_table.h"
#include "gpu_device.h"
#include "gpu_module.h"
#include "transport/group_transport.h"

namespace reshard {

// The GPUs of one process. Keeps its memory and modules from one call to the next.
class GpuFingerprints {
 public:
  // Throws kUnsupported where there are no compiled kernels.
  explicit GpuFingerprints(const std::vector<GpuRank>& ranks);
  ~GpuFingerprints();

  // Adds the fingerprint of every row to sums[slot]; waits for the GPUs. What it reads must be
  // there as seen from the host. Throws kTimeout; the sums are unchanged where it throws.
  void add(const std::vector<FingerprintRow>& rows, void* const* buffers, std::uint64_t* sums,
           std::int64_t timeout_ns);

 private:
  class Worker;

  void make_workers();
  Worker& worker_of(void* buffer) const;
  void wait(std::int64_t deadline, std::int64_t timeout_ns) const;
  void give_up();

  const std::vector<GpuRank> ranks_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_FINGERPRINT_H_

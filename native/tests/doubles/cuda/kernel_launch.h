// One launch of a kernel: its parameters, copied as cuLaunchKernel does, and its run on the host.
#ifndef RESHARD_TESTS_DOUBLES_CUDA_KERNEL_LAUNCH_H_
#define RESHARD_TESTS_DOUBLES_CUDA_KERNEL_LAUNCH_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device_memory.h"

namespace doubles {

// Whether a module has a kernel of the name.
bool is_kernel(const std::string& name);

class KernelLaunch {
 public:
  KernelLaunch(std::string name, unsigned grid, unsigned block, void** params);
  // What is known to be used before the launch runs.
  std::vector<Range> ranges() const;
  void run(int device);

 private:
  static constexpr std::size_t kMaxParams = 8;
  std::string name_;
  unsigned grid_;
  unsigned block_;
  std::array<std::uint64_t, kMaxParams> values_{};
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_CUDA_KERNEL_LAUNCH_H_

// Compiled kernels, loaded on one device.
#ifndef RESHARD_NATIVE_SRC_GPU_MODULE_H_
#define RESHARD_NATIVE_SRC_GPU_MODULE_H_

#include <cstdint>
#include <string>

#include "gpu_device.h"

namespace reshard {

class GpuModule {
 public:
  // `image` is for the device's architecture.
  GpuModule(const GpuDevice& device, const std::string& image);
  ~GpuModule();
  GpuModule(const GpuModule&) = delete;
  GpuModule& operator=(const GpuModule&) = delete;

  // A kernel by its name; lives as long as the module.
  CudaFunction function(const char* name) const;

  // Queues a kernel that walks `num_tiles` tiles of a table (native/kernels/kernels.cu); the
  // device's context is current.
  void launch(CudaFunction function, CudaAddress table, CudaAddress addresses, CudaAddress message,
              std::uint32_t num_moves, std::uint32_t num_tiles, CudaStream stream) const;

 private:
  const GpuDevice& device_;
  CudaModule module_ = nullptr;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_MODULE_H_

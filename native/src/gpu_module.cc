#include "gpu_module.h"

#include <algorithm>
#include <new>

#include "kernels/move_record.h"

namespace reshard {
namespace {

// As many as run at once, whatever the kernel; they walk the tiles by themselves.
constexpr unsigned kBlocksPerMultiprocessor = 4;

}  // namespace

GpuModule::GpuModule(const GpuDevice& device, const std::string& image) : device_(device) {
  const GpuDevice::Scope scope(device);
  device.check(device.cuda().ModuleLoadData(&module_, image.c_str()),
               "loading the compiled kernels");
}

GpuModule::~GpuModule() {
  const GpuDevice::Scope scope(device_, std::nothrow);
  if (scope.is_entered()) device_.cuda().ModuleUnload(module_);
}

CudaFunction GpuModule::function(const char* name) const {
  const GpuDevice::Scope scope(device_);
  CudaFunction found = nullptr;
  device_.check(device_.cuda().ModuleGetFunction(&found, module_, name), name);
  return found;
}

void GpuModule::launch(CudaFunction function, CudaAddress table, CudaAddress addresses,
                       CudaAddress message, std::uint32_t num_moves, std::uint32_t num_tiles,
                       CudaStream stream) const {
  void* parameters[] = {&table, &addresses, &message, &num_moves, &num_tiles};
  const auto most = static_cast<unsigned>(device_.num_multiprocessors()) * kBlocksPerMultiprocessor;
  device_.check(
      device_.cuda().LaunchKernel(function, std::min(num_tiles, most), 1, 1, kernels::kBlockThreads,
                                  1, 1, 0, stream, parameters, nullptr),
      "launching a kernel");
}

}  // namespace reshard

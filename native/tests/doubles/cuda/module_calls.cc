// Modules and kernels. A kernel runs on the host: its own code, compiled for it.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernel_launch.h"
#include "cuda/machine.h"
#include "kernels/move_record.h"

using doubles::ContextPtr;
using doubles::Function;
using doubles::Machine;
using doubles::machine;
using doubles::Module;
using doubles::StreamPtr;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  ContextPtr context;
  const CUresult result = doubles::current_context("cuModuleLoadData", &context);
  if (result != CUDA_SUCCESS) return result;
  constexpr const char* kOurs = "reshard double";
  const bool is_elf = std::memcmp(image, "\177ELF", 4) == 0;
  if (!is_elf && std::strncmp(static_cast<const char*>(image), kOurs, std::strlen(kOurs)) != 0) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = static_cast<CUmodule>(machine().modules.add(std::make_shared<Module>(context->device)));
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  const char* who = "cuModuleUnload";
  ContextPtr context;
  const CUresult result = doubles::current_context(who, &context);
  if (result != CUDA_SUCCESS) return result;
  Machine& all = machine();
  const auto found = all.modules.find(module);
  if (found == nullptr || found->device != context->device) {
    return all.refuse(CUDA_ERROR_INVALID_HANDLE, who, "no module of this context");
  }
  if (found->num_queued > 0) {
    all.violations.add("cuModuleUnload: " + std::to_string(found->num_queued) +
                       " launches of it have not run");
  }
  all.modules.take(module);
  all.functions.take_if([&](const Function& function) { return function.module == found; });
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const char* who = "cuModuleGetFunction";
  ContextPtr context;
  const CUresult result = doubles::current_context(who, &context);
  if (result != CUDA_SUCCESS) return result;
  Machine& all = machine();
  const auto found = all.modules.find(module);
  if (found == nullptr || found->device != context->device) {
    return all.refuse(CUDA_ERROR_INVALID_HANDLE, who, "no module of this context");
  }
  if (!doubles::is_kernel(name)) return CUDA_ERROR_NOT_FOUND;
  auto made = std::make_shared<Function>();
  made->module = found;
  made->name = name;
  *function = static_cast<CUfunction>(all.functions.add(std::move(made)));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared_nbytes, CUstream stream_handle, void** params,
                        void** extra) {
  const char* who = "cuLaunchKernel";
  ContextPtr context;
  StreamPtr stream;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) {
    result = doubles::find_stream(who, *context, stream_handle, &stream);
  }
  if (result != CUDA_SUCCESS) return result;
  Machine& all = machine();
  const auto function = all.functions.find(handle);
  if (function == nullptr || function->module->device != context->device) {
    return all.refuse(CUDA_ERROR_INVALID_HANDLE, who, "no function of this context");
  }
  // What the kernels of this project say of themselves, and the limits of a device of
  // capability 9.0.
  if (grid_x == 0 || grid_x > 0x7FFFFFFF || grid_y != 1 || grid_z != 1 || block_x == 0 ||
      block_x > reshard::kernels::kBlockThreads || block_y != 1 || block_z != 1 ||
      shared_nbytes > 48 * 1024 || params == nullptr || extra != nullptr) {
    return all.refuse(CUDA_ERROR_INVALID_VALUE, who, "grid, block, shared memory or parameters");
  }
  ++all.launches;
  const auto launch =
      std::make_shared<doubles::KernelLaunch>(function->name, grid_x, block_x, params);
  const std::shared_ptr<Module> module = function->module;
  ++module->num_queued;
  all.queue(stream, launch->ranges(), [launch, device = stream->device()] { launch->run(device); });
  stream->push([module] { --module->num_queued; });  // also where the device is broken
  return CUDA_SUCCESS;
}

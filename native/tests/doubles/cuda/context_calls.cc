// Devices, contexts, words for errors.
#include <cstdio>
#include <string>

#include "cuda/machine.h"

using doubles::Context;
using doubles::ContextPtr;
using doubles::Device;
using doubles::Machine;
using doubles::machine;

namespace {

Device* find_device(CUdevice device) {
  Machine& all = machine();
  if (device < 0 || device >= all.num_devices()) return nullptr;
  return all.devices[static_cast<std::size_t>(device)].get();
}

CUresult check_device(const char* who, CUdevice device) {
  Machine& all = machine();
  if (!all.is_initialised) return all.refuse(CUDA_ERROR_NOT_INITIALIZED, who, "before cuInit");
  return find_device(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

// What a context still has when nobody retains it any more goes with it.
void destroy_what_is_left(int device) {
  Machine& all = machine();
  const auto of_device = [device](const auto& object) { return object.device == device; };
  const auto streams =
      all.streams.take_if([device](const auto& stream) { return stream.device() == device; });
  for (const auto& stream : streams) stream->close();
  const std::size_t num_events = all.events.take_if(of_device).size();
  const std::size_t num_modules = all.modules.take_if(of_device).size();
  const std::size_t num_allocations = all.memory.take_all(device).size();
  if (streams.size() + num_events + num_modules + num_allocations == 0) return;
  all.violations.add("cuDevicePrimaryCtxRelease: device " + std::to_string(device) +
                     " is left with " + std::to_string(streams.size()) + " streams, " +
                     std::to_string(num_events) + " events, " + std::to_string(num_modules) +
                     " modules and " + std::to_string(num_allocations) + " allocations");
}

}  // namespace

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (machine().num_devices() == 0) return CUDA_ERROR_NO_DEVICE;
  machine().is_initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = 12080;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  switch (result) {
    case CUDA_SUCCESS:
      *text = "no error";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
      *text = "invalid argument";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *text = "out of memory";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_INITIALIZED:
      *text = "initialization error";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
      *text = "no CUDA-capable device is detected";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_DEVICE:
      *text = "invalid device ordinal";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_IMAGE:
      *text = "device kernel image is invalid";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_CONTEXT:
      *text = "invalid device context";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_HANDLE:
      *text = "invalid resource handle";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_FOUND:
      *text = "named symbol not found";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_READY:
      *text = "device not ready";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *text = "an illegal memory access was encountered";
      return CUDA_SUCCESS;
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetCount(int* count) {
  Machine& all = machine();
  if (!all.is_initialised) {
    return all.refuse(CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetCount", "before cuInit");
  }
  *count = all.num_devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const CUresult result = check_device("cuDeviceGet", ordinal);
  if (result == CUDA_SUCCESS) *device = ordinal;
  return result;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  const CUresult result = check_device("cuDeviceGetAttribute", device);
  if (result != CUDA_SUCCESS) return result;
  switch (attribute) {
    case 75:  // COMPUTE_CAPABILITY_MAJOR
      *value = 9;
      return CUDA_SUCCESS;
    case 76:  // COMPUTE_CAPABILITY_MINOR
      *value = 0;
      return CUDA_SUCCESS;
    case 11:  // MAX_PITCH
      *value = doubles::machine().max_pitch;
      return CUDA_SUCCESS;
    case 16:  // MULTIPROCESSOR_COUNT
      *value = 4;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  const CUresult result = check_device("cuDeviceGetPCIBusId", device);
  if (result != CUDA_SUCCESS) return result;
  char bus_id[16];
  const int length = std::snprintf(bus_id, sizeof(bus_id), "0000:%02X:00.0",
                                   (find_device(device)->physical + 1) & 0xFF);
  if (size <= length) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(text, static_cast<std::size_t>(size), "%s", bus_id);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = check_device("cuDevicePrimaryCtxRetain", device);
  if (result != CUDA_SUCCESS) return result;
  Device& found = *find_device(device);
  const std::lock_guard<std::mutex> lock(found.mutex);
  if (found.retained++ == 0) {
    auto made = std::make_shared<Context>(device);
    made->default_stream = machine().make_stream(device, true);
    found.context = static_cast<CUcontext>(machine().contexts.add(std::move(made)));
  }
  *context = found.context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const char* who = "cuDevicePrimaryCtxRelease";
  const CUresult result = check_device(who, device);
  if (result != CUDA_SUCCESS) return result;
  ContextPtr gone;
  {
    Device& found = *find_device(device);
    const std::lock_guard<std::mutex> lock(found.mutex);
    if (found.retained == 0) {
      return machine().refuse(CUDA_ERROR_INVALID_CONTEXT, who, "nobody retains the context");
    }
    if (--found.retained > 0) return CUDA_SUCCESS;
    gone = machine().contexts.take(found.context);
    found.context = nullptr;
  }
  destroy_what_is_left(device);
  if (gone != nullptr) gone->default_stream->close();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Machine& all = machine();
  if (all.contexts.find(context) == nullptr) {
    return all.refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPushCurrent", "this is no context");
  }
  doubles::context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  auto& stack = doubles::context_stack();
  if (stack.empty()) {
    return machine().refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent", "no context is current");
  }
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

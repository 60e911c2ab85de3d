#include "cuda/machine.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace doubles {
namespace {

// The driver takes some more.
constexpr std::size_t kMaxPending = 1000;

long long number_from(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 0);
}

// "4": the devices 0 to 3; "ids:2,3": two devices, which other processes see as the same ones.
std::vector<int> physical_devices() {
  const char* setting = std::getenv("CUDA_DOUBLE_DEVICES");
  const std::string text = setting == nullptr || *setting == '\0' ? "2" : setting;
  std::vector<int> physical;
  if (text.rfind("ids:", 0) != 0) {
    const int count = std::atoi(text.c_str());
    for (int i = 0; i < count; ++i) physical.push_back(i);
    return physical;
  }
  for (std::size_t at = 4; at < text.size();) {
    physical.push_back(std::atoi(text.c_str() + at));
    const std::size_t comma = text.find(',', at);
    at = comma == std::string::npos ? text.size() : comma + 1;
  }
  return physical;
}

}  // namespace

Machine::Machine() {
  for (const int physical : physical_devices()) {
    devices.push_back(std::make_unique<Device>());
    devices.back()->physical = physical;
  }
  seed_ = static_cast<std::uint64_t>(number_from("CUDA_DOUBLE_SEED", 1));
  max_delay_us_ = static_cast<int>(number_from("CUDA_DOUBLE_MAX_DELAY_US", 100));
  memory_limit = static_cast<std::size_t>(number_from("CUDA_DOUBLE_MEMORY_BYTES", 0));
  max_pitch = static_cast<int>(number_from("CUDA_DOUBLE_MAX_PITCH", 0x7FFFFFFF));
}

Machine& machine() {
  static Machine& one = *new Machine();
  return one;
}

std::string hexadecimal(std::uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<std::size_t>(value));
  return text;
}

StreamPtr Machine::make_stream(int device, bool is_default) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t seed = seed_ * 0x100000001B3U + ++num_streams_ * 0x9E3779B97F4A7C15U;
  return std::make_shared<StreamQueue>(device, is_default, seed, max_delay_us_);
}

void Machine::set_delay(std::uint64_t seed, int max_delay_us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  seed_ = seed;
  max_delay_us_ = max_delay_us;
  num_streams_ = 0;  // so that a test repeats, whatever ran before it
}

CUresult Machine::refuse(CUresult code, const char* who, const std::string& what) {
  violations.add(std::string(who) + ": " + what);
  return code;
}

void Machine::break_device(int device, const std::string& who, const std::string& what) {
  violations.add(who + ": " + what);
  if (device >= 0 && device < num_devices()) {
    devices[static_cast<std::size_t>(device)]->error = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
}

AllocationPtr Machine::hold(Range range, int device, const std::string& who) {
  AllocationPtr found = memory.find(range);
  if (found != nullptr && (found->device == device || found->device == kHost)) return found;
  const std::string bytes = std::to_string(range.nbytes) + " bytes at " + hexadecimal(range.start);
  break_device(device, who,
               found == nullptr ? bytes + " are not inside one live allocation"
                                : bytes + " are memory of device " + std::to_string(found->device) +
                                      ", not of device " + std::to_string(device));
  return nullptr;
}

AllocationPtr Machine::hold_host(Range range, int device, const std::string& who) {
  AllocationPtr found = memory.find(range);
  if (found != nullptr && found->device == kHost) return found;
  break_device(device, who,
               std::to_string(range.nbytes) + " bytes at " + hexadecimal(range.start) +
                   " are not inside one live allocation of pinned host memory");
  return nullptr;
}

void Machine::queue(const StreamPtr& stream, std::vector<Range> ranges, StreamQueue::Job job) {
  const std::uint64_t use = memory.begin_use(std::move(ranges));
  const Device& device = *devices[static_cast<std::size_t>(stream->device())];
  if (stream->num_pending() == kMaxPending) {
    violations.add("more than " + std::to_string(kMaxPending) +
                   " operations are pending in a stream: the driver's call would block");
  }
  stream->push([this, use, &device, job = std::move(job)] {
    if (device.error == 0) job();
    memory.end_use(use);
  });
}

std::vector<CUcontext>& context_stack() {
  static thread_local std::vector<CUcontext> stack;
  return stack;
}

CUresult current_context(const char* who, ContextPtr* context) {
  Machine& all = machine();
  if (!all.is_initialised) return all.refuse(CUDA_ERROR_NOT_INITIALIZED, who, "before cuInit");
  if (context_stack().empty()) {
    return all.refuse(CUDA_ERROR_INVALID_CONTEXT, who, "no context is current");
  }
  *context = all.contexts.find(context_stack().back());
  if (*context == nullptr) {
    return all.refuse(CUDA_ERROR_INVALID_CONTEXT, who, "the current context was released");
  }
  return all.devices[static_cast<std::size_t>((*context)->device)]->error;
}

CUresult find_stream(const char* who, const Context& context, const void* handle,
                     StreamPtr* stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 1) {  // CU_STREAM_LEGACY is 1
    *stream = context.default_stream;
    return CUDA_SUCCESS;
  }
  Machine& all = machine();
  *stream = all.streams.find(handle);
  if (*stream == nullptr) {
    return all.refuse(CUDA_ERROR_INVALID_HANDLE, who,
                      "no stream has the handle " + hexadecimal(number));
  }
  if ((*stream)->device() != context.device) {
    return all.refuse(CUDA_ERROR_INVALID_HANDLE, who,
                      "a stream of device " + std::to_string((*stream)->device()) +
                          " while device " + std::to_string(context.device) + " is current");
  }
  return CUDA_SUCCESS;
}

}  // namespace doubles

// What tests and the double of NCCL ask and say.
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/cuda_double.h"
#include "cuda/machine.h"

using doubles::Allocation;
using doubles::AllocationPtr;
using doubles::ContextPtr;
using doubles::Machine;
using doubles::machine;
using doubles::Range;
using doubles::StreamPtr;
using Kind = doubles::Allocation::Kind;

namespace {

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

template <typename Objects>
long long count_of(const Objects& objects, int device) {
  long long count = 0;
  for (const auto& object : objects) count += device < 0 || object->device == device;
  return count;
}

long long num_streams(int device) {
  long long count = 0;
  for (const auto& stream : machine().streams.all()) {
    count += device < 0 || stream->device() == device;
  }
  return count;
}

long long num_retained(int device) {
  long long count = 0;
  Machine& all = machine();
  for (int i = 0; i < all.num_devices(); ++i) {
    auto& one = *all.devices[static_cast<std::size_t>(i)];
    const std::lock_guard<std::mutex> lock(one.mutex);
    if (device < 0 || device == i) count += one.retained;
  }
  return count;
}

using Getter = std::function<long long(int device)>;

Getter nbytes_of(Kind kind) {
  return
      [kind](int device) { return static_cast<long long>(machine().memory.nbytes(kind, device)); };
}

Getter peak_of(Kind kind) {
  return [kind](int device) {
    return static_cast<long long>(machine().memory.peak_nbytes(kind, device));
  };
}

const std::map<std::string, Getter>& getters() {
  static const auto& all = *new std::map<std::string, Getter>{
      {"allocated_bytes", nbytes_of(Kind::kDevice)},
      {"peak_bytes", peak_of(Kind::kDevice)},
      {"pinned_bytes", nbytes_of(Kind::kPinned)},
      {"peak_pinned_bytes", peak_of(Kind::kPinned)},
      {"registered_bytes", nbytes_of(Kind::kRegistered)},
      {"allocations", [](int device) { return machine().memory.count(device); }},
      {"streams", num_streams},
      {"events", [](int device) { return count_of(machine().events.all(), device); }},
      {"modules", [](int device) { return count_of(machine().modules.all(), device); }},
      {"contexts", num_retained},
      {"threads", [](int) { return doubles::StreamQueue::num_threads(); }},
      {"launches", [](int) { return machine().launches.load(); }},
      {"copies", [](int) { return machine().copies.load(); }},
      {"memsets", [](int) { return machine().memsets.load(); }},
      {"violations", [](int) { return machine().violations.count(); }},
  };
  return all;
}

bool all_are_idle() {
  Machine& all = machine();
  for (const auto& stream : all.streams.all()) {
    if (!stream->is_idle()) return false;
  }
  for (const auto& context : all.contexts.all()) {
    if (!context->default_stream->is_idle()) return false;
  }
  return true;
}

// Null, and a violation, where there is none.
StreamPtr stream_of(void* handle, int device, const char* who) {
  Machine& all = machine();
  for (const ContextPtr& context : all.contexts.all()) {
    StreamPtr stream;
    if (context->device != device) continue;
    return doubles::find_stream(who, *context, handle, &stream) == CUDA_SUCCESS ? stream : nullptr;
  }
  all.violations.add(std::string(who) + ": device " + std::to_string(device) + " has no context");
  return nullptr;
}

}  // namespace

int cudaDoubleRegister(void* address, size_t nbytes, int device) {
  if (device < doubles::kHost || device >= machine().num_devices()) return 1;
  return machine().memory.register_range({number_of(address), nbytes}, device) ? 0 : 1;
}

int cudaDoubleUnregister(void* address) {
  const AllocationPtr found = machine().memory.find({number_of(address), 1});
  if (!machine().memory.unregister(number_of(address))) return 1;
  // Registered memory goes away at once, like memory that is freed.
  if (found != nullptr && machine().memory.find({number_of(address), 1}) == nullptr &&
      machine().memory.num_uses(found->range) > 0) {
    machine().violations.add("cudaDoubleUnregister: " + std::to_string(found->range.nbytes) +
                             " bytes are still used by queued work");
  }
  return 0;
}

long long cudaDoubleGet(const char* name, int device) {
  const auto found = getters().find(name);
  return found == getters().end() ? -1 : found->second(device);
}

size_t cudaDoubleViolations(char* text, size_t capacity) {
  return machine().violations.copy(text, capacity);
}

void cudaDoubleReset() {
  Machine& all = machine();
  all.violations.clear();
  all.memory.reset_peaks();
  all.launches = 0;
  all.copies = 0;
  all.memsets = 0;
  for (auto& device : all.devices) device->error = 0;
}

void cudaDoubleSetDelay(unsigned long long seed, int max_delay_us) {
  machine().set_delay(seed, max_delay_us);
}

void cudaDoubleSetMaxPitch(int nbytes) { machine().max_pitch = nbytes; }

int cudaDoubleDrain(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!all_are_idle()) {
    if (std::chrono::steady_clock::now() > deadline) return 1;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return 0;
}

int cudaDoubleCurrentDevice() {
  const auto& stack = doubles::context_stack();
  if (stack.empty()) return -1;
  const ContextPtr context = machine().contexts.find(stack.back());
  return context == nullptr ? -1 : context->device;
}

int cudaDoublePhysicalDevice(int device) {
  return machine().devices.at(static_cast<std::size_t>(device))->physical;
}

int cudaDoubleCheckStream(void* stream, int device, const char* who) {
  return stream_of(stream, device, who) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

unsigned long long cudaDoubleQueue(void* stream, int device, void (*run)(void*), void* argument,
                                   const CudaDoubleRange* ranges, size_t num_ranges) {
  const StreamPtr found = stream_of(stream, device, "cudaDoubleQueue");
  if (found == nullptr) return 0;
  std::vector<Range> used;
  for (size_t i = 0; i < num_ranges; ++i) {
    used.push_back({number_of(ranges[i].address), ranges[i].nbytes});
  }
  const std::uint64_t use = machine().memory.begin_use(std::move(used));
  // On a broken device too: others may wait for this work.
  found->push([run, argument, use] {
    run(argument);
    machine().memory.end_use(use);
  });
  return use;
}

void cudaDoubleForget(unsigned long long work) { machine().memory.end_use(work); }

void* cudaDoubleHold(const void* address, size_t nbytes, int device, const char* who) {
  if (machine().devices.at(static_cast<size_t>(device))->error != 0) return nullptr;
  AllocationPtr found = machine().hold({number_of(address), nbytes}, device, who);
  return found == nullptr ? nullptr : new AllocationPtr(std::move(found));
}

void cudaDoubleLetGo(void* hold) { delete static_cast<AllocationPtr*>(hold); }

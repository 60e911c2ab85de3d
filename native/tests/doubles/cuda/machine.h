// The devices of this process, and what lives on them. One object, made by the first call.
//
// Lock order: none of the locks in here is held while another one is taken, and none while a job of
// a stream runs.
#ifndef RESHARD_TESTS_DOUBLES_CUDA_MACHINE_H_
#define RESHARD_TESTS_DOUBLES_CUDA_MACHINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/cuda_double.h"
#include "cuda/device_memory.h"
#include "cuda/stream_queue.h"
#include "shared/completion.h"
#include "shared/handle_table.h"
#include "shared/violations.h"

namespace doubles {

using StreamPtr = std::shared_ptr<StreamQueue>;

struct Context {
  explicit Context(int device_) : device(device_) {}
  const int device;
  StreamPtr default_stream;  // what handle 0 is
};
using ContextPtr = std::shared_ptr<Context>;

struct Device {
  int physical = 0;           // what makes it the same device in another process
  std::atomic<int> error{0};  // sticks to the device, as an illegal access does
  std::mutex mutex;           // guards the rest
  int retained = 0;
  CUcontext context = nullptr;  // null while nobody retains it
};

struct Event {
  explicit Event(int device_) : device(device_) {}
  const int device;
  std::mutex mutex;    // guards `last`
  CompletionPtr last;  // null until it is recorded
};

struct Module {
  explicit Module(int device_) : device(device_) {}
  const int device;
  std::atomic<int> num_queued{0};  // launches that have not run
};

struct Function {
  std::shared_ptr<Module> module;
  void* module_handle = nullptr;
  std::string name;
};

class Machine {
 public:
  Machine();

  std::vector<std::unique_ptr<Device>> devices;
  DeviceMemory memory;
  HandleTable<Context> contexts{1};
  HandleTable<StreamQueue> streams{2};
  HandleTable<Event> events{3};
  HandleTable<Module> modules{4};
  HandleTable<Function> functions{5};
  Violations violations;
  std::atomic<bool> is_initialised{false};
  std::atomic<long long> launches{0};
  std::atomic<long long> copies{0};
  std::atomic<long long> memsets{0};
  std::size_t memory_limit = 0;   // bytes per device; 0: no limit
  std::atomic<int> max_pitch{0};  // bytes between rows of a copy or a fill

  int num_devices() const { return static_cast<int>(devices.size()); }
  StreamPtr make_stream(int device, bool is_default);
  void set_delay(std::uint64_t seed, int max_delay_us);
  // Records a violation and returns the code.
  CUresult refuse(CUresult code, const char* who, const std::string& what);
  // An illegal access of work on a device: recorded, and the device is broken from now on.
  void break_device(int device, const std::string& who, const std::string& what);

  // The allocation that holds a range that work of the device can use; null and the device broken
  // where there is none.
  AllocationPtr hold(Range range, int device, const std::string& who);
  // Host memory that a copy can use: pinned, or registered as such.
  AllocationPtr hold_host(Range range, int device, const std::string& who);

  // Queues a job that uses ranges. It is not run on a broken device.
  void queue(const StreamPtr& stream, std::vector<Range> ranges, StreamQueue::Job job);

 private:
  std::mutex mutex_;  // guards all below
  std::uint64_t seed_ = 1;
  int max_delay_us_ = 100;
  std::uint64_t num_streams_ = 0;
};

// Never destroyed: workers use it until the process ends.
Machine& machine();

// What the calling thread pushed; the last one is current.
std::vector<CUcontext>& context_stack();
// The current context, or an error (a violation): none is current, it is gone, its device is
// broken.
CUresult current_context(const char* who, ContextPtr* context);
// The stream of a handle, for the current context; otherwise an error and a violation.
CUresult find_stream(const char* who, const Context& context, const void* handle,
                     StreamPtr* stream);

std::string hexadecimal(std::uintptr_t value);

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_CUDA_MACHINE_H_

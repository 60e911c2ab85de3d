// One GPU as this process uses it: its primary context, and streams, events and memory in it.
//
// Everything here owns what it made and gives it back when destroyed, in the context of its device.
// A failure to give back is dropped: the context may be gone already, as at the end of a process.
// A forked child gives nothing back, as CUDA does not work there.
#ifndef RESHARD_NATIVE_SRC_GPU_DEVICE_H_
#define RESHARD_NATIVE_SRC_GPU_DEVICE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "cuda_driver.h"

namespace reshard {

class GpuDevice {
 public:
  // Retains the primary context, which torch and JAX use as well. Throws kInvalidArgument for an
  // ordinal that the driver has not.
  GpuDevice(std::shared_ptr<const CudaDriver> driver, int ordinal);
  ~GpuDevice();
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  // Makes the device's context current on this thread for as long as it lives.
  class Scope {
   public:
    explicit Scope(const GpuDevice& device);
    // Where nothing may be thrown: a context that is gone stays away, and so does a forked child.
    Scope(const GpuDevice& device, std::nothrow_t);
    ~Scope();
    bool is_entered() const { return is_entered_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const GpuDevice& device_;
    bool is_entered_;
  };

  const CudaDriver& driver() const { return *driver_; }
  const CudaFunctions& cuda() const { return driver_->functions(); }
  int ordinal() const { return ordinal_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  // Bytes from one row to the next, at most, in copies and fills of rows.
  std::int64_t max_pitch() const { return max_pitch_; }
  // "sm_90"
  std::string architecture() const;

  // The GPU on which memory lies; -1 for memory that CUDA does not know.
  int ordinal_of(CudaAddress address) const;

  // As CudaDriver::check; the message begins with the number of the GPU.
  void check(int result, const char* what) const;

 private:
  bool is_of_parent() const;

  std::shared_ptr<const CudaDriver> driver_;
  const pid_t pid_;
  int ordinal_;
  int device_ = 0;
  int major_ = 0;
  int minor_ = 0;
  int num_multiprocessors_ = 0;
  int max_pitch_ = 0;
  CudaContext context_ = nullptr;
};

// A queue of work that waits for nothing but what it is told to wait for.
class GpuStream {
 public:
  explicit GpuStream(const GpuDevice& device);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  CudaStream get() const { return stream_; }

 private:
  const GpuDevice& device_;
  CudaStream stream_ = nullptr;
};

class GpuEvent {
 public:
  explicit GpuEvent(const GpuDevice& device);
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  // Marks what is in the stream by now. The device's context is current in all three.
  void record(CudaStream stream);
  // Later work of the stream waits for the mark; an event that was never recorded is no wait.
  void hold_up(CudaStream stream) const;
  // Whether everything before the mark is done. Throws what went wrong on the device.
  bool is_past() const;

  // The same where nothing may be thrown: what fails counts as past.
  void try_record(CudaStream stream) noexcept;
  void try_hold_up(CudaStream stream) const noexcept;
  bool is_pending() const noexcept;

 private:
  const GpuDevice& device_;
  CudaEvent event_ = nullptr;
  bool is_recorded_ = false;
};

// Device memory; 0 bytes allocate nothing.
class GpuMemory {
 public:
  GpuMemory(const GpuDevice& device, std::size_t nbytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  CudaAddress address() const { return address_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  const GpuDevice& device_;
  std::size_t nbytes_;
  CudaAddress address_ = 0;
};

// Host memory that the device copies from without the processor's help.
class PinnedMemory {
 public:
  PinnedMemory(const GpuDevice& device, std::size_t nbytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t nbytes() const { return nbytes_; }

 private:
  const GpuDevice& device_;
  std::size_t nbytes_;
  void* memory_ = nullptr;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_DEVICE_H_

#include "gpu_device.h"

#include <unistd.h>

#include <utility>

#include "status.h"

namespace reshard {

GpuDevice::GpuDevice(std::shared_ptr<const CudaDriver> driver, int ordinal)
    : driver_(std::move(driver)), pid_(getpid()), ordinal_(ordinal) {
  if (ordinal < 0 || ordinal >= driver_->num_devices()) {
    throw Error(StatusCode::kInvalidArgument,
                text("GPU ", ordinal, ": this process may use ", driver_->num_devices(),
                     " GPUs, numbered from 0. Look at CUDA_VISIBLE_DEVICES."));
  }
  check(cuda().DeviceGet(&device_, ordinal), "looking it up");
  const auto attribute = [&](int which, int* value) {
    check(cuda().DeviceGetAttribute(value, which, device_), "asking for an attribute");
  };
  attribute(kCudaComputeCapabilityMajor, &major_);
  attribute(kCudaComputeCapabilityMinor, &minor_);
  attribute(kCudaMultiprocessorCount, &num_multiprocessors_);
  attribute(kCudaMaxPitch, &max_pitch_);
  check(cuda().DevicePrimaryCtxRetain(&context_, device_), "retaining its primary context");
}

GpuDevice::~GpuDevice() {
  if (!is_of_parent()) cuda().DevicePrimaryCtxRelease(device_);
}

bool GpuDevice::is_of_parent() const { return getpid() != pid_; }

GpuDevice::Scope::Scope(const GpuDevice& device) : device_(device), is_entered_(true) {
  device.check(device.cuda().CtxPushCurrent(device.context_), "making its context current");
}

GpuDevice::Scope::Scope(const GpuDevice& device, std::nothrow_t)
    : device_(device),
      is_entered_(!device.is_of_parent() &&
                  device.cuda().CtxPushCurrent(device.context_) == kCudaSuccess) {}

GpuDevice::Scope::~Scope() {
  if (!is_entered_) return;
  CudaContext popped = nullptr;
  device_.cuda().CtxPopCurrent(&popped);
}

std::string GpuDevice::architecture() const { return text("sm_", major_, minor_); }

int GpuDevice::ordinal_of(CudaAddress address) const {
  int found = -1;
  const int result = cuda().PointerGetAttribute(&found, kCudaPointerDeviceOrdinal, address);
  return result == kCudaSuccess ? found : -1;
}

void GpuDevice::check(int result, const char* what) const {
  if (result != kCudaSuccess) driver_->check(result, text("GPU ", ordinal_, ": ", what));
}

GpuStream::GpuStream(const GpuDevice& device) : device_(device) {
  const GpuDevice::Scope scope(device);
  device.check(device.cuda().StreamCreate(&stream_, kCudaStreamNonBlocking), "making a stream");
}

GpuStream::~GpuStream() {
  const GpuDevice::Scope scope(device_, std::nothrow);
  if (scope.is_entered()) device_.cuda().StreamDestroy(stream_);
}

GpuEvent::GpuEvent(const GpuDevice& device) : device_(device) {
  const GpuDevice::Scope scope(device);
  device.check(device.cuda().EventCreate(&event_, kCudaEventDisableTiming), "making an event");
}

GpuEvent::~GpuEvent() {
  const GpuDevice::Scope scope(device_, std::nothrow);
  if (scope.is_entered()) device_.cuda().EventDestroy(event_);
}

void GpuEvent::record(CudaStream stream) {
  device_.check(device_.cuda().EventRecord(event_, stream), "recording an event");
  is_recorded_ = true;
}

void GpuEvent::hold_up(CudaStream stream) const {
  if (!is_recorded_) return;
  device_.check(device_.cuda().StreamWaitEvent(stream, event_, 0), "waiting for an event");
}

bool GpuEvent::is_past() const {
  if (!is_recorded_) return true;
  const int result = device_.cuda().EventQuery(event_);
  if (result == kCudaNotReady) return false;
  device_.check(result, "running what was queued");
  return true;
}

void GpuEvent::try_record(CudaStream stream) noexcept {
  is_recorded_ = device_.cuda().EventRecord(event_, stream) == kCudaSuccess;
}

void GpuEvent::try_hold_up(CudaStream stream) const noexcept {
  if (is_recorded_) device_.cuda().StreamWaitEvent(stream, event_, 0);
}

bool GpuEvent::is_pending() const noexcept {
  return is_recorded_ && device_.cuda().EventQuery(event_) == kCudaNotReady;
}

GpuMemory::GpuMemory(const GpuDevice& device, std::size_t nbytes)
    : device_(device), nbytes_(nbytes) {
  if (nbytes == 0) return;
  const GpuDevice::Scope scope(device);
  const int result = device.cuda().MemAlloc(&address_, nbytes);
  if (result != kCudaSuccess) {
    device.check(result, text("allocating ", nbytes, " bytes for chunks under way").c_str());
  }
}

GpuMemory::~GpuMemory() {
  if (address_ == 0) return;
  const GpuDevice::Scope scope(device_, std::nothrow);
  if (scope.is_entered()) device_.cuda().MemFree(address_);
}

PinnedMemory::PinnedMemory(const GpuDevice& device, std::size_t nbytes)
    : device_(device), nbytes_(nbytes) {
  if (nbytes == 0) return;
  const GpuDevice::Scope scope(device);
  const int result = device.cuda().MemAllocHost(&memory_, nbytes);
  if (result != kCudaSuccess) {
    device.check(result, text("allocating ", nbytes, " bytes of pinned host memory").c_str());
  }
}

PinnedMemory::~PinnedMemory() {
  if (memory_ == nullptr) return;
  const GpuDevice::Scope scope(device_, std::nothrow);
  if (scope.is_entered()) device_.cuda().MemFreeHost(memory_);
}

}  // namespace reshard

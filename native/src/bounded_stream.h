// A stream that never has more operations under way than the driver takes without blocking.
//
// The driver queues about a thousand operations a stream; the call that adds one more waits inside
// it, beyond every deadline if what the stream waits for never comes.
#ifndef RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_
#define RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "gpu_device.h"

namespace reshard {

class BoundedStream {
 public:
  // Called again and again while the stream is full; what it throws ends the wait.
  using Idle = std::function<void()>;

  BoundedStream(const GpuDevice& device, Idle idle)
      : stream_(device), marks_{{GpuEvent(device), GpuEvent(device)}}, idle_(std::move(idle)) {}

  // The stream, for what is no more than a few operations between two calls of `next`.
  CudaStream get() const { return stream_.get(); }

  // The stream, for one more copy or launch. The device's context is current.
  CudaStream next();

 private:
  // Copies and launches from a mark to the next; less than three times as many are under way.
  static constexpr std::size_t kPerMark = 256;

  GpuStream stream_;
  std::array<GpuEvent, 2> marks_;
  Idle idle_;
  std::size_t count_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_

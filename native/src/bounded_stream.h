// A stream that never has more operations under way than the driver takes without blocking.
//
// The driver queues about a thousand operations a stream; the call that adds one more waits inside
// it, beyond every deadline if what the stream waits for never comes.
#ifndef RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_
#define RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_

#include <array>
#include <cstddef>

#include "gpu_device.h"

namespace reshard {

class BoundedStream {
 public:
  explicit BoundedStream(const GpuDevice& device)
      : stream_(device), marks_{{GpuEvent(device), GpuEvent(device)}} {}

  // The stream, for what is no more than a few operations between two calls of `next`.
  CudaStream get() const { return stream_.get(); }

  // Whether it takes a few more copies or launches now. The device's context is current, as it is
  // in `next`.
  bool has_room() const;

  // The stream, for one more copy or launch. To be called where `has_room` was true.
  CudaStream next();

 private:
  // Of the copies and launches from a mark to the next; less than three times as many are under
  // way.
  static constexpr std::size_t kPerMark = 256;
  static constexpr std::size_t kFew = 4;  // that `has_room` speaks for

  GpuStream stream_;
  std::array<GpuEvent, 2> marks_;
  std::size_t count_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_BOUNDED_STREAM_H_

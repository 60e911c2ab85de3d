// The border to a kind of memory: how an operation's elements get into and out of a message.
//
// Host memory is the only kind so far. A device whose copies are asynchronous orders them on its
// own queue together with the sends of the transport that goes with it.
#ifndef RESHARD_NATIVE_SRC_DEVICE_H_
#define RESHARD_NATIVE_SRC_DEVICE_H_

#include <cstddef>

#include "program.h"

namespace reshard {

class Device {
 public:
  virtual ~Device() = default;

  // Elements of `segment` of `operation` from the buffer at `base` to the message at `message`.
  // `is_read_next`: the message is a slot that is read at once, so it should stay in a cache.
  virtual void pack(const Operation& operation, const Segment& segment, const std::byte* base,
                    std::byte* message, bool is_read_next) = 0;

  // The reverse.
  virtual void unpack(const Operation& operation, const Segment& segment, std::byte* base,
                      const std::byte* message) = 0;

  virtual void fill_zero(const ZeroRegion& region, std::byte* base) = 0;
};

// Host memory; stateless, shared by all threads.
Device& host_device();

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_DEVICE_H_

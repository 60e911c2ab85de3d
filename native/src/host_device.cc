#include "device.h"
#include "pack.h"

namespace reshard {
namespace {

class HostDevice final : public Device {
 public:
  void pack(const Operation& operation, const Segment& segment, const std::byte* base,
            std::byte* message, bool is_read_next) override {
    reshard::pack(operation.box, base + operation.offset_bytes, operation.memory, operation.wire,
                  segment.first, segment.count, message + segment.offset,
                  is_read_next ? Stores::kCached : Stores::kStreaming);
  }

  void unpack(const Operation& operation, const Segment& segment, std::byte* base,
              const std::byte* message) override {
    reshard::unpack(operation.box, base + operation.offset_bytes, operation.memory, operation.wire,
                    segment.first, segment.count, message + segment.offset);
  }

  void fill_zero(const ZeroRegion& region, std::byte* base) override {
    reshard::fill_zero(region.box, base + region.offset_bytes, region.element_size);
  }
};

}  // namespace

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace reshard

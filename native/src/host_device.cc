#include "device.h"
#include "pack.h"

namespace reshard {
namespace {

class HostDevice final : public Device {
 public:
  void pack(const Operation& operation, const Segment& segment, const std::byte* base,
            std::byte* message, bool is_read_next) override {
    const Stores stores = is_read_next ? Stores::kCached : Stores::kStreaming;
    const std::byte* const start = base + operation.offset_bytes;
    std::byte* const out = message + segment.offset;
    if (operation.affine.is_identity()) {
      return reshard::pack(operation.box, start, operation.memory, operation.wire, segment.first,
                           segment.count, out, stores);
    }
    pack_affine(operation.box, start, operation.memory, operation.wire, operation.affine,
                segment.first, segment.count, out, stores);
  }

  void unpack(const Operation& operation, const Segment& segment, std::byte* base,
              const std::byte* message) override {
    std::byte* const start = base + operation.offset_bytes;
    const std::byte* const in = message + segment.offset;
    if (operation.affine.is_identity()) {
      return reshard::unpack(operation.box, start, operation.memory, operation.wire, segment.first,
                             segment.count, in);
    }
    unpack_affine(operation.box, start, operation.memory, operation.wire, operation.affine,
                  segment.first, segment.count, in);
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

// The table of a launch of the kernels that pack and unpack.
#ifndef RESHARD_NATIVE_SRC_MOVE_TABLE_H_
#define RESHARD_NATIVE_SRC_MOVE_TABLE_H_

#include <cstdint>

#include "kernels/move_record.h"
#include "launch_table.h"
#include "program.h"

namespace reshard {

// Boxes to pack or to unpack. Both need the same table; it is the kernel
// that goes one way or the other.
class MoveTable final : public LaunchTable {
 public:
  static constexpr std::uint32_t kStaging = kernels::kStaging;

  // Adds elements [segment.first, +count) of the operation, which are at `message_offset` bytes
  // from the message; or, where `message_buffer` is not kStaging, from addresses[message_buffer].
  // There they are dense and of the operation's wire dtype. Throws kUnsupported when the table
  // would have 2**32 tiles, which is above 2**44 bytes, or as many words.
  void add(const Operation& operation, const Segment& segment, std::int64_t message_offset,
           std::uint32_t message_buffer = kStaging);

 private:
  struct Box;

  void add_box(Box& box);
  void add_record(const kernels::Shape& shape, const Box& box, std::uint64_t run,
                  std::uint64_t block, std::uint64_t num_tiles);
  void add_rows(Box& box, kernels::MoveKind kind, std::int64_t run, std::int64_t unit);
  bool add_transpose(Box& box, std::int64_t unit);
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_MOVE_TABLE_H_

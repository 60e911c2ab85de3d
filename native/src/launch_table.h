// The table of a launch of a device kernel: many boxes, one launch.
#ifndef RESHARD_NATIVE_SRC_LAUNCH_TABLE_H_
#define RESHARD_NATIVE_SRC_LAUNCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "affine.h"

namespace reshard {

// Records of 64-bit words, found through a directory by the number of a tile; see
// kernels/move_record.h. What a record says is its kernel's. Not thread-safe, `words` included.
class LaunchTable {
 public:
  // What is uploaded as `table`; valid until the table changes.
  const std::vector<std::uint64_t>& words() const;

  // How many words that are.
  std::size_t num_words() const { return entries_.size() + records_.size(); }

  std::uint32_t num_moves() const { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t num_tiles() const { return static_cast<std::uint32_t>(num_tiles_); }
  bool empty() const { return entries_.empty(); }
  void clear();

 protected:
  ~LaunchTable() = default;

  // Opens the record of a box that takes so many tiles. Throws kUnsupported when the table would
  // have 2**32 tiles or as many words; it is as before then.
  //   remedy: a sentence that says how to launch less at once.
  void begin_record(std::uint64_t num_tiles, const char* remedy);

  // Appends to the record.
  void push(std::uint64_t word) { records_.push_back(word); }
  void push(std::int64_t word) { records_.push_back(static_cast<std::uint64_t>(word)); }
  void push(const Affine& affine);  // kAffineNumbers words

 private:
  struct Entry {
    std::uint32_t first_tile;
    std::uint32_t record;  // its place in records_
  };

  std::vector<Entry> entries_;
  std::vector<std::uint64_t> records_;
  std::uint64_t num_tiles_ = 0;
  mutable std::vector<std::uint64_t> words_;  // made of the two when asked for
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_LAUNCH_TABLE_H_

#include "launch_table.h"

#include <limits>

#include "kernels/move_record.h"
#include "status.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxRecordWords = 64;

}  // namespace

void LaunchTable::begin_record(std::uint64_t num_tiles, const char* remedy) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::uint32_t>::max();
  if (num_tiles > kLimit || num_tiles_ + num_tiles > kLimit ||
      records_.size() + 2 * entries_.size() + kMaxRecordWords > kLimit) {
    throw Error(StatusCode::kUnsupported,
                text("one launch would have ", num_tiles_ + num_tiles, " tiles in ",
                     records_.size(), " words, but each of both must stay below 2^32. ", remedy));
  }
  entries_.push_back(
      {static_cast<std::uint32_t>(num_tiles_), static_cast<std::uint32_t>(records_.size())});
  num_tiles_ += num_tiles;
  words_.clear();
}

void LaunchTable::push(const Affine& affine) {
  for (const AffineRule& rule : {affine.source, affine.destination}) {
    for (const double number : {rule.scale, rule.divisor, rule.offset}) push(bits_of(number));
  }
}

const std::vector<std::uint64_t>& LaunchTable::words() const {
  if (words_.empty() && !entries_.empty()) {
    const std::uint32_t directory = num_moves();
    words_.reserve(num_words());
    for (const Entry& entry : entries_) {
      words_.push_back(kernels::word_of_halves(directory + entry.record, entry.first_tile));
    }
    words_.insert(words_.end(), records_.begin(), records_.end());
  }
  return words_;
}

void LaunchTable::clear() {
  entries_.clear();
  records_.clear();
  words_.clear();
  num_tiles_ = 0;
}

}  // namespace reshard

// Sums of mixed elements over dense runs: the inner loop of a fingerprint.
#ifndef RESHARD_NATIVE_SRC_FINGERPRINT_MIX_H_
#define RESHARD_NATIVE_SRC_FINGERPRINT_MIX_H_

#include <cstddef>
#include <cstdint>

#include "fingerprint_element.h"

namespace reshard {

// Sums runs whose neighbours in memory are `index_step` apart in index.
class RunMixer {
 public:
  // `width` is 1, 2, 4 or 8 bytes.
  RunMixer(std::int64_t width, std::uint64_t index_step);

  // The sum modulo 2**64 over `count` dense elements; the first has the given index term.
  std::uint64_t sum(const std::byte* run, std::int64_t count, std::uint64_t index_term) const {
    return function_(*this, run, count, index_term);
  }

 private:
  using Function = std::uint64_t (*)(const RunMixer& mixer, const std::byte* run,
                                     std::int64_t count, std::uint64_t index_term);
  template <int width>
  static std::uint64_t sum_plain(const RunMixer& mixer, const std::byte* run, std::int64_t count,
                                 std::uint64_t index_term);
  template <int width>
  static std::uint64_t sum_vectors(const RunMixer& mixer, const std::byte* run, std::int64_t count,
                                   std::uint64_t index_term);
  template <int width>
  static Function choose();

  std::uint64_t term_step_;  // of the index term from one element to the next
  Function function_;
  // Four 64-bit lanes hold 4 * 8/width elements. Vector j has the index term of each lane's j-th
  // element, relative to the first element of all.
  alignas(32) std::uint64_t lane_terms_[8][4];
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_FINGERPRINT_MIX_H_

// Boxes in memory of any order of dims, with gaps, for tests of copies.
#ifndef RESHARD_NATIVE_TESTS_MEMORY_CASE_H_
#define RESHARD_NATIVE_TESTS_MEMORY_CASE_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "check.h"
#include "strided_box.h"

namespace reshard_test {

struct MemoryCase {
  reshard::StridedBox box;
  std::int64_t size;  // bytes of memory
};

// Up to four dims in random memory order with gaps; all strides positive.
inline MemoryCase random_box(Random& random, std::int64_t width) {
  MemoryCase test = {};
  test.box.ndim = static_cast<int>(random.between(1, 4));
  const bool is_large = random.one_in(6);  // several tiles of a transpose
  if (is_large) test.box.ndim = static_cast<int>(random.between(2, 3));
  std::int64_t budget = is_large ? 60000 : 1500;
  int order[4] = {0, 1, 2, 3};
  for (int k = test.box.ndim - 1; k > 0; --k) std::swap(order[k], order[random.between(0, k)]);
  std::int64_t step = width * (random.one_in(4) ? 2 : 1);
  for (int i = 0; i < test.box.ndim; ++i) {
    const int k = order[i];
    test.box.size[k] = std::min(random.between(1, is_large || random.one_in(2) ? 300 : 9), budget);
    budget /= test.box.size[k];
    test.box.stride[k] = step;
    step = step * test.box.size[k] + (random.one_in(3) ? random.between(0, 40) * width : 0);
  }
  test.size = width;
  for (int k = 0; k < test.box.ndim; ++k) {
    test.size += (test.box.size[k] - 1) * test.box.stride[k];
  }
  return test;
}

inline std::int64_t offset_of(const reshard::StridedBox& box, std::int64_t index) {
  std::int64_t offset = 0;
  for (int k = box.ndim - 1; k >= 0; --k) {
    offset += index % box.size[k] * box.stride[k];
    index /= box.size[k];
  }
  return offset;
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_MEMORY_CASE_H_

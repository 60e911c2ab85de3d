// Cuts a range of a box's elements into boxes.
#ifndef RESHARD_NATIVE_SRC_PACK_SPLIT_H_
#define RESHARD_NATIVE_SRC_PACK_SPLIT_H_

#include <cstdint>

#include "strided_box.h"

namespace reshard {

// Part of a box: indices [start, start + size) in every dim.
struct BoxPart {
  std::int64_t start[kMaxDims];
  std::int64_t size[kMaxDims];
};

// Visits disjoint parts that together are the elements [first, first + count) in row-major order.
// A chunk may begin and end anywhere, so the first and last index of a dim are often incomplete.
//
// Usually those become parts of their own. In dim `banded` (-1: none) they stay with their
// neighbours, and the dims after it are cut instead: along the dim that is contiguous in memory a
// single index would touch as many cache lines as all the others do together.
template <typename Visit>
class RangeSplit {
 public:
  RangeSplit(const StridedBox& box, int banded, const Visit& visit)
      : box_(box), banded_(banded), visit_(visit) {}

  void split(std::int64_t first, std::int64_t count) {
    if (count <= 0) return;
    if (box_.ndim == 0) return visit_(part_);
    std::int64_t elements = 1;
    for (int k = box_.ndim - 1; k >= 0; --k) {
      elements_per_index_[k] = elements;
      elements *= box_.size[k];
    }
    if (count == elements) return visit_rows(0, 0, box_.size[0]);
    split_dim(0, first, first + count);
  }

 private:
  // Elements [begin, end) of the box of dims dim.., for the part's indices in the dims before.
  void split_dim(int dim, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    const std::int64_t inner = elements_per_index_[dim];
    const std::int64_t row_begin = begin / inner;
    const std::int64_t row_end = end / inner;
    const std::int64_t head = begin % inner;
    const std::int64_t tail = end % inner;
    if (head == 0 && tail == 0) {
      visit_rows(dim, row_begin, row_end - row_begin);
    } else if (row_begin == row_end) {
      set_rows(dim, row_begin, 1);
      split_dim(dim + 1, head, tail);
    } else if (dim == banded_) {
      split_band(dim, row_begin, row_end, head, tail);
    } else {
      set_rows(dim, row_begin, 1);
      if (head != 0) split_dim(dim + 1, head, inner);
      const std::int64_t whole = row_begin + (head != 0 ? 1 : 0);
      if (row_end > whole) visit_rows(dim, whole, row_end - whole);
      set_rows(dim, row_end, 1);
      split_dim(dim + 1, 0, tail);
    }
  }

  // Row row_begin has the elements from `head` on, row row_end those before `tail`. Cut by columns:
  // each column range then has an unbroken range of rows.
  void split_band(int dim, std::int64_t row_begin, std::int64_t row_end, std::int64_t head,
                  std::int64_t tail) {
    const std::int64_t low = head < tail ? head : tail;
    const std::int64_t high = head < tail ? tail : head;
    const std::int64_t rows = row_end - row_begin;
    set_rows(dim, row_begin + 1, rows);
    split_dim(dim + 1, 0, low);
    if (head < tail) {
      set_rows(dim, row_begin, rows + 1);
      split_dim(dim + 1, low, high);
    } else if (rows > 1) {
      set_rows(dim, row_begin + 1, rows - 1);
      split_dim(dim + 1, low, high);
    }
    set_rows(dim, row_begin, rows);
    split_dim(dim + 1, high, elements_per_index_[dim]);
  }

  void set_rows(int dim, std::int64_t start, std::int64_t size) {
    part_.start[dim] = start;
    part_.size[dim] = size;
  }

  void visit_rows(int dim, std::int64_t start, std::int64_t size) {
    set_rows(dim, start, size);
    for (int k = dim + 1; k < box_.ndim; ++k) set_rows(k, 0, box_.size[k]);
    visit_(part_);
  }

  const StridedBox& box_;
  const int banded_;
  const Visit& visit_;
  std::int64_t elements_per_index_[kMaxDims];
  BoxPart part_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_SPLIT_H_

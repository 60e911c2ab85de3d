#include "bounded_stream.h"

namespace reshard {

// The older mark is set anew by the operation that is a multiple of kPerMark.
bool BoundedStream::has_room() const {
  const std::size_t near = (count_ + kFew) / kPerMark;
  return near == count_ / kPerMark || marks_[near % 2].is_past();
}

CudaStream BoundedStream::next() {
  if (++count_ % kPerMark == 0) marks_[count_ / kPerMark % 2].record(stream_.get());
  return stream_.get();
}

}  // namespace reshard

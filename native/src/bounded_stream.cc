#include "bounded_stream.h"

namespace reshard {

CudaStream BoundedStream::next() {
  if (++count_ % kPerMark == 0) {
    GpuEvent& older = marks_[count_ / kPerMark % 2];
    while (!older.is_past()) idle_();
    older.record(stream_.get());
  }
  return stream_.get();
}

}  // namespace reshard

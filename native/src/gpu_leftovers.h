// What failed calls left to GPUs: freed when these have done with it.
//
// A kernel or a copy may still be queued when a call gives up, as when the caller's own stream is
// stuck. To free its memory then could hand it to somebody else while it is written.
#ifndef RESHARD_NATIVE_SRC_GPU_LEFTOVERS_H_
#define RESHARD_NATIVE_SRC_GPU_LEFTOVERS_H_

#include <cstddef>
#include <functional>
#include <memory>

namespace reshard {

// Waits a bounded time until `is_idle`, which must not throw, then frees `thing`; or keeps it for
// a later call of either function. Any thread.
void free_when_idle(std::shared_ptr<void> thing, std::function<bool()> is_idle);

// Frees what was kept and is idle by now; returns how many are not. Any thread.
std::size_t free_leftovers();

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_LEFTOVERS_H_

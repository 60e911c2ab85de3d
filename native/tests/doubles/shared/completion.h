// Something that happens once, and that threads wait for.
#ifndef RESHARD_TESTS_DOUBLES_SHARED_COMPLETION_H_
#define RESHARD_TESTS_DOUBLES_SHARED_COMPLETION_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace doubles {

class Completion {
 public:
  void set() {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  bool is_set() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }

  // Whether it happened within the time.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex_);
    // By the system clock: the thread sanitizer of GCC 12 does not know the wait by the other one.
    return changed_.wait_until(lock, std::chrono::system_clock::now() + time,
                               [this] { return done_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

using CompletionPtr = std::shared_ptr<Completion>;

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_SHARED_COMPLETION_H_

// A stream: jobs in the order in which they were queued, run by a thread of its own.
#ifndef RESHARD_TESTS_DOUBLES_CUDA_STREAM_QUEUE_H_
#define RESHARD_TESTS_DOUBLES_CUDA_STREAM_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace doubles {

class StreamQueue : public std::enable_shared_from_this<StreamQueue> {
 public:
  using Job = std::function<void()>;

  // Before each job the worker waits, for a time drawn from [0, max_delay_us].
  StreamQueue(int device, bool is_default, std::uint64_t seed, int max_delay_us);
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  int device() const { return device_; }
  bool is_default() const { return is_default_; }
  void push(Job job);
  bool is_idle() const;
  std::size_t num_pending() const;
  // Nothing is queued any more. What is queued is still run; returns without waiting for it.
  void close();
  // Workers of all streams.
  static int num_threads();

 private:
  void work();
  void delay();

  const int device_;
  const bool is_default_;
  const int max_delay_us_;
  std::uint64_t random_;  // of the worker

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool running_ = false;
  bool closed_ = false;
  std::thread worker_;  // started by the first job
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_CUDA_STREAM_QUEUE_H_

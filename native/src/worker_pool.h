// A few threads that share one piece of work at a time with the thread that owns them.
#ifndef RESHARD_NATIVE_SRC_WORKER_POOL_H_
#define RESHARD_NATIVE_SRC_WORKER_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reshard {

class WorkerPool {
 public:
  // Starts num_threads - 1 threads, or fewer if the system gives no more; the caller of `run` is
  // the other one. They end with the pool and never run a signal handler.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls job(part) for every part in [0, num_threads), each on a thread of its own, and returns
  // when all have returned. Rethrows the first exception. One caller at a time.
  void run(const std::function<void(int)>& job);

 private:
  void work(int part);
  void wait_for_round(std::uint64_t round);
  void call(int part);

  std::mutex mutex_;  // guards is_stopping_ and error_, and the two conditions; taken alone
  std::condition_variable round_begins_;
  std::condition_variable round_ends_;
  bool is_stopping_ = false;
  std::exception_ptr error_;
  const std::function<void(int)>* job_ = nullptr;  // of the current round
  std::atomic<std::uint64_t> round_{0};
  std::atomic<int> num_working_{0};
  std::vector<std::thread> threads_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_WORKER_POOL_H_

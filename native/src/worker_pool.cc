#include "worker_pool.h"

#include <system_error>

#include "clock.h"
#include "signals_blocked.h"

namespace reshard {
namespace {

// A round often follows the last one at once; waking a sleeping thread takes about this long.
constexpr std::int64_t kSpinNs = 20'000;

template <typename Condition>
void spin_until(const Condition& condition) {
  const std::int64_t end = monotonic_ns() + kSpinNs;
  while (!condition() && monotonic_ns() < end) {
  }
}

}  // namespace

WorkerPool::WorkerPool(int num_threads) {
  const SignalsBlocked blocked;
  threads_.reserve(static_cast<std::size_t>(num_threads));
  try {
    for (int part = 1; part < num_threads; ++part) {
      threads_.emplace_back([this, part] { work(part); });
    }
  } catch (const std::system_error&) {
    // Threads only make it faster: a system that gives no more of them is served with those there.
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    ++round_;
  }
  round_begins_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(const std::function<void(int)>& job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    job_ = &job;
    error_ = nullptr;
    num_working_ = static_cast<int>(threads_.size());
    ++round_;
  }
  round_begins_.notify_all();
  call(0);
  spin_until([this] { return num_working_ == 0; });
  std::unique_lock<std::mutex> lock(mutex_);
  round_ends_.wait(lock, [this] { return num_working_ == 0; });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void WorkerPool::work(int part) {
  for (std::uint64_t round = 1;; ++round) {
    wait_for_round(round);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_stopping_) return;
    }
    call(part);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --num_working_;
    }
    round_ends_.notify_one();
  }
}

void WorkerPool::wait_for_round(std::uint64_t round) {
  spin_until([this, round] { return round_ >= round; });
  std::unique_lock<std::mutex> lock(mutex_);
  round_begins_.wait(lock, [this, round] { return round_ >= round; });
}

void WorkerPool::call(int part) {
  try {
    (*job_)(part);
  } catch (const std::exception&) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

}  // namespace reshard

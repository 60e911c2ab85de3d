#include "cuda/stream_queue.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <utility>

namespace doubles {
namespace {

std::atomic<int>& threads() {
  static std::atomic<int> count{0};
  return count;
}

// Seeds that are neighbours make sequences that have nothing in common.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

}  // namespace

StreamQueue::StreamQueue(int device, bool is_default, std::uint64_t seed, int max_delay_us)
    : device_(device),
      is_default_(is_default),
      max_delay_us_(max_delay_us),
      random_(mix(mix(seed))) {}

StreamQueue::~StreamQueue() {
  if (worker_.joinable()) worker_.detach();  // it ended: it holds this object while it runs
}

int StreamQueue::num_threads() { return threads().load(); }

void StreamQueue::push(Job job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!worker_.joinable()) {
    // The worker answers no signals: they are for the threads of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ++threads();
    worker_ = std::thread([self = shared_from_this()] { self->work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed_.notify_all();
}

bool StreamQueue::is_idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.empty() && !running_;
}

std::size_t StreamQueue::num_pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.size();
}

void StreamQueue::close() {
  std::thread ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    if (jobs_.empty() && !running_) ended = std::move(worker_);
  }
  if (ended.joinable()) ended.join();
}

void StreamQueue::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
      if (jobs_.empty()) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = true;
    }
    delay();
    job();
    job = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;
  }
  --threads();
}

void StreamQueue::delay() {
  if (max_delay_us_ <= 0) return;
  random_ += 0x9E3779B97F4A7C15U;
  const std::uint64_t us = mix(random_) % (static_cast<std::uint64_t>(max_delay_us_) + 1);
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace doubles

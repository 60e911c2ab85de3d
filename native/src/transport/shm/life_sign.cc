#include "transport/shm/life_sign.h"

#include <pthread.h>

#include <cerrno>

#include "signals_blocked.h"
#include "status.h"

namespace reshard {
namespace {

void initialize(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  int error = pthread_mutexattr_init(&attributes);
  if (error != 0) throw_system("pthread_mutexattr_init", error);
  error = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (error == 0) error = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (error == 0) error = pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) throw_system("making a robust process-shared mutex", error);
}

}  // namespace

LifeSign::LifeSign(ControlPage& own) : own_(own) {
  initialize(&own_.life);
  {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { hold(); });
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return holds_; });
}

void LifeSign::hold() {
  pthread_mutex_lock(&own_.life);
  std::unique_lock<std::mutex> lock(mutex_);
  holds_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return stops_; });
  lock.unlock();
  pthread_mutex_unlock(&own_.life);
}

void LifeSign::stop() {
  if (!thread_.joinable()) return;
  own_.is_closed.store(1);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Life probe_life(ControlPage& peer) {
  if (peer.is_closed.load() != 0) return Life::kClosed;
  const int result = pthread_mutex_trylock(&peer.life);
  if (result == EBUSY) return Life::kAlive;
  // Unlocking without pthread_mutex_consistent makes the mutex unusable for good, so that every
  // other prober sees the death too (ENOTRECOVERABLE).
  if (result == 0 || result == EOWNERDEAD) pthread_mutex_unlock(&peer.life);
  return peer.is_closed.load() != 0 ? Life::kClosed : Life::kDead;
}

}  // namespace reshard

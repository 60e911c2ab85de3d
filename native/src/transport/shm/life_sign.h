// How peers learn within a millisecond that a process died, whatever its size.
//
// A robust mutex in the process's control page is held by a thread of it for as long as the process
// takes part. When the process dies the kernel marks the mutex before it tears down the memory,
// which takes tens of milliseconds per GiB; sockets report only after that. Peers probe with
// trylock.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_LIFE_SIGN_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_LIFE_SIGN_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "transport/shm/control_page.h"

namespace reshard {

enum class Life { kAlive, kClosed, kDead };

// Owner's side: the thread that holds the mutex, from construction to `stop`.
class LifeSign {
 public:
  explicit LifeSign(ControlPage& own);
  ~LifeSign() { stop(); }
  LifeSign(const LifeSign&) = delete;
  LifeSign& operator=(const LifeSign&) = delete;

  // Marks the process as closed and ends the thread. Idempotent.
  void stop();

 private:
  void hold();

  ControlPage& own_;
  std::mutex mutex_;  // guards holds_ and stops_; no other lock is taken while it is held
  std::condition_variable changed_;
  bool holds_ = false;  // the thread has the life mutex
  bool stops_ = false;
  std::thread thread_;
};

// Peer's side. Takes no system call while the peer is alive.
Life probe_life(ControlPage& peer);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_LIFE_SIGN_H_

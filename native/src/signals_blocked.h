// Threads of the library never run the program's signal handlers.
#ifndef RESHARD_NATIVE_SRC_SIGNALS_BLOCKED_H_
#define RESHARD_NATIVE_SRC_SIGNALS_BLOCKED_H_

#include <signal.h>

namespace reshard {

// Blocks all signals on this thread while it lives; a thread made meanwhile inherits that for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_SIGNALS_BLOCKED_H_

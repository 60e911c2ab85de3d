#include "communicator.h"

#include <unistd.h>

#include <utility>

#include "status.h"

namespace reshard {

Communicator::Communicator(std::shared_ptr<Transport> transport)
    : transport_(std::move(transport)), pid_(getpid()) {}

bool Communicator::is_own() const { return getpid() == pid_; }

const std::shared_ptr<Transport>& Communicator::transport() const {
  if (!is_own()) {
    throw Error(StatusCode::kInvalidState,
                text("communicator: made by process ", pid_, " but used by process ", getpid(),
                     " after fork. Make it in the process that uses it; start processes with "
                     "spawn or forkserver."));
  }
  return transport_;
}

}  // namespace reshard

#include "communicator.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "status.h"

namespace reshard {

Communicator::Communicator(std::shared_ptr<Transport> transport)
    : transport_(std::move(transport)), pid_(getpid()) {}

Communicator::~Communicator() {
  if (getpid() == pid_) {
    transport_->close();
    return;
  }
  // The child has neither the transport's thread nor its mappings, so destroying the transport
  // would touch what is not there. The few heap bytes are left.
  new std::shared_ptr<Transport>(std::move(transport_));
}

const std::shared_ptr<Transport>& Communicator::transport() const {
  if (getpid() != pid_) {
    throw Error(StatusCode::kInvalidState,
                text("communicator: made by process ", pid_, " but used by process ", getpid(),
                     " after fork. Make it in the process that uses it; start processes with "
                     "spawn or forkserver."));
  }
  return transport_;
}

}  // namespace reshard

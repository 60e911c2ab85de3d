// What a communicator handle holds: a transport, and the process that made it.
#ifndef RESHARD_NATIVE_SRC_COMMUNICATOR_H_
#define RESHARD_NATIVE_SRC_COMMUNICATOR_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace reshard {

class Communicator {
 public:
  explicit Communicator(std::shared_ptr<Transport> transport);
  // Closes the transport, but only in the process that made it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The transport. Throws kInvalidState in a child process of the one that made it: threads and
  // locks of a transport do not survive fork.
  const std::shared_ptr<Transport>& transport() const;

 private:
  std::shared_ptr<Transport> transport_;
  pid_t pid_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_COMMUNICATOR_H_

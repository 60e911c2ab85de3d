// A group that was ended, before it is on its streams.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_PENDING_GROUP_H_
#define RESHARD_TESTS_DOUBLES_NCCL_PENDING_GROUP_H_

#include <utility>
#include <vector>

#include "nccl/comm.h"
#include "nccl/injections.h"
#include "nccl/operation.h"

namespace doubles {

struct PendingGroup {
  struct Part {
    CommPtr comm;
    std::vector<Operation> operations;
  };

  std::vector<Part> parts;
  GroupFate fate;
  int polls_left = 0;

  // Whether it is launched; the last of some calls launches it.
  bool poll() {
    if (is_launched()) return true;
    if (--polls_left > 0) return false;
    launch();
    return true;
  }
  bool is_launched() const { return parts.empty(); }
  // Queues the job of each communicator, in the order in which they were named.
  void launch();
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_PENDING_GROUP_H_

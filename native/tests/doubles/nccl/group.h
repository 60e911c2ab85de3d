// What one thread has called between ncclGroupStart and ncclGroupEnd.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_GROUP_H_
#define RESHARD_TESTS_DOUBLES_NCCL_GROUP_H_

#include <functional>
#include <utility>
#include <vector>

#include "nccl/comm.h"
#include "nccl/operation.h"
#include "nccl/pending_group.h"

namespace doubles {

class Group {
 public:
  // Of the calling thread.
  static Group& mine();

  bool is_open() const { return depth_ > 0; }
  void start() { ++depth_; }
  int end();
  // Does what ncclGroupEnd does, now if there is no group: initialisations, splits, finalisations.
  int add_start(const CommPtr& comm, std::function<void()> start);
  int add_operation(const CommPtr& comm, const Operation& operation);
  // The group is wrong: nothing of it is done.
  int fail(int result);

 private:
  int launch();
  int check_own_operations() const;
  void clear();

  int depth_ = 0;
  int error_ = 0;
  std::vector<std::pair<CommPtr, std::function<void()>>> starts_;
  std::vector<PendingGroup::Part> parts_;
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_GROUP_H_

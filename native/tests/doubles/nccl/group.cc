#include "nccl/group.h"

#include <algorithm>
#include <memory>
#include <string>

#include "nccl/injections.h"
#include "nccl/library.h"

namespace doubles {

Group& Group::mine() {
  static thread_local Group group;
  return group;
}

int Group::fail(int result) {
  if (depth_ > 0 && error_ == 0) error_ = result;
  return result;
}

int Group::add_start(const CommPtr& comm, std::function<void()> start) {
  starts_.emplace_back(comm, std::move(start));
  return depth_ > 0 ? ncclSuccess : launch();
}

int Group::add_operation(const CommPtr& comm, const Operation& operation) {
  const auto of_comm = [&](const PendingGroup::Part& part) { return part.comm == comm; };
  auto part = std::find_if(parts_.begin(), parts_.end(), of_comm);
  if (part == parts_.end()) part = parts_.insert(parts_.end(), {comm, {}});
  part->operations.push_back(operation);
  return depth_ > 0 ? ncclSuccess : launch();
}

int Group::end() {
  if (depth_ == 0) {
    return library().refuse(ncclInvalidUsage, "ncclGroupEnd: without ncclGroupStart");
  }
  if (--depth_ > 0) return ncclSuccess;
  return launch();
}

void Group::clear() {
  error_ = 0;
  starts_.clear();
  parts_.clear();
}

// Sends to oneself need as many receives in the same group.
int Group::check_own_operations() const {
  for (const PendingGroup::Part& part : parts_) {
    long difference = 0;
    for (const Operation& operation : part.operations) {
      if (operation.peer == part.comm->rank()) difference += operation.is_send ? 1 : -1;
    }
    if (difference != 0) {
      return library().refuse(ncclInvalidUsage, "rank " + std::to_string(part.comm->rank()) +
                                                    ": a send to self without a matching recv");
    }
  }
  return ncclSuccess;
}

int Group::launch() {
  int result = error_;
  if (result == ncclSuccess && !starts_.empty() && !parts_.empty()) {
    result = library().refuse(ncclInvalidUsage,
                              "ncclGroupEnd: one group starts or splits communicators and sends");
  }
  if (result == ncclSuccess) result = check_own_operations();
  if (result != ncclSuccess) {
    clear();
    return result;
  }
  for (auto& [comm, start] : starts_) {
    start();
    if (comm->poll() == ncclInProgress) result = ncclInProgress;
  }
  if (!parts_.empty()) {
    auto group = std::make_shared<PendingGroup>();
    std::size_t num_operations = 0;
    for (const PendingGroup::Part& part : parts_) num_operations += part.operations.size();
    group->fate = injections().next_group(num_operations);
    group->polls_left = injections().draw_polls();
    group->parts = std::move(parts_);
    if (group->polls_left == 0) {
      group->launch();
    } else {
      for (const PendingGroup::Part& part : group->parts) part.comm->set_pending(group);
      result = ncclInProgress;
    }
  }
  clear();
  return result;
}

}  // namespace doubles

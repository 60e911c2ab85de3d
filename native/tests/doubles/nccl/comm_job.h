// The work of one communicator in one group: what NCCL launches as one kernel.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_COMM_JOB_H_
#define RESHARD_TESTS_DOUBLES_NCCL_COMM_JOB_H_

#include <chrono>
#include <memory>
#include <vector>

#include "nccl/comm.h"
#include "nccl/injections.h"
#include "nccl/operation.h"
#include "shared/completion.h"

namespace doubles {

class CommJob {
 public:
  CommJob(CommPtr comm, std::vector<Operation> operations, GroupFate fate);

  // Puts it on its streams: it runs on the first one, when all others have come to it, and they go
  // on when it has ended. Jobs of one communicator run in the order in which they are queued.
  static void queue(const std::shared_ptr<CommJob>& job);

 private:
  // What is kept from going away while the job runs.
  class Holds;

  void run();
  // Waits, unless the communicator is aborted meanwhile: then false.
  bool wait(const CompletionPtr& completion) const;
  void hang() const;
  void delay() const;
  void exchange();

  CommPtr comm_;
  std::vector<Operation> operations_;
  GroupFate fate_;
  CompletionPtr before_;  // of the last job of the communicator
  CompletionPtr done_;
  std::vector<CompletionPtr> arrivals_;  // of the other streams
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_COMM_JOB_H_

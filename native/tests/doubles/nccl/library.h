// What this copy of the library is and has.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_LIBRARY_H_
#define RESHARD_TESTS_DOUBLES_NCCL_LIBRARY_H_

#include <atomic>
#include <mutex>
#include <string>

#include "nccl/comm.h"
#include "shared/handle_table.h"
#include "shared/violations.h"

namespace doubles {

class Library {
 public:
  Library();

  const int version;
  const bool allows_shared_devices;  // NCCL_MULTI_RANK_GPU_ENABLE, as NCCL has since 2.30
  const bool reports_death;          // NCCL_DOUBLE_REPORTS_DEATH
  // Guards communicators. No job of a stream waits for it, and it is not held while one is awaited.
  std::mutex mutex;
  HandleTable<Comm> comms{8};
  Violations violations;
  std::atomic<long long> bytes_sent{0};

  void set_last_error(const std::string& text);
  std::string last_error() const;
  // Records a violation and returns the code.
  int refuse(int code, const std::string& text);

 private:
  mutable std::mutex text_mutex_;  // guards last_error_
  std::string last_error_;
};

// Never destroyed: jobs use it until the process ends.
Library& library();

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_LIBRARY_H_

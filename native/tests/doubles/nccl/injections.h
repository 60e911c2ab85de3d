// What a test made happen, and what was counted.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_INJECTIONS_H_
#define RESHARD_TESTS_DOUBLES_NCCL_INJECTIONS_H_

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace doubles {

// What happens in one group.
struct GroupFate {
  int async_error = 0;
  bool hangs = false;
  bool kills = false;
  int delay_us = 0;
};

class Injections {
 public:
  Injections();  // reads NCCL_DOUBLE_INJECT
  bool set(const std::string& name, long value);
  void clear();

  // Counts a group that is issued.
  GroupFate next_group(std::size_t num_operations);
  bool hangs_init() const;
  bool hangs_split() const;
  bool hangs_finalize() const;
  // How long the calls take that end a communicator.
  std::chrono::milliseconds abort_time() const;
  std::chrono::milliseconds destroy_time() const;
  int init_failure() const;
  // How often a communicator is asked before the group is launched: a number in [0, polls].
  int draw_polls();

  void count_destroyed();
  long long num_destroyed() const;
  long long num_groups() const;
  long long num_operations() const;
  long long largest_group() const;
  std::vector<long> group_sizes() const;

 private:
  void set_defaults();

  mutable std::mutex mutex_;  // guards all below
  long async_error_group_;
  long async_error_code_;
  long hang_group_;
  long kill_group_;
  long hang_init_;
  long hang_split_;
  long hang_finalize_;
  long abort_ms_;
  long destroy_ms_;
  long fail_init_;
  long delay_us_;
  long polls_;
  unsigned random_ = 1;
  long long num_operations_ = 0;
  long long num_destroyed_ = 0;
  std::vector<long> group_sizes_;
};

Injections& injections();

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_INJECTIONS_H_

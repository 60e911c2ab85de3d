// Where the ranks of one communicator meet: memory that their processes share.
//
// It is a file without a name, which others open through the process that made it. Nothing is left
// of it when the last process that has it ends, however it ends; and nobody can come any more when
// its maker has gone, as with NCCL.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_MEETING_H_
#define RESHARD_TESTS_DOUBLES_NCCL_MEETING_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "nccl/ring.h"

namespace doubles {

struct MeetingId {
  std::uint64_t cookie = 0;  // also the key of the memory in this process
  std::int32_t pid = 0;
  std::int32_t fd = -1;
};

// Written by one rank, read by all.
struct alignas(256) Member {
  std::atomic<std::uint32_t> is_here;
  std::atomic<std::uint32_t> has_left;  // by a destroy or an abort: its process may end
  std::int32_t pid;
  std::uint64_t pid_start;  // tells a process from a later one of the same number
  std::int32_t version;
  std::int32_t physical_device;
  std::atomic<std::uint32_t> doorbell;
  // The split that this rank takes part in, counted from 1.
  std::atomic<std::uint64_t> split_posted;
  std::int32_t color;
  std::int32_t key;
  std::atomic<std::uint64_t> split_child_made;
  MeetingId child;
  std::atomic<std::uint64_t> split_done;
};

struct alignas(4096) MeetingPage {
  std::uint64_t cookie;
  std::atomic<std::int32_t> num_ranks;  // 0 until the first one comes
  std::atomic<std::int32_t> num_here;
  std::atomic<std::int32_t> is_abandoned;  // somebody left before all had come
};

class Meeting {
 public:
  // A new one, for others to open.
  static bool create(MeetingId* id);
  // Null while it cannot be reached, which may stay so; `wrong_size` where it is one of another
  // number of ranks.
  static std::shared_ptr<Meeting> open(const MeetingId& id, int num_ranks, bool* wrong_size);
  // Files that are kept open for others, and mappings.
  static int num_open();
  // Closes the files of meetings where all are present, or which were abandoned.
  static void sweep();

  Meeting(void* memory, std::size_t nbytes, int num_ranks)
      : memory_(static_cast<char*>(memory)), nbytes_(nbytes), num_ranks_(num_ranks) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int num_ranks() const { return num_ranks_; }
  MeetingPage& page() { return *reinterpret_cast<MeetingPage*>(memory_); }
  Member& member(int rank);
  Ring& ring(int from, int to);
  bool all_are_here() { return page().num_here.load() == num_ranks_; }

  // Wakes a rank that waits.
  void wake(int rank);
  // Waits until it is woken after `seen` was read from its doorbell, or for some milliseconds.
  void wait(int rank, std::uint32_t seen);

 private:
  char* memory_;
  std::size_t nbytes_;
  int num_ranks_;
};

// When the process started, in the kernel's ticks; 0 where it has ended, or only waits to be
// reaped.
std::uint64_t start_of_process(int pid);

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_MEETING_H_

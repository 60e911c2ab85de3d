#include "nccl/meeting.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace doubles {
namespace {

struct OpenMeetings {
  std::mutex mutex;                                        // guards the rest
  std::vector<int> made;                                   // files that are kept for others
  std::map<std::uint64_t, std::weak_ptr<Meeting>> mapped;  // one mapping for all ranks in here
};

OpenMeetings& open_meetings() {
  static OpenMeetings& one = *new OpenMeetings();
  return one;
}

std::size_t size_of(int num_ranks) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  return sizeof(MeetingPage) + ranks * sizeof(Member) + ranks * ranks * sizeof(Ring);
}

bool is_of_no_more_use(int fd) {
  alignas(MeetingPage) char bytes[sizeof(MeetingPage)];
  if (pread(fd, bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) return true;
  const auto* page = reinterpret_cast<const MeetingPage*>(bytes);
  const int num_ranks = page->num_ranks.load();
  return page->is_abandoned.load() != 0 || (num_ranks > 0 && page->num_here.load() >= num_ranks);
}

std::shared_ptr<Meeting> map_file(int fd, const MeetingId& id, int num_ranks, bool* wrong_size) {
  const std::size_t nbytes = size_of(num_ranks);
  struct stat found{};
  if (fstat(fd, &found) != 0) return nullptr;
  if (static_cast<std::size_t>(found.st_size) < nbytes &&
      ftruncate(fd, static_cast<off_t>(nbytes)) != 0) {
    return nullptr;
  }
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto meeting = std::make_shared<Meeting>(memory, nbytes, num_ranks);
  MeetingPage& page = meeting->page();
  if (page.cookie != id.cookie) return nullptr;  // the number of the file is another file's now
  int expected = 0;
  *wrong_size =
      !page.num_ranks.compare_exchange_strong(expected, num_ranks) && expected != num_ranks;
  return *wrong_size ? nullptr : meeting;
}

}  // namespace

bool Meeting::create(MeetingId* id) {
  sweep();
  const int fd = memfd_create("nccl_double", MFD_CLOEXEC);
  if (fd < 0) return false;
  id->pid = getpid();
  id->fd = fd;
  const bool written = ftruncate(fd, sizeof(MeetingPage)) == 0 &&
                       getrandom(&id->cookie, sizeof(id->cookie), 0) == sizeof(id->cookie) &&
                       pwrite(fd, &id->cookie, sizeof(id->cookie), 0) == sizeof(id->cookie);
  if (!written) {
    close(fd);
    return false;
  }
  const std::lock_guard<std::mutex> lock(open_meetings().mutex);
  open_meetings().made.push_back(fd);
  return true;
}

std::shared_ptr<Meeting> Meeting::open(const MeetingId& id, int num_ranks, bool* wrong_size) {
  *wrong_size = false;
  OpenMeetings& all = open_meetings();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::weak_ptr<Meeting>& known = all.mapped[id.cookie];
  if (std::shared_ptr<Meeting> meeting = known.lock()) {
    *wrong_size = meeting->num_ranks() != num_ranks;
    return *wrong_size ? nullptr : meeting;
  }
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  std::shared_ptr<Meeting> meeting;
  if (fd >= 0) {
    meeting = map_file(fd, id, num_ranks, wrong_size);
    close(fd);
  }
  known = meeting;
  if (meeting == nullptr) all.mapped.erase(id.cookie);
  return meeting;
}

int Meeting::num_open() {
  OpenMeetings& all = open_meetings();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto count = all.made.size();
  for (const auto& [cookie, meeting] : all.mapped) count += !meeting.expired();
  return static_cast<int>(count);
}

void Meeting::sweep() {
  OpenMeetings& all = open_meetings();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto close_unused = [](int fd) {
    const bool unused = is_of_no_more_use(fd);
    if (unused) close(fd);
    return unused;
  };
  all.made.erase(std::remove_if(all.made.begin(), all.made.end(), close_unused), all.made.end());
  for (auto at = all.mapped.begin(); at != all.mapped.end();) {
    at = at->second.expired() ? all.mapped.erase(at) : std::next(at);
  }
}

Meeting::~Meeting() { munmap(memory_, nbytes_); }

Member& Meeting::member(int rank) {
  return reinterpret_cast<Member*>(memory_ + sizeof(MeetingPage))[rank];
}

Ring& Meeting::ring(int from, int to) {
  const auto ranks = static_cast<std::size_t>(num_ranks_);
  char* rings = memory_ + sizeof(MeetingPage) + ranks * sizeof(Member);
  return reinterpret_cast<Ring*>(
      rings)[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)];
}

void Meeting::wake(int rank) {
  std::atomic<std::uint32_t>& doorbell = member(rank).doorbell;
  doorbell.fetch_add(1);
  syscall(SYS_futex, &doorbell, FUTEX_WAKE, 64, nullptr, nullptr, 0);
}

void Meeting::wait(int rank, std::uint32_t seen) {
  const timespec limit{0, 2'000'000};
  syscall(SYS_futex, &member(rank).doorbell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

std::uint64_t start_of_process(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return 0;
  char text[1024] = {};
  const std::size_t size = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  // The name, in parentheses, may contain anything; after it come the state and 18 numbers.
  const std::string line(text, size);
  const std::size_t end = line.rfind(')');
  if (end == std::string::npos || end + 2 >= line.size()) return 0;
  if (line[end + 2] == 'Z' || line[end + 2] == 'X') return 0;
  std::size_t at = end + 2;
  for (int field = 0; field < 19 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::stoull(line.substr(at + 1));
}

}  // namespace doubles

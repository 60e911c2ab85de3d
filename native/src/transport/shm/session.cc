#include "transport/shm/session.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "status.h"

namespace reshard {
namespace {

constexpr std::int64_t kMinSlotBytes = 16;
constexpr std::int64_t kMaxSlotBytes = std::int64_t{1} << 30;
constexpr int kMaxProcesses = 65536;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(StatusCode::kInvalidArgument, "shm communicator: " + message);
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

void check_peers(const char* name, const std::vector<int>& peers, const ShmConfig& config) {
  std::vector<int> sorted = peers;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const int peer = sorted[i];
    if (peer < 0 || peer >= config.num_processes) {
      refuse(text(name, " names process ", peer, " but there are ", config.num_processes, "."));
    }
    if (peer == config.process) {
      refuse(text(name, " names this process, ", peer, "; its own ranks need no communicator."));
    }
    if (i > 0 && sorted[i - 1] == peer) refuse(text(name, " names process ", peer, " twice."));
  }
}

// The address of a process; returns its length.
socklen_t fill_address(const ShmConfig& config, int process, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  // A leading NUL selects the abstract namespace.
  const std::string name = text("reshard-", config.session_key, "-", process);
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

FileDescriptor make_socket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) throw_system("making a UNIX socket", errno);
  return fd;
}

}  // namespace

void check_config(const ShmConfig& config) {
  const std::string& key = config.session_key;
  if (key.empty() || key.size() > kMaxKeyBytes ||
      !std::all_of(key.begin(), key.end(), is_key_character)) {
    refuse(text("session key '", key, "' is not 1 to ", kMaxKeyBytes,
                " characters of A-Z, a-z, 0-9, '.', '_', '-'."));
  }
  if (config.token.size() > kMaxTokenBytes) {
    refuse(text("the token has ", config.token.size(), " bytes, more than ", kMaxTokenBytes, "."));
  }
  if (config.num_processes < 1 || config.num_processes > kMaxProcesses) {
    refuse(text("num_processes ", config.num_processes, " is not in 1..", kMaxProcesses, "."));
  }
  if (config.process < 0 || config.process >= config.num_processes) {
    refuse(text("process ", config.process, " is not in 0..", config.num_processes - 1, "."));
  }
  for (std::size_t rank = 0; rank < config.rank_to_process.size(); ++rank) {
    const int process = config.rank_to_process[rank];
    if (process < 0 || process >= config.num_processes) {
      refuse(text("rank ", rank, " is on process ", process, " but there are ",
                  config.num_processes, "."));
    }
  }
  check_peers("send_peers", config.send_peers, config);
  check_peers("receive_peers", config.receive_peers, config);
  if (config.geometry.slot_bytes < kMinSlotBytes || config.geometry.slot_bytes > kMaxSlotBytes) {
    refuse(text("slot_bytes ", config.geometry.slot_bytes, " is not in ", kMinSlotBytes, "..",
                kMaxSlotBytes, "."));
  }
  if (config.geometry.num_slots < 1 || config.geometry.num_slots > kMaxSlots) {
    refuse(text("slots_per_ring ", config.geometry.num_slots, " is not in 1..", kMaxSlots, "."));
  }
}

std::string describe_process(const ShmConfig& config, int process) {
  std::string ranks;
  int count = 0;
  for (std::size_t rank = 0; rank < config.rank_to_process.size(); ++rank) {
    if (config.rank_to_process[rank] != process) continue;
    ranks += text(count == 0 ? "" : ", ", rank);
    ++count;
  }
  if (count == 0) return text("process ", process);
  return text("process ", process, count == 1 ? " (rank " : " (ranks ", ranks, ")");
}

std::int64_t first_rank_of(const ShmConfig& config, int process) {
  const auto& processes = config.rank_to_process;
  const auto place = std::find(processes.begin(), processes.end(), process);
  return place == processes.end() ? kNoRank : place - processes.begin();
}

FileDescriptor listen_as(const ShmConfig& config, int process) {
  FileDescriptor fd = make_socket();
  sockaddr_un address;
  const socklen_t length = fill_address(config, process, &address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(StatusCode::kInvalidState,
                  text("shm communicator: process ", process, " of session '", config.session_key,
                       "' exists already on this machine. Use a new session key for every "
                       "communicator."));
    }
    throw_system(text("binding the socket of process ", process), errno);
  }
  if (listen(fd.get(), SOMAXCONN) != 0) throw_system("listening on a UNIX socket", errno);
  return fd;
}

FileDescriptor try_dial(const ShmConfig& config, int process) {
  FileDescriptor fd = make_socket();
  sockaddr_un address;
  const socklen_t length = fill_address(config, process, &address);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  // Nobody listens yet, or its queue is full: try again later.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return FileDescriptor();
  throw_system(text("connecting to ", describe_process(config, process)), errno);
}

FileDescriptor try_accept(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return FileDescriptor(fd);
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return FileDescriptor();
  throw_system("accepting a connection", errno);
}

bool is_same_user(int socket, std::int32_t* pid) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw_system("reading the credentials of a peer", errno);
  }
  *pid = credentials.pid;
  return credentials.uid == geteuid() || credentials.uid == 0;
}

}  // namespace reshard

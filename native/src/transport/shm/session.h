// Who takes part in a shm communicator, and the sockets by which the processes find each other.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_SESSION_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "transport/shm/ring.h"
#include "transport/shm/shared_memory.h"

namespace reshard {

// What the caller of create says; the same on all processes except `process` and the peers.
struct ShmConfig {
  std::string session_key;  // 1..64 characters of [A-Za-z0-9._-]
  std::string token;        // at most 64 bytes; empty: none
  int process = 0;
  int num_processes = 0;
  std::vector<int> rank_to_process;
  std::vector<int> send_peers;
  std::vector<int> receive_peers;
  RingGeometry geometry{};
};

constexpr std::size_t kMaxKeyBytes = 64;
constexpr std::size_t kMaxTokenBytes = 64;

// Throws kInvalidArgument naming the field and the value.
void check_config(const ShmConfig& config);

// "process 3 (ranks 4, 5)"
std::string describe_process(const ShmConfig& config, int process);

// The lowest rank of a process, kNoRank when it has none.
std::int64_t first_rank_of(const ShmConfig& config, int process);

// All names live in the abstract namespace of UNIX sockets: they vanish with their process.
// Throws kInvalidState when a live process already has the name.
FileDescriptor listen_as(const ShmConfig& config, int process);

// A connected or connecting socket, or a closed one when nobody listens there now.
FileDescriptor try_dial(const ShmConfig& config, int process);

// A pending connection of `listener`, or a closed descriptor when there is none.
FileDescriptor try_accept(int listener);

// Whether the process at the other end belongs to the same user (or to root). Fills its pid.
bool is_same_user(int socket, std::int32_t* pid);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_SESSION_H_

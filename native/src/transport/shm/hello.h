// The one message that two processes exchange when they meet: who they are, what they agree on, and
// the descriptor of their shared memory.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_HELLO_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_HELLO_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/shm/session.h"
#include "transport/shm/shared_memory.h"

namespace reshard {

// Changes whenever the layout of the shared memory or of this message changes.
constexpr std::uint32_t kShmProtocolVersion = 1;
constexpr std::size_t kRefusalTextBytes = 512;

// A refusal carries only `refusal`, which is empty in a hello.
struct Hello {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t process;
  std::int32_t num_processes;
  std::int32_t num_slots;
  std::int64_t slot_bytes;
  std::uint64_t segment_bytes;
  std::uint64_t ring_offset;  // of the ring to the addressee in the segment; 0: sends nothing to it
  std::uint32_t receives;     // 1 when the addressee sends something to this process
  std::uint32_t token_bytes;
  char token[kMaxTokenBytes];
  char refusal[kRefusalTextBytes];
};

struct ReceivedHello {
  Hello hello;
  FileDescriptor memory;  // closed in a refusal
};

enum class Arrival { kNothing, kMessage, kEndOfFile };

// A hello of this process, without segment fields.
Hello make_hello(const ShmConfig& config);

// Sends a hello with the descriptor `memory`, or a refusal (memory < 0). Returns false when the
// other end is gone.
bool send_hello(int socket, const Hello& hello, int memory);

// Sends a refusal with a reason. A peer that is gone does not need it any more.
void send_refusal(int socket, const std::string& reason);

Arrival receive_hello(int socket, ReceivedHello* received);

// Why a hello is not acceptable from anybody ("wrong token"), or empty. Such a connection is
// refused and ignored: it is not from a member of this session.
std::string intruder_reason(const ShmConfig& config, const Hello& hello);

// Throws kProtocol naming both values when a member is set up differently from this process.
void check_hello(const ShmConfig& config, const Hello& hello);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_HELLO_H_

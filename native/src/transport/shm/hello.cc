#include "transport/shm/hello.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "status.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMagic = 0x3164726168736572;  // "reshard1"

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Equal in constant time, so that a wrong token teaches nothing.
bool tokens_match(const std::string& own, const Hello& hello) {
  unsigned difference = hello.token_bytes == own.size() ? 0U : 1U;
  for (std::size_t i = 0; i < kMaxTokenBytes; ++i) {
    const unsigned char expected = i < own.size() ? static_cast<unsigned char>(own[i]) : 0;
    difference |= static_cast<unsigned>(expected ^ static_cast<unsigned char>(hello.token[i]));
  }
  return difference == 0;
}

void require_equal(const char* what, std::int64_t own, std::int64_t theirs, int process) {
  if (own == theirs) return;
  throw Error(StatusCode::kProtocol,
              text("shm communicator: ", what, " is ", own, " here but ", theirs, " in process ",
                   process, ". All processes must be set up alike."));
}

}  // namespace

Hello make_hello(const ShmConfig& config) {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kShmProtocolVersion;
  hello.process = config.process;
  hello.num_processes = config.num_processes;
  hello.num_slots = config.geometry.num_slots;
  hello.slot_bytes = config.geometry.slot_bytes;
  hello.token_bytes = static_cast<std::uint32_t>(config.token.size());
  std::copy(config.token.begin(), config.token.end(), hello.token);
  return hello;
}

bool send_hello(int socket, const Hello& hello, int memory) {
  Hello copy = hello;
  iovec part{&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (memory >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return true;
  if (errno == EPIPE || errno == ECONNRESET) return false;
  throw_system("sending a hello", errno);
}

void send_refusal(int socket, const std::string& reason) {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kShmProtocolVersion;
  reason.copy(hello.refusal, kRefusalTextBytes - 1);
  send_hello(socket, hello, -1);
}

Arrival receive_hello(int socket, ReceivedHello* received) {
  iovec part{&received->hello, sizeof(received->hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t nbytes = 0;
  do {
    nbytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (nbytes < 0 && errno == EINTR);
  if (nbytes < 0) {
    if (errno == EAGAIN) return Arrival::kNothing;
    if (errno == ECONNRESET) return Arrival::kEndOfFile;
    throw_system("receiving a hello", errno);
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {  // of several descriptors the last one stays open
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received->memory = FileDescriptor(fd);
    }
  }
  if (nbytes == 0) return Arrival::kEndOfFile;
  if (nbytes != static_cast<ssize_t>(sizeof(Hello)) || (message.msg_flags & MSG_TRUNC) != 0) {
    received->hello.magic = 0;  // not a hello; intruder_reason says so
  }
  received->hello.refusal[kRefusalTextBytes - 1] = '\0';
  return Arrival::kMessage;
}

std::string intruder_reason(const ShmConfig& config, const Hello& hello) {
  if (hello.magic != kMagic) return "it does not speak this protocol";
  if (hello.version != kShmProtocolVersion) {
    return text("protocol version ", hello.version, ", here ", kShmProtocolVersion,
                "; install the same reshard on both ends");
  }
  if (!tokens_match(config.token, hello)) return "wrong token";
  return "";
}

void check_hello(const ShmConfig& config, const Hello& hello) {
  const int process = hello.process;
  require_equal("num_processes", config.num_processes, hello.num_processes, process);
  require_equal("slots_per_ring", config.geometry.num_slots, hello.num_slots, process);
  require_equal("slot_bytes", config.geometry.slot_bytes, hello.slot_bytes, process);
  require_equal(text("'process ", config.process, " sends to process ", process, "'").c_str(),
                contains(config.send_peers, process) ? 1 : 0, hello.receives, process);
  require_equal(text("'process ", process, " sends to process ", config.process, "'").c_str(),
                contains(config.receive_peers, process) ? 1 : 0, hello.ring_offset != 0 ? 1 : 0,
                process);
  const std::size_t ring_bytes = hello.ring_offset == 0 ? 0 : config.geometry.ring_bytes();
  if (hello.segment_bytes < kPageBytes || hello.ring_offset % kPageBytes != 0 ||
      ring_bytes > hello.segment_bytes || hello.ring_offset > hello.segment_bytes - ring_bytes) {
    throw Error(
        StatusCode::kProtocol,
        text("shm communicator: process ", process, " announces a ring of ", ring_bytes,
             " bytes at ", hello.ring_offset, " of a segment of ", hello.segment_bytes, " bytes."));
  }
}

}  // namespace reshard

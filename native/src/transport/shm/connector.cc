#include "transport/shm/connector.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "clock.h"
#include "status.h"
#include "transport/shm/control_page.h"

namespace reshard {
namespace {

// How often a peer that does not listen yet is dialled again: nothing announces a new name.
constexpr std::int64_t kDialIntervalNs = 2'000'000;
constexpr std::int64_t kNsPerMs = 1'000'000;
// Strangers that dial and say nothing; more than these are refused.
constexpr std::size_t kMaxPending = 256;

std::set<int> peers_of(const ShmConfig& config) {
  std::set<int> peers(config.send_peers.begin(), config.send_peers.end());
  peers.insert(config.receive_peers.begin(), config.receive_peers.end());
  return peers;
}

}  // namespace

Connector::Connector(const ShmConfig& config, const OwnSegment& own)
    : config_(config), own_(own), listener_(listen_as(config, config.process)) {
  for (const int peer : peers_of(config)) {
    if (peer > config.process) {
      outgoing_.push_back({peer, FileDescriptor(), 0});
    } else {
      awaited_.push_back(peer);
    }
  }
}

bool Connector::is_complete() const { return outgoing_.empty() && awaited_.empty(); }

bool Connector::advance(std::int64_t slice_ns) {
  const std::int64_t end = monotonic_ns() + slice_ns;
  for (;;) {
    dial_all();
    accept_all();
    receive_all();
    if (is_complete()) {
      listener_.reset();
      incoming_.clear();
      return true;
    }
    const std::int64_t left = end - monotonic_ns();
    if (left <= 0) return false;
    wait(left);
  }
}

std::vector<ConnectedPeer> Connector::take_connected() { return std::move(connected_); }

void Connector::dial_all() {
  for (Outgoing& outgoing : outgoing_) {
    if (outgoing.socket.is_open()) continue;
    FileDescriptor socket = try_dial(config_, outgoing.process);
    if (!socket.is_open()) continue;
    if (!is_same_user(socket.get(), &outgoing.pid)) {
      throw Error(StatusCode::kProtocol,
                  text("shm communicator: ", describe_process(config_, outgoing.process), " (pid ",
                       outgoing.pid, ") belongs to another user."));
    }
    if (send_hello(socket.get(), hello_for(outgoing.process), own_.fd)) {
      outgoing.socket = std::move(socket);
    }
  }
}

void Connector::accept_all() {
  for (;;) {
    FileDescriptor socket = try_accept(listener_.get());
    if (!socket.is_open()) return;
    std::int32_t pid = 0;
    if (!is_same_user(socket.get(), &pid)) {
      refuse(socket.get(), text("pid ", pid, " belongs to another user"));
    } else if (incoming_.size() >= kMaxPending) {
      refuse(socket.get(), "too many connections wait for a hello");
    } else {
      incoming_.push_back({std::move(socket), pid});
    }
  }
}

void Connector::receive_all() {
  const auto outgoing_done = [this](Outgoing& outgoing) { return receive_outgoing(outgoing); };
  const auto incoming_done = [this](Incoming& incoming) { return receive_incoming(incoming); };
  outgoing_.erase(std::remove_if(outgoing_.begin(), outgoing_.end(), outgoing_done),
                  outgoing_.end());
  incoming_.erase(std::remove_if(incoming_.begin(), incoming_.end(), incoming_done),
                  incoming_.end());
}

// Returns whether the peer is connected.
bool Connector::receive_outgoing(Outgoing& outgoing) {
  if (!outgoing.socket.is_open()) return false;
  ReceivedHello received{};
  const Arrival arrival = receive_hello(outgoing.socket.get(), &received);
  if (arrival == Arrival::kNothing) return false;
  const std::string who = describe_process(config_, outgoing.process);
  if (arrival == Arrival::kEndOfFile) {
    throw Error(StatusCode::kPeerLost, text("shm communicator: ", who, " (pid ", outgoing.pid,
                                            ") died or closed while connecting."));
  }
  std::string reason = received.hello.refusal;
  if (reason.empty()) reason = intruder_reason(config_, received.hello);
  if (reason.empty() && received.hello.process != outgoing.process) {
    reason = text("it says that it is process ", received.hello.process);
  }
  if (!reason.empty()) {
    throw Error(StatusCode::kProtocol, text("shm communicator: ", who, " (pid ", outgoing.pid,
                                            ") and this process cannot connect: ", reason, "."));
  }
  check_hello(config_, received.hello);
  finish_pair(received.hello, received.memory, outgoing.pid);
  return true;
}

// Returns whether the connection is over, by a complete pair or otherwise.
bool Connector::receive_incoming(Incoming& incoming) {
  ReceivedHello received{};
  const Arrival arrival = receive_hello(incoming.socket.get(), &received);
  if (arrival == Arrival::kNothing) return false;
  if (arrival == Arrival::kEndOfFile) return true;
  const std::string reason = intruder_reason(config_, received.hello);
  if (!reason.empty()) {
    refuse(incoming.socket.get(), reason);
    return true;
  }
  const int process = received.hello.process;
  const auto place = std::find(awaited_.begin(), awaited_.end(), process);
  try {
    if (place == awaited_.end()) {
      throw Error(StatusCode::kProtocol,
                  text("shm communicator: process ", process, " (pid ", incoming.pid,
                       ") dialled process ", config_.process,
                       ", which does not expect it (again). All processes must be set up alike."));
    }
    check_hello(config_, received.hello);
    finish_pair(received.hello, received.memory, incoming.pid);
  } catch (const Error& error) {
    send_refusal(incoming.socket.get(), error.message());
    throw;
  }
  awaited_.erase(place);
  // A peer that is gone by now shows in its life sign, not here.
  send_hello(incoming.socket.get(), hello_for(process), own_.fd);
  return true;
}

void Connector::refuse(int socket, const std::string& reason) {
  ++num_refused_;
  last_refusal_ = reason;
  send_refusal(socket, reason);
}

void Connector::finish_pair(const Hello& hello, const FileDescriptor& memory, std::int32_t pid) {
  if (!memory.is_open()) {
    throw Error(StatusCode::kProtocol,
                text("shm communicator: process ", hello.process, " sent no shared memory."));
  }
  check_shared_memory(memory.get(), hello.segment_bytes);
  ConnectedPeer peer;
  peer.process = hello.process;
  peer.pid = pid;
  peer.control = Mapping(memory.get(), 0, kPageBytes);
  if (hello.ring_offset != 0) {
    peer.ring = Mapping(memory.get(), hello.ring_offset, config_.geometry.ring_bytes());
  }
  connected_.push_back(std::move(peer));
}

Hello Connector::hello_for(int process) const {
  Hello hello = make_hello(config_);
  hello.segment_bytes = own_.nbytes;
  const auto ring = own_.ring_offsets.find(process);
  if (ring != own_.ring_offsets.end()) hello.ring_offset = ring->second;
  const auto& receives = config_.receive_peers;
  hello.receives = std::find(receives.begin(), receives.end(), process) != receives.end() ? 1 : 0;
  return hello;
}

// Until a socket has something or it is time to dial again.
void Connector::wait(std::int64_t timeout_ns) {
  std::vector<pollfd> sockets;
  bool dials = false;
  sockets.push_back({listener_.get(), POLLIN, 0});
  for (const Incoming& incoming : incoming_) sockets.push_back({incoming.socket.get(), POLLIN, 0});
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.socket.is_open()) sockets.push_back({outgoing.socket.get(), POLLIN, 0});
    dials |= !outgoing.socket.is_open();
  }
  const std::int64_t limit = dials ? std::min(timeout_ns, kDialIntervalNs) : timeout_ns;
  const auto milliseconds =
      static_cast<int>(std::min<std::int64_t>((limit + kNsPerMs - 1) / kNsPerMs, 1000));
  if (poll(sockets.data(), sockets.size(), milliseconds) < 0 && errno != EINTR) {
    throw_system("polling sockets", errno);
  }
}

std::string Connector::describe_missing() const {
  std::string message;
  const auto add = [&message](const std::string& part) {
    message += (message.empty() ? "" : "; ") + part;
  };
  for (const int process : awaited_) {
    add(text(describe_process(config_, process), " did not dial"));
  }
  for (const Outgoing& outgoing : outgoing_) {
    const std::string who = describe_process(config_, outgoing.process);
    add(outgoing.socket.is_open() ? text(who, " (pid ", outgoing.pid, ") does not answer")
                                  : text(who, " is not there: nobody has its name in session '",
                                         config_.session_key, "'"));
  }
  if (num_refused_ > 0) {
    add(text(num_refused_, " connections were refused, the last one because ", last_refusal_));
  }
  return message;
}

}  // namespace reshard

#include "transport/shm/shm_transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "clock.h"
#include "status.h"
#include "transport/shm/doorbell.h"

namespace reshard {
namespace {

// Spinning before sleeping saves two context switches, but only on a core that nobody else wants.
constexpr std::int64_t kSpinNs = 20'000;

// Cores that this process may use; 1 when the system does not say.
int num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

}  // namespace

ShmTransport::ShmTransport(ShmConfig config) : config_(std::move(config)) {
  check_config(config_);
  own_.nbytes = kPageBytes;
  for (const int peer : config_.send_peers) {
    own_.ring_offsets[peer] = own_.nbytes;
    own_.nbytes += config_.geometry.ring_bytes();
  }
  memory_ = create_shared_memory(own_.nbytes);
  own_.fd = memory_.get();
  segment_ = Mapping(own_.fd, 0, own_.nbytes);
  new (segment_.data()) ControlPage{};
  life_ = std::make_unique<LifeSign>(control());
  connector_ = std::make_unique<Connector>(config_, own_);
  const int cores = num_cores();
  if (cores > config_.num_processes) spin_ns_ = kSpinNs;
  if (cores < config_.num_processes) {
    wake_threshold_ = std::max(config_.geometry.num_slots / 2, 1);
  }
}

ShmTransport::~ShmTransport() { close(); }

bool ShmTransport::connect(std::int64_t timeout_ns, std::int64_t slice_ns) {
  check_not_aborted();
  if (is_connected_.load()) return true;
  const std::int64_t start = monotonic_ns();
  if (connect_start_ns_ == 0) connect_start_ns_ = start;
  const std::int64_t left = timeout_ns - (start - connect_start_ns_);
  try {
    if (connector_->advance(std::min(slice_ns, std::max<std::int64_t>(left, 0)))) {
      make_channels();
      return true;
    }
    if (monotonic_ns() - connect_start_ns_ < timeout_ns) return false;
    throw Error(
        StatusCode::kTimeout,
        text("shm communicator: process ", config_.process, " is not connected after ",
             static_cast<double>(timeout_ns) / 1e9, " s: ", connector_->describe_missing(), "."));
  } catch (const Error& error) {
    make_channels();  // peers that are connected learn of the failure
    abort(error);
    throw;
  }
}

// Takes over what the connector has paired up; the descriptors are not needed any more.
void ShmTransport::make_channels() {
  peer_by_process_.assign(static_cast<std::size_t>(config_.num_processes), nullptr);
  for (ConnectedPeer& connected : connector_->take_connected()) {
    auto peer = std::make_unique<Peer>();
    peer->connected = std::move(connected);
    const int process = peer->connected.process;
    const auto ring = own_.ring_offsets.find(process);
    if (ring != own_.ring_offsets.end()) {
      senders_.push_back(std::make_unique<RingSender>(segment_.data() + ring->second,
                                                      config_.geometry, process, *this));
    }
    if (peer->connected.ring.size() > 0) {
      receivers_.push_back(std::make_unique<RingReceiver>(peer->connected.ring.data(),
                                                          config_.geometry, process, *this));
    }
    peer_by_process_[static_cast<std::size_t>(process)] = peer.get();
    peers_.push_back(std::move(peer));
  }
  connector_.reset();
  memory_.reset();
  is_connected_.store(true);
}

std::int64_t ShmTransport::staging_bytes() const {
  const auto num_rings = static_cast<std::int64_t>(senders_.size() + receivers_.size());
  return num_rings * config_.geometry.num_slots * config_.geometry.slot_bytes;
}

int ShmTransport::process_of(std::int64_t rank) const {
  if (rank < 0 || rank >= static_cast<std::int64_t>(config_.rank_to_process.size())) {
    throw Error(StatusCode::kInvalidArgument,
                text("shm communicator: rank ", rank, " is not in 0..",
                     static_cast<std::int64_t>(config_.rank_to_process.size()) - 1, "."));
  }
  return config_.rank_to_process[static_cast<std::size_t>(rank)];
}

std::vector<SendChannel*> ShmTransport::send_channels() {
  std::vector<SendChannel*> channels;
  for (const auto& sender : senders_) channels.push_back(sender.get());
  return channels;
}

std::vector<ReceiveChannel*> ShmTransport::receive_channels() {
  std::vector<ReceiveChannel*> channels;
  for (const auto& receiver : receivers_) channels.push_back(receiver.get());
  return channels;
}

ShmTransport::Peer& ShmTransport::peer_of(int process) {
  return *peer_by_process_[static_cast<std::size_t>(process)];
}

// With a core for every process a peer is woken at once, so that both ends overlap. With fewer
// cores, waking early only costs context switches: a peer is left asleep until a good part of its
// ring is ready for it, or until this process has nothing else to do (flush).
void ShmTransport::on_progress(int process, std::int32_t pending) {
  Peer& peer = peer_of(process);
  if (pending >= wake_threshold_) {
    ring(peer.control());
    peer.has_news = false;
  } else {
    peer.has_news = true;
  }
}

std::uint32_t ShmTransport::prepare_wait() {
  flush();
  return prepare_to_sleep(control());
}

void ShmTransport::wait(std::uint32_t ticket, std::int64_t timeout_ns) {
  sleep_until_rung(control(), ticket, timeout_ns, spin_ns_);
}

void ShmTransport::cancel_wait() { cancel_sleep(control()); }

void ShmTransport::flush() {
  for (const auto& peer : peers_) {
    if (std::exchange(peer->has_news, false)) ring(peer->control());
  }
}

PeerState ShmTransport::Peer::state() {
  if (control().abort.state.load() == kAbortPublished) return PeerState::kAborted;
  if (is_dead.load()) return PeerState::kDead;
  switch (probe_life(control())) {
    case Life::kAlive:
      return PeerState::kAlive;
    case Life::kClosed:
      return PeerState::kClosed;
    case Life::kDead:
      break;
  }
  is_dead.store(true);
  return PeerState::kDead;
}

PeerState ShmTransport::peer_state(int process) { return peer_of(process).state(); }

std::string ShmTransport::describe_peer(int process, PeerState state) {
  const char* what = "is alive";
  if (state == PeerState::kClosed) what = "closed its communicator";
  if (state == PeerState::kDead) what = "died";
  if (state == PeerState::kAborted) what = "aborted";
  return text(describe_process(config_, process), " (pid ", peer_of(process).connected.pid, ") ",
              what, ".");
}

void ShmTransport::check_not_aborted() {
  AbortNotice& own = control().abort;
  if (own.state.load() == kAbortPublished) throw_abort(own);
  if (control().is_closed.load() != 0) {
    throw Error(StatusCode::kInvalidState, "communicator: used after it was closed.");
  }
  if (!is_connected_.load()) return;
  for (const auto& peer : peers_) {
    const AbortNotice& notice = peer->control().abort;
    if (notice.state.load() != kAbortPublished) continue;
    if (claim_abort()) publish_abort(notice);
    throw_abort(notice);
  }
}

void ShmTransport::check_peers() {
  check_not_aborted();
  if (!is_connected_.load()) return;
  for (const auto& peer : peers_) {
    const PeerState state = peer->state();
    if (state != PeerState::kDead) continue;
    const int process = peer->connected.process;
    throw Error(StatusCode::kPeerLost, text("communicator: ", describe_peer(process, state)),
                first_rank_of(config_, config_.process), first_rank_of(config_, process));
  }
}

void ShmTransport::throw_abort(const AbortNotice& notice) {
  const std::string reason(notice.text, strnlen(notice.text, kAbortTextBytes));
  const std::string who = notice.process == config_.process
                              ? "this process"
                              : describe_process(config_, notice.process);
  throw Error(StatusCode::kAborted,
              text("communicator: aborted by ", who, ": ", reason,
                   " Open a new communicator on every process."),
              notice.rank, notice.peer);
}

bool ShmTransport::claim_abort() {
  std::uint32_t expected = kAbortNone;
  return control().abort.state.compare_exchange_strong(expected, kAbortClaimed);
}

void ShmTransport::publish_abort(const AbortNotice& notice) {
  AbortNotice& own = control().abort;
  own.status = notice.status;
  own.process = notice.process;
  own.rank = notice.rank;
  own.peer = notice.peer;
  std::memcpy(own.text, notice.text, kAbortTextBytes);
  own.state.store(kAbortPublished);
  ring_all();
}

void ShmTransport::abort(const Error& reason) {
  if (!claim_abort()) return;
  AbortNotice notice{};
  notice.status = static_cast<std::int32_t>(reason.code());
  notice.process = config_.process;
  notice.rank = reason.rank();
  notice.peer = reason.peer();
  reason.message().copy(notice.text, kAbortTextBytes - 1);
  publish_abort(notice);
}

void ShmTransport::ring_all() {
  ring(control());
  if (!is_connected_.load()) return;
  for (const auto& peer : peers_) ring(peer->control());
}

void ShmTransport::close() {
  if (control().is_closed.load() != 0) return;
  connector_.reset();
  memory_.reset();
  life_->stop();
  ring_all();
}

}  // namespace reshard

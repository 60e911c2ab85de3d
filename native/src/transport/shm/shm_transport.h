// Moves messages between processes of one machine through rings in shared memory.
//
// Each process has one segment: a control page and one ring per process that it sends to. Peers map
// the control page and their own ring of it.
//
// Threads: one drives the transport. abort and check_peers may come from any thread: they touch
// only atomics, the life signs and the abort notice, whose `state` lets one writer through.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/channel_transport.h"
#include "transport/shm/connector.h"
#include "transport/shm/life_sign.h"
#include "transport/shm/ring.h"
#include "transport/shm/session.h"
#include "transport/shm/shared_memory.h"

namespace reshard {

class ShmTransport final : public ChannelTransport, public RingObserver {
 public:
  // Makes the segment and starts to listen.
  explicit ShmTransport(ShmConfig config);
  ~ShmTransport() override;

  bool connect(std::int64_t timeout_ns, std::int64_t slice_ns) override;
  bool is_connected() const override { return is_connected_.load(); }
  std::int64_t slot_bytes() const override { return config_.geometry.slot_bytes; }
  std::int64_t staging_bytes() const override;
  int process_of(std::int64_t rank) const override;
  int own_process() const override { return config_.process; }
  std::vector<SendChannel*> send_channels() override;
  std::vector<ReceiveChannel*> receive_channels() override;
  std::uint32_t prepare_wait() override;
  void wait(std::uint32_t ticket, std::int64_t timeout_ns) override;
  void cancel_wait() override;
  void flush() override;
  PeerState peer_state(int process) override;
  std::string describe_peer(int process, PeerState state) override;
  void check_not_aborted() override;
  void check_peers() override;
  void abort(const Error& reason) override;
  void close() override;

  // From the rings.
  void on_progress(int process, std::int32_t pending) override;

 private:
  struct Peer {
    ConnectedPeer connected;
    bool has_news = false;  // something was sent or released since its doorbell was rung
    std::atomic<bool> is_dead{false};

    ControlPage& control() const {
      return *reinterpret_cast<ControlPage*>(connected.control.data());
    }
    PeerState state();
  };

  ControlPage& control() const { return *reinterpret_cast<ControlPage*>(segment_.data()); }
  Peer& peer_of(int process);
  void make_channels();
  bool claim_abort();
  void publish_abort(const AbortNotice& notice);
  [[noreturn]] void throw_abort(const AbortNotice& notice);
  void ring_all();

  const ShmConfig config_;
  OwnSegment own_;
  FileDescriptor memory_;  // of the segment; closed once connected
  Mapping segment_;
  std::unique_ptr<LifeSign> life_;
  std::unique_ptr<Connector> connector_;  // until connected
  std::int64_t connect_start_ns_ = 0;
  std::atomic<bool> is_connected_{false};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> peer_by_process_;
  std::vector<std::unique_ptr<RingSender>> senders_;
  std::vector<std::unique_ptr<RingReceiver>> receivers_;
  std::int64_t spin_ns_ = 0;
  std::int32_t wake_threshold_ = 1;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_

// The border between executors and whatever carries bytes between ranks.
//
// A Transport is this process's end of a connected group of processes. What it can carry is said by
// its two kinds: messages through channels (channel_transport.h) and groups of sends and receives
// between devices (group_transport.h).
//
// Threads: one thread drives a transport; only `abort` and `check_peers` may be called from others.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_TRANSPORT_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_TRANSPORT_H_

#include <atomic>
#include <cstdint>

#include "status.h"

namespace reshard {

class Transport {
 public:
  virtual ~Transport() = default;

  // Pairs up with all peers; goes on for at most `slice_ns` and returns whether it is complete.
  // Throws kTimeout naming the missing processes once `timeout_ns` from the first call are over.
  virtual bool connect(std::int64_t timeout_ns, std::int64_t slice_ns) = 0;

  virtual bool is_connected() const = 0;

  // Throws kAborted when this process or any peer has aborted, kInvalidState when closed.
  virtual void check_not_aborted() = 0;

  // Throws kPeerLost for a peer that is dead or closed; else as check_not_aborted. Any thread.
  virtual void check_peers() = 0;

  // Stops this process and tells all peers why; the first reason stays. Any thread.
  virtual void abort(const Error& reason) = 0;

  // Tells peers that nothing more comes and gives threads and names back; memory stays mapped until
  // destruction. Idempotent.
  virtual void close() = 0;

  // Different for every transport ever made in this process.
  std::uint64_t id() const { return id_; }

  // One run at a time: try_use returns false while another run uses the transport.
  bool try_use() { return !in_use_.exchange(true); }
  void end_use() { in_use_.store(false); }

 protected:
  Transport();

 private:
  const std::uint64_t id_;
  std::atomic<bool> in_use_{false};
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_TRANSPORT_H_

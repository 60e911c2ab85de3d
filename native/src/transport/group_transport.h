// Transports between GPUs that move whole groups of messages, queued on streams.
//
// One process may drive several ranks, each with a GPU of its own; the messages of all of them go
// into one group. Nothing here blocks except connect, and close for a bounded time.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_GROUP_TRANSPORT_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_GROUP_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu_device.h"
#include "round_schedule.h"
#include "transport/transport.h"

namespace reshard {

// A rank of this process.
struct GpuRank {
  std::int64_t rank;
  std::shared_ptr<const GpuDevice> device;
  std::string kernels;  // image of the compiled kernels for its architecture; empty: there is none
};

// A message of a local rank to or from `peer`, which may be local as well.
struct GroupMessage {
  std::size_t local;  // index of the local rank
  bool is_send;
  std::int64_t peer;
  CudaAddress address;
  std::int64_t nbytes;
  CudaStream stream;
};

class GroupTransport : public Transport {
 public:
  // The ranks of this process, ascending.
  virtual const std::vector<GpuRank>& local_ranks() const = 0;

  // Whether a rank is one of the communicator's.
  virtual bool has_rank(std::int64_t rank) const = 0;

  // Whether two ranks have a channel of their domain.
  virtual bool shares_domain(std::int64_t a, std::int64_t b) const = 0;

  // Queues all messages as one group. Nothing else may be posted, and the streams not be used,
  // until is_posted.
  virtual void post(Channel channel, const std::vector<GroupMessage>& messages) = 0;

  // Whether the last post is queued. Throws what broke the channel since.
  virtual bool is_posted(Channel channel) = 0;

  // Throws what broke any channel, and what `abort` was called with.
  virtual void check() = 0;

  // Ends whatever is under way on the GPUs, now; the transport is of no more use. By the thread
  // that drives it. What it returns says whether that is over: until then work may be queued on
  // streams that were given. Any thread may ask; it does not throw.
  virtual std::function<bool()> stop() = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_GROUP_TRANSPORT_H_

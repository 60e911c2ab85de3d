// Runs a program in chunks over host memory: a state machine that moves whatever can move and
// sleeps only when nothing can. An error in a run aborts the transport, so that every peer learns
// of it.
#ifndef RESHARD_NATIVE_SRC_CHUNK_EXECUTOR_H_
#define RESHARD_NATIVE_SRC_CHUNK_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chunk_copier.h"
#include "device.h"
#include "executor.h"
#include "lane.h"
#include "program.h"
#include "transport/channel_transport.h"
#include "transport/loopback/local_streams.h"

namespace reshard {

// A run needs no transport when all streams are local.
class ChunkExecutor final : public Executor {
 public:
  ChunkExecutor(const Program& program, Device& device);

 private:
  void start(Transport* transport, void* const* buffers) override;
  bool run_slice(std::int64_t slice_ns) override;
  void give_up(const Error& error) override;

  void bind(ChannelTransport* transport);
  bool move_for(std::int64_t slice_ns);
  bool step_remote();
  bool step_local();
  bool is_done();
  void check_peers();
  template <typename SomeLane>
  void check_lane(SomeLane& lane);
  void wait(std::int64_t now, std::int64_t until);
  [[noreturn]] void throw_timeout();
  void finish(std::int64_t now);

  Device& device_;
  ChunkCopier copier_;
  LocalStreams local_;
  std::vector<SendLane> send_lanes_;
  std::vector<ReceiveLane> receive_lanes_;
  std::uint64_t bound_transport_ = 0;  // id of the transport that the lanes belong to; 0: none

  ChannelTransport* transport_ = nullptr;  // of the current run; null: none
  std::vector<std::byte*> buffers_;
  std::size_t next_zero_region_ = 0;
  std::int64_t last_check_ns_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CHUNK_EXECUTOR_H_

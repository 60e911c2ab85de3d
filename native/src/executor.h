// Runs a program: a state machine that moves whatever can move and sleeps only when nothing can.
//
// States: idle -> (begin) running -> (progress) idle. An error in a run aborts the transport, so
// that every peer learns of it, and leaves the executor idle; the transport refuses later runs.
#ifndef RESHARD_NATIVE_SRC_EXECUTOR_H_
#define RESHARD_NATIVE_SRC_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chunk_copier.h"
#include "device.h"
#include "lane.h"
#include "program.h"
#include "run_options.h"
#include "transport/channel_transport.h"
#include "transport/loopback/local_streams.h"

namespace reshard {

class Executor {
 public:
  Executor(const Program& program, Device& device);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts a run; `transport` may be null when all streams are local. Keeps the transport alive
  // until the run is over.
  void begin(std::shared_ptr<ChannelTransport> transport, void* const* buffers,
             std::size_t num_buffers, const RunOptions& options);

  // Goes on for about `slice_ns`; returns whether the run is over. 0 never waits. Throws what ended
  // the run.
  bool progress(std::int64_t slice_ns);

  // Ends the current run, if any, and aborts its transport with `reason`.
  void cancel(const std::string& reason);

  bool is_running() const { return is_running_; }

  // Of the last run that was completed.
  const RunStats& stats() const { return stats_; }

 private:
  void set_buffers(void* const* buffers, std::size_t num_buffers);
  void bind(ChannelTransport* transport);
  bool run_slice(std::int64_t slice_ns);
  bool step_remote();
  bool step_local();
  bool is_done();
  void check_peers();
  template <typename SomeLane>
  void check_lane(SomeLane& lane);
  void wait(std::int64_t now, std::int64_t until);
  [[noreturn]] void throw_timeout();
  void finish(std::int64_t now);
  void fail(const Error& error);
  void end_run();

  const Program& program_;
  Device& device_;
  ChunkCopier copier_;
  LocalStreams local_;
  std::vector<SendLane> send_lanes_;
  std::vector<ReceiveLane> receive_lanes_;
  std::uint64_t bound_transport_ = 0;  // id of the transport that the lanes belong to; 0: none

  std::shared_ptr<ChannelTransport> transport_;  // of the current run
  std::vector<std::byte*> buffers_;
  RunOptions options_{};
  std::size_t next_zero_region_ = 0;
  std::int64_t start_ns_ = 0;
  std::int64_t deadline_ns_ = 0;
  std::int64_t last_check_ns_ = 0;
  std::int64_t wait_ns_ = 0;
  bool is_running_ = false;
  RunStats stats_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_EXECUTOR_H_

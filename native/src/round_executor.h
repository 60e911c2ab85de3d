// Runs a program that has rounds on the GPUs of this process: queues slot after slot, a few ahead
// of what is over, and watches for errors and the deadline. An error stops the transport; what was
// queued is waited for, so that no memory is freed under it.
#ifndef RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_
#define RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor.h"
#include "gpu_worker.h"
#include "program.h"
#include "round_schedule.h"
#include "transport/group_transport.h"

namespace reshard {

// Buffers are addresses of device memory.
class RoundExecutor final : public Executor {
 public:
  explicit RoundExecutor(const Program& program) : Executor(program) {}
  ~RoundExecutor() override;

 private:
  void start(Transport* transport, void* const* buffers) override;
  bool run_slice(std::int64_t slice_ns) override;
  Error located(const Error& error) const override;
  void give_up(const Error& error) override;

  // What is done next for the slot that is being queued.
  enum class Step { kZero, kPack, kEnter, kExchange, kPosted, kLeave, kUnpack };

  void bind(const GroupTransport& transport);
  void check_members(const GroupTransport& transport) const;
  void check_arguments();
  void begin_workers();
  std::size_t worker_of(std::uint32_t buffer) const;
  bool step();
  bool fill_zeros();
  bool step_slot();
  void enter_channel(Channel channel);
  void number_groups();
  bool post_next_group();
  void leave_channel();
  // Goes on with a stage of each worker.
  template <typename Stage>
  Queued run_stage(const Stage& stage);
  bool all_over(std::size_t slot) const;
  CudaStream caller_stream(std::size_t worker) const;
  [[noreturn]] void throw_timeout() const;
  bool is_over() const;
  void finish(std::int64_t now);
  void drain_workers(const std::function<bool()>& is_stopped);

  RoundSchedule schedule_;
  std::vector<std::unique_ptr<GpuWorker>> workers_;
  std::uint64_t bound_transport_ = 0;  // id of the transport that the workers belong to; 0: none

  GroupTransport* transport_ = nullptr;  // of the current run
  std::vector<CudaAddress> addresses_;
  Step step_ = Step::kZero;
  std::size_t next_zero_ = 0;
  std::size_t next_worker_ = 0;  // that has not done its stage
  std::size_t slot_ = 0;         // that is being queued
  std::size_t num_over_ = 0;     // slots that are over on all workers
  Channel channel_ = Channel::kNetwork;
  std::vector<std::int64_t> numbers_;  // of the groups of the channel in the slot
  std::size_t next_group_ = 0;
  bool is_queued_ = false;  // everything is
  std::vector<GroupMessage> messages_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_ROUND_EXECUTOR_H_

#include "nccl/comm_job.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "cuda/cuda_double.h"
#include "nccl/exchange.h"
#include "nccl/library.h"
#include "nccl/pending_group.h"

namespace doubles {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Queues a function; it is freed by its run.
unsigned long long queue_on(void* stream, int device, std::function<void()> function,
                            const std::vector<CudaDoubleRange>& ranges = {}) {
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> called(
        static_cast<std::function<void()>*>(argument));
    (*called)();
  };
  auto owned = std::make_unique<std::function<void()>>(std::move(function));
  const unsigned long long work =
      cudaDoubleQueue(stream, device, run, owned.get(), ranges.data(), ranges.size());
  if (work != 0) owned.release();
  return work;
}

}  // namespace

class CommJob::Holds {
 public:
  ~Holds() {
    for (void* hold : holds_) cudaDoubleLetGo(hold);
  }

  bool add(const Operation& operation, int device) {
    if (operation.nbytes() == 0) return true;
    void* hold = cudaDoubleHold(operation.buffer, operation.nbytes(), device,
                                operation.is_send ? "ncclSend" : "ncclRecv");
    if (hold != nullptr) holds_.push_back(hold);
    return hold != nullptr;
  }

 private:
  std::vector<void*> holds_;
};

CommJob::CommJob(CommPtr comm, std::vector<Operation> operations, GroupFate fate)
    : comm_(std::move(comm)),
      operations_(std::move(operations)),
      fate_(fate),
      before_(comm_->last_group),
      done_(std::make_shared<Completion>()) {
  comm_->last_group = done_;
  comm_->count_queued(1);
}

void CommJob::queue(const std::shared_ptr<CommJob>& job) {
  std::vector<void*> streams;
  std::vector<CudaDoubleRange> ranges;
  for (const Operation& operation : job->operations_) {
    ranges.push_back({operation.buffer, operation.nbytes()});
    if (std::find(streams.begin(), streams.end(), operation.stream) == streams.end()) {
      streams.push_back(operation.stream);
    }
  }
  const int device = job->comm_->device();
  for (std::size_t i = 1; i < streams.size(); ++i) {
    auto arrival = std::make_shared<Completion>();
    job->arrivals_.push_back(arrival);
    queue_on(streams[i], device, [arrival, done = job->done_] {
      arrival->set();
      done->wait();
    });
  }
  const auto work = queue_on(streams[0], device, [job] { job->run(); }, ranges);
  if (work == 0) {
    // The stream was destroyed since: the group never runs.
    job->comm_->fail(ncclUnhandledCudaError,
                     "a stream was destroyed before its group was launched");
    job->comm_->count_queued(-1);
    job->done_->set();
    return;
  }
  job->comm_->add_work(work);
}

bool CommJob::wait(const CompletionPtr& completion) const {
  while (!comm_->is_aborted()) {
    if (completion == nullptr || completion->wait_for(milliseconds(1))) return true;
  }
  return false;
}

void CommJob::hang() const {
  while (!comm_->is_aborted()) std::this_thread::sleep_for(milliseconds(1));
}

void CommJob::delay() const {
  const auto end = Clock::now() + std::chrono::microseconds(fate_.delay_us);
  while (Clock::now() < end && !comm_->is_aborted()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), milliseconds(1)));
  }
}

void CommJob::run() {
  comm_->count_running(1);
  bool is_mine = true;
  for (const CompletionPtr& arrival : arrivals_) is_mine = is_mine && wait(arrival);
  if (is_mine && wait(before_)) {
    if (fate_.delay_us > 0) delay();
    if (fate_.async_error != 0) comm_->fail(fate_.async_error, "an error was injected");
    // After an error nothing ends until the communicator is aborted.
    if (fate_.hangs || comm_->async_error() != 0) {
      hang();
    } else {
      exchange();
    }
  }
  done_->set();
  comm_->count_running(-1);
  comm_->count_queued(-1);
}

void CommJob::exchange() {
  Holds holds;
  for (const Operation& operation : operations_) {
    if (!holds.add(operation, comm_->device())) {
      comm_->fail(ncclUnhandledCudaError, "a buffer is no memory of the device");
      return;  // the kernel ends by its illegal access
    }
  }
  Exchange exchange(*comm_, operations_);
  Meeting& meeting = comm_->meeting();
  auto next_look = Clock::now() + milliseconds(20);
  while (!comm_->is_aborted()) {
    const std::uint32_t seen = meeting.member(comm_->rank()).doorbell.load();
    const Exchange::Step step = exchange.step();
    if (step == Exchange::Step::kDone && !fate_.kills) break;
    if (step == Exchange::Step::kWrong) {
      comm_->fail(library().refuse(ncclInvalidUsage, exchange.error()), exchange.error());
      return hang();
    }
    const bool is_idle = step == Exchange::Step::kNothing && Clock::now() > next_look;
    if (fate_.kills && (step != Exchange::Step::kNothing || is_idle)) kill(getpid(), SIGKILL);
    if (step == Exchange::Step::kMoved) continue;
    if (is_idle) {
      next_look = Clock::now() + milliseconds(20);
      if (library().reports_death && comm_->lost_a_peer()) {
        comm_->fail(ncclRemoteError, "a process of the communicator has ended");
        return hang();
      }
    }
    meeting.wait(comm_->rank(), seen);
  }
  library().bytes_sent += static_cast<long long>(exchange.bytes_sent());
}

void PendingGroup::launch() {
  for (Part& part : parts) {
    if (part.comm->is_aborted()) continue;
    CommJob::queue(std::make_shared<CommJob>(part.comm, std::move(part.operations), fate));
  }
  parts.clear();
}

}  // namespace doubles

#include "round_executor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "clock.h"
#include "gpu_leftovers.h"
#include "status.h"

namespace reshard {
namespace {

// How often the GPUs are asked when there is nothing else to do.
constexpr std::chrono::microseconds kPollInterval{50};

}  // namespace

RoundExecutor::~RoundExecutor() {
  drain_workers([] { return true; });
}

void RoundExecutor::start(Transport* transport, void* const* buffers) {
  transport_ = dynamic_cast<GroupTransport*>(transport);
  if (transport_ == nullptr) {
    throw Error(StatusCode::kInvalidArgument,
                "program: it moves in rounds, which takes a communicator over NCCL.");
  }
  addresses_.resize(program_.num_buffers);
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    addresses_[i] = reinterpret_cast<CudaAddress>(buffers[i]);
  }
  slot_ = num_over_ = next_group_ = next_zero_ = next_worker_ = 0;
  step_ = Step::kZero;
  is_queued_ = false;
  try {
    transport_->check();
    bind(*transport_);
    check_arguments();
  } catch (const Error& error) {
    // Nothing is queued yet, so who called wrongly may call again.
    const bool is_refused = error.code() == StatusCode::kInvalidArgument ||
                            error.code() == StatusCode::kUnsupported ||
                            error.code() == StatusCode::kInvalidState;
    if (!is_refused) give_up(error);
    throw;
  } catch (const std::exception& error) {
    give_up(Error(StatusCode::kInternal, error.what()));
    throw;
  }
  try {
    begin_workers();
  } catch (const std::exception& error) {
    give_up(Error(StatusCode::kSystem, error.what()));
    throw;
  }
}

// Makes the workers, once per transport.
void RoundExecutor::bind(const GroupTransport& transport) {
  if (bound_transport_ == transport.id()) return;
  check_connected(transport);
  if (program_.num_rounds == 0) {
    throw Error(StatusCode::kInvalidArgument,
                "program: it has no rounds, and GPUs move bytes in rounds. Give num_rounds, hops "
                "and spans.");
  }
  check_members(transport);
  free_leftovers();
  workers_.clear();
  bound_transport_ = 0;
  const std::vector<GpuRank>& locals = transport.local_ranks();
  std::vector<std::int64_t> ranks;
  for (const GpuRank& each : locals) ranks.push_back(each.rank);
  const auto shares_domain = [&](std::int64_t a, std::int64_t b) {
    return transport.shares_domain(a, b);
  };
  schedule_ = make_round_schedule(program_, ranks, shares_domain);
  for (std::size_t i = 0; i < locals.size(); ++i) {
    workers_.push_back(std::make_unique<GpuWorker>(program_, schedule_.ranks[i], locals[i], i));
  }
  bound_transport_ = transport.id();
}

// A peer that is unknown must not be found when half of a group is posted.
void RoundExecutor::check_members(const GroupTransport& transport) const {
  for (const Stream& stream : program_.streams) {
    for (const std::int64_t rank : {stream.src_rank, stream.dst_rank}) {
      if (transport.has_rank(rank)) continue;
      throw Error(StatusCode::kInvalidArgument,
                  text("program: rank ", rank, " is none of the communicator's."), kNoRank, rank);
    }
  }
}

void RoundExecutor::check_arguments() {
  if (!options_.streams.empty() && options_.streams.size() != workers_.size()) {
    throw Error(StatusCode::kInvalidArgument,
                text("program: ", options_.streams.size(), " streams for ", workers_.size(),
                     " local ranks; give one for each, or none."));
  }
  for (const auto& worker : workers_) worker->check_places(addresses_);
  for (const ZeroRegion& region : program_.zero_regions) worker_of(region.buffer);
}

void RoundExecutor::begin_workers() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->begin(addresses_, caller_stream(i));
  }
}

CudaStream RoundExecutor::caller_stream(std::size_t worker) const {
  return options_.streams.empty() ? nullptr
                                  : reinterpret_cast<CudaStream>(options_.streams[worker]);
}

// The worker on whose device a buffer lies.
std::size_t RoundExecutor::worker_of(std::uint32_t buffer) const {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->device().ordinal_of(addresses_[buffer]) == workers_[i]->device().ordinal()) {
      return i;
    }
  }
  throw Error(StatusCode::kInvalidArgument,
              text("program: buffer ", buffer, " lies on no GPU of this process's ranks."));
}

bool RoundExecutor::run_slice(std::int64_t slice_ns) {
  const std::int64_t begin = monotonic_ns();
  for (;;) {
    // What an end of the communicators cut short would look as if it were over.
    if (!transport_->is_connected()) transport_->check();
    const bool moved = step();
    const std::int64_t now = monotonic_ns();
    if (!moved && is_over()) {
      finish(now);
      return true;
    }
    if (now >= deadline_ns_) throw_timeout();
    if (moved && (slice_ns == 0 || now - begin < slice_ns)) continue;
    transport_->check();
    if (now - begin >= slice_ns) return false;
    std::this_thread::sleep_for(kPollInterval);
    wait_ns_ += monotonic_ns() - now;
  }
}

bool RoundExecutor::is_over() const {
  return is_queued_ && std::all_of(workers_.begin(), workers_.end(),
                                   [](const auto& worker) { return worker->is_finished(); });
}

// What NCCL and CUDA say tells neither the rank nor how far the run was.
Error RoundExecutor::located(const Error& error) const {
  const bool is_bare = error.code() == StatusCode::kSystem || error.code() == StatusCode::kPeerLost;
  if (!is_bare || num_over_ >= schedule_.slots.size()) return error;
  const bool is_alone = error.rank() == kNoRank && workers_.size() == 1;
  return Error(error.code(),
               text(error.message(), " It was in slot ", schedule_.slots[num_over_], ", number ",
                    num_over_ + 1, " of ", schedule_.slots.size(), "."),
               is_alone ? workers_.front()->rank() : error.rank(), error.peer());
}

// Queues what can be queued without waiting; returns whether it got on.
bool RoundExecutor::step() {
  bool moved = false;
  while (num_over_ < slot_ && all_over(num_over_)) {
    ++num_over_;
    moved = true;
  }
  if (step_ == Step::kZero) return fill_zeros() || moved;
  if (slot_ < schedule_.slots.size()) {
    if (slot_ - num_over_ >= GpuWorker::kSlotsInFlight) return moved;
    return step_slot() || moved;
  }
  if (!is_queued_) {
    for (const auto& worker : workers_) worker->end();
    is_queued_ = true;
    return true;
  }
  return moved;
}

bool RoundExecutor::all_over(std::size_t slot) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [slot](const auto& worker) { return worker->is_over(slot); });
}

// Goes on with one region; returns whether it got on, which it does not where a stream is full.
bool RoundExecutor::fill_zeros() {
  if (next_zero_ == program_.zero_regions.size()) {
    step_ = Step::kPack;
    return true;
  }
  const ZeroRegion& region = program_.zero_regions[next_zero_];
  GpuWorker& worker = *workers_[worker_of(region.buffer)];
  const Queued queued = worker.fill_zero(region, addresses_[region.buffer]);
  if (queued == Queued::kAll) ++next_zero_;
  return queued != Queued::kNothing;
}

template <typename Stage>
Queued RoundExecutor::run_stage(const Stage& stage) {
  for (; next_worker_ < workers_.size(); ++next_worker_) {
    const Queued queued = stage(*workers_[next_worker_]);
    if (queued != Queued::kAll) return queued;
  }
  next_worker_ = 0;
  return Queued::kAll;
}

// As fill_zeros.
bool RoundExecutor::step_slot() {
  Queued queued = Queued::kAll;
  switch (step_) {
    case Step::kZero:
      break;
    case Step::kPack:
      queued = run_stage([&](GpuWorker& worker) { return worker.pack(slot_); });
      if (queued == Queued::kAll) enter_channel(Channel::kNetwork);
      break;
    case Step::kEnter:
      queued = run_stage([&](GpuWorker& worker) { return worker.begin_exchange(channel_, slot_); });
      if (queued == Queued::kAll) number_groups();
      break;
    case Step::kExchange:
      return post_next_group();
    case Step::kPosted:
      if (!transport_->is_posted(channel_)) return false;
      step_ = Step::kExchange;
      break;
    case Step::kLeave:
      queued = run_stage([&](GpuWorker& worker) { return worker.end_exchange(channel_, slot_); });
      if (queued == Queued::kAll) leave_channel();
      break;
    case Step::kUnpack:
      queued = run_stage([&](GpuWorker& worker) { return worker.unpack(slot_); });
      if (queued != Queued::kAll) break;
      ++slot_;
      step_ = Step::kPack;
      break;
  }
  return queued != Queued::kNothing;
}

void RoundExecutor::enter_channel(Channel channel) {
  channel_ = channel;
  step_ = Step::kEnter;
}

void RoundExecutor::number_groups() {
  std::set<std::int64_t> numbers;
  for (const auto& worker : workers_) {
    for (const MessageGroup& group : worker->part(channel_, slot_).groups) {
      numbers.insert(group.number);
    }
  }
  numbers_.assign(numbers.begin(), numbers.end());
  next_group_ = 0;
  step_ = Step::kExchange;
}

// The groups of all workers with the next number, as one. As fill_zeros.
bool RoundExecutor::post_next_group() {
  if (next_group_ == numbers_.size()) {
    step_ = Step::kLeave;
    return true;
  }
  const auto has_room = [&](const auto& worker) { return worker->has_room(channel_); };
  if (!std::all_of(workers_.begin(), workers_.end(), has_room)) return false;
  messages_.clear();
  for (const auto& worker : workers_) {
    worker->add_messages(channel_, slot_, numbers_[next_group_], messages_);
  }
  ++next_group_;
  transport_->post(channel_, messages_);
  step_ = Step::kPosted;
  return true;
}

// The domains exchange what earlier slots brought while the network brings more, so unpacking what
// this slot's network brings is queued after both.
void RoundExecutor::leave_channel() {
  if (channel_ == Channel::kNetwork) {
    enter_channel(Channel::kDomain);
  } else {
    step_ = Step::kUnpack;
  }
}

void RoundExecutor::throw_timeout() const {
  std::string message =
      text("the run took longer than ", static_cast<double>(options_.timeout_ns) / 1e9, " s; ",
           num_over_, " of ", schedule_.slots.size(), " slots are over");
  std::set<std::int64_t> peers;
  std::int64_t rank = kNoRank;
  if (num_over_ < schedule_.slots.size()) {
    for (const auto& worker : workers_) {
      if (num_over_ < slot_ && worker->is_over(num_over_)) continue;
      if (rank == kNoRank) rank = worker->rank();
      worker->add_peers(num_over_, peers);
    }
    message += text(", and slot ", schedule_.slots[num_over_], " waits for ranks");
    for (const std::int64_t peer : peers) message += text(" ", peer);
  }
  throw Error(StatusCode::kTimeout, message + ".", rank,
              peers.size() == 1 ? *peers.begin() : kNoRank);
}

void RoundExecutor::finish(std::int64_t now) {
  stats_ = RunStats{};
  stats_.bytes_sent = schedule_.bytes_sent;
  stats_.bytes_received = schedule_.bytes_received;
  stats_.bytes_local = schedule_.bytes_local;
  stats_.chunks = schedule_.num_messages;
  stats_.ns_wait = wait_ns_;
  stats_.ns_total = now - start_ns_;
  for (const auto& worker : workers_) {
    stats_.peak_staging_bytes = std::max(stats_.peak_staging_bytes, worker->staging_bytes());
  }
}

void RoundExecutor::give_up(const Error& error) {
  transport_->abort(error);
  // Before the abort, which may take its time, and again after it, when NCCL queues nothing more.
  for (const auto& worker : workers_) worker->mark_rest();
  drain_workers(transport_->stop());
}

// Waits a bounded time for what is queued, and what the transport still queues until it is stopped;
// then drops the workers.
void RoundExecutor::drain_workers(const std::function<bool()>& is_stopped) {
  bound_transport_ = 0;
  if (workers_.empty()) return;
  const bool was_stopped = is_stopped();  // what it queues after a mark is not waited for
  for (const auto& worker : workers_) {
    worker->mark_rest();
    worker->forget_caller();
  }
  const auto all = std::make_shared<std::vector<std::unique_ptr<GpuWorker>>>(std::move(workers_));
  workers_.clear();
  free_when_idle(all, [workers = all.get(), is_stopped, is_marked = was_stopped]() mutable {
    if (!is_marked) {
      if (!is_stopped()) return false;
      is_marked = true;
      for (const auto& worker : *workers) worker->mark_rest();
    }
    return std::all_of(workers->begin(), workers->end(),
                       [](const auto& worker) { return worker->is_idle(); });
  });
}

}  // namespace reshard

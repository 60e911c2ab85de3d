#include "chunk_executor.h"

#include <algorithm>
#include <map>

#include "clock.h"
#include "status.h"

namespace reshard {
namespace {

// How often peers are looked at while bytes move, and the longest sleep. A dead peer is reported
// after at most this plus the time of one message.
constexpr std::int64_t kCheckIntervalNs = 5'000'000;

// At most this many unfinished streams are named in one message.
constexpr int kMaxNamedLanes = 4;

}  // namespace

ChunkExecutor::ChunkExecutor(const Program& program, Device& device)
    : Executor(program),
      device_(device),
      copier_(program, device),
      local_(program, device, copier_) {}

void ChunkExecutor::start(Transport* transport, void* const* buffers) {
  transport_ = dynamic_cast<ChannelTransport*>(transport);
  if (transport != nullptr && transport_ == nullptr) {
    throw Error(StatusCode::kInvalidArgument,
                "program: it moves in chunks, which takes a communicator over shared memory.");
  }
  if (transport_ == nullptr && !program_.remote_streams.empty()) {
    const Stream& stream = program_.streams[program_.remote_streams.front()];
    throw Error(StatusCode::kInvalidArgument, text("program: ", describe(stream),
                                                   " leaves this process, so a run needs a "
                                                   "communicator."));
  }
  copier_.set_num_threads(options_.num_threads);
  if (transport_ != nullptr) {
    transport_->check_not_aborted();
    bind(transport_);
  }
  buffers_.resize(program_.num_buffers);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i] = static_cast<std::byte*>(buffers[i]);
  }
  last_check_ns_ = start_ns_;
  next_zero_region_ = 0;
  local_.begin();
  for (SendLane& lane : send_lanes_) lane.begin(options_.run_id);
  for (ReceiveLane& lane : receive_lanes_) lane.begin(options_.run_id);
}

// Groups the remote streams by process, once per transport.
void ChunkExecutor::bind(ChannelTransport* transport) {
  if (bound_transport_ == transport->id()) return;
  check_connected(*transport);
  if (program_.chunk_bytes > transport->slot_bytes()) {
    throw Error(StatusCode::kInvalidArgument,
                text("program: chunk_bytes ", program_.chunk_bytes, " is above the slot_bytes ",
                     transport->slot_bytes(), " of the communicator."));
  }
  std::map<int, std::vector<std::uint32_t>> sends;
  std::map<int, std::vector<std::uint32_t>> receives;
  for (SendChannel* channel : transport->send_channels()) sends[channel->process()];
  for (ReceiveChannel* channel : transport->receive_channels()) receives[channel->process()];
  for (const std::uint32_t s : program_.remote_streams) {
    const Stream& stream = program_.streams[s];
    const bool is_send = stream.direction == Direction::kSend;
    const int own = transport->process_of(is_send ? stream.src_rank : stream.dst_rank);
    const int peer = transport->process_of(is_send ? stream.dst_rank : stream.src_rank);
    auto& streams = is_send ? sends : receives;
    const auto place = streams.find(peer);
    if (own != transport->own_process() || place == streams.end()) {
      throw Error(StatusCode::kInvalidArgument,
                  text("program: ", describe(stream), " goes from process ", is_send ? own : peer,
                       " to process ", is_send ? peer : own, " but the communicator of process ",
                       transport->own_process(), " has no such channel."));
    }
    place->second.push_back(s);
  }
  send_lanes_.clear();
  receive_lanes_.clear();
  bound_transport_ = 0;
  for (SendChannel* channel : transport->send_channels()) {
    send_lanes_.emplace_back(program_, copier_, *channel, sends[channel->process()]);
  }
  for (ReceiveChannel* channel : transport->receive_channels()) {
    receive_lanes_.emplace_back(program_, copier_, *channel, receives[channel->process()]);
  }
  bound_transport_ = transport->id();
}

void ChunkExecutor::give_up(const Error& error) {
  if (transport_ != nullptr) transport_->abort(error);
}

bool ChunkExecutor::run_slice(std::int64_t slice_ns) {
  const bool is_over = move_for(slice_ns);
  if (transport_ != nullptr) transport_->flush();
  return is_over;
}

bool ChunkExecutor::move_for(std::int64_t slice_ns) {
  std::int64_t now = monotonic_ns();
  const std::int64_t slice_end = slice_ns >= deadline_ns_ - now ? deadline_ns_ : now + slice_ns;
  for (;;) {
    const bool moved = step_remote() || step_local();
    now = monotonic_ns();
    if (!moved && is_done()) {
      finish(now);
      return true;
    }
    if (now >= deadline_ns_) throw_timeout();
    if (now - last_check_ns_ >= kCheckIntervalNs) {
      check_peers();
      last_check_ns_ = now;
    }
    if (now >= slice_end) {
      if (!moved || slice_ns > 0) return false;
      continue;
    }
    if (!moved) wait(now, slice_end);
  }
}

// One pass over all lanes. Receives first: they free slots that a peer waits for.
bool ChunkExecutor::step_remote() {
  bool moved = false;
  for (ReceiveLane& lane : receive_lanes_) moved |= lane.step(buffers_);
  for (SendLane& lane : send_lanes_) moved |= lane.step(buffers_);
  return moved;
}

// Work that needs no peer fills the time in which no peer has anything for us.
bool ChunkExecutor::step_local() {
  if (transport_ != nullptr) transport_->flush();
  if (!local_.is_done()) {
    local_.step(buffers_);
    return true;
  }
  if (next_zero_region_ < program_.zero_regions.size()) {
    const ZeroRegion& region = program_.zero_regions[next_zero_region_++];
    device_.fill_zero(region, buffers_[region.buffer]);
    return true;
  }
  return false;
}

bool ChunkExecutor::is_done() {
  if (!local_.is_done() || next_zero_region_ < program_.zero_regions.size()) return false;
  const auto receive_done = [](ReceiveLane& lane) { return lane.is_done(); };
  const auto send_done = [](SendLane& lane) { return lane.is_done(); };
  return std::all_of(receive_lanes_.begin(), receive_lanes_.end(), receive_done) &&
         std::all_of(send_lanes_.begin(), send_lanes_.end(), send_done);
}

// A peer that is gone matters only while something is to come from it or to be taken by it: a
// process may leave as soon as its own part is over.
template <typename SomeLane>
void ChunkExecutor::check_lane(SomeLane& lane) {
  if (lane.is_done()) return;
  const PeerState state = transport_->peer_state(lane.process());
  if (state == PeerState::kAlive || state == PeerState::kAborted) return;
  while (lane.step(buffers_)) {
  }
  if (lane.is_done()) return;
  throw lane.error(StatusCode::kPeerLost, transport_->describe_peer(lane.process(), state));
}

void ChunkExecutor::check_peers() {
  if (transport_ == nullptr) return;
  for (ReceiveLane& lane : receive_lanes_) check_lane(lane);
  for (SendLane& lane : send_lanes_) check_lane(lane);
  transport_->check_not_aborted();
}

void ChunkExecutor::wait(std::int64_t now, std::int64_t until) {
  if (transport_ == nullptr) return;
  const std::uint32_t ticket = transport_->prepare_wait();
  if (step_remote() || is_done()) {
    transport_->cancel_wait();
    return;
  }
  check_peers();
  last_check_ns_ = now;
  transport_->wait(ticket, std::min(until - now, kCheckIntervalNs));
  wait_ns_ += monotonic_ns() - now;
}

void ChunkExecutor::throw_timeout() {
  std::string message = text("the run took longer than ",
                             static_cast<double>(options_.timeout_ns) / 1e9, " s; unfinished: ");
  int named = 0;
  std::int64_t rank = kNoRank;
  std::int64_t peer = kNoRank;
  const auto add = [&](auto& lane) {
    if (lane.is_done()) return;
    if (named == 0) {
      const Error first = lane.error(StatusCode::kTimeout, "");
      rank = first.rank();
      peer = first.peer();
    }
    if (named < kMaxNamedLanes) message += text(named == 0 ? "" : "; ", lane.describe_progress());
    ++named;
  };
  for (ReceiveLane& lane : receive_lanes_) add(lane);
  for (SendLane& lane : send_lanes_) add(lane);
  if (named > kMaxNamedLanes) message += text("; and ", named - kMaxNamedLanes, " more");
  if (named == 0) message += "copies inside this process";
  throw Error(StatusCode::kTimeout, message + ".", rank, peer);
}

void ChunkExecutor::finish(std::int64_t now) {
  stats_ = RunStats{};
  stats_.bytes_local = local_.nbytes();
  stats_.chunks = local_.num_chunks();
  stats_.peak_staging_bytes = local_.staging_bytes();
  for (const SendLane& lane : send_lanes_) {
    stats_.bytes_sent += lane.counters().nbytes;
    stats_.ns_pack += lane.counters().ns_copy;
    stats_.chunks += static_cast<std::int64_t>(lane.totals().num_messages);
  }
  for (const ReceiveLane& lane : receive_lanes_) {
    stats_.bytes_received += lane.counters().nbytes;
    stats_.ns_unpack += lane.counters().ns_copy;
    stats_.chunks += static_cast<std::int64_t>(lane.totals().num_messages);
  }
  if (transport_ != nullptr) stats_.peak_staging_bytes += transport_->staging_bytes();
  stats_.ns_wait = wait_ns_;
  stats_.ns_total = now - start_ns_;
}

}  // namespace reshard

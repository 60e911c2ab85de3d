#include "lane.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "clock.h"

namespace reshard {

Lane::Lane(const Program& program, ChunkCopier& copier, Direction direction, int process,
           std::vector<std::uint32_t> streams)
    : program_(program), copier_(copier), direction_(direction), process_(process) {
  std::sort(streams.begin(), streams.end(), [&program](std::uint32_t a, std::uint32_t b) {
    const Stream& left = program.streams[a];
    const Stream& right = program.streams[b];
    return std::tie(left.src_rank, left.dst_rank) < std::tie(right.src_rank, right.dst_rank);
  });
  for (const std::uint32_t stream : streams) {
    for (std::uint32_t chunk = 0; chunk < program.streams[stream].num_chunks; ++chunk) {
      messages_.push_back({stream, chunk});
    }
    totals_.nbytes += static_cast<std::uint64_t>(program.streams[stream].nbytes);
  }
  std::stable_sort(messages_.begin(), messages_.end(),
                   [](const Message& a, const Message& b) { return a.chunk < b.chunk; });
  totals_.num_messages = messages_.size();
}

void Lane::begin(std::uint64_t run_id) {
  totals_.run_id = run_id;
  next_ = 0;
  counters_ = LaneCounters{};
  totals_match_ = false;
}

const Lane::Message& Lane::current() const {
  return messages_[std::min(next_, messages_.size() - 1)];
}

MessageHeader Lane::next_header() const {
  const Message& message = current();
  const Stream& stream = program_.streams[message.stream];
  return {totals_.run_id,    stream.src_rank,     stream.dst_rank, message.chunk,
          stream.num_chunks, next_chunk().nbytes, stream.nbytes};
}

const Chunk& Lane::next_chunk() const {
  const Message& message = current();
  return program_.chunks[program_.streams[message.stream].first_chunk + message.chunk];
}

void Lane::advance(std::int64_t ns_copy) {
  counters_.nbytes += next_chunk().nbytes;
  counters_.ns_copy += ns_copy;
  ++next_;
}

void Lane::compare_totals(const RunTotals& peer) const {
  if (peer.num_messages == totals_.num_messages && peer.nbytes == totals_.nbytes) return;
  const bool is_send = direction_ == Direction::kSend;
  const std::string what =
      text("this process ", is_send ? "sends " : "expects ", totals_.nbytes, " bytes in ",
           totals_.num_messages, " messages but process ", process_,
           is_send ? " expects " : " sends ", peer.nbytes, " bytes in ", peer.num_messages,
           ". The programs or chunk_bytes of the two processes differ.");
  if (messages_.empty()) throw Error(StatusCode::kProtocol, what);
  throw error(StatusCode::kProtocol, what);
}

std::string Lane::describe_progress() const {
  if (messages_.empty()) return text("process ", process_, ": no messages");
  const Message& message = current();
  const Stream& stream = program_.streams[message.stream];
  if (all_moved()) {
    return text("rank ", stream.src_rank, " -> rank ", stream.dst_rank, " (send to process ",
                process_, "): chunk ", stream.num_chunks, " of ", stream.num_chunks, ", all of ",
                totals_.nbytes, " bytes sent but not yet taken");
  }
  return text("rank ", stream.src_rank, " -> rank ", stream.dst_rank,
              direction_ == Direction::kSend ? " (send to process " : " (receive from process ",
              process_, "): chunk ", message.chunk, " of ", stream.num_chunks, ", ",
              counters_.nbytes, " of ", totals_.nbytes, " bytes done");
}

Error Lane::error(StatusCode code, const std::string& what) const {
  if (messages_.empty()) return Error(code, text(describe_progress(), ": ", what));
  const Stream& stream = program_.streams[current().stream];
  const bool is_send = direction_ == Direction::kSend;
  return Error(code, text(describe_progress(), ": ", what),
               is_send ? stream.src_rank : stream.dst_rank,
               is_send ? stream.dst_rank : stream.src_rank);
}

SendLane::SendLane(const Program& program, ChunkCopier& copier, SendChannel& channel,
                   std::vector<std::uint32_t> streams)
    : Lane(program, copier, Direction::kSend, channel.process(), std::move(streams)),
      channel_(channel) {}

void SendLane::begin(std::uint64_t run_id) {
  Lane::begin(run_id);
  channel_.begin_run(totals());
}

bool SendLane::step(const std::vector<std::byte*>& buffers) {
  if (all_moved()) return false;
  std::byte* slot = channel_.try_acquire();
  if (slot == nullptr) return false;
  const std::int64_t start = monotonic_ns();
  copier_.pack(next_chunk(), buffers, slot);
  channel_.commit(next_header());
  advance(monotonic_ns() - start);
  return true;
}

bool SendLane::is_done() {
  if (!all_moved()) return false;
  if (totals().num_messages == 0 || channel_.is_drained()) return true;
  RunTotals peer{};
  if (!totals_match_ && channel_.peer_totals(&peer)) {
    compare_totals(peer);
    totals_match_ = true;
  }
  return false;
}

ReceiveLane::ReceiveLane(const Program& program, ChunkCopier& copier, ReceiveChannel& channel,
                         std::vector<std::uint32_t> streams)
    : Lane(program, copier, Direction::kReceive, channel.process(), std::move(streams)),
      channel_(channel) {}

void ReceiveLane::begin(std::uint64_t run_id) {
  Lane::begin(run_id);
  channel_.begin_run(totals());
}

bool ReceiveLane::step(const std::vector<std::byte*>& buffers) {
  if (all_moved()) return false;
  MessageHeader header{};
  const std::byte* slot = channel_.try_receive(&header);
  if (slot == nullptr) {
    RunTotals peer{};
    if (!totals_match_ && channel_.peer_totals(&peer)) {
      compare_totals(peer);
      totals_match_ = true;
    }
    return false;
  }
  check(header);
  const std::int64_t start = monotonic_ns();
  copier_.unpack(next_chunk(), buffers, slot);
  channel_.release();
  advance(monotonic_ns() - start);
  return true;
}

void ReceiveLane::check(const MessageHeader& header) const {
  const MessageHeader expected = next_header();
  if (header.run_id != expected.run_id) {
    throw error(StatusCode::kProtocol,
                text("a message of run ", header.run_id, " came in run ", expected.run_id, "."));
  }
  if (header.src_rank != expected.src_rank || header.dst_rank != expected.dst_rank ||
      header.chunk != expected.chunk) {
    throw error(StatusCode::kProtocol,
                text("chunk ", expected.chunk, " was expected but the sender sent chunk ",
                     header.chunk, " of rank ", header.src_rank, " -> rank ", header.dst_rank,
                     ". The programs of the two processes differ."));
  }
  if (header.nbytes != expected.nbytes || header.num_chunks != expected.num_chunks ||
      header.stream_nbytes != expected.stream_nbytes) {
    throw error(
        StatusCode::kProtocol,
        text("expected ", expected.nbytes, " bytes of a stream of ", expected.stream_nbytes,
             " bytes in ", expected.num_chunks, " chunks but the sender sent ", header.nbytes,
             " bytes of a stream of ", header.stream_nbytes, " bytes in ", header.num_chunks,
             " chunks. The programs or chunk_bytes of the two processes differ."));
  }
}

}  // namespace reshard

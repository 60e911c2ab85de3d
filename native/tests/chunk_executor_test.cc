// The chunk executor over real rings, all processes driven by one thread, so that every order of
// events is the test's choice: begin, advance without waiting, advance the other, finish.
#include "chunk_executor.h"

#include "fixtures.h"

namespace reshard_test {
namespace {

void connect_all(const std::vector<std::shared_ptr<ShmTransport>>& transports) {
  for (bool complete = false; !complete;) {
    complete = true;
    for (const auto& transport : transports) complete &= transport->connect(10 * kSecond, 0);
  }
}

// The ends of a communicator of several "processes" that all live in this one.
std::vector<std::shared_ptr<ShmTransport>> connect_mesh(int num_processes) {
  const std::string key = new_session_key();
  std::vector<std::shared_ptr<ShmTransport>> transports;
  for (int p = 0; p < num_processes; ++p) {
    transports.push_back(std::make_shared<ShmTransport>(mesh_config(key, p, num_processes)));
  }
  connect_all(transports);
  return transports;
}

// One sender (process 0, rank 0) and one receiver (process 1, rank 1).
struct Pair {
  explicit Pair(std::int64_t sent, std::int64_t received, std::int64_t send_chunk = 4096,
                std::int64_t receive_chunk = 4096)
      : transports(connect_mesh(2)),
        sender(make(Direction::kSend, sent), send_chunk),
        receiver(make(Direction::kReceive, received), receive_chunk) {}

  static ByteStreams make(Direction direction, std::int64_t nbytes) {
    ByteStreams streams;
    streams.add(direction, 0, 1, nbytes);
    return streams;
  }

  void begin(std::uint64_t send_run, std::uint64_t receive_run,
             std::int64_t timeout_ns = 20 * kSecond) {
    sender.streams().fill(send_run);
    receiver.streams().fill(receive_run);
    sender.begin(transports[0], send_run, timeout_ns);
    receiver.begin(transports[1], receive_run, timeout_ns);
  }

  std::vector<std::shared_ptr<ShmTransport>> transports;
  Runner sender;
  Runner receiver;
};

// Advances both until both are over.
void finish(Pair& pair) {
  bool sent = false;
  bool received = false;
  while (!sent || !received) {
    if (!sent) sent = pair.sender.executor().progress(0);
    if (!received) received = pair.receiver.executor().progress(0);
  }
}

TEST(one_thread_moves_more_than_a_ring_between_two_processes) {
  Pair pair(100'000, 100'000);
  for (std::uint64_t run = 1; run <= 3; ++run) {
    pair.begin(run, run);
    finish(pair);
    pair.receiver.streams().check(run);
  }
  const RunStats& sent = pair.sender.executor().stats();
  const RunStats& received = pair.receiver.executor().stats();
  CHECK_EQ(sent.bytes_sent, 100'000);
  CHECK_EQ(received.bytes_received, 100'000);
  CHECK_EQ(sent.chunks, 25);
  CHECK_EQ(received.chunks, 25);
  CHECK_EQ(sent.peak_staging_bytes, 2 * 4 * 4096);
}

TEST(a_sender_is_done_only_when_the_receiver_has_taken_everything) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  CHECK_TRUE(!pair.sender.executor().progress(0));
  CHECK_TRUE(!pair.sender.executor().progress(0));
  CHECK_TRUE(pair.receiver.executor().progress(0));
  CHECK_TRUE(pair.sender.executor().progress(0));
}

TEST(a_receiver_may_begin_the_next_run_before_the_sender_has_seen_the_end) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  pair.sender.executor().progress(0);
  CHECK_TRUE(pair.receiver.executor().progress(0));
  pair.receiver.streams().check(1);
  pair.receiver.streams().fill(2);
  pair.receiver.begin(pair.transports[1], 2);
  CHECK_TRUE(!pair.receiver.executor().progress(0));
  CHECK_TRUE(pair.sender.executor().progress(0));
  pair.sender.streams().fill(2);
  pair.sender.begin(pair.transports[0], 2);
  finish(pair);
  pair.receiver.streams().check(2);
}

TEST(streams_of_several_ranks_share_the_ring_of_their_processes) {
  const std::string key = new_session_key();
  std::vector<std::shared_ptr<ShmTransport>> transports;
  for (int p = 0; p < 2; ++p) {
    ShmConfig config = mesh_config(key, p, 2);
    config.rank_to_process = {0, 0, 1, 1, 1};
    transports.push_back(std::make_shared<ShmTransport>(config));
  }
  connect_all(transports);
  ByteStreams first;
  ByteStreams second;
  // Rows in different order on the two ends, one stream empty, one local, both directions.
  first.send(1, 4, 9000);
  first.send(0, 2, 12345);
  first.send(0, 3, 0);
  first.receive(4, 0, 4097);
  first.send(0, 1, 7777);
  first.receive(0, 1, 7777);
  second.send(4, 0, 4097);
  second.receive(0, 2, 12345);
  second.receive(1, 4, 9000);
  second.receive(0, 3, 0);
  Runner a(first, 1000);
  Runner b(second, 1000);
  for (std::uint64_t run = 1; run <= 3; ++run) {
    a.streams().fill(run);
    b.streams().fill(run);
    a.begin(transports[0], run);
    b.begin(transports[1], run);
    bool a_done = false;
    bool b_done = false;
    while (!a_done || !b_done) {
      if (!a_done) a_done = a.executor().progress(0);
      if (!b_done) b_done = b.executor().progress(0);
    }
    a.streams().check(run);
    b.streams().check(run);
  }
  CHECK_EQ(a.executor().stats().bytes_local, 7777);
}

// Advances both ends until one fails, and returns that error; the other end must then fail too.
Error failure_of(Pair& pair) {
  for (int i = 0; i < 100; ++i) {
    try {
      if (pair.sender.executor().is_running()) pair.sender.executor().progress(0);
      if (pair.receiver.executor().is_running()) pair.receiver.executor().progress(0);
    } catch (const Error& error) {
      Runner& other = pair.sender.executor().is_running() ? pair.sender : pair.receiver;
      if (other.executor().is_running()) {
        const Error second = error_of([&] { other.executor().progress(kSecond); });
        CHECK_TRUE(second.code() == StatusCode::kAborted || second.code() == StatusCode::kProtocol);
      }
      return error;
    }
  }
  fail(__FILE__, __LINE__, "no error");
}

TEST(different_byte_counts_are_a_protocol_error_with_both_values) {
  Pair pair(5000, 5001);
  pair.begin(1, 1);
  const Error error = failure_of(pair);
  CHECK_EQ(error.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(error.message(), "rank 0 -> rank 1");
  CHECK_CONTAINS(error.message(), "5000");
  CHECK_CONTAINS(error.message(), "5001");
}

TEST(different_chunk_bytes_are_a_protocol_error_with_both_values) {
  Pair pair(5000, 5000, 4096, 1000);
  pair.begin(1, 1);
  const Error error = failure_of(pair);
  CHECK_EQ(error.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(error.message(), "rank 0 -> rank 1");
  CHECK_CONTAINS(error.message(), "chunk");
}

TEST(a_stream_that_only_the_sender_has_is_a_protocol_error) {
  Pair pair(100, 0);  // fits into the ring, so only the totals tell
  pair.begin(1, 1);
  const Error error = error_of([&] {
    CHECK_TRUE(pair.receiver.executor().progress(0));
    pair.sender.executor().progress(kSecond);
  });
  CHECK_EQ(error.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(error.message(), "sends 100 bytes in 1 messages but process 1 expects 0 bytes");
}

TEST(a_stream_that_only_the_receiver_has_is_a_protocol_error) {
  Pair pair(0, 100);
  pair.begin(1, 1);
  const Error error = error_of([&] { pair.receiver.executor().progress(kSecond); });
  CHECK_EQ(error.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(error.message(), "expects 100 bytes in 1 messages but process 0 sends 0 bytes");
}

TEST(different_run_ids_are_a_protocol_error_with_both_values) {
  Pair pair(5000, 5000);
  pair.begin(7, 8);
  const Error error = failure_of(pair);
  CHECK_EQ(error.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(error.message(), "run 7");
  CHECK_CONTAINS(error.message(), "run 8");
}

TEST(a_silent_receiver_is_named_at_the_deadline) {
  Pair pair(100'000, 100'000);
  pair.sender.begin(pair.transports[0], 1, 50 * kMillisecond);
  const Error error = error_of([&] { pair.sender.executor().progress(10 * kSecond); });
  CHECK_EQ(error.code(), StatusCode::kTimeout);
  CHECK_EQ(error.rank(), 0);
  CHECK_EQ(error.peer(), 1);
  CHECK_CONTAINS(error.message(), "0.05 s");
  CHECK_CONTAINS(error.message(), "rank 0 -> rank 1 (send to process 1): chunk 4 of 25");
  CHECK_CONTAINS(error.message(), "16384 of 100000 bytes");
}

TEST(a_silent_sender_is_named_at_the_deadline) {
  Pair pair(100, 100);
  pair.receiver.begin(pair.transports[1], 1, 20 * kMillisecond);
  const Error error = error_of([&] { pair.receiver.executor().progress(10 * kSecond); });
  CHECK_EQ(error.code(), StatusCode::kTimeout);
  CHECK_EQ(error.rank(), 1);
  CHECK_EQ(error.peer(), 0);
  CHECK_CONTAINS(error.message(), "(receive from process 0): chunk 0 of 1, 0 of 100 bytes");
}

TEST(a_slice_ends_in_time_and_the_run_goes_on) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  const std::int64_t start = monotonic_ns();
  CHECK_TRUE(!pair.receiver.executor().progress(30 * kMillisecond));
  const std::int64_t elapsed = monotonic_ns() - start;
  CHECK_TRUE(elapsed >= 30 * kMillisecond && elapsed < 5 * kSecond);
  finish(pair);
  pair.receiver.streams().check(1);
}

TEST(a_failed_communicator_refuses_later_runs_and_says_why) {
  Pair pair(100, 100);
  pair.transports[1]->abort(Error(StatusCode::kAborted, "the test says so."));
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of([&] { pair.sender.begin(pair.transports[0], 1); });
    CHECK_EQ(error.code(), StatusCode::kAborted);
    CHECK_CONTAINS(error.message(), "process 1 (rank 1)");
    CHECK_CONTAINS(error.message(), "the test says so.");
  }
}

TEST(a_cancelled_run_tells_the_other_end) {
  Pair pair(100'000, 100'000);
  pair.begin(1, 1);
  pair.receiver.executor().progress(0);
  pair.sender.executor().cancel("interrupted.");
  CHECK_TRUE(!pair.sender.executor().is_running());
  const Error error = error_of([&] { pair.receiver.executor().progress(kSecond); });
  CHECK_EQ(error.code(), StatusCode::kAborted);
  CHECK_CONTAINS(error.message(), "interrupted.");
}

TEST(the_first_reason_travels_from_peer_to_peer_of_peer) {
  // 0 -> 1 -> 2: process 2 knows nothing of process 0.
  const auto transports = connect_mesh(3);
  ByteStreams middle_streams;
  middle_streams.receive(0, 1, 10);
  middle_streams.send(1, 2, 1000);  // more than the ring holds, so neither end is over before
  ByteStreams last_streams;
  last_streams.receive(1, 2, 1000);
  Runner middle(middle_streams, 16);
  Runner last(last_streams, 16);
  middle.begin(transports[1], 1);
  last.begin(transports[2], 1);
  transports[0]->abort(Error(StatusCode::kAborted, "out of luck.", 0));
  for (Runner* runner : {&middle, &last}) {
    const Error error = error_of([&] { runner->executor().progress(kSecond); });
    CHECK_EQ(error.code(), StatusCode::kAborted);
    CHECK_CONTAINS(error.message(), "aborted by process 0 (rank 0): out of luck.");
    CHECK_EQ(error.rank(), 0);
  }
}

TEST(a_peer_may_close_as_soon_as_its_part_is_over) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  pair.sender.executor().progress(0);
  CHECK_TRUE(pair.receiver.executor().progress(0));
  pair.transports[1]->close();
  CHECK_TRUE(pair.sender.executor().progress(kSecond));
  const Error error = error_of([&] { pair.sender.run(pair.transports[0], 2, kSecond); });
  CHECK_EQ(error.code(), StatusCode::kPeerLost);
  CHECK_CONTAINS(error.message(), "process 1 (rank 1) (pid ");
  CHECK_CONTAINS(error.message(), "closed its communicator");
}

TEST(what_a_peer_sent_before_it_closed_still_arrives) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  pair.sender.executor().progress(0);
  pair.transports[0]->close();
  CHECK_TRUE(pair.receiver.executor().progress(kSecond));
  pair.receiver.streams().check(1);
}

TEST(all_that_a_peer_sent_before_it_closed_still_arrives_when_its_end_is_seen_first) {
  Pair pair(16'384, 16'384);  // all slots of the ring
  pair.begin(1, 1);
  CHECK_TRUE(!pair.sender.executor().progress(0));
  pair.transports[0]->close();
  // Peers are looked at again when this much is over, which is after the first message here.
  const std::int64_t checked_again_ns = monotonic_ns() + 20 * kMillisecond;
  while (monotonic_ns() < checked_again_ns) {
  }
  CHECK_TRUE(pair.receiver.executor().progress(0));
  pair.receiver.streams().check(1);
}

TEST(one_run_at_a_time_on_a_communicator) {
  Pair pair(100, 100);
  ByteStreams streams;
  Runner other(streams, 16);
  pair.begin(1, 1);
  CHECK_EQ(error_of([&] { other.begin(pair.transports[0], 1); }).code(), StatusCode::kInvalidState);
  CHECK_EQ(error_of([&] { pair.sender.begin(nullptr, 1); }).code(), StatusCode::kInvalidState);
  finish(pair);
  other.run(pair.transports[0], 2);
}

TEST(a_program_follows_from_one_communicator_to_the_next) {
  Pair pair(5000, 5000);
  pair.begin(1, 1);
  finish(pair);
  pair.transports = connect_mesh(2);
  pair.begin(2, 2);
  finish(pair);
  pair.receiver.streams().check(2);
}

TEST(wrong_communicators_are_refused_before_anything_moves) {
  Pair pair(100, 100);
  Runner reversed(Pair::make(Direction::kReceive, 100), 4096);
  const Error wrong_process = error_of([&] { reversed.begin(pair.transports[0], 1); });
  CHECK_EQ(wrong_process.code(), StatusCode::kInvalidArgument);
  CHECK_CONTAINS(wrong_process.message(), "rank 0 -> rank 1 (receive)");
  Runner large(Pair::make(Direction::kSend, 100), 4097);
  const Error chunk = error_of([&] { large.begin(pair.transports[0], 1); });
  CHECK_CONTAINS(chunk.message(), "chunk_bytes 4097 is above the slot_bytes 4096");
  ByteStreams elsewhere;
  elsewhere.send(0, 9, 10);
  Runner unknown(elsewhere, 4096);
  CHECK_CONTAINS(error_of([&] { unknown.begin(pair.transports[0], 1); }).message(), "rank 9");
  const auto unconnected = std::make_shared<ShmTransport>(mesh_config(new_session_key(), 0, 2));
  CHECK_CONTAINS(error_of([&] { pair.sender.begin(unconnected, 1); }).message(), "not connected");
  pair.begin(1, 1);
  finish(pair);
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

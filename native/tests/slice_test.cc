// What a slice of a run leaves behind when its time is over, over a transport that shows it.
#include "chunk_executor.h"
#include "fixtures.h"

namespace reshard_test {
namespace {

// One channel to process 1, which takes nothing. News of messages are held back until flush.
class HoldingTransport final : public ChannelTransport, private SendChannel {
 public:
  bool has_news() const { return has_news_; }

  bool connect(std::int64_t, std::int64_t) override { return true; }
  bool is_connected() const override { return true; }
  std::int64_t slot_bytes() const override { return 4096; }
  std::int64_t staging_bytes() const override { return 0; }
  int process_of(std::int64_t rank) const override { return static_cast<int>(rank); }
  int own_process() const override { return 0; }
  std::vector<SendChannel*> send_channels() override { return {this}; }
  std::vector<ReceiveChannel*> receive_channels() override { return {}; }
  std::uint32_t prepare_wait() override { return 0; }
  void wait(std::uint32_t, std::int64_t) override {}
  void cancel_wait() override {}
  void flush() override { has_news_ = false; }
  PeerState peer_state(int) override { return PeerState::kAlive; }
  std::string describe_peer(int, PeerState) override { return ""; }
  void check_not_aborted() override {}
  void check_peers() override {}
  void abort(const Error&) override {}
  void close() override {}

 private:
  void begin_run(const RunTotals&) override {}
  std::byte* try_acquire() override { return slot_.data(); }
  void commit(const MessageHeader&) override {
    has_news_ = true;
    const std::int64_t now = monotonic_ns();
    while (monotonic_ns() == now) {  // the shortest slice is over
    }
  }
  bool is_drained() override { return false; }
  bool peer_totals(RunTotals*) override { return false; }
  int process() const override { return 1; }

  std::vector<std::byte> slot_ = std::vector<std::byte>(4096);
  bool has_news_ = false;
};

TEST(a_slice_that_ends_while_bytes_move_leaves_no_news_behind) {
  const auto transport = std::make_shared<HoldingTransport>();
  ByteStreams streams;
  streams.send(0, 1, 100'000);
  Runner sender(streams, 4096);
  sender.begin(transport, 1);
  CHECK_TRUE(!sender.executor().progress(1));
  CHECK_TRUE(!transport->has_news());
  sender.executor().cancel("enough.");
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

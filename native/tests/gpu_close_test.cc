// How communicators end on doubles of GPUs: cleanly where all take part, and within a limit where
// NCCL waits for others, or for ever.
#include "gpu_team.h"

namespace reshard_test {
namespace {

constexpr std::int64_t kCloseLimit = 1'300 * kMillisecond;  // to finalize, and to destroy or abort

// Network communicators of four ranks, and as many of their domains.
constexpr long long kCommunicators = 4, kWithDomains = 8;

std::vector<Outcome> close_all(Team& team) {
  return on_threads(team.size(), [&](std::size_t i) { team[i].close(); });
}

TEST(what_is_closed_in_good_order_is_finalized_and_destroyed) {
  for (const bool has_domains : {false, true}) {
    Team team(true, has_domains, 2);
    team.open();
    team.connect();
    for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
    ncclDoubleReset();
    close_all(team);
    CHECK_EQ(ncclDoubleGet("destroyed"), has_domains ? kWithDomains : kCommunicators);
    team.check_can_go_on();
  }
}

TEST(peers_that_do_not_take_part_in_closing_are_not_waited_for_long) {
  on_all_kinds([](Team& team) {
    team.connect();
    for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
    ncclDoubleReset();
    ncclDoubleInject("hang_finalize", 1);
    for (const Outcome& each : close_all(team)) CHECK_TRUE(each.ns < kCloseLimit + kGrace);
    CHECK_EQ(ncclDoubleGet("destroyed"), 0);  // aborted
  });
}

TEST(a_destroy_that_waits_for_others_is_left_behind) {
  on_all_kinds([](Team& team) {
    team.connect();
    for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
    ncclDoubleInject("destroy_ms", 700);
    for (const Outcome& each : close_all(team)) CHECK_TRUE(each.ns < 600 * kMillisecond + kGrace);
    // Each of a process's takes its time, one after the other.
    CHECK_TRUE(becomes([] { return ncclDoubleGet("communicators") == 0; }, 15000));
  });
}

TEST(an_abort_that_takes_long_is_left_behind) {
  on_all_kinds([](Team& team) {
    team.connect();
    ncclDoubleInject("abort_ms", 1000);
    ncclDoubleInject("hang_group", 2);
    const auto outcomes = team.run(1, kLimit);
    int failed = 0;
    for (const Outcome& each : outcomes) {
      failed += each.code != StatusCode::kOk;
      CHECK_TRUE(each.ns < kLimit + kGrace);
    }
    CHECK_TRUE(failed > 0);
    ncclDoubleInject("abort_ms", 0);
    CHECK_TRUE(becomes([] { return ncclDoubleGet("communicators") == 0; }, 15000));
    CHECK_TRUE(becomes([] { return free_leftovers() == 0; }));
  });
}

// NCCL may launch what it has begun on the streams that it was given.
TEST(streams_stay_until_an_abort_that_was_left_behind_is_over) {
  Team team(true, false, 1);
  team.open();
  team.connect();
  ncclDoubleInject("abort_ms", 3000);
  ncclDoubleInject("hang_group", 2);
  for (const Outcome& each : team.run(1, kLimit)) {
    CHECK_EQ(each.code, StatusCode::kTimeout);
    CHECK_TRUE(each.ns < kLimit + kGrace);
  }
  const auto num_streams = [] { return cudaDoubleGet("streams", -1); };
  const long long before = num_streams();
  CHECK_TRUE(free_leftovers() > 0);
  CHECK_EQ(num_streams(), before);
  CHECK_TRUE(before > 0);
  CHECK_TRUE(becomes([] { return ncclDoubleGet("communicators") == 0; }, 15000));
  CHECK_TRUE(becomes([] { return free_leftovers() == 0; }));
  CHECK_EQ(num_streams(), 0);
  team.check_can_go_on();
}

// As by a caller that gives up on its own: what the end cuts short is not taken for done.
TEST(a_run_whose_communicator_is_closed_under_it_fails_and_keeps_its_streams) {
  Team team(true, false, 1);
  team.open();
  team.connect();
  ncclDoubleInject("abort_ms", 3000);
  ncclDoubleInject("hang_group", 2);
  std::atomic<std::size_t> num_closed{0};
  for (const Outcome& each : on_threads(team.size(), [&](std::size_t i) {
         team[i].begin(1, 20 * kSecond);
         for (int k = 0; k < 10; ++k) {
           CHECK_TRUE(!team[i].executor().progress(5 * kMillisecond));
         }
         ++num_closed;
         CHECK_TRUE(becomes([&] { return num_closed >= team.size(); }));
         team[i].transport()->close();
         ++num_closed;
         CHECK_TRUE(becomes([&] { return num_closed >= 2 * team.size(); }));
         team[i].finish();
       })) {
    CHECK_EQ(each.code, StatusCode::kInvalidState);
    CHECK_CONTAINS(each.text, "used after it was closed");
  }
  const long long num_streams = cudaDoubleGet("streams", -1);
  CHECK_TRUE(free_leftovers() > 0);
  CHECK_EQ(cudaDoubleGet("streams", -1), num_streams);
  CHECK_TRUE(becomes([] { return ncclDoubleGet("communicators") == 0; }, 15000));
  CHECK_TRUE(becomes([] { return free_leftovers() == 0; }));
  team.check_can_go_on();
}

// NCCL writes the communicator of a split, or null, to its place when the split ends, however that
// is: after the abort that was left behind, and after the transport.
TEST(a_split_whose_abort_takes_long_writes_to_memory_that_is_still_there) {
  Team team(true, true, 2);
  team.open();
  ncclDoubleInject("hang_split", 1);
  ncclDoubleInject("abort_ms", 1000);
  for (const Outcome& each :
       on_threads(team.size(), [&](std::size_t i) { team[i].connect(kLimit); })) {
    CHECK_EQ(each.code, StatusCode::kTimeout);
    CHECK_TRUE(each.ns < kLimit + kGrace);
  }
  close_all(team);
  CHECK_TRUE(becomes([] { return ncclDoubleGet("communicators") == 0; }, 15000));
  team.check_can_go_on();
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "8", 1);
  return reshard_test::run_all(argc, argv);
}

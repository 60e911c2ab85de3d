// Rounds over NCCL, on doubles of CUDA and NCCL that move bytes: what arrives, what is left behind,
// and what the driver takes.
#include "gpu_team.h"

namespace reshard_test {
namespace {

// Runs a case a few times, with so many ranks per process, and checks that nothing is left behind.
void run_case(const RoundCase& what, std::int64_t num_ranks, std::int64_t per_process,
              std::int64_t gap, bool has_kernels, bool has_domains) {
  std::vector<std::int64_t> members, domains;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    members.push_back(rank);
    if (has_domains) domains.push_back(rank / 2);
  }
  const NcclUniqueId id = nccl()->make_id();
  {
    std::vector<std::unique_ptr<Member>> processes;
    for (std::int64_t first = 0; first < num_ranks; first += per_process) {
      std::vector<std::int64_t> own;
      for (std::int64_t r = first; r < std::min(num_ranks, first + per_process); ++r) {
        own.push_back(r);
      }
      processes.push_back(std::make_unique<Member>(what, own, has_kernels, gap));
    }
    for (const Outcome& each : on_threads(processes.size(), [&](std::size_t i) {
           processes[i]->open(id, members, domains);
           processes[i]->connect();
           for (const std::uint64_t run : {1, 2, 3}) processes[i]->run(run);
           processes[i]->close();
         })) {
      CHECK_EQ(each.text, "");
    }
  }
  check_nothing_left();
}

// So many tensors, each of which takes a copy of its own at either end where there are no kernels.
RoundCase many_tensors(std::int64_t count, std::int64_t elements) {
  RoundCase made;
  for (std::int64_t t = 0; t < count; ++t) {
    made.tensors.push_back({elements, kU8, {0, 1, 1}});
    made.handovers.push_back({t, 0, 1, 0});
  }
  return made;
}

TEST(one_rank_hands_a_tensor_to_another) {
  const RoundCase what = {{{1000, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  for (const bool has_kernels : {false, true}) {
    run_case(what, 2, 1, 1, has_kernels, false);
    run_case(what, 2, 2, 2, has_kernels, false);
  }
}

TEST(random_cases_bring_every_byte_to_its_place) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 6 * kCasesOfFour; ++trial) {
    cudaDoubleSetDelay(static_cast<unsigned long long>(trial), 300);
    const auto num_ranks = static_cast<std::int64_t>(2 + random() % 4);
    RoundCase what = random_case(random, num_ranks);
    what.padding = trial % 4 * 7;
    run_case(what, num_ranks, static_cast<std::int64_t>(1 + random() % 3),
             static_cast<std::int64_t>(1 + random() % 2), trial % 2 == 0, trial % 3 == 0);
  }
}

// The double tells of streams that are fuller than the driver has room for.
TEST(more_copies_than_a_stream_holds_wait_for_room) {
  cudaDoubleSetDelay(1, 20);
  run_case(many_tensors(1500, 5), 2, 1, 2, false, false);
  run_case(many_tensors(1500, 5), 2, 2, 2, false, false);
}

// So that who drives it can look at other things, such as an interrupt.
TEST(a_run_whose_stream_is_full_returns_after_its_slice) {
  const RoundCase what = many_tensors(1500, 5);
  Member both(what, {0, 1}, false, 2);
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  {
    StuckStream stuck(0);
    both.begin(1, 20 * kSecond, {stuck.number(), 0});
    for (int i = 0; i < 20; ++i) {
      const std::int64_t start = monotonic_ns();
      CHECK_TRUE(!both.executor().progress(5 * kMillisecond));
      CHECK_TRUE(monotonic_ns() - start < kSecond);
    }
    stuck.go_on();
    both.finish();
    both.process().check(1);
    CHECK_TRUE(stuck.finish());
  }
  both.close();
}

// One call of progress may not go on for as long as there is room: copies by the driver may be
// millions, and who drives a run looks at the clock and at signals between calls.
TEST(a_call_queues_no_more_than_a_stage_may) {
  cudaDoubleSetDelay(1, 0);
  Member both(many_tensors(3000, 5), {0, 1}, false, 2);
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  both.begin(1, 60 * kSecond);
  long long before = cudaDoubleGet("copies", -1);
  long long most = 0;
  for (bool is_over = false; !is_over;) {
    is_over = both.executor().progress(1);
    const long long now = cudaDoubleGet("copies", -1);
    most = std::max(most, now - before);
    before = now;
  }
  CHECK_TRUE(most > 0);
  CHECK_TRUE(most <= 2 * reshard::kMostPerCall);  // of both ranks
  both.process().check(1);
  both.close();
}

TEST(zeros_that_a_full_stream_holds_up_are_filled_once_and_all) {
  RoundCase what = many_tensors(1500, 5);
  what.padding = 3;
  Member both(what, {0, 1}, true, 2);
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  {
    StuckStream stuck(1);
    both.begin(1, 20 * kSecond, {0, stuck.number()});
    for (int i = 0; i < 20; ++i) CHECK_TRUE(!both.executor().progress(5 * kMillisecond));
    stuck.go_on();
    both.finish();
    both.process().check(1);
    CHECK_TRUE(stuck.finish());
  }
  both.close();
}

// 1 passes on to 2 what 0 gave it, and 2 to 3, in two domains.
TEST(stages_of_relays_go_on_where_a_full_stream_left_them) {
  cudaDoubleSetDelay(1, 20);
  RoundCase what;
  for (std::int64_t t = 0; t < 1200; ++t) {
    what.tensors.push_back({5, kU8, {0, 1, 1}});
    for (std::int64_t hop = 0; hop < 3; ++hop) {
      what.handovers.push_back({t, (t + hop) % 4, (t + hop + 1) % 4, hop});
    }
  }
  run_case(what, 4, 2, 2, false, true);
  run_case(what, 4, 1, 2, false, true);
}

TEST(a_run_after_one_that_ended_in_the_middle_of_a_stage_is_whole) {
  Member both(many_tensors(1500, 5), {0, 1}, false, 2);
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  {
    StuckStream stuck(1);
    both.begin(1, kLimit, {0, stuck.number()});
    CHECK_TRUE(error_of([&] { both.finish(); }).code() == StatusCode::kTimeout);
    CHECK_TRUE(stuck.finish());
    CHECK_EQ(cudaDoubleDrain(5000), 0);
  }
  both.close();
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  both.run(2);
  both.close();
}

TEST(a_stream_that_stays_full_ends_the_run_at_its_deadline) {
  cudaDoubleSetDelay(1, 0);
  const RoundCase what = many_tensors(1500, 5);
  std::vector<std::unique_ptr<Member>> members;
  for (const std::int64_t rank : {0, 1}) {
    members.push_back(std::make_unique<Member>(what, std::vector{rank}, false, 2));
  }
  const NcclUniqueId id = nccl()->make_id();
  {
    StuckStream stuck(0);
    const auto outcomes = on_threads(2, [&](std::size_t i) {
      members[i]->open(id, {0, 1});
      members[i]->connect();
      std::vector<std::uint64_t> own;
      if (i == 0) own.push_back(stuck.number());
      const std::int64_t start = monotonic_ns();
      const Error error = error_of([&] {
        members[i]->begin(1, kLimit, own);
        members[i]->finish();
      });
      CHECK_EQ(error.code(), StatusCode::kTimeout);
      CHECK_CONTAINS(error.message(), "0 of 1 slots are over");
      CHECK_TRUE(monotonic_ns() - start < kLimit + kGrace);
      members[i]->close();
    });
    for (const Outcome& each : outcomes) CHECK_EQ(each.text, "");
    CHECK_TRUE(stuck.finish());
    CHECK_EQ(cudaDoubleDrain(5000), 0);
  }
  members.clear();
  free_leftovers();
  check_nothing_left();
}

TEST(no_more_than_four_slots_are_queued_before_the_first_is_over) {
  cudaDoubleSetDelay(1, 0);
  // A group in each of the slots.
  const RoundCase what = {{{4000, kU8, {0, 1, 1}}}, {{0, 0, 1, 0}}, 40, 1};
  {
    Member both(what, {0, 1}, false);
    both.open(nccl()->make_id(), {0, 1});
    both.connect();
    StuckStream first(0);
    StuckStream second(1);
    both.begin(1, 20 * kSecond, {first.number(), second.number()});
    CHECK_TRUE(becomes([&] {
      both.executor().progress(0);
      return ncclDoubleGet("groups") >= 4;
    }));
    for (int i = 0; i < 100; ++i) both.executor().progress(kMillisecond);
    CHECK_EQ(ncclDoubleGet("groups"), 4);
    first.go_on();
    second.go_on();
    both.finish();
    both.process().check(1);
    CHECK_EQ(ncclDoubleGet("groups"), 40);
    both.close();
  }
  check_nothing_left();
}

// Zeros need nothing of the network, so nothing but the caller's stream holds them up.
TEST(what_a_run_writes_comes_after_what_the_caller_had_queued) {
  RoundCase what = {{{1000, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  what.padding = 24;
  for (const bool has_kernels : {false, true}) {
    {
      Member both(what, {0, 1}, has_kernels);
      both.open(nccl()->make_id(), {0, 1});
      both.connect();
      std::vector<std::byte>& memory = both.process().memory(1, 0);
      StuckStream stuck(1);
      const auto load = [](void* bytes) {
        auto& all = *static_cast<std::vector<std::byte>*>(bytes);
        std::fill(all.begin(), all.end(), std::byte{0x77});
      };
      cudaDoubleQueue(stuck.get(), 1, load, &memory, nullptr, 0);
      both.begin(1, 20 * kSecond, {0, stuck.number()});
      const std::vector<std::byte> before = memory;
      const bool is_early = becomes(
          [&] {
            both.executor().progress(0);
            return memory != before;
          },
          100);
      CHECK_TRUE(!is_early);
      stuck.go_on();
      both.finish();
      both.process().check(1);
      both.close();
    }
    check_nothing_left();
  }
}

TEST(a_run_of_another_program_frees_what_a_failed_one_left) {
  const RoundCase what = {{{1000, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  const RoundCase elsewhere = {{{1000, kI32, {0, 1, 1}}}, {{0, 2, 3, 0}}, 4, 1};
  {
    Member failed(what, {0, 1}, false);
    Member others(elsewhere, {2, 3}, false);
    failed.open(nccl()->make_id(), {0, 1});
    failed.connect();
    {
      StuckStream stuck(0);
      const Error error = error_of([&] {
        failed.begin(1, kLimit, {stuck.number(), 0});
        failed.finish();
      });
      CHECK_EQ(error.code(), StatusCode::kTimeout);
      failed.close();
      CHECK_TRUE(cudaDoubleGet("allocations", 0) > 0);  // still to be read by what is queued
      CHECK_TRUE(stuck.finish());
      CHECK_EQ(cudaDoubleDrain(5000), 0);
    }
    CHECK_TRUE(cudaDoubleGet("allocations", 0) > 0);
    others.open(nccl()->make_id(), {2, 3});
    others.connect();
    others.begin(1);
    CHECK_EQ(cudaDoubleGet("allocations", 0), 0);
    CHECK_EQ(cudaDoubleGet("contexts", 0), 0);
    others.finish();
    others.process().check(1);
    others.close();
  }
  check_nothing_left();
}

TEST(rows_farther_apart_and_longer_than_a_pitch_are_copied_one_by_one) {
  cudaDoubleSetMaxPitch(64);
  // Dense ones become runs, those with gaps rows: of 2 bytes, 16 apart, and of 8 bytes, 64 apart.
  for (const std::int64_t gap : {1, 8}) {
    for (const std::int64_t dtype : {kI32, kI64}) {
      run_case({{{1000, dtype, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1}, 2, 1, gap, false, false);
      run_case({{{1000, dtype, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1}, 2, 1, gap + 1, false, false);
    }
  }
  cudaDoubleSetMaxPitch(0x7FFFFFFF);
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "8", 1);
  return reshard_test::run_all(argc, argv);
}

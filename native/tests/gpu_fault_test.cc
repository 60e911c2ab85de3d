// Errors, hangs and broken devices under a run on GPUs: which error, when, and what is left behind.
//
// A thread stands for a process. After every fault nothing is in use any more, no rule of either
// library was broken, and a fresh communicator of the same threads brings every byte to its place.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gpu_team.h"

namespace reshard_test {
namespace {

TEST(an_asynchronous_error_ends_the_run_of_its_rank_at_once_and_all_others_at_the_deadline) {
  for (const int group : {1, 4, 9}) {
    on_all_kinds([&](Team& team) {
      team.connect();
      ncclDoubleInject("async_error_group", group);
      int failed = 0;
      for (const Outcome& each : team.run(1, kLimit)) {
        CHECK_TRUE(each.ns < kLimit + kGrace);
        if (each.code == StatusCode::kTimeout) {
          CHECK_CONTAINS(each.text, "waits for ranks");
          continue;
        }
        if (each.code == StatusCode::kOk) continue;  // had its bytes by then
        ++failed;
        CHECK_EQ(each.code, StatusCode::kSystem);
        CHECK_CONTAINS(each.text, "NCCL 2.32.3, sending and receiving: 2, unhandled system error");
        CHECK_CONTAINS(each.text, "It was in slot ");
      }
      CHECK_EQ(failed, 1);
    });
  }
}

TEST(a_remote_error_is_told_as_a_lost_peer) {
  on_all_kinds([&](Team& team) {
    team.connect();
    ncclDoubleInject("async_error_code", 6);
    ncclDoubleInject("async_error_group", 2);
    int failed = 0;
    for (const Outcome& each : team.run(1, kLimit)) {
      if (each.code != StatusCode::kPeerLost) continue;
      ++failed;
      CHECK_CONTAINS(each.text, "A peer died or cannot be reached any more.");
    }
    CHECK_EQ(failed, 1);
  });
}

TEST(a_group_that_hangs_ends_all_runs_at_the_deadline) {
  for (const int group : {1, 6}) {
    on_all_kinds([&](Team& team) {
      team.connect();
      for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
      ncclDoubleInject("hang_group", group);
      int failed = 0;
      for (const Outcome& each : team.run(2, kLimit)) {
        CHECK_TRUE(each.ns < kLimit + kGrace);
        if (each.code == StatusCode::kOk) continue;
        ++failed;
        CHECK_EQ(each.code, StatusCode::kTimeout);
        CHECK_CONTAINS(each.text, text("the run took longer than ", kLimit / 1e9, " s; "));
        CHECK_CONTAINS(each.text, " of ");
      }
      CHECK_TRUE(failed > 0);
    });
  }
}

// What process 0 says when those named do not take part in a run. Its limit leaves the others the
// time for their part, on a loaded machine too.
Error timeout_without(const std::vector<std::size_t>& silent, const RoundCase& what,
                      const std::vector<std::vector<std::int64_t>>& processes) {
  std::vector<std::unique_ptr<Member>> members;
  for (const auto& own : processes) members.push_back(std::make_unique<Member>(what, own, false));
  const NcclUniqueId id = nccl()->make_id();
  std::vector<Error> told;
  std::atomic<bool> is_told{false};
  const auto outcomes = on_threads(members.size(), [&](std::size_t i) {
    members[i]->open(id, {0, 1, 2, 3});
    members[i]->connect();
    if (i == 0) {
      told.push_back(error_of([&] {
        members[0]->begin(1, kSecond);
        members[0]->finish();
      }));
      is_told = true;
    } else if (std::find(silent.begin(), silent.end(), i) == silent.end()) {
      members[i]->run(1);
    }
    CHECK_TRUE(becomes([&] { return is_told.load(); }));
    // Else it would wait until the others close as well.
    members[i]->transport()->abort(Error(StatusCode::kAborted, "the test is over"));
    members[i]->close();
  });
  for (const Outcome& each : outcomes) CHECK_EQ(each.text, "");
  members.clear();
  check_nothing_left();
  CHECK_EQ(told.front().code(), StatusCode::kTimeout);
  return told.front();
}

TEST(a_timeout_names_the_ranks_that_the_first_open_slot_waits_for) {
  // Rank 0 has to do with rank 1 in the first half of the time, with ranks 2 and 3 in the second.
  const Span early{0, 1, 2}, late{1, 2, 2};
  const RoundCase halves = {{{1000, kI32, early}, {1000, kI32, late}, {1000, kI32, late}},
                            {{0, 0, 1, 0}, {1, 2, 0, 0}, {2, 0, 3, 0}},
                            2,
                            1};
  const std::vector<std::vector<std::int64_t>> alone = {{0}, {1}, {2}, {3}};
  const Error first = timeout_without({1, 2, 3}, halves, alone);
  CHECK_CONTAINS(first.message(), "0 of 2 slots are over, and slot 0 waits for ranks 1.");
  CHECK_EQ(first.rank(), 0);
  CHECK_EQ(first.peer(), 1);
  const Error second = timeout_without({2, 3}, halves, alone);
  CHECK_CONTAINS(second.message(), "1 of 2 slots are over, and slot 1 waits for ranks 2 3.");
  CHECK_EQ(second.rank(), 0);
  CHECK_EQ(second.peer(), kNoRank);
  // Of two ranks of a process, one is through with its slot.
  const RoundCase pairs = {
      {{1000, kI32, {0, 1, 1}}, {1000, kI32, {0, 1, 1}}}, {{0, 0, 2, 0}, {1, 1, 3, 0}}, 1, 1};
  const Error third = timeout_without({2}, pairs, {{0, 1}, {2}, {3}});
  CHECK_CONTAINS(third.message(), "0 of 1 slots are over, and slot 0 waits for ranks 3.");
  CHECK_EQ(third.rank(), 1);
  CHECK_EQ(third.peer(), 3);
}

// Nothing that the thread calls afterwards would reach NCCL.
TEST(a_post_that_is_refused_leaves_no_group_open) {
  Member both({{{64, kU8, {0, 1, 1}}}, {{0, 0, 1, 0}}, 1, 1}, {0, 1}, false);
  both.open(nccl()->make_id(), {0, 1});
  both.connect();
  {
    NcclTransport& transport = *both.transport();
    const GpuDevice& first = *transport.local_ranks()[0].device;
    const GpuDevice& second = *transport.local_ranks()[1].device;
    const GpuStream out(first);
    const GpuStream in(second);
    auto& sent = both.process().memory(0, 0);
    auto& received = both.process().memory(1, 0);
    const auto at = [](std::vector<std::byte>& memory) {
      return reinterpret_cast<CudaAddress>(memory.data());
    };
    const GroupMessage send{0, true, 1, at(sent), 64, out.get()};
    const GroupMessage receive{1, false, 0, at(received), 64, in.get()};
    GroupMessage to_a_stranger = send;
    to_a_stranger.peer = 7;
    const Error error = error_of([&] { transport.post(Channel::kNetwork, {to_a_stranger}); });
    CHECK_EQ(error.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(error.message(), "rank 7 is none of the communicator's.");
    CHECK_TRUE(sent != received);
    transport.post(Channel::kNetwork, {send, receive});
    CHECK_TRUE(becomes([&] { return transport.is_posted(Channel::kNetwork); }));
    CHECK_EQ(cudaDoubleDrain(5000), 0);
    CHECK_TRUE(sent == received);
  }
  both.close();
  check_nothing_left();
}

TEST(an_initialisation_that_hangs_ends_at_the_deadline) {
  on_all_kinds([](Team& team) {
    ncclDoubleInject("hang_init", 1);
    for (const Outcome& each :
         on_threads(team.size(), [&](std::size_t i) { team[i].connect(kLimit); })) {
      CHECK_EQ(each.code, StatusCode::kTimeout);
      CHECK_CONTAINS(each.text,
                     text("NCCL: not all of the 4 ranks have joined within ", kLimit / 1e9, " s"));
      CHECK_TRUE(each.ns >= kLimit && each.ns < kLimit + kGrace);
    }
  });
}

TEST(a_member_that_never_comes_ends_all_others_at_the_deadline) {
  on_all_kinds([](Team& team) {
    for (const Outcome& each :
         on_threads(team.size() - 1, [&](std::size_t i) { team[i + 1].connect(kLimit); })) {
      CHECK_EQ(each.code, StatusCode::kTimeout);
      CHECK_TRUE(each.ns < kLimit + kGrace);
    }
  });
}

TEST(an_initialisation_that_fails_says_what_nccl_says) {
  on_all_kinds([](Team& team) {
    ncclDoubleInject("fail_init", 3);
    for (const Outcome& each :
         on_threads(team.size(), [&](std::size_t i) { team[i].connect(kLimit); })) {
      CHECK_EQ(each.code, StatusCode::kSystem);
      CHECK_CONTAINS(each.text, "NCCL 2.32.3, joining: 3, internal error");
      CHECK_CONTAINS(each.text, "NCCL_DEBUG=INFO says more.");
      CHECK_TRUE(each.ns < kPrompt);
    }
  });
}

TEST(two_ranks_on_one_device_are_refused_on_both) {
  Team team(true, false, 1);
  const NcclUniqueId id = nccl()->make_id();
  for (std::size_t i = 0; i < 4; ++i) team[i].open(id, {0, 1, 2, 3}, {}, i == 3 ? 2 : -1);
  for (const Outcome& each : on_threads(4, [&](std::size_t i) { team[i].connect(); })) {
    CHECK_EQ(each.code, StatusCode::kSystem);
    CHECK_CONTAINS(each.text, "Duplicate GPU detected");
    CHECK_TRUE(each.ns < kPrompt);
  }
  team.check_can_go_on();
}

TEST(unequal_versions_are_refused_on_all) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / text("reshard-versions-", getpid());
  fs::create_directories(folder);
  const fs::path copy = folder / "libnccl.so.2";
  fs::copy_file(NCCL_DOUBLE_PATH, copy, fs::copy_options::overwrite_existing);
  std::ofstream(copy.string() + ".version") << 22203;
  {
    const auto other = std::make_shared<const NcclApi>(copy.string());
    CHECK_EQ(other->version(), 22203);
    Team team(false, false, 1);
    const NcclUniqueId id = nccl()->make_id();
    for (std::size_t i = 0; i < 4; ++i) {
      team[i].open(id, {0, 1, 2, 3}, {}, -1, i == 2 ? other : nccl());
    }
    for (const Outcome& each : on_threads(4, [&](std::size_t i) { team[i].connect(); })) {
      CHECK_EQ(each.code, StatusCode::kSystem);
      CHECK_CONTAINS(each.text, "Mismatched NCCL version detected");
      CHECK_TRUE(each.ns < kPrompt);
    }
    team.check_can_go_on();
  }
  fs::remove_all(folder);
}

// What breaks a device for good, or needs its own environment, has a process of its own.
int run_alone(const char* name, const char* memory_bytes) {
  const pid_t child = fork();  // of a process that has not used the doubles
  if (child == 0) {
    setenv("CUDA_DOUBLE_MEMORY_BYTES", memory_bytes, 1);
    execl("/proc/self/exe", "gpu_fault_test", "--alone", name, nullptr);
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Memory for what a run has under way does not fit on the device.
void run_out_of_memory() {
  Team team(true, true, 1);
  team.open();
  team.connect();
  const auto outcomes = team.run(1, kLimit);
  for (const Outcome& each : outcomes) {
    CHECK_EQ(each.code, StatusCode::kOutOfMemory);
    CHECK_CONTAINS(each.text, "bytes for chunks under way: CUDA says 2, out of memory.");
    CHECK_TRUE(each.ns < kPrompt);
  }
  team.close();
  becomes([] { return counts_left().empty(); }, 2000);
  CHECK_EQ(counts_left(), "");
  const RoundCase small = {{{1000, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  std::vector<std::unique_ptr<Member>> members;
  const NcclUniqueId id = nccl()->make_id();
  for (const std::int64_t rank : {0, 1}) {
    members.push_back(std::make_unique<Member>(small, std::vector{rank}, false));
    members.back()->open(id, {0, 1});
  }
  for (const Outcome& each : on_threads(2, [&](std::size_t i) {
         members[i]->connect();
         members[i]->run(1);
         members[i]->close();
       })) {
    CHECK_EQ(each.text, "");
  }
  members.clear();
  check_nothing_left();
}

// Memory of rank 0 goes away under the run.
void break_a_device() {
  Team team(false, false, 1);
  team.open();
  team.connect();
  for (const Outcome& each : on_threads(4, [&](std::size_t i) {
         team[i].begin(1, kLimit);
         if (i == 0) {
           for (std::size_t buffer = 0; buffer < 4; ++buffer) team[0].take_off(buffer);
         }
         team[i].finish();
       })) {
    CHECK_TRUE(each.ns < kLimit + kGrace);
    if (each.code == StatusCode::kTimeout || each.code == StatusCode::kOk) continue;
    CHECK_EQ(each.code, StatusCode::kSystem);
    CHECK_EQ(each.rank, 0);
    CHECK_CONTAINS(each.text, "GPU 0: ");
    CHECK_CONTAINS(each.text, "CUDA says 700, ");
  }
  CHECK_CONTAINS(cuda_violations(), "are not inside one live allocation");
  const Error again = error_of([&] { team[0].begin(2); });
  CHECK_EQ(again.code(), StatusCode::kAborted);
  team.close();
  for (const char* each : {"allocations", "streams", "events", "modules", "contexts"}) {
    for (const int device : {1, 2, 3}) CHECK_EQ(cudaDoubleGet(each, device), 0);
  }
  CHECK_EQ(ncclDoubleGet("communicators"), 0);
  // The GPU is gone for this process; other ranks go on without it.
  const RoundCase small = {{{1000, kI32, {0, 1, 1}}}, {{0, 1, 2, 0}}, 4, 1};
  std::vector<std::unique_ptr<Member>> members;
  const NcclUniqueId id = nccl()->make_id();
  for (const std::int64_t rank : {1, 2}) {
    members.push_back(std::make_unique<Member>(small, std::vector{rank}, false));
    members.back()->open(id, {1, 2});
  }
  for (const Outcome& each : on_threads(2, [&](std::size_t i) {
         members[i]->connect();
         members[i]->run(1);
         members[i]->close();
       })) {
    CHECK_EQ(each.text, "");
  }
}

// A forked child destroys what its parent made, without a call to CUDA or NCCL.
void destroy_after_fork() {
  auto* team = new Team(true, false, 1);
  team->open();
  team->connect();
  for (const Outcome& each : team->run(1)) CHECK_EQ(each.text, "");
  const pid_t child = fork();
  if (child == 0) {
    const auto streams = cudaDoubleGet("streams", -1);
    {
      RoundExecutor& executor = (*team)[0].executor();
      executor.~RoundExecutor();
    }
    _exit(cudaDoubleGet("streams", -1) == streams ? 0 : 1);
  }
  int status = 0;
  CHECK_TRUE(becomes([&] { return waitpid(child, &status, WNOHANG) == child; }));
  CHECK_EQ(status, 0);
  team->check_can_go_on();
  delete team;
}

TEST(a_device_that_is_out_of_memory_fails_the_begin_and_only_that) {
  CHECK_EQ(run_alone("memory", "330000"), 0);
}
TEST(a_device_that_breaks_is_named) { CHECK_EQ(run_alone("device", "0"), 0); }
TEST(a_forked_child_may_destroy_what_its_parent_made) { CHECK_EQ(run_alone("fork", "0"), 0); }

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);
  if (argc == 3 && std::string(argv[1]) == "--alone") {
    const std::map<std::string, std::function<void()>> bodies{
        {"memory", reshard_test::run_out_of_memory},
        {"device", reshard_test::break_a_device},
        {"fork", reshard_test::destroy_after_fork}};
    return reshard_test::passes(bodies.at(argv[2])) ? 0 : 1;
  }
  return reshard_test::run_all(argc, argv);
}

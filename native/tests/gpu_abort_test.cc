// Runs on GPUs that are aborted, cancelled or called wrongly: which error, and what is left behind.
//
// A thread stands for a process. After every fault nothing is in use any more, no rule of either
// library was broken, and a fresh communicator of the same threads brings every byte to its place.
#include "gpu_fingerprint.h"
#include "gpu_team.h"
#include "reshard/reshard.h"

namespace reshard_test {
namespace {

TEST(an_abort_from_another_thread_ends_what_is_under_way) {
  const Error reason(StatusCode::kAborted, "the user went home");
  const auto expect = [](const Outcome& each, const char* words) {
    CHECK_EQ(each.code, StatusCode::kAborted);
    CHECK_CONTAINS(each.text, words);
    CHECK_TRUE(each.ns < kPrompt);
  };
  on_all_kinds([&](Team& team) {  // while it connects
    ncclDoubleInject("hang_init", 1);
    std::thread aborter([&] {
      becomes([] { return ncclDoubleGet("communicators") == 4; });
      for (std::size_t i = 0; i < team.size(); ++i) team[i].transport()->abort(reason);
    });
    const auto outcomes = on_threads(team.size(), [&](std::size_t i) { team[i].connect(); });
    aborter.join();
    for (const Outcome& each : outcomes) expect(each, "the user went home");
  });
  on_all_kinds([&](Team& team) {  // while it runs
    team.connect();
    ncclDoubleInject("hang_group", 3);
    std::thread aborter([&] {
      becomes([] { return ncclDoubleGet("groups") >= 3; });
      for (std::size_t i = 0; i < team.size(); ++i) team[i].transport()->abort(reason);
    });
    const auto outcomes = team.run(1);
    aborter.join();
    int failed = 0;
    for (const Outcome& each : outcomes) {
      if (each.code == StatusCode::kOk) continue;
      ++failed;
      expect(each, "the user went home");
    }
    CHECK_TRUE(failed > 0);
  });
  on_all_kinds([&](Team& team) {  // while it is idle
    team.connect();
    for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
    for (std::size_t i = 0; i < team.size(); ++i) {
      team[i].transport()->abort(reason);
      CHECK_EQ(error_of([&] { team[i].transport()->check_peers(); }).code(), StatusCode::kAborted);
    }
    for (const Outcome& each : team.run(2)) expect(each, "the user went home");
  });
}

TEST(a_run_that_is_cancelled_in_the_middle_leaves_nothing) {
  on_all_kinds([](Team& team) {
    team.connect();
    ncclDoubleInject("hang_group", 5);
    std::atomic<bool> is_cancelled{false};
    for (const Outcome& each : on_threads(team.size(), [&](std::size_t i) {
           team[i].begin(1);
           if (i > 0) return team[i].finish();
           while (ncclDoubleGet("groups") < 4) team[0].executor().progress(0);
           team[0].executor().cancel("enough of it");
           CHECK_TRUE(!team[0].executor().is_running());
           for (std::size_t k = 1; k < team.size(); ++k) {
             team[k].transport()->abort(Error(StatusCode::kAborted, "enough of it"));
           }
           is_cancelled = true;
         })) {
      if (each.code != StatusCode::kOk) CHECK_CONTAINS(each.text, "enough of it");
      CHECK_TRUE(each.ns < kPrompt);
    }
    CHECK_TRUE(is_cancelled);
    const Error again = error_of([&] { team[0].begin(2); });
    CHECK_EQ(again.code(), StatusCode::kAborted);
    CHECK_CONTAINS(again.message(), "enough of it");
  });
}

TEST(buffers_on_the_wrong_device_are_refused_and_the_communicator_stays_good) {
  for (const bool has_kernels : {false, true}) {
    Team team(has_kernels, false, 1);
    team.open();
    team.connect();
    team[1].take_off(2);
    const Error unknown = error_of([&] { team[1].begin(1); });
    CHECK_EQ(unknown.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(unknown.message(), "buffer 2 of rank 1 lies in no memory that CUDA knows");
    team[1].put_on(2, 3);
    const Error other = error_of([&] { team[1].begin(1); });
    CHECK_EQ(other.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(other.message(), "buffer 2 of rank 1 lies on GPU 3, but the rank's GPU is 1.");
    CHECK_EQ(other.rank(), 1);
    team[1].take_off(2);
    team[1].put_on(2, 1);
    for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
    team.check_can_go_on();
  }
}

TEST(wrong_arguments_are_refused_and_the_communicator_stays_good) {
  Team team(true, false, 2);
  team.open();
  const Error early = error_of([&] { team[0].begin(1); });
  CHECK_EQ(early.code(), StatusCode::kInvalidState);
  CHECK_CONTAINS(early.message(), "communicator: not connected.");
  team.connect();
  const auto refused = [&](const Error& error, const char* words) {
    CHECK_EQ(error.code(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(error.message(), words);
  };
  refused(error_of([&] { team[0].begin(1, kSecond, {0}); }), "1 streams for 2 local ranks");
  refused(error_of([&] { team[0].begin(1, 0); }), "timeout 0 ns is not above 0");
  std::vector<void*> buffers = team[0].process().buffers();
  const auto begin = [&](std::size_t count) {
    team[0].executor().begin(team[0].transport(), buffers.data(), count, {1, kSecond, 1});
  };
  refused(error_of([&] { begin(3); }), "program: 3 buffers given but 8 needed.");
  buffers[1] = nullptr;
  refused(error_of([&] { begin(8); }), "program: buffer 1 is null but operations refer to it.");
  for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");

  Team strangers(true, false, 1);  // whose program names ranks that this communicator has not
  const NcclUniqueId id = nccl()->make_id();
  strangers[0].open(id, {0});
  strangers[0].connect();
  refused(error_of([&] { strangers[0].begin(1); }), "rank 1 is none of the communicator's.");
  strangers[0].close();
  team.check_can_go_on();
}

TEST(the_wrong_kind_of_communicator_is_refused) {
  Team team(false, false, 2);
  const std::int32_t places[] = {0, 1};
  const std::int32_t peers[] = {1};
  const std::string key = new_session_key();
  reshard_shm_options options{};
  options.size = sizeof(options);
  options.session_key = key.c_str();
  options.num_processes = 2;
  options.rank_to_process = places;
  options.num_ranks = 2;
  options.send_peers = options.receive_peers = peers;
  options.num_send_peers = options.num_receive_peers = 1;
  options.slot_bytes = 4096;
  options.slots_per_ring = 4;
  reshard_communicator* shm = nullptr;
  CHECK_EQ(reshard_communicator_create_shm(&options, &shm), RESHARD_STATUS_OK);
  // Rank 0 sends 8 bytes to rank 1, in one round.
  const std::int64_t streams[] = {0, 0, 1}, operations[] = {0, 0, 0, 1, 1, 1, 8, 1};
  const std::int64_t extents[] = {0, 8}, hops[] = {0}, spans[] = {0, 1, 1};
  reshard_program_tables tables{};
  tables.size = sizeof(tables);
  tables.streams = streams, tables.streams_length = 3;
  tables.operations = operations, tables.operations_length = 8;
  tables.extents = extents, tables.extents_length = 2;
  tables.hops = hops, tables.hops_length = 1;
  tables.spans = spans, tables.spans_length = 3;
  tables.num_buffers = 1;
  tables.chunk_bytes = 64;
  tables.num_rounds = tables.num_groups = tables.messages_per_pair = 1;
  reshard_program* program = nullptr;
  CHECK_EQ(reshard_program_create(&tables, &program), RESHARD_STATUS_OK);
  char memory[8];
  void* buffers[] = {memory};
  reshard_run_options run{};
  run.size = sizeof(run);
  run.timeout_ns = kSecond;
  run.num_threads = 1;
  CHECK_EQ(reshard_program_begin(program, shm, buffers, 1, &run), RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK_CONTAINS(std::string(reshard_last_error()),
                 "it moves in rounds, which takes a communicator over NCCL.");
  CHECK_EQ(reshard_program_begin(program, nullptr, buffers, 1, &run),
           RESHARD_STATUS_INVALID_ARGUMENT);
  reshard_program_destroy(program);
  reshard_communicator_destroy(shm);
  team.open();
  team.connect();
  Runner chunks(ByteStreams{}, 4096);
  const Error refused = error_of([&] { chunks.begin(team[0].transport(), 1); });
  CHECK_EQ(refused.code(), StatusCode::kInvalidArgument);
  CHECK_EQ(refused.message(),
           "program: it moves in chunks, which takes a communicator over shared memory.");
  CHECK_TRUE(!chunks.executor().is_running());
  team.check_can_go_on();
}

TEST(what_the_caller_queues_after_an_error_comes_after_what_was_left) {
  for (int turn = 0; turn < 3; ++turn) {
    Team team(true, false, 1);
    team.open();
    team.connect();
    {
      StuckStream stuck(0);
      on_threads(4, [&](std::size_t i) {
        std::vector<std::uint64_t> own;
        if (i == 0) own.push_back(stuck.number());
        team[i].begin(1, kLimit, own);
        team[i].finish();
      });
      team.close();
      // The caller loads its weights anew, on its own stream.
      std::vector<std::vector<std::byte>>& all = team[0].process().all_memory();
      const auto load = [](void* memory) {
        auto& bytes = *static_cast<std::vector<std::byte>*>(memory);
        std::fill(bytes.begin(), bytes.end(), std::byte{0x77});
      };
      for (auto& memory : all) cudaDoubleQueue(stuck.get(), 0, load, &memory, nullptr, 0);
      CHECK_TRUE(stuck.finish());
      CHECK_EQ(cudaDoubleDrain(5000), 0);
      for (auto& memory : all) {
        const auto is_new = [](std::byte byte) { return byte == std::byte{0x77}; };
        CHECK_TRUE(std::all_of(memory.begin(), memory.end(), is_new));
        std::fill(memory.begin(), memory.end(), std::byte{0x55});
      }
    }
    free_leftovers();
  }
}

std::int64_t count_leftovers() {
  std::int64_t count = -1;
  CHECK_EQ(reshard_gpu_count_leftovers(&count), RESHARD_STATUS_OK);
  return count;
}

TEST(what_a_stuck_stream_of_the_caller_holds_up_is_freed_when_it_goes_on) {
  for (const bool has_kernels : {false, true}) {
    Team team(has_kernels, false, 1);
    team.open();
    team.connect();
    {
      StuckStream stuck(0);
      for (const Outcome& each : on_threads(4, [&](std::size_t i) {
             std::vector<std::uint64_t> own;
             if (i == 0) own.push_back(stuck.number());
             team[i].begin(1, kLimit, own);
             team[i].finish();
           })) {
        CHECK_TRUE(each.ns < kLimit + kGrace);
        if (each.code != StatusCode::kOk) CHECK_EQ(each.code, StatusCode::kTimeout);
      }
      team.close();
      CHECK_TRUE(cudaDoubleGet("allocations", 0) > 0);  // still to be written by what is queued
      CHECK_EQ(count_leftovers(), 1);
      CHECK_EQ(cudaDoubleGet("allocations", 1), 0);
      CHECK_TRUE(stuck.finish());
      CHECK_EQ(cudaDoubleDrain(5000), 0);
    }
    CHECK_EQ(count_leftovers(), 0);  // frees, as the next run does, of whatever program
    team.check_can_go_on();
  }
}

TEST(fingerprints_that_take_too_long_raise_and_leave_nothing) {
  Team team(true, false, 1);
  team.open();
  team.connect();
  for (const Outcome& each : team.run(1)) CHECK_EQ(each.text, "");
  {
    GpuFingerprints fingerprints(team[0].transport()->local_ranks());
    FingerprintRow row{};
    row.elements = 64;
    row.region.memory = row.region.stored = DType::kU8;
    row.region.ndim = 1;
    row.region.size[0] = 64;
    row.region.stride[0] = row.region.index_stride[0] = 1;
    const std::vector<void*> buffers = team[0].process().buffers();
    std::uint64_t sum = 7;
    cudaDoubleSetDelay(1, 20000);
    GpuFingerprints slow(team[0].transport()->local_ranks());
    cudaDoubleSetDelay(1, 100);
    const Error error = error_of([&] { slow.add({row}, buffers.data(), &sum, kMillisecond); });
    CHECK_EQ(error.code(), StatusCode::kTimeout);
    CHECK_CONTAINS(error.message(), "GPU 0: fingerprints took longer than 0.001 s.");
    CHECK_EQ(sum, 7U);
    std::uint64_t expected = 0;
    fingerprints.add({row}, buffers.data(), &expected, 20 * kSecond);
    slow.add({row}, buffers.data(), &sum, 20 * kSecond);
    CHECK_EQ(sum, expected + 7);
  }
  team.check_can_go_on();
}

TEST(a_hundred_aborts_at_random_points_leave_nothing) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 25 * kCasesOfFour; ++trial) {
    Team team(random() % 2 == 0, random() % 2 == 0, random() % 2 == 0 ? 1 : 2);
    cudaDoubleSetDelay(random(), 200);
    const Error reason(StatusCode::kAborted, text("trial ", trial));
    const auto wait_us = static_cast<std::int64_t>(random() % 12000);
    team.open();
    std::atomic<bool> is_over{false};
    std::thread aborter([&] {
      // An id that nobody came with is kept, by NCCL as well.
      becomes([&] { return ncclDoubleGet("communicators") > 0; });
      const std::int64_t when = monotonic_ns() + wait_us * 1000;
      while (monotonic_ns() < when && !is_over) std::this_thread::yield();
      for (std::size_t i = 0; i < team.size(); ++i) team[i].transport()->abort(reason);
    });
    const auto outcomes = on_threads(team.size(), [&](std::size_t i) {
      team[i].connect();
      for (std::uint64_t number = 1;; ++number) team[i].run(number);
    });
    is_over = true;
    aborter.join();
    for (const Outcome& each : outcomes) {
      CHECK_EQ(each.code, StatusCode::kAborted);
      CHECK_CONTAINS(each.text, text("trial ", trial));
      CHECK_TRUE(each.ns < kPrompt);
    }
    if (trial % 10 == 9) {
      team.check_can_go_on();
      continue;
    }
    for (std::size_t i = 0; i < team.size(); ++i) team[i].check_gaps();
    team.close();
    check_nothing_left();
  }
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);
  return reshard_test::run_all(argc, argv);
}

// Communicators of the double of NCCL, in one process: how they begin, split and end, and that each
// of their rules is enforced.
#include <dirent.h>

#include <functional>
#include <utility>

#include "doubles/world.h"

namespace reshard_test {
namespace {

int num_entries(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

int num_files() { return num_entries("/proc/self/fd"); }
int num_threads() { return num_entries("/proc/self/task"); }

ncclUniqueId unique_id() {
  ncclUniqueId id;
  CHECK_EQ(ncclGetUniqueId(&id), 0);
  return id;
}

ncclComm_t begin(const ncclUniqueId& id, int num_ranks, int rank) {
  const OnDevice device(rank);
  ncclConfig_t used = config();
  ncclComm_t comm = nullptr;
  const int result = ncclCommInitRankConfig(&comm, num_ranks, id, rank, &used);
  CHECK_TRUE(result == ncclSuccess || result == ncclInProgress);
  return comm;
}

void check_no_violations() {
  CHECK_EQ(nccl_violations(), "");
  CHECK_EQ(cuda_violations(), "");
}

void check_nothing_is_left() {
  CHECK_EQ(ncclDoubleGet("communicators"), 0);
  CHECK_EQ(ncclDoubleGet("meetings"), 0);
  CHECK_EQ(cudaDoubleGet("streams", -1), 0);
  CHECK_EQ(cudaDoubleGet("allocations", -1), 0);
}

// A byte goes from each rank to the next one, over communicators whose ranks are in order.
bool ring_works(const std::vector<ncclComm_t>& comms, const std::vector<World*>& worlds,
                const std::vector<int>& devices) {
  std::vector<std::pair<const Memory*, const Memory*>> moves;
  const int size = static_cast<int>(comms.size());
  ncclGroupStart();
  for (int rank = 0; rank < size; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    World& world = *worlds[at];
    const Memory& out = world.memory(devices[at], hashed_bytes(64, at));
    const Memory& in = world.memory(devices[at], std::size_t{64});
    ncclSend(out.data(), 64, ncclUint8, (rank + 1) % size, comms[at], world.stream(devices[at]));
    ncclRecv(in.data(), 64, ncclUint8, (rank + size - 1) % size, comms[at],
             world.stream(devices[at]));
    moves.emplace_back(&out, &in);
  }
  ncclGroupEnd();
  bool works = true;
  for (const ncclComm_t comm : comms) works &= settled(comm) == ncclSuccess;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    works &= worlds[i]->finishes(devices[i]);
  }
  for (std::size_t i = 0; i < moves.size(); ++i) {
    works &= moves[(i + 1) % moves.size()].second->bytes() == moves[i].first->bytes();
  }
  return works;
}

}  // namespace

TEST(ranks_in_one_group_find_each_other_and_end_cleanly) {
  const CleanTest clean;
  {
    World world(4);
    CHECK_EQ(world.ranks().result(), 0);
    CHECK_TRUE(ring_works({world.comm(0), world.comm(1), world.comm(2), world.comm(3)},
                          {&world, &world, &world, &world}, {0, 1, 2, 3}));
    world.finalize();
  }
  check_nothing_is_left();
  check_no_violations();
}

TEST(ranks_in_threads_of_their_own_find_each_other) {
  const CleanTest clean;
  const ncclUniqueId id = unique_id();
  std::vector<int> results(4, -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const OnDevice device(rank);
      ncclConfig_t used = config();
      ncclComm_t comm = nullptr;
      ncclCommInitRankConfig(&comm, 4, id, rank, &used);
      results[static_cast<std::size_t>(rank)] = settled(comm);
      ncclCommFinalize(comm);
      if (settled(comm) != ncclSuccess) results[static_cast<std::size_t>(rank)] = -2;
      ncclCommDestroy(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_TRUE(results == std::vector<int>(4, 0));
  check_nothing_is_left();
  check_no_violations();
}

TEST(two_ranks_on_one_device_are_refused_on_both) {
  const CleanTest clean;
  const ncclUniqueId id = unique_id();
  const OnDevice device(1);
  ncclComm_t comms[2] = {};
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) {
    ncclConfig_t used = config();
    CHECK_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &used), 0);
  }
  ncclGroupEnd();
  for (const ncclComm_t comm : comms) {
    CHECK_EQ(settled(comm), static_cast<int>(ncclInvalidUsage));
    CHECK_CONTAINS(ncclGetLastError(comm), "Duplicate GPU detected : rank 0 and rank 1");
    CHECK_EQ(ncclCommAbort(comm), 0);
  }
  check_nothing_is_left();
  check_no_violations();
}

TEST(an_initialisation_that_hangs_can_be_aborted) {
  const CleanTest clean;
  const int files = num_files();
  for (int i = 0; i < 100; ++i) {
    const ncclComm_t comm = begin(unique_id(), 2, i % 2);
    CHECK_EQ(settled(comm, 1), static_cast<int>(ncclInProgress));
    CHECK_EQ(ncclCommAbort(comm), 0);
  }
  CHECK_EQ(num_files(), files);
  check_nothing_is_left();
  check_no_violations();
}

TEST(what_is_destroyed_or_aborted_is_no_communicator) {
  const CleanTest clean;
  const ncclComm_t comm = begin(unique_id(), 1, 0);
  CHECK_EQ(settled(comm), 0);
  CHECK_EQ(ncclCommDestroy(comm), 0);
  int result = 0;
  CHECK_EQ(ncclCommGetAsyncError(comm, &result), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclCommAbort(comm), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclCommDestroy(comm), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclSend(&result, 1, ncclUint8, 0, comm, nullptr),
           static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclDoubleGet("violations"), 4);
  CHECK_CONTAINS(nccl_violations(), "ncclSend: this is no live communicator");
}

TEST(wrong_arguments_of_an_initialisation_are_refused) {
  const CleanTest clean;
  CHECK_EQ(cuInit(0), 0);
  const ncclUniqueId id = unique_id();
  ncclComm_t comm = nullptr;
  ncclConfig_t used = config();
  CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &used),
           static_cast<int>(ncclUnhandledCudaError));  // no context
  const OnDevice device(0);
  CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 1, &used), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclCommInitRankConfig(&comm, 1, ncclUniqueId{}, 0, &used),
           static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, nullptr), static_cast<int>(ncclInvalidArgument));
  for (const int blocking : {1, INT_MIN}) {
    used.blocking = blocking;
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &used), static_cast<int>(ncclInvalidArgument));
  }
  used = config();
  used.magic = 1;
  CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &used), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclDoubleGet("violations"), 7);
  CHECK_EQ(ncclDoubleGet("communicators"), 0);
  // The id is still good for one communicator, not for two.
  used = config();
  const ncclComm_t first = begin(id, 1, 0);
  CHECK_EQ(settled(first), 0);
  ncclCommInitRankConfig(&comm, 1, id, 0, &used);
  CHECK_EQ(settled(comm), static_cast<int>(ncclInvalidUsage));
  CHECK_CONTAINS(nccl_violations(), "rank 0 comes a second time with one unique id");
  CHECK_EQ(ncclCommAbort(comm), 0);
  CHECK_EQ(ncclCommAbort(first), 0);
  check_nothing_is_left();
}

TEST(a_split_gives_communicators_by_color_and_key) {
  const CleanTest clean;
  World world(4);
  CHECK_EQ(world.ranks().result(), 0);
  for (int round = 0; round < 3; ++round) {
    std::vector<ncclComm_t> children(4, world.comm(0));
    ncclGroupStart();
    for (int rank = 0; rank < 4; ++rank) {
      // Ranks 0 and 2 change places; rank 3 stays out.
      CHECK_EQ(ncclCommSplit(world.comm(rank), rank == 3 ? NCCL_SPLIT_NOCOLOR : 5, -rank,
                             &children[static_cast<std::size_t>(rank)], nullptr),
               0);
    }
    const int ended = ncclGroupEnd();
    CHECK_TRUE(ended == ncclInProgress || ended == ncclSuccess);
    CHECK_TRUE(children[0] == nullptr);
    CHECK_EQ(world.ranks().result(), 0);  // the parents are asked
    CHECK_TRUE(children[0] != nullptr && children[3] == nullptr);
    CHECK_TRUE(
        ring_works({children[2], children[1], children[0]}, {&world, &world, &world}, {2, 1, 0}));
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_EQ(ncclCommAbort(children[static_cast<std::size_t>(rank)]), 0);
    }
  }
  check_no_violations();
  CHECK_EQ(ncclDoubleGet("communicators"), 4);
}

TEST(a_split_hangs_until_all_ranks_have_called) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  ncclComm_t child = nullptr;
  CHECK_EQ(ncclCommSplit(world.comm(0), 0, 0, &child, nullptr), static_cast<int>(ncclInProgress));
  CHECK_EQ(settled(world.comm(0), 50), static_cast<int>(ncclInProgress));
  ncclComm_t again = nullptr;
  CHECK_EQ(ncclCommSplit(world.comm(0), 0, 0, &again, nullptr),
           static_cast<int>(ncclInvalidArgument));
  CHECK_CONTAINS(nccl_violations(), "ncclCommSplit: the communicator is still in progress");
  world.abort();
  CHECK_TRUE(child == nullptr);
  CHECK_EQ(ncclDoubleGet("meetings"), 0);
}

TEST(initialisation_and_operations_do_not_share_a_group) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Memory& memory = world.memory(0, std::size_t{8});
  ncclComm_t child = nullptr;
  ncclGroupStart();
  CHECK_EQ(ncclCommSplit(world.comm(1), 0, 0, &child, nullptr), 0);
  CHECK_EQ(world.send(0, 1, memory, 8), 0);
  CHECK_EQ(ncclGroupEnd(), static_cast<int>(ncclInvalidUsage));
  CHECK_CONTAINS(nccl_violations(), "one group starts or splits communicators and sends");
}

TEST(finalizing_waits_for_what_was_issued) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Memory& out = world.memory(0, std::size_t{8});
  const Memory& in = world.memory(1, std::size_t{8});
  world.send(0, 1, out, 8);
  CHECK_EQ(settled(world.comm(0)), 0);
  ncclCommFinalize(world.comm(0));
  CHECK_EQ(settled(world.comm(0), 50), static_cast<int>(ncclInProgress));
  world.receive(1, 0, in, 8);
  CHECK_EQ(world.ranks().result(), 0);
  CHECK_EQ(world.send(0, 1, out, 8), static_cast<int>(ncclInvalidArgument));
  CHECK_CONTAINS(nccl_violations(), "ncclSend: the communicator was finalized");
}

TEST(destroying_a_communicator_that_has_work_is_a_violation) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Memory& out = world.memory(0, std::size_t{8});
  world.send(0, 1, out, 8);
  CHECK_EQ(settled(world.comm(0)), 0);
  CHECK_EQ(ncclCommDestroy(world.comm(0)), 0);
  CHECK_CONTAINS(nccl_violations(), "ncclCommDestroy: the communicator still has work");
  CHECK_TRUE(world.finishes(0));
}

TEST(errors_hangs_and_delays_are_injected) {
  const CleanTest clean;
  CHECK_EQ(ncclDoubleInject("nonsense", 1), 1);
  for (const bool is_hang : {false, true}) {
    World world(2);
    CHECK_EQ(world.ranks().result(), 0);
    const std::vector<ncclComm_t> comms{world.comm(0), world.comm(1)};
    CHECK_EQ(ncclDoubleInject(is_hang ? "hang_group" : "async_error_group", 2), 0);
    CHECK_TRUE(ring_works(comms, {&world, &world}, {0, 1}));
    const Memory& out = world.memory(0, std::size_t{8});
    const Memory& in = world.memory(1, std::size_t{8});
    ncclGroupStart();
    CHECK_EQ(world.send(0, 1, out, 8), 0);
    CHECK_EQ(world.receive(1, 0, in, 8), 0);
    ncclGroupEnd();
    CHECK_TRUE(becomes([&] { return settled(comms[0]) == (is_hang ? 0 : 2); }));
    CHECK_TRUE(!world.finishes(1, 100));
    world.abort();
    CHECK_TRUE(world.finishes(0) && world.finishes(1));
  }
  CHECK_EQ(ncclDoubleInject("fail_init", 3), 0);
  const ncclComm_t failed = begin(unique_id(), 1, 0);
  CHECK_EQ(settled(failed), 3);
  CHECK_EQ(ncclCommAbort(failed), 0);
  CHECK_EQ(ncclDoubleInject("fail_init", 0), 0);
  CHECK_EQ(ncclDoubleInject("hang_init", 1), 0);
  const ncclComm_t hung = begin(unique_id(), 1, 0);
  CHECK_EQ(settled(hung, 50), static_cast<int>(ncclInProgress));
  CHECK_EQ(ncclCommAbort(hung), 0);
  CHECK_EQ(ncclDoubleInject("hang_init", 0), 0);
  CHECK_EQ(ncclDoubleInject("delay_us", 100'000), 0);
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const auto start = std::chrono::steady_clock::now();
  CHECK_TRUE(ring_works({world.comm(0), world.comm(1)}, {&world, &world}, {0, 1}));
  CHECK_TRUE(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(100));
  check_no_violations();
}

TEST(a_hundred_aborts_leave_nothing_behind) {
  const CleanTest clean;
  int files = 0;
  int threads = 0;
  for (int i = 0; i < 101; ++i) {
    {
      World world(2);
      CHECK_EQ(world.ranks().result(), 0);
      const Memory& out = world.memory(0, std::size_t{300'000});
      world.send(0, 1, out, 300'000);  // nobody receives it
      CHECK_EQ(settled(world.comm(0)), 0);
      world.abort();
      CHECK_TRUE(world.finishes(0));
    }
    if (i == 0) {
      files = num_files();
      threads = num_threads();
    }
  }
  CHECK_TRUE(becomes([&] { return num_threads() <= threads; }));
  CHECK_EQ(num_files(), files);
  check_nothing_is_left();
  check_no_violations();
}

}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);
  return reshard_test::run_all(argc, argv);
}

// Sends and receives of the double of NCCL, in one process: that bytes move, and that each rule of
// groups is enforced.
#include <thread>
#include <utility>

#include "doubles/world.h"

namespace reshard_test {
namespace {

// Ends a group and waits until it is launched.
int end_group(const World& world) {
  const int result = ncclGroupEnd();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  return world.ranks().result();
}

// What an operation outside of a group came to.
int launched(const World& world, int result) {
  return result == ncclInProgress ? world.ranks().result() : result;
}

void check_no_violations() {
  CHECK_EQ(nccl_violations(), "");
  CHECK_EQ(cuda_violations(), "");
}

// Two ranks, of which each wants the bytes of the other one.
struct Swap {
  explicit Swap(World& world, std::size_t nbytes)
      : out{&world.memory(0, hashed_bytes(nbytes, 1)), &world.memory(1, hashed_bytes(nbytes, 2))},
        in{&world.memory(0, nbytes), &world.memory(1, nbytes)} {}
  bool is_done() const {
    return in[0]->bytes() == out[1]->bytes() && in[1]->bytes() == out[0]->bytes();
  }
  const Memory* out[2];
  const Memory* in[2];
};

}  // namespace

TEST(bytes_move_both_ways_in_a_group) {
  const CleanTest clean;
  {
    World world(2);
    CHECK_EQ(world.ranks().result(), 0);
    const Swap swap(world, 1'000'003);
    ncclGroupStart();
    for (const auto& [me, peer] : {std::pair{0, 1}, std::pair{1, 0}}) {
      CHECK_EQ(world.send(me, peer, *swap.out[me], 1'000'003), 0);
      CHECK_EQ(world.receive(me, peer, *swap.in[me], 1'000'003), 0);
    }
    CHECK_EQ(end_group(world), 0);
    CHECK_TRUE(world.finishes(0) && world.finishes(1));
    CHECK_TRUE(swap.is_done());
    world.finalize();
    CHECK_EQ(ncclDoubleGet("bytes_sent"), 2'000'006);
    CHECK_EQ(ncclDoubleGet("communicators"), 0);
    CHECK_EQ(ncclDoubleGet("meetings"), 0);
  }
  check_no_violations();
}

TEST(operations_without_a_context_are_told_and_done) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 64);
  std::thread([&] {
    ncclGroupStart();
    for (const auto& [me, peer] : {std::pair{0, 1}, std::pair{1, 0}}) {
      world.send(me, peer, *swap.out[me], 64);
      world.receive(me, peer, *swap.in[me], 64);
    }
    ncclGroupEnd();
  }).join();
  CHECK_EQ(settled(world.comm(0)), 0);
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
  CHECK_TRUE(swap.is_done());
  CHECK_EQ(ncclDoubleGet("violations"), 4);
  CHECK_CONTAINS(nccl_violations(), "ncclSend: no context is current");
  CHECK_CONTAINS(nccl_violations(), "ncclRecv: no context is current");
}

TEST(operations_of_a_pair_match_in_their_order) {
  const CleanTest clean;
  World world(3);
  CHECK_EQ(world.ranks().result(), 0);
  Random random(5);
  for (int round = 0; round < 10; ++round) {
    // Sizes with elements of several bytes, sometimes none, often more than a ring holds.
    std::vector<std::size_t> counts;
    for (int i = 0; i < 12; ++i) {
      counts.push_back(static_cast<std::size_t>(random.one_in(4) ? 0 : random.between(1, 90000)));
    }
    std::vector<std::pair<const Memory*, const Memory*>> moves;
    ncclGroupStart();
    for (int from = 0; from < 3; ++from) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const int to = (from + 1 + static_cast<int>(i % 2)) % 3;
        const Memory& out = world.memory(from, hashed_bytes(counts[i] * 4 + 4, random.next()));
        const Memory& in = world.memory(to, counts[i] * 4 + 4);
        CHECK_EQ(world.send(from, to, out, counts[i], ncclInt32), 0);
        CHECK_EQ(world.receive(to, from, in, counts[i], ncclInt32), 0);
        moves.emplace_back(&out, &in);
      }
    }
    CHECK_EQ(end_group(world), 0);
    for (int rank = 0; rank < 3; ++rank) CHECK_TRUE(world.finishes(rank));
    for (std::size_t i = 0; i < moves.size(); ++i) {
      const std::size_t nbytes = counts[i % counts.size()] * 4;
      Bytes expected = moves[i].first->bytes();
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(nbytes), expected.end(),
                std::byte{0xEE});
      CHECK_TRUE(moves[i].second->bytes() == expected);
    }
  }
  CHECK_EQ(ncclDoubleGet("groups"), 10);
  CHECK_EQ(ncclDoubleGet("operations"), 720);
  CHECK_EQ(ncclDoubleGet("largest_group"), 72);
  long sizes[20] = {};
  CHECK_EQ(ncclDoubleGroups(sizes, 20), 10U);
  CHECK_EQ(sizes[9], 72);
  CHECK_EQ(sizes[10], 0);
  check_no_violations();
}

TEST(unequal_counts_are_an_error_on_both_sides) {
  const CleanTest clean;
  for (const bool is_type : {false, true}) {
    World world(2);
    CHECK_EQ(world.ranks().result(), 0);
    const Swap swap(world, 400);
    ncclGroupStart();
    CHECK_EQ(world.send(0, 1, *swap.out[0], 100, ncclInt32), 0);
    CHECK_EQ(
        world.receive(1, 0, *swap.in[1], is_type ? 100 : 99, is_type ? ncclFloat32 : ncclInt32), 0);
    ncclGroupEnd();
    CHECK_TRUE(becomes([&] { return settled(world.comm(0)) == ncclInvalidUsage; }));
    CHECK_TRUE(becomes([&] { return settled(world.comm(1)) == ncclInvalidUsage; }));
    CHECK_CONTAINS(nccl_violations(),
                   is_type
                       ? "receives 100 elements of type 7 from rank 0, which sends 100 of type 2"
                       : "receives 99 elements of type 2 from rank 0, which sends 100 of type 2");
    CHECK_TRUE(!world.finishes(1, 100));  // the kernel goes on until it is aborted
    CHECK_EQ(world.send(0, 1, *swap.out[0], 1), static_cast<int>(ncclInvalidUsage));
    world.abort();
    CHECK_TRUE(world.finishes(0) && world.finishes(1));
    CHECK_EQ(cuda_violations(), "");
  }
}

TEST(a_send_ends_only_when_it_is_received) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 8);
  for (const std::size_t count : {std::size_t{0}, std::size_t{8}}) {
    CHECK_EQ(launched(world, world.send(0, 1, *swap.out[0], count)), 0);
    CHECK_TRUE(!world.finishes(0, 100));
    CHECK_EQ(launched(world, world.receive(1, 0, *swap.in[1], count)), 0);
    CHECK_TRUE(world.finishes(0) && world.finishes(1));
  }
  CHECK_TRUE(swap.in[1]->bytes() == swap.out[0]->bytes());
  check_no_violations();
}

TEST(what_deadlocks_outside_of_a_group_hangs_until_it_is_aborted) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 8);
  for (const auto& [me, peer] : {std::pair{0, 1}, std::pair{1, 0}}) {
    CHECK_EQ(launched(world, world.send(me, peer, *swap.out[me], 8)), 0);
    CHECK_EQ(launched(world, world.receive(me, peer, *swap.in[me], 8)), 0);
  }
  CHECK_TRUE(!world.finishes(0, 200) && !world.finishes(1, 200));
  world.abort();
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
  CHECK_TRUE(!swap.is_done());
  check_no_violations();
}

TEST(groups_of_one_communicator_keep_their_order_on_several_streams) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 64);
  CUstream other = nullptr;
  CUevent event = nullptr;
  const World::OnCurrent current(world.context(0));
  CHECK_EQ(cuStreamCreate(&other, 1), 0);
  CHECK_EQ(cuEventCreate(&event, 2), 0);
  // The first group waits for a receive that is not there; the second, elsewhere, waits for it.
  CHECK_EQ(launched(world, world.send(0, 1, *swap.out[0], 32)), 0);
  CHECK_EQ(launched(world, ncclSend(static_cast<char*>(swap.out[0]->data()) + 32, 32, ncclUint8, 1,
                                    world.comm(0), other)),
           0);
  CHECK_EQ(cuEventRecord(event, other), 0);
  CHECK_EQ(launched(world, world.receive(1, 0, *swap.in[1], 32)), 0);
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
  CHECK_EQ(cuEventQuery(event), 600);
  CHECK_EQ(launched(world, ncclRecv(static_cast<char*>(swap.in[1]->data()) + 32, 32, ncclUint8, 0,
                                    world.comm(1), world.stream(1))),
           0);
  CHECK_TRUE(becomes([&] { return cuEventQuery(event) == 0; }));
  CHECK_TRUE(world.finishes(1));
  CHECK_TRUE(swap.in[1]->bytes() == swap.out[0]->bytes());
  CHECK_EQ(cuEventDestroy_v2(event), 0);
  CHECK_EQ(cuStreamDestroy_v2(other), 0);
  check_no_violations();
}

TEST(a_group_comes_after_what_its_streams_had_to_do) {
  const CleanTest clean;
  cudaDoubleSetDelay(9, 4000);
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 4096);
  // Rank 0 packs on its stream: the bytes are there when the send runs, not before.
  const Memory& packed = world.memory(0, std::size_t{4096});
  {
    const World::OnCurrent current(world.context(0));
    CHECK_EQ(cuMemcpyDtoDAsync_v2(packed.address(), swap.out[0]->address(), 4096, world.stream(0)),
             0);
  }
  ncclGroupStart();
  CHECK_EQ(world.send(0, 1, packed, 4096), 0);
  CHECK_EQ(world.receive(1, 0, *swap.in[1], 4096), 0);
  CHECK_EQ(end_group(world), 0);
  const Memory& unpacked = world.memory(1, std::size_t{4096});
  {
    const World::OnCurrent current(world.context(1));
    CHECK_EQ(cuMemcpyDtoDAsync_v2(unpacked.address(), swap.in[1]->address(), 4096, world.stream(1)),
             0);
  }
  CHECK_TRUE(world.finishes(1) && world.finishes(0));
  CHECK_TRUE(unpacked.bytes() == swap.out[0]->bytes());
  check_no_violations();
}

TEST(a_rank_sends_to_itself_in_a_group_only) {
  const CleanTest clean;
  World world(1);
  CHECK_EQ(world.ranks().result(), 0);
  const Memory& out = world.memory(0, hashed_bytes(500, 1));
  const Memory& in = world.memory(0, std::size_t{500});
  ncclGroupStart();
  CHECK_EQ(world.send(0, 0, out, 500), 0);
  CHECK_EQ(world.receive(0, 0, in, 500), 0);
  CHECK_EQ(end_group(world), 0);
  CHECK_TRUE(world.finishes(0));
  CHECK_TRUE(in.bytes() == out.bytes());
  check_no_violations();
  CHECK_EQ(world.send(0, 0, out, 500), static_cast<int>(ncclInvalidUsage));
  CHECK_CONTAINS(nccl_violations(), "a send to self without a matching recv");
}

TEST(calls_that_are_wrong_are_refused) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 8);
  CHECK_EQ(ncclGroupEnd(), static_cast<int>(ncclInvalidUsage));
  CHECK_EQ(world.send(0, 2, *swap.out[0], 8), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(world.send(0, 1, *swap.out[0], 8, 99), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclSend(nullptr, 8, ncclUint8, 1, world.comm(0), world.stream(0)),
           static_cast<int>(ncclInvalidArgument));
  // A stream of another device.
  CHECK_EQ(ncclSend(swap.out[0]->data(), 8, ncclUint8, 1, world.comm(0), world.stream(1)),
           static_cast<int>(ncclInvalidUsage));
  // One wrong call spoils its group.
  ncclGroupStart();
  CHECK_EQ(world.send(0, 1, *swap.out[0], 8), 0);
  CHECK_EQ(world.send(0, 7, *swap.out[0], 8), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclGroupEnd(), static_cast<int>(ncclInvalidArgument));
  CHECK_EQ(ncclDoubleGet("groups"), 0);
  CHECK_EQ(ncclDoubleGet("violations"), 6);
  CHECK_TRUE(world.finishes(0));
}

TEST(a_group_is_not_on_its_streams_before_the_communicator_was_asked) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 8);
  CHECK_EQ(ncclDoubleInject("polls", 50), 0);
  int result = ncclSuccess;
  for (int i = 0; i < 10 && result != ncclInProgress; ++i) {
    CHECK_EQ(world.ranks().result(), 0);
    ncclGroupStart();
    CHECK_EQ(world.send(0, 1, *swap.out[0], 8), 0);
    CHECK_EQ(world.receive(1, 0, *swap.in[1], 8), 0);
    result = ncclGroupEnd();
  }
  CHECK_EQ(result, static_cast<int>(ncclInProgress));
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
  check_no_violations();
  CHECK_EQ(world.send(0, 1, *swap.out[0], 8), static_cast<int>(ncclInvalidArgument));
  CHECK_CONTAINS(nccl_violations(), "ncclSend: the communicator is still in progress");
  CHECK_EQ(world.ranks().result(), 0);
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
}

TEST(buffers_are_memory_of_the_device_when_the_group_runs) {
  const CleanTest clean;
  World world(2);
  CHECK_EQ(world.ranks().result(), 0);
  const Swap swap(world, 100);
  ncclGroupStart();
  CHECK_EQ(world.send(0, 1, *swap.out[0], 101), 0);
  CHECK_EQ(world.receive(1, 0, *swap.in[1], 100), 0);
  ncclGroupEnd();
  CHECK_TRUE(becomes([&] { return settled(world.comm(0)) == ncclUnhandledCudaError; }));
  CHECK_CONTAINS(cuda_violations(), "ncclSend: 101 bytes at ");
  CHECK_TRUE(!world.finishes(1, 100));
  world.abort();
  cudaDoubleReset();
  CHECK_TRUE(world.finishes(0) && world.finishes(1));
}

TEST(a_buffer_of_a_group_must_not_be_freed_before_its_end) {
  const CleanTest clean;
  for (const bool is_aborted : {false, true}) {
    cudaDoubleReset();
    World world(2);
    CHECK_EQ(world.ranks().result(), 0);
    const World::OnCurrent current(world.context(0));
    {
      const Memory gone(100);
      CHECK_EQ(launched(world, world.send(0, 1, gone, 100)), 0);
      if (is_aborted) world.abort();
    }
    if (is_aborted) {
      CHECK_EQ(cuda_violations(), "");
    } else {
      CHECK_CONTAINS(cuda_violations(), "cuMemFree: 100 bytes at ");
    }
  }
}

}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);
  return reshard_test::run_all(argc, argv);
}

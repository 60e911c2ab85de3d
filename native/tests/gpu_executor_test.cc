// Rounds over NCCL, on doubles of CUDA and NCCL that move bytes: what arrives, what is left behind,
// and what breaks when.
#include <thread>

#include "cuda/cuda_double.h"
#include "doubles/fixture.h"
#include "nccl/nccl_double.h"
#include "round_case.h"
#include "round_executor.h"
#include "transport/nccl/nccl_transport.h"

namespace reshard_test {
namespace {

std::shared_ptr<const CudaDriver> driver() {
  static const auto opened = std::make_shared<const CudaDriver>(CUDA_DOUBLE_PATH);
  return opened;
}

std::shared_ptr<const NcclApi> nccl() {
  static const auto opened = std::make_shared<const NcclApi>(NCCL_DOUBLE_PATH);
  return opened;
}

// The double of CUDA runs the host form of the kernels whatever the image.
const char kImage[] = "reshard double";

// One process of a case, with its end of a communicator; its memory is its GPUs'.
class Member {
 public:
  Member(const RoundCase& what, std::vector<std::int64_t> ranks, std::int64_t gap, bool has_kernels)
      : process_(std::move(ranks), what, gap),
        has_kernels_(has_kernels),
        executor_(process_.program()) {
    const std::size_t num_tensors = process_.all_memory().size() / process_.ranks().size();
    for (std::size_t i = 0; i < process_.all_memory().size(); ++i) {
      const auto device = static_cast<int>(process_.ranks()[i / num_tensors]);
      auto& memory = process_.all_memory()[i];
      CHECK_EQ(cudaDoubleRegister(memory.data(), memory.size(), device), 0);
    }
  }
  ~Member() {
    for (auto& memory : process_.all_memory()) cudaDoubleUnregister(memory.data());
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void connect(const NcclUniqueId& id, const std::vector<std::int64_t>& members,
               const std::vector<std::int64_t>& domains) {
    NcclSetup setup{nccl(), id, members, {}, domains};
    for (const std::int64_t rank : process_.ranks()) {
      setup.ranks.push_back({rank,
                             std::make_shared<const GpuDevice>(driver(), static_cast<int>(rank)),
                             has_kernels_ ? kImage : ""});
    }
    transport_ = std::make_shared<NcclTransport>(std::move(setup));
    while (!transport_->connect(20 * kSecond, 10 * kMillisecond)) {
    }
  }

  void run(std::uint64_t run) {
    process_.fill(run);
    const std::vector<void*> buffers = process_.buffers();
    executor_.begin(transport_, buffers.data(), buffers.size(), {run, 20 * kSecond, 1});
    while (!executor_.progress(10 * kMillisecond)) {
    }
    process_.check(run);
  }

  void close() { transport_->close(); }
  RoundExecutor& executor() { return executor_; }

 private:
  RoundProcess process_;
  bool has_kernels_;
  RoundExecutor executor_;
  std::shared_ptr<NcclTransport> transport_;
};

// Runs a body on a thread per member; passes on what one of them throws.
template <typename Body>
void on_threads(std::size_t count, const Body& body) {
  std::vector<std::thread> threads;
  std::vector<std::string> problems(count);
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        problems[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) {
    if (!problem.empty()) reshard_test::fail(__FILE__, __LINE__, problem);
  }
}

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
      processes.push_back(std::make_unique<Member>(what, own, gap, has_kernels));
    }
    on_threads(processes.size(), [&](std::size_t i) {
      processes[i]->connect(id, members, domains);
      for (const std::uint64_t run : {1, 2, 3}) processes[i]->run(run);
      processes[i]->close();
    });
  }
  CHECK_EQ(cuda_violations(), "");
  CHECK_EQ(nccl_violations(), "");
  for (const char* each : {"allocations", "streams", "events", "modules", "contexts"}) {
    CHECK_EQ(cudaDoubleGet(each, -1), 0);
  }
  CHECK_EQ(ncclDoubleGet("communicators"), 0);
  cudaDoubleReset();
  ncclDoubleReset();
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
  for (int trial = 0; trial < 24; ++trial) {
    cudaDoubleSetDelay(static_cast<unsigned long long>(trial), 300);
    const auto num_ranks = static_cast<std::int64_t>(2 + random() % 4);
    const RoundCase what = random_case(random, num_ranks);
    run_case(what, num_ranks, static_cast<std::int64_t>(1 + random() % 3),
             static_cast<std::int64_t>(1 + random() % 2), trial % 2 == 0, trial % 3 == 0);
  }
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "8", 1);
  return reshard_test::run_all(argc, argv);
}

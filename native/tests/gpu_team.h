// Teams of threads that stand for processes with GPUs, on doubles of CUDA and NCCL, for fault
// tests.
#ifndef RESHARD_NATIVE_TESTS_GPU_TEAM_H_
#define RESHARD_NATIVE_TESTS_GPU_TEAM_H_

#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/cuda_double.h"
#include "doubles/fixture.h"
#include "gpu_leftovers.h"
#include "nccl/nccl_double.h"
#include "round_case.h"
#include "round_executor.h"
#include "transport/nccl/nccl_transport.h"

namespace reshard_test {

// Sanitizers make everything so much slower that random cases are fewer there.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCasesOfFour = 1;
#else
constexpr int kCasesOfFour = 4;
#endif

#ifdef __SANITIZE_THREAD__
constexpr std::int64_t kLimit = 3 * kSecond;  // everything is so much slower
constexpr std::int64_t kGrace = 10 * kSecond;
#else
constexpr std::int64_t kLimit = 400 * kMillisecond;  // of runs that a fault ends by their deadline
constexpr std::int64_t kGrace = kSecond;             // after it, for the last to be told
#endif
constexpr std::int64_t kPrompt = kSecond + kGrace;  // for what no deadline ends

inline std::shared_ptr<const CudaDriver> driver() {
  static const auto opened = std::make_shared<const CudaDriver>(CUDA_DOUBLE_PATH);
  return opened;
}

inline std::shared_ptr<const NcclApi> nccl() {
  static const auto opened = std::make_shared<const NcclApi>(NCCL_DOUBLE_PATH);
  return opened;
}

// The double of CUDA runs the host form of the kernels whatever the image.
const char kImage[] = "reshard double";

// Tensors that go from rank to rank, small ones and some that are messages of their own.
inline RoundCase chain(std::int64_t num_ranks, std::int64_t large) {
  RoundCase made{{{9000, kI32, {0, 3, 4}},
                  {100, kU8, {1, 2, 4}},
                  {large, kU8, {0, 2, 4}},
                  {3000, kI64, {2, 4, 4}}},
                 {},
                 4,
                 2};
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t hop = 0; hop < num_ranks - 1; ++hop) {
      made.handovers.push_back({t, (t + hop) % num_ranks, (t + hop + 1) % num_ranks, hop});
    }
  }
  return made;
}

// How a body ended: by an error of the library, or with `code` kOk.
struct Outcome {
  StatusCode code = StatusCode::kOk;
  std::string text;
  std::int64_t rank = kNoRank;
  std::int64_t ns = 0;
};

template <typename Body>
Outcome outcome_of(const Body& body) {
  Outcome outcome;
  const std::int64_t start = monotonic_ns();
  try {
    body();
  } catch (const Error& error) {
    outcome = {error.code(), error.message(), error.rank(), 0};
  }
  outcome.ns = monotonic_ns() - start;
  return outcome;
}

// Runs a body on a thread per member; passes on checks that failed in one of them.
template <typename Body>
std::vector<Outcome> on_threads(std::size_t count, const Body& body) {
  std::vector<std::thread> threads;
  std::vector<std::string> problems(count);
  std::vector<Outcome> outcomes(count);
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        outcomes[i] = outcome_of([&] { body(i); });
      } catch (const std::exception& error) {
        problems[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) {
    if (!problem.empty()) reshard_test::fail(__FILE__, __LINE__, problem);
  }
  return outcomes;
}

// A stream of a caller, whose first job lasts until it may go on. Its GPU is current while it
// lives.
class StuckStream {
 public:
  explicit StuckStream(int device) : device_(device) {
    const auto wait = [](void* flag) {
      while (!*static_cast<std::atomic<bool>*>(flag)) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    };
    cudaDoubleQueue(stream_.get(), device, wait, &goes_on_, nullptr, 0);
  }
  ~StuckStream() { finish(); }
  StuckStream(const StuckStream&) = delete;
  StuckStream& operator=(const StuckStream&) = delete;

  CUstream get() const { return stream_.get(); }
  // As a run is given it.
  std::uint64_t number() const { return reinterpret_cast<std::uint64_t>(stream_.get()); }
  void go_on() { goes_on_ = true; }
  // Whether all that is queued has run.
  bool finish() {
    go_on();
    return stream_.finishes();
  }

 private:
  std::atomic<bool> goes_on_{false};
  const OnDevice device_;
  const Stream stream_;
};

// One process of a case; its memory is its GPUs'.
class Member {
 public:
  Member(const RoundCase& what, std::vector<std::int64_t> ranks, bool has_kernels,
         std::int64_t gap = 1)
      : process_(std::move(ranks), what, gap),
        case_(what),
        gap_(gap),
        has_kernels_(has_kernels),
        executor_(process_.program()) {
    for (std::size_t i = 0; i < process_.all_memory().size(); ++i) put_on(i, device_of(i));
    process_.fill(0);
  }
  ~Member() {
    for (auto& memory : process_.all_memory()) cudaDoubleUnregister(memory.data());
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int device_of(std::size_t buffer) {
    return static_cast<int>(process_.ranks()[buffer / case_.tensors.size()]);
  }
  void put_on(std::size_t buffer, int device) {
    auto& memory = process_.all_memory()[buffer];
    CHECK_EQ(cudaDoubleRegister(memory.data(), memory.size(), device), 0);
  }
  void take_off(std::size_t buffer) {
    CHECK_EQ(cudaDoubleUnregister(process_.all_memory()[buffer].data()), 0);
  }

  // A new end of a communicator; `device`, if not negative, replaces that of its ranks.
  void open(const NcclUniqueId& id, const std::vector<std::int64_t>& members,
            const std::vector<std::int64_t>& domains = {}, int device = -1,
            std::shared_ptr<const NcclApi> api = nccl()) {
    NcclSetup setup{std::move(api), id, members, {}, domains};
    for (const std::int64_t rank : process_.ranks()) {
      const int own = device < 0 ? static_cast<int>(rank) : device;
      setup.ranks.push_back(
          {rank, std::make_shared<const GpuDevice>(driver(), own), has_kernels_ ? kImage : ""});
    }
    transport_ = std::make_shared<NcclTransport>(std::move(setup));
  }
  void connect(std::int64_t timeout_ns = 20 * kSecond) {
    while (!transport_->connect(timeout_ns, 10 * kMillisecond)) {
    }
  }

  void begin(std::uint64_t run, std::int64_t timeout_ns = 20 * kSecond,
             std::vector<std::uint64_t> streams = {}) {
    process_.fill(run);
    const std::vector<void*> buffers = process_.buffers();
    RunOptions options{run, timeout_ns, 1};
    options.streams.assign(streams.begin(), streams.end());
    executor_.begin(transport_, buffers.data(), buffers.size(), options);
  }
  void finish() {
    while (!executor_.progress(5 * kMillisecond)) {
    }
  }
  void run(std::uint64_t run, std::int64_t timeout_ns = 20 * kSecond) {
    begin(run, timeout_ns);
    finish();
    process_.check(run);
  }

  // Elements that are in no box are as they were, however a run ended.
  void check_gaps() {
    for (std::size_t i = 0; i < process_.all_memory().size(); ++i) {
      const auto& memory = process_.all_memory()[i];
      const auto width = static_cast<std::size_t>(case_.tensors[i % case_.tensors.size()].width());
      const std::size_t period = width * static_cast<std::size_t>(gap_);
      const std::size_t end = memory.size() - static_cast<std::size_t>(case_.padding);
      for (std::size_t at = 0; at < end; ++at) {
        if (at % period < width || memory[at] == std::byte{0x55}) continue;
        reshard_test::fail(__FILE__, __LINE__, "buffer ", i, ": byte ", at, " was touched");
      }
    }
  }

  // Gives everything back but the memory.
  void close() {
    if (transport_ != nullptr) transport_->close();
    transport_.reset();
  }

  RoundProcess& process() { return process_; }
  RoundExecutor& executor() { return executor_; }
  const std::shared_ptr<NcclTransport>& transport() const { return transport_; }

 private:
  RoundProcess process_;
  const RoundCase case_;
  std::int64_t gap_;
  bool has_kernels_;
  RoundExecutor executor_;
  std::shared_ptr<NcclTransport> transport_;
};

inline std::string counts_left() {
  std::string left;
  for (const char* each : {"allocations", "streams", "events", "modules", "contexts", "threads"}) {
    if (cudaDoubleGet(each, -1) != 0) left += text(each, " ", cudaDoubleGet(each, -1), " ");
  }
  for (const char* each : {"communicators", "meetings"}) {
    if (ncclDoubleGet(each) != 0) left += text(each, " ", ncclDoubleGet(each), " ");
  }
  return left;
}

// Nothing is in use, and no rule was broken; a thread of a stream may need a moment to end.
inline void check_nothing_left() {
  becomes([] { return counts_left().empty(); }, 2000);
  CHECK_EQ(counts_left(), "");
  CHECK_EQ(cuda_violations(), "");
  CHECK_EQ(nccl_violations(), "");
  ncclDoubleReset();
  cudaDoubleReset();
}

inline void inject_nothing() {
  for (const char* each : {"async_error_group", "hang_group", "hang_init", "fail_init",
                           "hang_split", "hang_finalize", "abort_ms", "destroy_ms"}) {
    ncclDoubleInject(each, 0);
  }
  ncclDoubleInject("async_error_code", 2);
}

// Four ranks, on two or four processes.
class Team {
 public:
  Team(bool has_kernels, bool has_domains, std::int64_t per_process) : has_domains_(has_domains) {
    inject_nothing();
    // With gaps everything is packed; without, the large one goes by itself.
    const std::int64_t gap = has_domains ? 2 : 1;
    const RoundCase what = chain(4, gap == 1 ? 1'200'000 : 30'000);
    for (std::int64_t first = 0; first < 4; first += per_process) {
      std::vector<std::int64_t> own;
      for (std::int64_t rank = first; rank < first + per_process; ++rank) own.push_back(rank);
      members_.push_back(std::make_unique<Member>(what, own, has_kernels, gap));
    }
  }

  std::size_t size() const { return members_.size(); }
  Member& operator[](std::size_t i) { return *members_[i]; }

  void open() {
    const NcclUniqueId id = nccl()->make_id();
    for (auto& member : members_) {
      member->open(
          id, {0, 1, 2, 3},
          has_domains_ ? std::vector<std::int64_t>{0, 0, 1, 1} : std::vector<std::int64_t>{});
    }
  }
  void connect() {
    for (const Outcome& each : on_threads(size(), [&](std::size_t i) { members_[i]->connect(); })) {
      CHECK_EQ(each.text, "");
    }
  }
  // A run of all, each with its own outcome. What was passed on is only as good as the run of
  // whoever passed it on, so bytes are looked at where all ended well.
  std::vector<Outcome> run(std::uint64_t run, std::int64_t timeout_ns = 20 * kSecond) {
    std::vector<Outcome> outcomes = on_threads(size(), [&](std::size_t i) {
      members_[i]->begin(run, timeout_ns);
      members_[i]->finish();
    });
    const auto is_well = [](const Outcome& each) { return each.code == StatusCode::kOk; };
    if (std::all_of(outcomes.begin(), outcomes.end(), is_well)) {
      for (auto& member : members_) member->process().check(run);
    }
    return outcomes;
  }
  void close() {
    on_threads(size(), [&](std::size_t i) { members_[i]->close(); });
  }

  // The end of every test: what failed is closed, and the same members go on with a fresh one.
  void check_can_go_on() {
    for (auto& member : members_) member->check_gaps();
    close();
    inject_nothing();
    CHECK_EQ(ncclDoubleGet("communicators"), 0);
    open();
    connect();
    for (const std::uint64_t number : {100, 101}) {
      for (const Outcome& each : run(number)) CHECK_EQ(each.text, "");
    }
    close();
    members_.clear();  // a good run leaves its workers to the next one
    check_nothing_left();
  }

 private:
  bool has_domains_;
  std::vector<std::unique_ptr<Member>> members_;
};

// Every kind of team: with and without kernels, domains, several ranks per process.
inline void on_all_kinds(const std::function<void(Team&)>& body) {
  for (const bool has_kernels : {false, true}) {
    for (const std::int64_t per_process : {1, 2}) {
      Team team(has_kernels, has_kernels == (per_process == 1), per_process);
      team.open();
      body(team);
      team.check_can_go_on();
    }
  }
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_GPU_TEAM_H_

// Whole refits between processes over shared memory, beside the time to copy the same bytes once.
//
//   shm_speed [workload...] [rounds=N] [slot=BYTES] [slots=N] [scale=K]
//
// Workloads: A  Shard(0)x4 -> Shard(1)x4        dense model, 129 parameters, about 1.5 GB of bf16
//            B  Shard(0)x4 -> Shard(0)x2, 2 replicas
//            C  Shard(0)x2 Shard(1)x2 -> Shard(1)x4
//            tiny   1,000 parameters of 8 KiB, A
//            pair   2 + 2 processes, 200 parameters of 8 KiB
// scale divides the rows of the dense model. Every destination byte is checked before timing. The
// time of a round is that of its slowest process, all of which start together; "copy" is the
// reference: destinations copy exactly their bytes, row by row, out of shared memory.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "clock.h"
#include "reshard/reshard.h"
#include "workload.h"

namespace {

using namespace reshard_benchmark;

constexpr std::int64_t kDTypeU16 = 3;
constexpr int kMaxProcesses = 16;

struct Shared {
  pthread_barrier_t barrier;
  std::int64_t start_ns[kMaxProcesses];
  std::int64_t end_ns[kMaxProcesses];
  std::int64_t cpu_ns[kMaxProcesses];
  std::int64_t system_ns[kMaxProcesses];
  std::int64_t switches[kMaxProcesses];
  std::int64_t wait_ns[kMaxProcesses];
};

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "pid %d: %s: %s\n", getpid(), what, reshard_last_error());
  _exit(1);
}

std::byte* map(std::int64_t nbytes, int flags) {
  void* memory = mmap(nullptr, static_cast<std::size_t>(std::max<std::int64_t>(nbytes, 1)),
                      PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  return static_cast<std::byte*>(memory);
}

// One process of a run: sources first, then destinations.
class Process {
 public:
  Process(const Settings& settings, const Layout& layout, Shared& shared, int index,
          std::vector<std::byte*> sources)
      : settings_(settings),
        layout_(layout),
        shared_(shared),
        index_(index),
        sources_(std::move(sources)) {
    is_source_ = index < settings.num_sources;
    number_ = is_source_ ? index : index - settings.num_sources;
    nbytes_ = is_source_ ? layout.source_bytes(number_) : layout.destination_bytes(number_);
    if (is_source_) {
      memory_ = sources_[static_cast<std::size_t>(number_)];
      layout_.fill_source(number_, reinterpret_cast<std::uint16_t*>(memory_));
    } else {
      memory_ = map(nbytes_, MAP_PRIVATE);
    }
    clear();
    make_program();
    make_communicator();
  }

  ~Process() {
    reshard_program_destroy(program_);
    reshard_communicator_destroy(communicator_);
  }

  void round(bool reference, bool verify) {
    pthread_barrier_wait(&shared_.barrier);
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    shared_.start_ns[index_] = reshard::monotonic_ns();
    if (reference) {
      copy_once();
    } else {
      run();
    }
    shared_.end_ns[index_] = reshard::monotonic_ns();
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    shared_.cpu_ns[index_] = cpu_ns(after) - cpu_ns(before);
    shared_.system_ns[index_] = system_ns(after) - system_ns(before);
    shared_.switches[index_] =
        after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw;
    pthread_barrier_wait(&shared_.barrier);
    if (verify && !is_source_) {
      require(layout_.check_destination(number_, reinterpret_cast<std::uint16_t*>(memory_)),
              "wrong bytes arrived");
    }
    if (verify) clear();
    pthread_barrier_wait(&shared_.barrier);
  }

 private:
  static std::int64_t cpu_ns(const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000'000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
  }

  static std::int64_t system_ns(const rusage& usage) {
    return usage.ru_stime.tv_sec * 1'000'000'000 + usage.ru_stime.tv_usec * 1000;
  }

  void clear() {
    if (!is_source_) std::memset(memory_, 0xEE, static_cast<std::size_t>(nbytes_));
  }

  void make_program() {
    std::vector<std::int64_t> streams;
    std::vector<std::int64_t> operations;
    const int peers = is_source_ ? settings_.num_destinations : settings_.num_sources;
    for (int peer = 0; peer < peers; ++peer) {
      const int s = is_source_ ? number_ : peer;
      const int d = is_source_ ? peer : number_;
      streams.insert(streams.end(), {is_source_ ? 0 : 1, s, settings_.num_sources + d});
      layout_.for_each(s, d,
                       [&](const Block& block, std::int64_t source_at, std::int64_t source_pitch,
                           std::int64_t destination_at, std::int64_t destination_pitch) {
                         operations.insert(
                             operations.end(),
                             {peer, 0, is_source_ ? source_at : destination_at, kDTypeU16,
                              kDTypeU16, 2, block.rows, block.cols,
                              is_source_ ? source_pitch : destination_pitch, kElementBytes});
                       });
    }
    const std::int64_t extents[2] = {0, nbytes_};
    reshard_program_tables tables{};
    tables.size = sizeof(tables);
    tables.streams = streams.data();
    tables.streams_length = streams.size();
    tables.operations = operations.data();
    tables.operations_length = operations.size();
    tables.extents = extents;
    tables.extents_length = 2;
    tables.num_buffers = 1;
    tables.chunk_bytes = settings_.slot_bytes;
    require(reshard_program_create(&tables, &program_) == RESHARD_STATUS_OK, "program");
  }

  void make_communicator() {
    const int count = settings_.num_sources + settings_.num_destinations;
    std::vector<std::int32_t> ranks;
    std::vector<std::int32_t> peers;
    for (int i = 0; i < count; ++i) {
      ranks.push_back(i);
      if ((i < settings_.num_sources) != is_source_) peers.push_back(i);
    }
    const std::string key = "shm-speed-" + std::to_string(getppid());
    reshard_shm_options options{};
    options.size = sizeof(options);
    options.session_key = key.c_str();
    options.process = index_;
    options.num_processes = count;
    options.rank_to_process = ranks.data();
    options.num_ranks = ranks.size();
    (is_source_ ? options.send_peers : options.receive_peers) = peers.data();
    (is_source_ ? options.num_send_peers : options.num_receive_peers) = peers.size();
    options.slot_bytes = settings_.slot_bytes;
    options.slots_per_ring = settings_.num_slots;
    require(reshard_communicator_create_shm(&options, &communicator_) == RESHARD_STATUS_OK,
            "create");
    require(reshard_communicator_connect(communicator_, 300'000'000'000, 300'000'000'000) ==
                RESHARD_STATUS_OK,
            "connect");
  }

  void run() {
    reshard_run_options options{};
    options.size = sizeof(options);
    options.run_id = ++run_id_;
    options.timeout_ns = 60'000'000'000;
    options.num_threads = 1;
    void* buffers[1] = {memory_};
    require(
        reshard_program_begin(program_, communicator_, buffers, 1, &options) == RESHARD_STATUS_OK,
        "begin");
    reshard_run_stats stats{};
    stats.size = sizeof(stats);
    reshard_status status = RESHARD_STATUS_IN_PROGRESS;
    while (status == RESHARD_STATUS_IN_PROGRESS) {
      status = reshard_program_progress(program_, 100'000'000, &stats);
    }
    require(status == RESHARD_STATUS_OK, "run");
    shared_.wait_ns[index_] = stats.ns_wait;
  }

  void copy_once() {
    if (is_source_) return;
    for (int s = 0; s < settings_.num_sources; ++s) {
      const std::byte* source = sources_[static_cast<std::size_t>(s)];
      layout_.for_each(s, number_,
                       [&](const Block& block, std::int64_t source_at, std::int64_t source_pitch,
                           std::int64_t destination_at, std::int64_t destination_pitch) {
                         const auto row_bytes =
                             static_cast<std::size_t>(block.cols * kElementBytes);
                         for (std::int64_t r = 0; r < block.rows; ++r) {
                           std::memcpy(memory_ + destination_at + r * destination_pitch,
                                       source + source_at + r * source_pitch, row_bytes);
                         }
                       });
    }
  }

  const Settings& settings_;
  const Layout& layout_;
  Shared& shared_;
  int index_;
  std::vector<std::byte*> sources_;
  bool is_source_ = false;
  int number_ = 0;
  std::int64_t nbytes_ = 0;
  std::byte* memory_ = nullptr;
  reshard_program* program_ = nullptr;
  reshard_communicator* communicator_ = nullptr;
  std::uint64_t run_id_ = 0;
};

// Sums over all processes, per round.
struct Costs {
  double cpu_ms = 0;
  double system_ms = 0;
  double switches = 0;
  double wait_ms = 0;
};

void report(const char* name, std::vector<double> ms, const Settings& settings, double bytes,
            const Costs& costs) {
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  std::printf(
      "%-5s %-5s min %8.3f  median %8.3f  max %8.3f ms  %6.2f GB/s  cpu %6.1f ms (system %5.1f)  "
      "switches %5.0f  asleep %6.1f ms\n",
      settings.workload.c_str(), name, ms.front(), median, ms.back(), bytes / median / 1e6,
      costs.cpu_ms, costs.system_ms, costs.switches, costs.wait_ms);
}

void run_workload(const Settings& settings) {
  const int count = settings.num_sources + settings.num_destinations;
  const Layout layout(settings);
  auto* shared = new (map(sizeof(Shared), MAP_SHARED)) Shared{};
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, static_cast<unsigned>(count) + 1);
  std::vector<std::byte*> sources;
  for (int s = 0; s < settings.num_sources; ++s) {
    sources.push_back(map(layout.source_bytes(s), MAP_SHARED));
  }
  const int total_rounds = 2 + 2 * settings.rounds;
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      {
        Process process(settings, layout, *shared, i, sources);
        for (int r = 0; r < total_rounds; ++r) process.round(r % 2 != 0, r < 2);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<double> run_ms;
  std::vector<double> copy_ms;
  Costs costs[2];
  double first_ms = 0;
  for (int r = 0; r < total_rounds; ++r) {
    pthread_barrier_wait(&shared->barrier);
    pthread_barrier_wait(&shared->barrier);
    const double ms =
        static_cast<double>(*std::max_element(shared->end_ns, shared->end_ns + count) -
                            *std::min_element(shared->start_ns, shared->start_ns + count)) /
        1e6;
    if (r == 0) first_ms = ms;
    if (r >= 2) {
      (r % 2 != 0 ? copy_ms : run_ms).push_back(ms);
      for (int i = 0; i < count; ++i) {
        Costs& sum = costs[r % 2];
        sum.cpu_ms += static_cast<double>(shared->cpu_ns[i]) / 1e6 / settings.rounds;
        sum.system_ms += static_cast<double>(shared->system_ns[i]) / 1e6 / settings.rounds;
        sum.switches += static_cast<double>(shared->switches[i]) / settings.rounds;
        if (r % 2 == 0)
          sum.wait_ms += static_cast<double>(shared->wait_ns[i]) / 1e6 / settings.rounds;
      }
    }
    pthread_barrier_wait(&shared->barrier);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) std::exit(1);
  }
  const auto bytes = static_cast<double>(layout.total_bytes());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < run_ms.size(); ++i) ratios.push_back(run_ms[i] / copy_ms[i]);
  std::sort(ratios.begin(), ratios.end());
  report("copy", copy_ms, settings, bytes, costs[1]);
  report("run", run_ms, settings, bytes, costs[0]);
  std::printf("%-5s ratio min %.2f  median %.2f  max %.2f; %.0f bytes; first run %.3f ms\n",
              settings.workload.c_str(), ratios.front(), ratios[ratios.size() / 2], ratios.back(),
              bytes, first_ms);
  std::fflush(stdout);
  for (int s = 0; s < settings.num_sources; ++s) {
    munmap(sources[static_cast<std::size_t>(s)], static_cast<std::size_t>(layout.source_bytes(s)));
  }
  munmap(shared, sizeof(Shared));
}

std::int64_t value_of(const char* argument) { return std::atoll(std::strchr(argument, '=') + 1); }

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> workloads;
  std::int64_t scale = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("rounds=", 0) == 0) {
      settings.rounds = static_cast<int>(value_of(argv[i]));
    } else if (argument.rfind("slot=", 0) == 0) {
      settings.slot_bytes = value_of(argv[i]);
    } else if (argument.rfind("slots=", 0) == 0) {
      settings.num_slots = static_cast<int>(value_of(argv[i]));
    } else if (argument.rfind("scale=", 0) == 0) {
      scale = value_of(argv[i]);
    } else {
      workloads.push_back(argument);
    }
  }
  if (workloads.empty()) workloads = {"A", "B", "C", "tiny", "pair"};
  for (const std::string& workload : workloads) {
    settings.workload = workload;
    const int ends = workload == "pair" ? 2 : 4;
    settings.num_sources = settings.num_destinations = ends;
    if (workload == "tiny" || workload == "pair") {
      settings.shapes.assign(workload == "tiny" ? 1000 : 200, {256, 16});
    } else {
      settings.shapes = dense_model(scale);
    }
    run_workload(settings);
  }
  return 0;
}

// The double of NCCL between processes: this program executes itself again, once for each rank.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "doubles/world.h"

namespace reshard_test {
namespace {

// ---- a rank, in a process of its own

// What a child exits with, besides a result of NCCL.
enum ExitCode { kWrongBytes = 100, kHung = 101, kViolations = 102 };

ncclUniqueId id_of(const std::string& text) {
  ncclUniqueId id;
  for (std::size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// Each rank sends to the next one, so many times.
int exchange(ncclComm_t comm, int num_ranks, int rank, int num_rounds) {
  constexpr std::size_t kNumBytes = 700'001;
  const Stream stream;
  const Memory in(kNumBytes);
  const int next = (rank + 1) % num_ranks;
  const int last = (rank + num_ranks - 1) % num_ranks;
  for (int round = 0; round < num_rounds; ++round) {
    const auto salt = [&](int from) { return static_cast<std::uint64_t>(from * 1000 + round); };
    const Memory out(hashed_bytes(kNumBytes, salt(rank)));
    ncclGroupStart();
    ncclSend(out.data(), kNumBytes, ncclUint8, next, comm, stream.get());
    ncclRecv(in.data(), kNumBytes, ncclUint8, last, comm, stream.get());
    ncclGroupEnd();
    int result = settled(comm);
    CUevent event = nullptr;
    cuEventCreate(&event, 2);
    cuEventRecord(event, stream.get());
    // A group that hangs is aborted, as the product does at its deadline.
    const bool ended = becomes(
        [&] {
          if (result == 0) result = settled(comm);
          return result != 0 || cuEventQuery(event) == 0;
        },
        3000);
    cuEventDestroy_v2(event);
    if (result != 0 || !ended) {
      ncclCommAbort(comm);
      if (!stream.finishes()) return kViolations;
      return result != 0 ? result : kHung;
    }
    const Bytes expected = hashed_bytes(kNumBytes, salt(last));
    if (std::memcmp(in.data(), expected.data(), expected.size()) != 0) return kWrongBytes;
  }
  ncclCommFinalize(comm);
  const int result = settled(comm);
  ncclCommDestroy(comm);
  return result;
}

int run_rank(const std::string& id, int num_ranks, int rank, bool splits) {
  int result = 0;
  {
    const OnDevice device(0);
    ncclConfig_t used = config();
    ncclComm_t comm = nullptr;
    ncclCommInitRankConfig(&comm, num_ranks, id_of(id), rank, &used);
    result = settled(comm);
    if (result != 0) {
      std::fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(comm));
      ncclCommAbort(comm);
    } else if (splits) {
      ncclComm_t child = nullptr;
      ncclCommSplit(comm, rank % 2, -rank, &child, nullptr);
      result = settled(comm);
      const int size = (num_ranks + 1 - rank % 2) / 2;
      if (result == 0) result = exchange(child, size, size - 1 - rank / 2, 3);
      ncclCommAbort(comm);
    } else {
      result = exchange(comm, num_ranks, rank, 3);
    }
  }
  const std::string violations = cuda_violations() + nccl_violations();
  if (!violations.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, violations.c_str());
  return !violations.empty() && result == 0 ? kViolations : result;
}

// ---- the tests

using Environment = std::map<std::string, std::string>;

std::string hexadecimal(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(byte) & 0xFFU);
    text += digits;
  }
  return text;
}

pid_t start_rank(const std::string& id, int num_ranks, int rank, const std::string& how,
                 const Environment& environment) {
  std::vector<std::string> words{"/proc/self/exe",     "rank", id, std::to_string(num_ranks),
                                 std::to_string(rank), how};
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (environment.count(text.substr(0, text.find('='))) == 0) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> arguments;
  std::vector<char*> settings;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& variable : variables) settings.push_back(variable.data());
  arguments.push_back(nullptr);
  settings.push_back(nullptr);
  pid_t pid = 0;
  CHECK_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(), settings.data()),
           0);
  return pid;
}

int num_in_shared_memory() {
  DIR* folder = opendir("/dev/shm");
  int count = 0;
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

// What each rank exits with; 1000 and the signal where it was killed.
std::vector<int> run_ranks(const std::vector<Environment>& environments,
                           const std::string& how = "whole") {
  const int before = num_in_shared_memory();
  ncclUniqueId id;
  CHECK_EQ(ncclGetUniqueId(&id), 0);
  const int num_ranks = static_cast<int>(environments.size());
  std::vector<pid_t> pids;
  for (int rank = 0; rank < num_ranks; ++rank) {
    Environment all{{"CUDA_DOUBLE_DEVICES", "ids:" + std::to_string(rank)}};
    for (const auto& [name, value] : environments[static_cast<std::size_t>(rank)])
      all[name] = value;
    pids.push_back(start_rank(hexadecimal(id), num_ranks, rank, how, all));
  }
  std::vector<int> codes;
  for (const pid_t pid : pids) {
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
  }
  CHECK_EQ(num_in_shared_memory(), before);
  return codes;
}

std::string text_of(const std::vector<int>& codes) {
  std::string text;
  for (const int code : codes) text += std::to_string(code) + " ";
  return text;
}

#define CHECK_CODES(codes, ...) CHECK_EQ(text_of(codes), text_of({__VA_ARGS__}))

}  // namespace

TEST(bytes_move_between_processes) {
  CHECK_CODES(run_ranks({{}, {}}), 0, 0);
  CHECK_CODES(run_ranks({{}, {}, {}}), 0, 0, 0);
}

TEST(processes_split_their_communicator) {
  CHECK_CODES(run_ranks({{}, {}, {}, {}}, "split"), 0, 0, 0, 0);
}

TEST(unequal_versions_are_refused_on_all_ranks) {
  const Environment other{{"NCCL_DOUBLE_VERSION", "22705"}};
  CHECK_CODES(run_ranks({{}, other, {}}), 5, 5, 5);
  CHECK_CODES(run_ranks({other, other}), 0, 0);
}

TEST(one_device_in_two_processes_is_refused_unless_it_is_allowed) {
  Environment shared{{"CUDA_DOUBLE_DEVICES", "ids:7"}};
  CHECK_CODES(run_ranks({shared, shared}), 5, 5);
  shared["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
  CHECK_CODES(run_ranks({shared, shared}), 0, 0);
  shared["NCCL_DOUBLE_VERSION"] = "22705";  // before NCCL could do it
  CHECK_CODES(run_ranks({shared, shared}), 5, 5);
}

TEST(the_others_hang_when_a_process_is_killed) {
  const Environment killed{{"NCCL_DOUBLE_INJECT", "kill_group=2"}};
  CHECK_CODES(run_ranks({{}, killed}), kHung, 1000 + SIGKILL);
}

TEST(the_others_have_an_error_where_death_is_reported) {
  const Environment reports{{"NCCL_DOUBLE_REPORTS_DEATH", "1"}};
  const Environment killed{{"NCCL_DOUBLE_INJECT", "kill_group=2"}};
  CHECK_CODES(run_ranks({reports, reports, killed}), 6, 6, 1000 + SIGKILL);
  CHECK_CODES(run_ranks({reports, reports, reports}), 0, 0, 0);  // who leaves is not dead
}

TEST(the_environment_injects) {
  CHECK_CODES(run_ranks({{{"NCCL_DOUBLE_INJECT", "async_error_code=3,async_error_group=1"}}, {}}),
              3, kHung);
  const Environment fails{{"NCCL_DOUBLE_INJECT", "fail_init=2"}};
  CHECK_CODES(run_ranks({fails, fails}), 2, 2);
}

TEST(copies_of_the_library_have_versions_of_their_own) {
  Dl_info found{};
  CHECK_TRUE(dladdr(reinterpret_cast<void*>(&ncclDoubleReset), &found) != 0);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("doubles" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::filesystem::path copy = folder / "libnccl.so.2";
  std::filesystem::copy_file(found.dli_fname, copy);
  std::ofstream(copy.string() + ".version") << 22805 << '\n';
  void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove_all(folder);
  CHECK_TRUE(library != nullptr);
  auto* get = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(library, "ncclGetVersion"));
  auto* inject = reinterpret_cast<decltype(&ncclDoubleGet)>(dlsym(library, "ncclDoubleGet"));
  int version = 0;
  CHECK_EQ(get(&version), 0);
  CHECK_EQ(version, 22805);
  CHECK_EQ(ncclGetVersion(&version), 0);
  CHECK_EQ(version, 23203);
  ncclGroupEnd();  // a violation here, none there
  CHECK_EQ(ncclDoubleGet("violations"), 1);
  CHECK_EQ(inject("violations"), 0);
  ncclDoubleReset();
}

}  // namespace reshard_test

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "rank") {
    return reshard_test::run_rank(argv[2], std::atoi(argv[3]), std::atoi(argv[4]),
                                  std::string(argv[5]) == "split");
  }
  return reshard_test::run_all(argc, argv);
}

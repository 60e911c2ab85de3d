// Real processes that are killed, stopped, forked or interrupted; what the survivors say, and when.
//
// A process is a fork of this one. It talks to the test through a pipe, one Note at a time, so the
// test waits for what happened and never for a time to pass.
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "communicator.h"
#include "fixtures.h"

namespace reshard_test {
namespace {

// What is promised; a sanitizer slows everything down.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kReportLimitNs = 500 * kMillisecond;
#else
constexpr std::int64_t kReportLimitNs = 50 * kMillisecond;
#endif

struct Note {
  StatusCode code;  // kInProgress: a run went well
  std::int64_t rank;
  std::int64_t peer;
  std::int64_t time_ns;
  char text[480];
};

class Process {
 public:
  // `body` gets a function that sends a note; an Error that it throws is sent as the last note.
  using Send = std::function<void(const Note&)>;

  explicit Process(const std::function<void(const Send&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw_system("pipe", errno);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      run(body, ends[1]);
    }
    close(ends[1]);
    notes_ = FileDescriptor(ends[0]);
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), notes_(std::move(other.notes_)) {}
  ~Process() {
    if (pid_ == 0) return;
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { kill(pid_, number); }

  // The next note; fails when the process ended without one.
  Note next() {
    Note note{};
    const ssize_t nbytes = read(notes_.get(), &note, sizeof(note));
    if (nbytes != sizeof(note)) fail(__FILE__, __LINE__, "process ", pid_, " ended silently");
    return note;
  }

  // The next note that is not about a good run.
  Note last() {
    for (;;) {
      const Note note = next();
      if (note.code != StatusCode::kInProgress) return note;
    }
  }

 private:
  [[noreturn]] static void run(const std::function<void(const Send&)>& body, int pipe_end) {
    alarm(60);  // nothing outlives a test that went wrong
    const Send send = [pipe_end](const Note& note) {
      if (write(pipe_end, &note, sizeof(note)) != sizeof(note)) _exit(2);
    };
    Note note{StatusCode::kOk, kNoRank, kNoRank, 0, {}};
    try {
      body(send);
    } catch (const Error& error) {
      note = {error.code(), error.rank(), error.peer(), 0, {}};
      error.message().copy(note.text, sizeof(note.text) - 1);
    } catch (const std::exception& error) {
      note.code = StatusCode::kInternal;
      std::strncpy(note.text, error.what(), sizeof(note.text) - 1);
    }
    note.time_ns = monotonic_ns();
    send(note);
    _exit(0);
  }

  pid_t pid_ = 0;
  FileDescriptor notes_;
};

std::shared_ptr<ShmTransport> connected(const ShmConfig& config) {
  auto transport = std::make_shared<ShmTransport>(config);
  while (!transport->connect(30 * kSecond, 100 * kMillisecond)) {
  }
  return transport;
}

// Everybody sends `nbytes` to everybody.
ByteStreams mesh_streams(int process, int num_processes, std::int64_t nbytes) {
  ByteStreams streams;
  for (int q = 0; q < num_processes; ++q) {
    if (q == process) continue;
    streams.send(process, q, nbytes);
    streams.receive(q, process, nbytes);
  }
  return streams;
}

// A process that runs again and again. Only one that `tells` sends a note after each run: a
// survivor must not wait for the test to read.
Process endless(const std::string& key, int process, int num_processes, bool tells,
                std::int64_t timeout_ns, std::int64_t resident_bytes = 0) {
  return Process([=](const Process::Send& send) {
    std::vector<char> resident(static_cast<std::size_t>(resident_bytes), 1);
    const auto transport = connected(mesh_config(key, process, num_processes));
    Runner runner(mesh_streams(process, num_processes, 300'000), 4096);
    runner.run(transport, 1, timeout_ns);
    for (std::uint64_t run = 2;; ++run) {  // without a check, so that nearly all time is in runs
      runner.begin(transport, run, timeout_ns);
      while (!runner.executor().progress(100 * kMillisecond)) {
      }
      if (tells) send({StatusCode::kInProgress, 0, 0, 0, {}});
    }
  });
}

// Kills one of three after some runs; returns the nanoseconds until the later survivor's report.
std::int64_t kill_one(int victim, int after_runs, std::int64_t resident_bytes) {
  const std::string key = new_session_key();
  std::vector<Process> processes;
  for (int p = 0; p < 3; ++p) {
    processes.push_back(
        endless(key, p, 3, p == victim, 30 * kSecond, p == victim ? resident_bytes : 0));
  }
  for (int i = 0; i < after_runs; ++i) processes[static_cast<std::size_t>(victim)].next();
  const std::int64_t killed_ns = monotonic_ns();
  processes[static_cast<std::size_t>(victim)].signal(SIGKILL);
  std::int64_t slowest_ns = 0;
  bool is_named = false;
  for (int p = 0; p < 3; ++p) {
    if (p == victim) continue;
    const Note note = processes[static_cast<std::size_t>(p)].last();
    CHECK_TRUE(note.code == StatusCode::kPeerLost || note.code == StatusCode::kAborted);
    CHECK_EQ(note.code == StatusCode::kPeerLost ? note.rank : p, p);
    CHECK_CONTAINS(note.text, text("process ", victim, " (rank ", victim, ")"));
    CHECK_CONTAINS(note.text, "died");
    CHECK_CONTAINS(note.text, "chunk");
    is_named |= note.code == StatusCode::kPeerLost && note.peer == victim;
    slowest_ns = std::max(slowest_ns, note.time_ns - killed_ns);
  }
  CHECK_TRUE(is_named);
  return slowest_ns;
}

TEST(a_killed_process_is_reported_by_all_survivors_within_50_ms) {
  std::vector<std::int64_t> delays;
  for (int round = 0; round < 9; ++round) {
    const std::int64_t resident_bytes = round % 3 == 2 ? std::int64_t{256} << 20 : 0;
    delays.push_back(kill_one(round % 3, 1 + 3 * round, resident_bytes));
  }
  std::sort(delays.begin(), delays.end());
  std::printf("reported after %.1f (median), %.1f ms (slowest)\n",
              static_cast<double>(delays[delays.size() / 2]) / 1e6,
              static_cast<double>(delays.back()) / 1e6);
  // The median, because on a busy machine any one process may wait for a core that long.
  CHECK_TRUE(delays[delays.size() / 2] < kReportLimitNs);
  CHECK_TRUE(delays.back() < 2 * kSecond);
}

TEST(a_stopped_process_is_named_at_the_deadline_and_told_when_it_goes_on) {
  const std::string key = new_session_key();
  Process healthy = endless(key, 0, 2, false, 3 * kSecond);
  Process victim = endless(key, 1, 2, true, 30 * kSecond);
  victim.next();
  victim.signal(SIGSTOP);
  const Note note = healthy.last();
  CHECK_EQ(note.code, StatusCode::kTimeout);
  CHECK_EQ(note.rank, 0);
  CHECK_EQ(note.peer, 1);
  CHECK_CONTAINS(note.text, "process 1");
  CHECK_CONTAINS(note.text, "of 300000 bytes");
  victim.signal(SIGCONT);
  const Note late = victim.last();
  CHECK_TRUE(late.code == StatusCode::kAborted || late.code == StatusCode::kPeerLost);
}

TEST(a_process_that_dies_before_it_connects_is_named) {
  const std::string key = new_session_key();
  Process victim([&](const Process::Send& send) {
    const ShmTransport transport(mesh_config(key, 1, 2));
    send({StatusCode::kInProgress, 0, 0, 0, {}});
    pause();
  });
  victim.next();
  Process dialer([&](const Process::Send& send) {
    ShmTransport transport(mesh_config(key, 0, 2));
    transport.connect(30 * kSecond, 0);  // its hello waits in the victim's queue
    send({StatusCode::kInProgress, 0, 0, 0, {}});
    while (!transport.connect(30 * kSecond, 100 * kMillisecond)) {
    }
  });
  dialer.next();
  victim.signal(SIGKILL);
  const Note note = dialer.last();
  CHECK_EQ(note.code, StatusCode::kPeerLost);
  CHECK_CONTAINS(note.text, "process 1 (rank 1)");
  CHECK_CONTAINS(note.text, "while connecting");
}

TEST(a_process_that_dies_between_runs_is_found_by_check_peers) {
  const std::string key = new_session_key();
  Process victim([&](const Process::Send& send) {
    const auto transport = connected(mesh_config(key, 1, 2));
    send({StatusCode::kInProgress, 0, 0, 0, {}});
    pause();
  });
  Process survivor([&](const Process::Send& send) {
    const auto transport = connected(mesh_config(key, 0, 2));
    transport->check_peers();
    send({StatusCode::kInProgress, 0, 0, 0, {}});
    const std::int64_t end = monotonic_ns() + 20 * kSecond;
    while (monotonic_ns() < end) transport->check_peers();
  });
  survivor.next();
  victim.next();
  victim.signal(SIGKILL);
  const Note note = survivor.last();
  CHECK_EQ(note.code, StatusCode::kPeerLost);
  CHECK_EQ(note.rank, 0);
  CHECK_EQ(note.peer, 1);
}

TEST(a_process_may_exit_without_closing_once_its_part_is_over) {
  const std::string key = new_session_key();
  Process leaver([&](const Process::Send&) {
    auto* transport = new std::shared_ptr<ShmTransport>(connected(mesh_config(key, 1, 2)));
    Runner runner(mesh_streams(1, 2, 100'000), 4096);
    runner.run(*transport, 1);
  });
  Process stayer([&](const Process::Send& send) {
    const auto transport = connected(mesh_config(key, 0, 2));
    Runner runner(mesh_streams(0, 2, 100'000), 4096);
    runner.run(transport, 1);
    send({StatusCode::kInProgress, 0, 0, 0, {}});
    runner.run(transport, 2);
  });
  CHECK_EQ(leaver.last().code, StatusCode::kOk);
  CHECK_EQ(stayer.next().code, StatusCode::kInProgress);
  CHECK_EQ(stayer.last().code, StatusCode::kPeerLost);
}

void ignore_signal(int) {}

TEST(signals_do_not_disturb_a_run) {
  const std::string key = new_session_key();
  const auto body = [&](int process) {
    return [&key, process](const Process::Send&) {
      struct sigaction action{};
      action.sa_handler = ignore_signal;  // without SA_RESTART: system calls return EINTR
      sigaction(SIGALRM, &action, nullptr);
      const itimerval every_millisecond{{0, 1000}, {0, 1000}};
      setitimer(ITIMER_REAL, &every_millisecond, nullptr);
      const auto transport = connected(mesh_config(key, process, 2));
      Runner runner(mesh_streams(process, 2, 500'000), 4096);
      for (std::uint64_t run = 1; run <= 20; ++run) runner.run(transport, run);
    };
  };
  Process a(body(0));
  Process b(body(1));
  for (Process* process : {&a, &b}) {
    const Note note = process->last();
    CHECK_EQ(std::string(note.text), "");
    CHECK_EQ(note.code, StatusCode::kOk);
  }
}

TEST(a_forked_child_can_neither_use_nor_harm_its_parents_communicator) {
  const std::string key = new_session_key();
  const auto body = [&](int process) {
    return [&key, process](const Process::Send&) {
      auto communicator = std::make_unique<Communicator>(
          std::make_shared<ShmTransport>(mesh_config(key, process, 2)));
      while (!communicator->transport()->connect(30 * kSecond, 100 * kMillisecond)) {
      }
      Process child([&](const Process::Send&) {
        const Error error = error_of([&] { communicator->transport(); });
        communicator.reset();
        throw error;
      });
      const Note note = child.last();
      CHECK_EQ(note.code, StatusCode::kInvalidState);
      CHECK_CONTAINS(note.text, "after fork");
      Runner runner(mesh_streams(process, 2, 50'000), 4096);
      runner.run(communicator->transport(), 1);
    };
  };
  Process a(body(0));
  Process b(body(1));
  for (Process* process : {&a, &b}) {
    const Note note = process->last();
    CHECK_EQ(std::string(note.text), "");
    CHECK_EQ(note.code, StatusCode::kOk);
  }
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

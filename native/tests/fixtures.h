// Small programs and communicators for the C++ tests.
#ifndef RESHARD_NATIVE_TESTS_FIXTURES_H_
#define RESHARD_NATIVE_TESTS_FIXTURES_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chunk_executor.h"
#include "clock.h"
#include "named_tests.h"
#include "program_table.h"
#include "transport/shm/shm_transport.h"

namespace reshard_test {

using namespace reshard;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMillisecond = 1'000'000;

// Value of byte `index` of stream (src, dst) in run `run`: a hash, so that no shift or swap of
// bytes goes unseen.
inline std::uint8_t pattern(std::int64_t src, std::int64_t dst, std::uint64_t run,
                            std::int64_t index) {
  const auto stream = static_cast<std::uint64_t>(src * 1000 + dst);
  return static_cast<std::uint8_t>(
      hash((stream << 44) + (run << 32) + static_cast<std::uint64_t>(index)) >> 56);
}

// The tables of one process; every stream is one contiguous uint8 box in a buffer of its own.
class ByteStreams {
 public:
  void add(Direction direction, std::int64_t src, std::int64_t dst, std::int64_t nbytes) {
    const auto stream = static_cast<std::int64_t>(ends_.size());
    const bool is_send = direction == Direction::kSend;
    streams_.insert(streams_.end(), {is_send ? 0 : 1, src, dst});
    operations_.insert(operations_.end(), {stream, stream, 0, 1, 1, 1, nbytes, 1});
    extents_.insert(extents_.end(), {0, nbytes});
    ends_.push_back({direction, src, dst});
    memory_.emplace_back(static_cast<std::size_t>(nbytes) + 1);
  }
  void send(std::int64_t src, std::int64_t dst, std::int64_t nbytes) {
    add(Direction::kSend, src, dst, nbytes);
  }
  void receive(std::int64_t src, std::int64_t dst, std::int64_t nbytes) {
    add(Direction::kReceive, src, dst, nbytes);
  }

  Program program(std::int64_t chunk_bytes) const {
    return read_program({{streams_.data(), streams_.size()},
                         {operations_.data(), operations_.size()},
                         {nullptr, 0},
                         {extents_.data(), extents_.size()},
                         static_cast<std::int64_t>(ends_.size()),
                         chunk_bytes});
  }

  // Writes the pattern of a run into what is sent and something else into what is received.
  void fill(std::uint64_t run) {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      const bool is_send = ends_[i].direction == Direction::kSend;
      for (std::size_t k = 0; k < memory_[i].size(); ++k) {
        const auto value = pattern(ends_[i].src, ends_[i].dst, run, static_cast<std::int64_t>(k));
        memory_[i][k] = is_send ? value : static_cast<std::uint8_t>(~value);
      }
    }
  }

  // Checks everything received, and that the byte after it was left alone.
  void check(std::uint64_t run) const {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i].direction == Direction::kSend) continue;
      const std::size_t nbytes = memory_[i].size() - 1;
      for (std::size_t k = 0; k <= nbytes; ++k) {
        auto expected = pattern(ends_[i].src, ends_[i].dst, run, static_cast<std::int64_t>(k));
        if (k == nbytes) expected = static_cast<std::uint8_t>(~expected);
        if (memory_[i][k] == expected) continue;
        fail(__FILE__, __LINE__, "rank ", ends_[i].src, " -> rank ", ends_[i].dst, ", run ", run,
             ": byte ", k, " of ", nbytes, " is ", int{memory_[i][k]}, ", not ", int{expected});
      }
    }
  }

  std::vector<void*> buffers() {
    std::vector<void*> pointers;
    for (auto& memory : memory_) pointers.push_back(memory.data());
    return pointers;
  }

 private:
  struct End {
    Direction direction;
    std::int64_t src;
    std::int64_t dst;
  };
  std::vector<std::int64_t> streams_, operations_, extents_;
  std::vector<End> ends_;
  std::vector<std::vector<std::uint8_t>> memory_;
};

// A key that no other test of this machine uses.
inline std::string new_session_key() {
  static std::atomic<int> count{0};
  return text("test-", getpid(), "-", ++count);
}

// One rank per process, everybody sends to everybody.
inline ShmConfig mesh_config(const std::string& key, int process, int num_processes) {
  ShmConfig config;
  config.session_key = key;
  config.process = process;
  config.num_processes = num_processes;
  for (int p = 0; p < num_processes; ++p) {
    config.rank_to_process.push_back(p);
    if (p != process) config.send_peers.push_back(p);
  }
  config.receive_peers = config.send_peers;
  config.geometry = {4096, 4};
  return config;
}

// A program, its memory and its executor.
class Runner {
 public:
  Runner(ByteStreams streams, std::int64_t chunk_bytes)
      : streams_(std::move(streams)),
        program_(streams_.program(chunk_bytes)),
        executor_(program_, host_device()) {}

  ByteStreams& streams() { return streams_; }
  ChunkExecutor& executor() { return executor_; }

  void begin(std::shared_ptr<Transport> transport, std::uint64_t run,
             std::int64_t timeout_ns = 20 * kSecond) {
    const std::vector<void*> buffers = streams_.buffers();
    executor_.begin(std::move(transport), buffers.data(), buffers.size(), {run, timeout_ns, 1});
  }

  // Begins and finishes a run, checking the bytes.
  void run(const std::shared_ptr<Transport>& transport, std::uint64_t run,
           std::int64_t timeout_ns = 20 * kSecond) {
    streams_.fill(run);
    begin(transport, run, timeout_ns);
    while (!executor_.progress(100 * kMillisecond)) {
    }
    streams_.check(run);
  }

 private:
  ByteStreams streams_;
  const Program program_;
  ChunkExecutor executor_;
};

// Runs `body` and returns the Error that it throws; fails when it throws none.
template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  fail(__FILE__, __LINE__, "no error was thrown");
}

}  // namespace reshard_test

namespace reshard {

inline std::ostream& operator<<(std::ostream& stream, StatusCode code) {
  return stream << status_name(static_cast<std::int32_t>(code));
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_TESTS_FIXTURES_H_

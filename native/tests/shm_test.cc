// The parts of the shm transport: finding each other, doorbell, life sign, rings; and that nothing
// of a communicator is left when it is closed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <fstream>
#include <string>
#include <thread>

#include "fixtures.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/hello.h"
#include "transport/shm/life_sign.h"
#include "transport/shm/shm_transport.h"

namespace reshard_test {
namespace {

// Connects both, each on a thread of its own; returns the error of each (kOk: none).
std::pair<Error, Error> connect_both(ShmTransport& a, ShmTransport& b, std::int64_t timeout_ns) {
  std::pair<Error, Error> errors{{StatusCode::kOk, ""}, {StatusCode::kOk, ""}};
  const auto connect = [timeout_ns](ShmTransport& transport, Error& error) {
    try {
      while (!transport.connect(timeout_ns, 50 * kMillisecond)) {
      }
    } catch (const Error& caught) {
      error = caught;
    }
  };
  std::thread thread([&] { connect(a, errors.first); });
  connect(b, errors.second);
  thread.join();
  return errors;
}

TEST(wrong_configurations_are_refused_with_the_value) {
  const auto message_of = [](auto change) {
    ShmConfig config = mesh_config("key", 0, 2);
    change(config);
    const Error error = error_of([&] { check_config(config); });
    CHECK_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.message();
  };
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.session_key = ""; }), "session key ''");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.session_key = "a/b"; }), "session key 'a/b'");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.session_key.assign(65, 'a'); }), "aaa");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.token.assign(65, 'a'); }), "65 bytes");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.process = 2; }), "process 2 is not in 0..1");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.num_processes = 0; }), "num_processes 0");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.rank_to_process = {0, 7}; }), "rank 1");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.send_peers = {0}; }), "this process, 0");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.receive_peers = {5}; }), "process 5");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.send_peers = {1, 1}; }), "1 twice");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.geometry.slot_bytes = 15; }), "slot_bytes 15");
  CHECK_CONTAINS(message_of([](ShmConfig& c) { c.geometry.num_slots = 33; }), "slots_per_ring 33");
}

TEST(a_name_is_taken_while_its_process_lives_and_free_afterwards) {
  const ShmConfig config = mesh_config(new_session_key(), 0, 2);
  {
    const ShmTransport first(config);
    const Error error = error_of([&] { const ShmTransport second(config); });
    CHECK_EQ(error.code(), StatusCode::kInvalidState);
    CHECK_CONTAINS(error.message(), config.session_key);
  }
  const ShmTransport again(config);
}

TEST(a_peer_that_never_comes_is_named_at_the_deadline) {
  const std::string key = new_session_key();
  ShmTransport middle(mesh_config(key, 1, 3));
  const std::int64_t start = monotonic_ns();
  const Error error = error_of([&] {
    while (!middle.connect(50 * kMillisecond, 10 * kMillisecond)) {
    }
  });
  CHECK_TRUE(monotonic_ns() - start < 5 * kSecond);
  CHECK_EQ(error.code(), StatusCode::kTimeout);
  CHECK_CONTAINS(error.message(), "process 0 (rank 0) did not dial");
  CHECK_CONTAINS(error.message(), "process 2 (rank 2) is not there");
  CHECK_CONTAINS(error.message(), key);
}

TEST(another_session_key_is_another_session) {
  ShmTransport a(mesh_config(new_session_key(), 0, 2));
  ShmTransport b(mesh_config(new_session_key(), 1, 2));
  const auto [first, second] = connect_both(a, b, 100 * kMillisecond);
  CHECK_EQ(first.code(), StatusCode::kTimeout);
  CHECK_EQ(second.code(), StatusCode::kTimeout);
}

TEST(a_wrong_token_is_refused_at_once_and_counted) {
  const std::string key = new_session_key();
  ShmConfig right = mesh_config(key, 1, 2);
  right.token = "right";
  ShmConfig wrong = mesh_config(key, 0, 2);
  wrong.token = "wrong";
  ShmTransport a(wrong);
  ShmTransport b(right);
  const auto [first, second] = connect_both(a, b, 300 * kMillisecond);
  CHECK_EQ(first.code(), StatusCode::kProtocol);
  CHECK_CONTAINS(first.message(), "wrong token");
  CHECK_EQ(second.code(), StatusCode::kTimeout);
  CHECK_CONTAINS(second.message(), "1 connections were refused, the last one because wrong token");
}

TEST(members_that_are_set_up_differently_both_learn_of_it) {
  struct Case {
    void (*change)(ShmConfig&);
    const char* part;
  };
  const Case cases[] = {
      {[](ShmConfig& c) { c.geometry.slot_bytes = 8192; }, "slot_bytes"},
      {[](ShmConfig& c) { c.geometry.num_slots = 5; }, "slots_per_ring"},
      {[](ShmConfig& c) { c.num_processes = 3; }, "num_processes"},
      {[](ShmConfig& c) { c.send_peers.clear(); }, "'process 1 sends to process 0'"},
      {[](ShmConfig& c) { c.receive_peers.clear(); }, "'process 0 sends to process 1'"},
  };
  for (const Case& each : cases) {
    const std::string key = new_session_key();
    ShmConfig changed = mesh_config(key, 1, 2);
    each.change(changed);
    ShmTransport a(mesh_config(key, 0, 2));
    ShmTransport b(changed);
    const auto [first, second] = connect_both(a, b, 5 * kSecond);
    CHECK_EQ(first.code(), StatusCode::kProtocol);
    CHECK_EQ(second.code(), StatusCode::kProtocol);
    CHECK_CONTAINS(first.message(), each.part);
    CHECK_CONTAINS(second.message(), each.part);
  }
}

TEST(strangers_are_ignored) {
  const std::string key = new_session_key();
  const ShmConfig config = mesh_config(key, 1, 2);
  ShmTransport a(mesh_config(key, 0, 2));
  ShmTransport b(config);
  const FileDescriptor silent = try_dial(config, 1);
  const FileDescriptor short_message = try_dial(config, 1);
  const FileDescriptor no_memory = try_dial(config, 1);
  CHECK_TRUE(silent.is_open() && short_message.is_open() && no_memory.is_open());
  CHECK_EQ(send(short_message.get(), "hi", 2, 0), 2);
  std::vector<char> large(sizeof(Hello) + 100, 'x');
  CHECK_EQ(send(no_memory.get(), large.data(), large.size(), 0), ssize_t(large.size()));
  const auto [first, second] = connect_both(a, b, 5 * kSecond);
  CHECK_EQ(first.code(), StatusCode::kOk);
  CHECK_EQ(second.code(), StatusCode::kOk);
}

TEST(a_hello_that_points_outside_its_segment_is_refused) {
  const ShmConfig config = mesh_config("key", 1, 2);
  const std::size_t ring_bytes = config.geometry.ring_bytes();
  const auto check = [&](std::uint64_t segment_bytes, std::uint64_t ring_offset) {
    Hello hello = make_hello(mesh_config("key", 0, 2));
    hello.receives = 1;
    hello.segment_bytes = segment_bytes;
    hello.ring_offset = ring_offset;
    check_hello(config, hello);
  };
  check(kPageBytes + ring_bytes, kPageBytes);
  const std::pair<std::uint64_t, std::uint64_t> lies[] = {
      {kPageBytes + ring_bytes, 2 * kPageBytes},
      {kPageBytes + ring_bytes, kPageBytes + 1},
      {kPageBytes + ring_bytes, ~std::uint64_t{0} - kPageBytes + 1},
      {ring_bytes - 1, kPageBytes},
      {0, kPageBytes}};
  for (const auto& [segment_bytes, ring_offset] : lies) {
    const std::uint64_t bytes = segment_bytes;
    const std::uint64_t offset = ring_offset;
    CHECK_EQ(error_of([&] { check(bytes, offset); }).code(), StatusCode::kProtocol);
  }
}

TEST(shared_memory_that_could_shrink_is_refused) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_EQ(ftruncate(unsealed.get(), 8192), 0);
  CHECK_CONTAINS(error_of([&] { check_shared_memory(unsealed.get(), 8192); }).message(), "sealed");
  const FileDescriptor sealed = create_shared_memory(8192);
  check_shared_memory(sealed.get(), 8192);
  CHECK_CONTAINS(error_of([&] { check_shared_memory(sealed.get(), 4096); }).message(), "8192");
  CHECK_TRUE(ftruncate(sealed.get(), 0) != 0);
}

TEST(a_doorbell_rung_between_look_and_sleep_is_not_missed) {
  auto page = std::make_unique<ControlPage>();
  for (const std::int64_t spin_ns : {std::int64_t{0}, 20'000 * std::int64_t{1}}) {
    std::atomic<int> work{0};
    std::atomic<int> done{0};
    std::thread ringer([&] {
      for (int i = 1; i <= 2000; ++i) {
        work.store(i);
        ring(*page);
        while (done.load() != i) std::this_thread::yield();
      }
    });
    const std::int64_t start = monotonic_ns();
    for (int i = 1; i <= 2000;) {
      const std::uint32_t ticket = prepare_to_sleep(*page);
      if (work.load() == i) {
        cancel_sleep(*page);
        done.store(i++);
        continue;
      }
      sleep_until_rung(*page, ticket, 10 * kSecond, spin_ns);
    }
    ringer.join();
    CHECK_TRUE(monotonic_ns() - start < 10 * kSecond);  // one missed ring would take that long
  }
}

TEST(a_life_sign_is_alive_then_closed) {
  auto page = std::make_unique<ControlPage>();
  LifeSign sign(*page);
  CHECK_TRUE(probe_life(*page) == Life::kAlive);
  sign.stop();
  sign.stop();
  CHECK_TRUE(probe_life(*page) == Life::kClosed);
}

TEST(a_broken_peer_cannot_reach_outside_the_ring) {
  struct Nobody final : RingObserver {
    void on_progress(int, std::int32_t) override {}
  } nobody;
  const RingGeometry geometry{4096, 4};
  const FileDescriptor memory = create_shared_memory(geometry.ring_bytes());
  const Mapping mapping(memory.get(), 0, geometry.ring_bytes());
  auto& front = *reinterpret_cast<RingFront*>(mapping.data());
  for (const std::uint64_t count : {std::uint64_t{5}, ~std::uint64_t{0}}) {
    RingReceiver receiver(mapping.data(), geometry, 1, nobody);
    front.header.produced.store(count);
    MessageHeader header{};
    CHECK_EQ(error_of([&] { receiver.try_receive(&header); }).code(), StatusCode::kProtocol);
    RingSender sender(mapping.data(), geometry, 1, nobody);
    front.header.consumed.store(0);
    sender.try_acquire();
    sender.commit(header);
    front.header.consumed.store(count);
    CHECK_EQ(error_of([&] { sender.is_drained(); }).code(), StatusCode::kProtocol);
  }
}

TEST(totals_are_read_whole_or_not_at_all) {
  SharedTotals totals{};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(); ++i) totals.publish({i, 2 * i, 3 * i});
  });
  RunTotals read{};
  int seen = 0;
  while (seen < 1000) {
    const std::uint64_t run = totals.run_id.load();
    if (!totals.read(run, &read)) continue;
    ++seen;
    if (read.num_messages != 2 * read.run_id || read.nbytes != 3 * read.run_id) break;
  }
  stop.store(true);
  writer.join();
  CHECK_EQ(read.num_messages, 2 * read.run_id);
  CHECK_EQ(read.nbytes, 3 * read.run_id);
  CHECK_TRUE(!totals.read(read.run_id + 1'000'000'000'000, &read));
}

int count_entries(const char* folder) {
  DIR* directory = opendir(folder);
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int count_shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:reshard") != std::string::npos) ++count;
  }
  return count;
}

TEST(hundreds_of_communicators_leave_nothing_behind) {
  const auto cycle = [](int kind) {
    const std::string key = new_session_key();
    ShmTransport a(mesh_config(key, 0, 2));
    if (kind == 1) return;  // never connects
    ShmConfig config = mesh_config(key, 1, 2);
    if (kind == 2) config.geometry.num_slots = 3;
    ShmTransport b(config);
    connect_both(a, b, 5 * kSecond);
    if (kind == 3) a.abort(Error(StatusCode::kAborted, "test"));
  };
  for (int kind = 0; kind < 4; ++kind) cycle(kind);
  const int fds = count_entries("/proc/self/fd");
  const int threads = count_entries("/proc/self/task");
  for (int i = 0; i < 300; ++i) cycle(i % 4);
  CHECK_EQ(count_entries("/proc/self/fd"), fds);
  // A joined thread may be listed for a moment longer.
  const std::int64_t end = monotonic_ns() + 10 * kSecond;
  while (count_entries("/proc/self/task") != threads && monotonic_ns() < end) {
    std::this_thread::yield();
  }
  CHECK_EQ(count_entries("/proc/self/task"), threads);
  CHECK_EQ(count_shared_mappings(), 0);
}

TEST(threads_as_processes_move_everything_many_times) {
  constexpr int kNumProcesses = 4;
  const std::string key = new_session_key();
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kNumProcesses);
  for (int p = 0; p < kNumProcesses; ++p) {
    threads.emplace_back([&key, &errors, p] {
      try {
        const auto transport = std::make_shared<ShmTransport>(mesh_config(key, p, kNumProcesses));
        while (!transport->connect(30 * kSecond, 100 * kMillisecond)) {
        }
        ByteStreams streams;
        for (int q = 0; q < kNumProcesses; ++q) {
          const auto nbytes = [](int from, int to) { return 3000 + 5000 * from + 777 * to; };
          streams.send(p, q, nbytes(p, q));
          streams.receive(q, p, nbytes(q, p));
        }
        Runner runner(streams, 1024);
        for (std::uint64_t run = 1; run <= 25; ++run) runner.run(transport, run, 60 * kSecond);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(p)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK_EQ(error, "");
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

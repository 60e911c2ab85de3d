// A ring of bytes in shared memory, from one rank to another one.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_RING_H_
#define RESHARD_TESTS_DOUBLES_NCCL_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace doubles {

// All zero is a ring without bytes.
struct Ring {
  static constexpr std::size_t kNumBytes = std::size_t{1} << 17;

  alignas(64) std::atomic<std::uint64_t> written;  // by the sender, since the start
  alignas(64) std::atomic<std::uint64_t> read;     // by the receiver
  std::atomic<std::uint32_t> refused;              // the receiver wanted another message
  alignas(64) char bytes[kNumBytes];

  std::size_t put(const void* from, std::size_t nbytes) {
    const std::uint64_t start = written.load(std::memory_order_relaxed);
    const std::size_t free = kNumBytes - static_cast<std::size_t>(start - read.load());
    const std::size_t count = std::min(free, nbytes);
    const std::size_t at = static_cast<std::size_t>(start % kNumBytes);
    const std::size_t first = std::min(count, kNumBytes - at);
    if (first > 0) std::memcpy(bytes + at, from, first);
    if (count > first) {
      std::memcpy(bytes, static_cast<const char*>(from) + first, count - first);
    }
    written.store(start + count);
    return count;
  }

  std::size_t num_readable() const {
    return static_cast<std::size_t>(written.load() - read.load(std::memory_order_relaxed));
  }

  std::size_t get(void* to, std::size_t nbytes) {
    const std::uint64_t start = read.load(std::memory_order_relaxed);
    const std::size_t count = std::min(num_readable(), nbytes);
    const std::size_t at = static_cast<std::size_t>(start % kNumBytes);
    const std::size_t first = std::min(count, kNumBytes - at);
    if (first > 0) std::memcpy(to, bytes + at, first);
    if (count > first) std::memcpy(static_cast<char*>(to) + first, bytes, count - first);
    read.store(start + count);
    return count;
  }
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_RING_H_

// The little that the native tests need: checks that count, a seeded generator, hashed data.
#ifndef RESHARD_NATIVE_TESTS_CHECK_H_
#define RESHARD_NATIVE_TESTS_CHECK_H_

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace reshard_test {

// Failures so far; the first few are printed, the rest only counted.
inline int& num_failures() {
  static int failures = 0;
  return failures;
}

inline int& num_checks() {
  static int checks = 0;
  return checks;
}

inline void check(bool holds, const char* file, int line, const char* condition,
                  const std::string& detail) {
  ++num_checks();
  if (holds) return;
  if (++num_failures() <= 20) {
    std::fprintf(stderr, "%s:%d: failed: %s  %s\n", file, line, condition, detail.c_str());
  }
}

// CHECK(condition, detail): `detail` is a std::string, built only on failure.
#define CHECK(condition, detail)                                              \
  do {                                                                        \
    const bool check_holds = (condition);                                     \
    ::reshard_test::check(check_holds, __FILE__, __LINE__, #condition,        \
                          check_holds ? std::string() : std::string(detail)); \
  } while (false)

// SplitMix64: a counter put through a mixing function, so that it also serves as a hash.
inline std::uint64_t hash(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return hash(state_++); }
  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }

 private:
  std::uint64_t state_;
};

// Byte i of the result depends on all of (salt, i): a shifted, swapped or stale run never matches.
inline std::vector<std::byte> hashed_bytes(std::size_t size, std::uint64_t salt) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(hash(salt * 0x100000001B3U + i) >> 56);
  }
  return bytes;
}

// The seed: the first argument, or a new one. Printed, so that a failure can be repeated.
inline std::uint64_t start(int argc, char** argv) {
  const std::uint64_t seed =
      argc > 1 ? std::strtoull(argv[1], nullptr, 0) : (std::uint64_t{std::random_device{}()});
  std::printf("%s: seed %" PRIu64 "\n", argv[0], seed);
  std::fflush(stdout);
  return seed;
}

// The exit status.
inline int finish() {
  std::printf("%d checks, %d failed\n", num_checks(), num_failures());
  return num_failures() == 0 ? 0 : 1;
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_CHECK_H_

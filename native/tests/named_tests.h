// Named tests on top of check.h: each runs by itself, and the first failed comparison ends it.
//
//   TEST(cutting_is_the_same_on_both_ends) { CHECK_EQ(actual, expected); }
//   int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }
//
// Arguments select tests by substring of the name.
#ifndef RESHARD_NATIVE_TESTS_NAMED_TESTS_H_
#define RESHARD_NATIVE_TESTS_NAMED_TESTS_H_

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace reshard_test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::vector<std::pair<std::string, std::function<void()>>>& all_tests() {
  static std::vector<std::pair<std::string, std::function<void()>>> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) {
    all_tests().emplace_back(name, std::move(body));
  }
};

template <typename... Parts>
[[noreturn]] void fail(const char* file, int line, const Parts&... parts) {
  std::ostringstream stream;
  stream << file << ":" << line << ": ";
  (stream << ... << parts);
  throw Failure(stream.str());
}

// Whether the body ran to its end without a failed check.
inline bool passes(const std::function<void()>& body) {
  const int failures_before = num_failures();
  try {
    body();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return false;
  }
  return num_failures() == failures_before;
}

inline int run_all(int argc, char** argv) {
  int failed = 0;
  int ran = 0;
  for (const auto& [name, body] : all_tests()) {
    bool selected = argc <= 1;
    for (int i = 1; i < argc; ++i) selected |= name.find(argv[i]) != std::string::npos;
    if (!selected) continue;
    ++ran;
    std::printf("[ run  ] %s\n", name.c_str());
    std::fflush(stdout);  // so that a hang or a crash shows where
    const bool passed = passes(body);
    failed += passed ? 0 : 1;
    std::printf("[ %s ] %s\n", passed ? "ok  " : "FAIL", name.c_str());
    std::fflush(stdout);
  }
  std::printf("%d of %d tests failed\n", failed, ran);
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace reshard_test

#define TEST(name)                                                                 \
  static void test_##name();                                                       \
  static const reshard_test::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK_EQ(actual, expected)                                                   \
  do {                                                                               \
    const auto& check_actual = (actual);                                             \
    const auto& check_expected = (expected);                                         \
    if (!(check_actual == check_expected)) {                                         \
      reshard_test::fail(__FILE__, __LINE__, #actual " is ", check_actual, ", not ", \
                         check_expected);                                            \
    }                                                                                \
  } while (false)

#define CHECK_TRUE(condition)                                                          \
  do {                                                                                 \
    if (!(condition)) reshard_test::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_CONTAINS(text, part)                                                         \
  do {                                                                                     \
    const std::string check_text = (text);                                                 \
    if (check_text.find(part) == std::string::npos) {                                      \
      reshard_test::fail(__FILE__, __LINE__, "'", part, "' is not in '", check_text, "'"); \
    }                                                                                      \
  } while (false)

#endif  // RESHARD_NATIVE_TESTS_NAMED_TESTS_H_

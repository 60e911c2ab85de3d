// The few macros that the C++ tests need: named tests, checks that print both values, a runner.
//
//   TEST(cutting_is_the_same_on_both_ends) { CHECK_EQ(actual, expected); }
//   int main(int argc, char** argv) { return reshard::test::run_all(argc, argv); }
//
// A failed check throws, so a test stops at its first failure and the others still run. Arguments
// select tests by substring of the name.
#ifndef RESHARD_NATIVE_TESTS_CHECK_H_
#define RESHARD_NATIVE_TESTS_CHECK_H_

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace reshard::test {

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

inline int run_all(int argc, char** argv) {
  int failed = 0;
  int ran = 0;
  for (const auto& [name, body] : all_tests()) {
    bool selected = argc <= 1;
    for (int i = 1; i < argc; ++i) selected |= name.find(argv[i]) != std::string::npos;
    if (!selected) continue;
    ++ran;
    std::printf("[ run  ] %s\n", name.c_str());
    std::fflush(stdout);
    try {
      body();
      std::printf("[ ok   ] %s\n", name.c_str());
    } catch (const std::exception& error) {
      ++failed;
      std::printf("[ FAIL ] %s: %s\n", name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d of %d tests failed\n", failed, ran);
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace reshard::test

#define TEST(name)                                                                  \
  static void test_##name();                                                        \
  static const reshard::test::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) reshard::test::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQ(actual, expected)                                                    \
  do {                                                                                \
    const auto& check_actual = (actual);                                              \
    const auto& check_expected = (expected);                                          \
    if (!(check_actual == check_expected)) {                                          \
      reshard::test::fail(__FILE__, __LINE__, #actual " is ", check_actual, ", not ", \
                          check_expected);                                            \
    }                                                                                 \
  } while (false)

#define CHECK_CONTAINS(text, part)                                                          \
  do {                                                                                      \
    const std::string check_text = (text);                                                  \
    if (check_text.find(part) == std::string::npos) {                                       \
      reshard::test::fail(__FILE__, __LINE__, "'", part, "' is not in '", check_text, "'"); \
    }                                                                                       \
  } while (false)

#endif  // RESHARD_NATIVE_TESTS_CHECK_H_

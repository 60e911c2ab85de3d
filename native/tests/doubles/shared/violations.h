// What was done against the rules: each is kept as one line, for a test to read.
#ifndef RESHARD_TESTS_DOUBLES_SHARED_VIOLATIONS_H_
#define RESHARD_TESTS_DOUBLES_SHARED_VIOLATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace doubles {

class Violations {
 public:
  void add(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    if (lines_.size() < kMaxLines) lines_.push_back(text);
  }

  long long count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }

  // Copies the lines, cut to `capacity` with a final zero; returns the length that all need.
  std::size_t copy(char* text, std::size_t capacity) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    if (text != nullptr && capacity > 0) {
      const std::size_t size = std::min(all.size(), capacity - 1);
      std::memcpy(text, all.data(), size);
      text[size] = '\0';
    }
    return all.size() + 1;
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    count_ = 0;
    lines_.clear();
  }

 private:
  static constexpr std::size_t kMaxLines = 200;
  mutable std::mutex mutex_;
  long long count_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_SHARED_VIOLATIONS_H_

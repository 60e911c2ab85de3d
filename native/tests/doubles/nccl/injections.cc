#include "nccl/injections.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace doubles {
namespace {

// Counts down to the group that is meant: 1 is the next one.
bool is_now(long& countdown) { return countdown > 0 && --countdown == 0; }

}  // namespace

Injections& injections() {
  static Injections& one = *new Injections();
  return one;
}

Injections::Injections() {
  set_defaults();
  const char* setting = std::getenv("NCCL_DOUBLE_INJECT");
  const std::string text = setting == nullptr ? "" : setting;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, comma - at);
    const std::size_t equals = one.find('=');
    if (equals != std::string::npos) {
      set(one.substr(0, equals), std::strtol(one.c_str() + equals + 1, nullptr, 0));
    }
    at = comma + 1;
  }
}

void Injections::set_defaults() {
  async_error_group_ = 0;
  async_error_code_ = 2;
  hang_group_ = 0;
  kill_group_ = 0;
  hang_init_ = 0;
  hang_split_ = 0;
  hang_finalize_ = 0;
  abort_ms_ = 0;
  destroy_ms_ = 0;
  fail_init_ = 0;
  delay_us_ = 0;
  polls_ = 2;
}

bool Injections::set(const std::string& name, long value) {
  const std::map<std::string, long*> known{
      {"async_error_group", &async_error_group_},
      {"async_error_code", &async_error_code_},
      {"hang_group", &hang_group_},
      {"kill_group", &kill_group_},
      {"hang_init", &hang_init_},
      {"hang_split", &hang_split_},
      {"hang_finalize", &hang_finalize_},
      {"abort_ms", &abort_ms_},
      {"destroy_ms", &destroy_ms_},
      {"fail_init", &fail_init_},
      {"delay_us", &delay_us_},
      {"polls", &polls_},
  };
  const auto found = known.find(name);
  if (found == known.end()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  *found->second = value;
  return true;
}

void Injections::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  set_defaults();
  num_operations_ = num_destroyed_ = 0;
  group_sizes_.clear();
}

GroupFate Injections::next_group(std::size_t num_operations) {
  const std::lock_guard<std::mutex> lock(mutex_);
  group_sizes_.push_back(static_cast<long>(num_operations));
  num_operations_ += static_cast<long long>(num_operations);
  GroupFate fate;
  if (is_now(async_error_group_)) fate.async_error = static_cast<int>(async_error_code_);
  fate.hangs = is_now(hang_group_);
  fate.kills = is_now(kill_group_);
  fate.delay_us = static_cast<int>(delay_us_);
  return fate;
}

bool Injections::hangs_init() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return hang_init_ != 0;
}

bool Injections::hangs_split() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return hang_init_ != 0 || hang_split_ != 0;
}

bool Injections::hangs_finalize() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return hang_finalize_ != 0;
}

std::chrono::milliseconds Injections::abort_time() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::milliseconds(abort_ms_);
}

std::chrono::milliseconds Injections::destroy_time() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::milliseconds(destroy_ms_);
}

void Injections::count_destroyed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_destroyed_;
}

long long Injections::num_destroyed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_destroyed_;
}

int Injections::init_failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(fail_init_);
}

int Injections::draw_polls() {
  const std::lock_guard<std::mutex> lock(mutex_);
  random_ = random_ * 1664525U + 1013904223U;
  return polls_ <= 0 ? 0 : static_cast<int>((random_ >> 16) % (static_cast<unsigned>(polls_) + 1));
}

long long Injections::num_groups() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<long long>(group_sizes_.size());
}

long long Injections::num_operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_operations_;
}

long long Injections::largest_group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_sizes_.empty() ? 0 : *std::max_element(group_sizes_.begin(), group_sizes_.end());
}

std::vector<long> Injections::group_sizes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_sizes_;
}

}  // namespace doubles

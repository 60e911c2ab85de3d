// What tests ask and say.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nccl/injections.h"
#include "nccl/library.h"
#include "nccl/nccl_double.h"

using doubles::injections;
using doubles::library;

int ncclDoubleInject(const char* name, long value) { return injections().set(name, value) ? 0 : 1; }

long long ncclDoubleGet(const char* name) {
  static const auto& getters = *new std::map<std::string, std::function<long long()>>{
      {"destroyed", [] { return injections().num_destroyed(); }},
      {"groups", [] { return injections().num_groups(); }},
      {"operations", [] { return injections().num_operations(); }},
      {"largest_group", [] { return injections().largest_group(); }},
      {"bytes_sent", [] { return library().bytes_sent.load(); }},
      {"communicators", [] { return static_cast<long long>(library().comms.all().size()); }},
      {"meetings", [] { return doubles::Meeting::num_open(); }},
      {"violations", [] { return library().violations.count(); }},
  };
  const auto found = getters.find(name);
  return found == getters.end() ? -1 : found->second();
}

size_t ncclDoubleGroups(long* sizes, size_t capacity) {
  const std::vector<long> all = injections().group_sizes();
  if (sizes != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), sizes);
  return all.size();
}

size_t ncclDoubleViolations(char* text, size_t capacity) {
  return library().violations.copy(text, capacity);
}

void ncclDoubleReset() {
  injections().clear();
  library().violations.clear();
  library().bytes_sent = 0;
}

#include "nccl/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>

namespace doubles {
namespace {

bool is_set(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && std::string(text) == "1";
}

// A file "<library>.version" says it for one copy, NCCL_DOUBLE_VERSION for all others.
int version_of_this_copy() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&library), &found) != 0 && found.dli_fname != nullptr) {
    std::ifstream file(std::string(found.dli_fname) + ".version");
    int version = 0;
    if (file >> version) return version;
  }
  const char* text = std::getenv("NCCL_DOUBLE_VERSION");
  return text == nullptr || *text == '\0' ? 23203 : std::atoi(text);
}

// At load, not at the first call: a later copy can be told another version.
[[maybe_unused]] const Library& made_at_load = library();

}  // namespace

Library::Library()
    : version(version_of_this_copy()),
      allows_shared_devices(is_set("NCCL_MULTI_RANK_GPU_ENABLE") && version >= 23000),
      reports_death(is_set("NCCL_DOUBLE_REPORTS_DEATH")) {}

Library& library() {
  static Library& one = *new Library();
  return one;
}

void Library::set_last_error(const std::string& text) {
  const std::lock_guard<std::mutex> lock(text_mutex_);
  last_error_ = text;
}

std::string Library::last_error() const {
  const std::lock_guard<std::mutex> lock(text_mutex_);
  return last_error_;
}

int Library::refuse(int code, const std::string& text) {
  violations.add(text);
  set_last_error(text);
  return code;
}

}  // namespace doubles

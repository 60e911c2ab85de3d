#include "shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

#include "status.h"

namespace reshard {
namespace {

// Sanitizers put functions of their own before those of every library.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(RTLD_DEEPBIND)
constexpr int kDeepBind = 0;
#else
constexpr int kDeepBind = RTLD_DEEPBIND;
#endif

// The file whose function of that name the whole process sees; empty: none.
std::string provider_of(const char* function) {
  void* address = dlsym(RTLD_DEFAULT, function);
  Dl_info info{};
  const bool is_known = address != nullptr && dladdr(address, &info) != 0;
  return is_known && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool are_same(const std::string& a, const std::string& b) {
  std::error_code failure;
  return std::filesystem::equivalent(a, b, failure);
}

// The first object of the process, the program itself aside, that has a function of its own of that
// name. For the program the loader may name a stub that calls another object's.
std::string first_with(const char* function) {
  void* program = dlopen(nullptr, RTLD_LAZY);
  link_map* map = nullptr;
  if (program == nullptr || dlinfo(program, RTLD_DI_LINKMAP, &map) != 0) return "";
  std::string found;
  for (; map != nullptr && found.empty(); map = map->l_next) {
    if (map->l_name == nullptr || map->l_name[0] == '\0') continue;
    void* object = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) continue;
    Dl_info info{};
    void* address = dlsym(object, function);
    const bool is_known = address != nullptr && dladdr(address, &info) != 0;
    if (is_known && info.dli_fname != nullptr && are_same(info.dli_fname, map->l_name)) {
      found = map->l_name;
    }
    dlclose(object);
  }
  dlclose(program);
  return found;
}

// How to open a file so that its calls of its own functions stay inside of it. What it gets from
// the C library then stays there too, so no other allocator may stand before that.
int flags_apart(const std::string& name, const char* function) {
  const std::string other = provider_of(function);
  if (kDeepBind == 0 || other.empty() || are_same(other, name)) return 0;
  const std::string allocator = first_with("malloc");
  if (!are_same(allocator, first_with("gnu_get_libc_version"))) {
    throw Error(StatusCode::kUnsupported,
                text(name, " cannot be opened beside ", other, " while ", allocator,
                     " is the allocator: memory of one would be freed by the other. Start without "
                     "LD_PRELOAD, or have all programs use the version of ",
                     other, "."));
  }
  return kDeepBind;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& name, const char* function) {
  const bool is_path = name.find('/') != std::string::npos;
  const int apart = function != nullptr && is_path ? flags_apart(name, function) : 0;
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | apart);
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    throw Error(StatusCode::kUnsupported,
                text(name, " cannot be loaded: ", reason == nullptr ? "no reason given" : reason));
  }
  link_map* map = nullptr;
  const bool has_path = dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr &&
                        map->l_name != nullptr && map->l_name[0] != '\0';
  path_ = has_path ? map->l_name : name;
}

void* SharedLibrary::function(const char* symbol, const std::string& consequence) const {
  void* address = dlsym(handle_, symbol);
  if (address != nullptr) return address;
  throw Error(StatusCode::kUnsupported,
              text(path_, " has no function ", symbol, ", ", consequence));
}

}  // namespace reshard

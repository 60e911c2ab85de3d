#include "shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include "status.h"

namespace reshard {
namespace {

// Sanitizers put functions of their own before those of every library.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(RTLD_DEEPBIND)
constexpr int kDeepBind = 0;
#else
constexpr int kDeepBind = RTLD_DEEPBIND;
#endif

}  // namespace

SharedLibrary::SharedLibrary(const std::string& name, bool is_private)
    : handle_(dlopen(name.c_str(),
                     RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (is_private ? kDeepBind : 0))) {
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

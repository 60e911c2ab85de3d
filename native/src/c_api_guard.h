// What every function of the C border does: argument checks, and exceptions to status codes.
#ifndef RESHARD_NATIVE_SRC_C_API_GUARD_H_
#define RESHARD_NATIVE_SRC_C_API_GUARD_H_

#include <cstdint>
#include <exception>
#include <new>
#include <system_error>

#include "status.h"

namespace reshard {

inline std::int32_t set_error(const Error& error) noexcept {
  LastError& last = last_error();
  last.rank = error.rank();
  last.peer = error.peer();
  try {
    last.message = error.message();
  } catch (const std::bad_alloc&) {
    last.message.clear();
  }
  return static_cast<std::int32_t>(error.code());
}

// Runs `body`, which returns a status, and turns whatever it throws into one.
template <typename Body>
std::int32_t guarded(Body body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    return set_error(error);
  } catch (const std::bad_alloc&) {
    return set_error(Error(StatusCode::kOutOfMemory, "out of memory"));
  } catch (const std::system_error& error) {
    return set_error(Error(StatusCode::kSystem, text("a thread cannot start: ", error.what())));
  } catch (const std::exception& error) {
    return set_error(Error(StatusCode::kInternal, text("unexpected: ", error.what())));
  }
}

inline void require(const void* pointer, const char* what) {
  if (pointer == nullptr) {
    throw Error(StatusCode::kInvalidArgument, text(what, " is NULL."));
  }
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_C_API_GUARD_H_

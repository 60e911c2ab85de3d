#include "status.h"

#include <array>
#include <cstddef>
#include <system_error>

namespace reshard {
namespace {

constexpr std::array<const char*, kNumStatusCodes> kNames = {
    "ok",        "invalid_argument", "unsupported", "out_of_memory", "system",      "timeout",
    "peer_lost", "aborted",          "protocol",    "invalid_state", "in_progress", "internal"};

}  // namespace

const char* status_name(std::int32_t code) noexcept {
  if (code < 0 || code >= kNumStatusCodes) return "unknown";
  return kNames[static_cast<std::size_t>(code)];
}

LastError& last_error() noexcept {
  thread_local LastError error;
  return error;
}

void throw_system(const std::string& what, int error_number) {
  throw Error(StatusCode::kSystem, text(what, ": ", std::generic_category().message(error_number),
                                        " (errno ", error_number, ")"));
}

}  // namespace reshard

// Status codes, the error that carries one, and the text of the last error of a thread.
//
// Inside the library every failure is an `Error`; only c_api.cc turns it into a code plus text.
#ifndef RESHARD_NATIVE_SRC_STATUS_H_
#define RESHARD_NATIVE_SRC_STATUS_H_

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace reshard {

// Same numbers as RESHARD_STATUS_* in reshard.h (checked by c_api.cc).
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kUnsupported = 2,
  kOutOfMemory = 3,
  kSystem = 4,
  kTimeout = 5,
  kPeerLost = 6,
  kAborted = 7,
  kProtocol = 8,
  kInvalidState = 9,
  kInProgress = 10,
  kInternal = 11,
};

constexpr std::int32_t kNumStatusCodes = 12;
constexpr std::int64_t kNoRank = -1;

// The stable name of a code, "invalid_argument" and so on; "unknown" for a number that is no code.
const char* status_name(std::int32_t code) noexcept;

// Concatenates printable parts to one string.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

class Error : public std::exception {
 public:
  // `rank` is a local rank the failure concerns, `peer` the rank at the other end; kNoRank:
  // unknown.
  Error(StatusCode code, std::string message, std::int64_t rank = kNoRank,
        std::int64_t peer = kNoRank)
      : code_(code), message_(std::move(message)), rank_(rank), peer_(peer) {}

  const char* what() const noexcept override { return message_.c_str(); }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  std::int64_t rank() const noexcept { return rank_; }
  std::int64_t peer() const noexcept { return peer_; }

 private:
  StatusCode code_;
  std::string message_;
  std::int64_t rank_;
  std::int64_t peer_;
};

// The last error of the calling thread.
struct LastError {
  std::string message;
  std::int64_t rank = kNoRank;
  std::int64_t peer = kNoRank;
};
LastError& last_error() noexcept;

// Throws kSystem with `what` and the text of `error_number`.
[[noreturn]] void throw_system(const std::string& what, int error_number);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_STATUS_H_

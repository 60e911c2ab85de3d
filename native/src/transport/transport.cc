#include "transport/transport.h"

namespace reshard {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Transport::Transport() : id_(next_id()) {}

}  // namespace reshard

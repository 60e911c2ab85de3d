#include "transport/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "clock.h"

namespace reshard {
namespace {

constexpr std::uint32_t kAwake = 0;
constexpr std::uint32_t kSpinning = 1;  // looks at the doorbell by itself
constexpr std::uint32_t kAsleep = 2;    // has to be woken by the kernel

std::uint32_t* futex_word(ControlPage& page) {
  return reinterpret_cast<std::uint32_t*>(&page.doorbell);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::uint32_t prepare_to_sleep(ControlPage& own) {
  const std::uint32_t ticket = own.doorbell.load();
  own.sleep_state.store(kSpinning);
  return ticket;
}

void sleep_until_rung(ControlPage& own, std::uint32_t ticket, std::int64_t timeout_ns,
                      std::int64_t spin_ns) {
  if (spin_ns > 0) {
    const std::int64_t spin_end = monotonic_ns() + spin_ns;
    while (own.doorbell.load() == ticket && monotonic_ns() < spin_end) relax();
  }
  own.sleep_state.store(kAsleep);
  if (own.doorbell.load() == ticket && timeout_ns > 0) {
    constexpr std::int64_t kNsPerS = 1'000'000'000;
    const timespec timeout{timeout_ns / kNsPerS, timeout_ns % kNsPerS};
    // EAGAIN (rung already), EINTR and ETIMEDOUT all mean: look again.
    syscall(SYS_futex, futex_word(own), FUTEX_WAIT, ticket, &timeout, nullptr, 0);
  }
  own.sleep_state.store(kAwake);
}

void cancel_sleep(ControlPage& own) { own.sleep_state.store(kAwake); }

bool is_asleep(const ControlPage& page) { return page.sleep_state.load() != kAwake; }

void ring(ControlPage& page) {
  if (page.sleep_state.load() == kAwake) return;
  page.doorbell.fetch_add(1);
  if (page.sleep_state.load() == kAsleep) {
    syscall(SYS_futex, futex_word(page), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace reshard

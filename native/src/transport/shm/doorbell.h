// One word per process on which it sleeps, however many peers it has.
//
// Sleeper: ticket = prepare(); look once more for work; wait(ticket) or cancel().
// Ringer:  publish the work, then ring(). It costs a system call only when the sleeper is really
//          asleep.
// Work, sleep state and doorbell are written and read sequentially consistently, so either the
// sleeper sees the work or the ringer sees the sleeper.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_DOORBELL_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_DOORBELL_H_

#include <cstdint>

#include "transport/shm/control_page.h"

namespace reshard {

// The owner's side.
std::uint32_t prepare_to_sleep(ControlPage& own);
// Sleeps until rung since `ticket`, for at most `timeout_ns`; spins for the first `spin_ns` of it.
// May return early.
void sleep_until_rung(ControlPage& own, std::uint32_t ticket, std::int64_t timeout_ns,
                      std::int64_t spin_ns);
void cancel_sleep(ControlPage& own);

// A peer's side; also for a thread of the owner that wants to wake it.
bool is_asleep(const ControlPage& page);
void ring(ControlPage& page);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_DOORBELL_H_

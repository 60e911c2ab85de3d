// The first page of a process's shared segment: its doorbell, its life sign and its abort notice.
//
// Written by its owner, except for the doorbell counter, which peers increment, and the life sign's
// lock word, which peers probe.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONTROL_PAGE_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONTROL_PAGE_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/shared_memory.h"

namespace reshard {

constexpr std::size_t kCacheLineBytes = 64;
constexpr std::size_t kAbortTextBytes = 1024;

// Why a process aborted. Valid once `state` is kAbortPublished.
struct AbortNotice {
  std::atomic<std::uint32_t> state;
  std::int32_t status;
  std::int32_t process;  // where the error happened first; peers pass the notice on unchanged
  std::int32_t reserved;
  std::int64_t rank;
  std::int64_t peer;
  char text[kAbortTextBytes];
};
constexpr std::uint32_t kAbortNone = 0;
constexpr std::uint32_t kAbortClaimed = 1;
constexpr std::uint32_t kAbortPublished = 2;

struct ControlPage {
  // Doorbell: see doorbell.h.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleep_state;
  // Life sign: see life_sign.h.
  alignas(kCacheLineBytes) pthread_mutex_t life;
  std::atomic<std::uint32_t> is_closed;
  alignas(kCacheLineBytes) AbortNotice abort;
};

static_assert(sizeof(ControlPage) <= kPageBytes);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONTROL_PAGE_H_

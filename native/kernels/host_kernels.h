// The kernels run on the host: the same phases, thread after thread. For tests, which prove here
// what the device will do, and for libraries that stand in for a device.
#ifndef RESHARD_NATIVE_KERNELS_HOST_KERNELS_H_
#define RESHARD_NATIVE_KERNELS_HOST_KERNELS_H_

#include <cstdint>
#include <cstring>

#include "kernels/fingerprint_regions.h"
#include "kernels/move_kernels.h"

namespace reshard::kernels {

// Threads of a device run in any order between two barriers; the result must not depend on it.
enum class ThreadOrder { kForward, kBackward };

template <typename Body>
void for_each_thread(unsigned block, ThreadOrder order, const Body& body) {
  for (unsigned i = 0; i < block; ++i) {
    body(Thread{order == ThreadOrder::kForward ? i : block - 1 - i, block});
  }
}

template <Way way>
void run_tiles_on_host(const Launch& launch, unsigned grid, unsigned block, ThreadOrder order) {
  for (unsigned b = 0; b < grid; ++b) {
    alignas(16) std::uint8_t shared[kSharedBytes];
    std::memset(shared, 0xA5, sizeof(shared));
    std::uint32_t move = 0;
    for (std::uint64_t at = b; at < launch.num_tiles; at += grid) {
      const Tile tile = find_tile(launch, static_cast<std::uint32_t>(at), move);
      move = tile.move;
      for_each_thread(block, order,
                      [&](const Thread& thread) { begin_tile<way>(launch, tile, thread, shared); });
      if (!has_end(tile)) continue;
      for_each_thread(block, order,
                      [&](const Thread& thread) { end_tile<way>(launch, tile, thread, shared); });
    }
  }
}

inline void run_region_tiles_on_host(const Launch& launch, unsigned grid, unsigned block,
                                     ThreadOrder order) {
  for (unsigned b = 0; b < grid; ++b) {
    alignas(16) std::uint8_t shared[8 * kBlockThreads];
    std::memset(shared, 0xA5, sizeof(shared));
    for (std::uint64_t at = b; at < launch.num_tiles; at += grid) {
      const Tile tile = find_tile(launch, static_cast<std::uint32_t>(at), 0);
      for_each_thread(block, order, [&](const Thread& thread) {
        begin_region_tile(launch, tile, thread, shared);
      });
      for_each_thread(block, order,
                      [&](const Thread& thread) { end_region_tile(launch, tile, thread, shared); });
    }
  }
}

template <typename Value>
Value parameter(void** params, int i) {
  Value value;
  std::memcpy(&value, params[i], sizeof(value));
  return value;
}

// Runs a kernel by its name, with blocks of at most kBlockThreads; returns false for an unknown
// one. `params` are pointers to the values of its parameters, as for cuLaunchKernel.
inline bool run_on_host(const char* name, unsigned grid, unsigned block, void** params,
                        ThreadOrder order = ThreadOrder::kForward) {
  const auto is = [&](const char* known) { return std::strcmp(name, known) == 0; };
  const bool sums = is("reshard_fingerprint_regions");
  if (!is("reshard_pack") && !is("reshard_unpack") && !sums) return false;
  const Launch launch = {parameter<const std::uint64_t*>(params, 0),
                         parameter<const std::uint64_t*>(params, 1),
                         parameter<std::uint8_t*>(params, 2), parameter<std::uint32_t>(params, 3),
                         parameter<std::uint32_t>(params, 4)};
  if (is("reshard_pack")) run_tiles_on_host<Way::kPack>(launch, grid, block, order);
  if (is("reshard_unpack")) run_tiles_on_host<Way::kUnpack>(launch, grid, block, order);
  if (sums) run_region_tiles_on_host(launch, grid, block, order);
  return true;
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_HOST_KERNELS_H_

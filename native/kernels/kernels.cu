// The kernels as the device runs them; host_kernels.h is the same for the host.
#include "kernels/fingerprint_regions.h"
#include "kernels/move_kernels.h"

namespace reshard::kernels {

// Blocks that a multiprocessor should hold at once: with 768 threads there are 48 KiB of loads
// under way, enough for its share of the memory's bandwidth. Leaves 80 registers to a thread.
constexpr unsigned kBlocksPerProcessor = 3;

// Blocks take tiles in turn, so any grid does the whole table.
template <Way way>
__device__ void run_tiles(const Launch& launch) {
  __shared__ alignas(16) std::uint8_t shared[kSharedBytes];
  const Thread thread = {threadIdx.x, blockDim.x};
  std::uint32_t move = 0;
  for (std::uint64_t at = blockIdx.x; at < launch.num_tiles; at += gridDim.x) {
    const Tile tile = find_tile(launch, static_cast<std::uint32_t>(at), move);
    move = tile.move;
    begin_tile<way>(launch, tile, thread, shared);
    if (!has_end(tile)) continue;  // the same for all threads of the block
    __syncthreads();
    end_tile<way>(launch, tile, thread, shared);
    __syncthreads();
  }
}

__device__ void run_region_tiles(const Launch& launch) {
  __shared__ alignas(16) std::uint8_t shared[8 * kBlockThreads];
  const Thread thread = {threadIdx.x, blockDim.x};
  std::uint32_t move = 0;
  for (std::uint64_t at = blockIdx.x; at < launch.num_tiles; at += gridDim.x) {
    const Tile tile = find_tile(launch, static_cast<std::uint32_t>(at), move);
    move = tile.move;
    begin_region_tile(launch, tile, thread, shared);
    __syncthreads();
    end_region_tile(launch, tile, thread, shared);
    __syncthreads();
  }
}

}  // namespace reshard::kernels

extern "C" {

__global__ void __launch_bounds__(reshard::kernels::kBlockThreads,
                                  reshard::kernels::kBlocksPerProcessor)
    reshard_pack(const std::uint64_t* table, const std::uint64_t* addresses, std::uint8_t* message,
                 std::uint32_t num_moves, std::uint32_t num_tiles) {
  reshard::kernels::run_tiles<reshard::kernels::Way::kPack>(
      {table, addresses, message, num_moves, num_tiles});
}

__global__ void __launch_bounds__(reshard::kernels::kBlockThreads,
                                  reshard::kernels::kBlocksPerProcessor)
    reshard_unpack(const std::uint64_t* table, const std::uint64_t* addresses,
                   std::uint8_t* message, std::uint32_t num_moves, std::uint32_t num_tiles) {
  reshard::kernels::run_tiles<reshard::kernels::Way::kUnpack>(
      {table, addresses, message, num_moves, num_tiles});
}

__global__ void __launch_bounds__(reshard::kernels::kBlockThreads,
                                  reshard::kernels::kBlocksPerProcessor)
    reshard_fingerprint_regions(const std::uint64_t* table, const std::uint64_t* addresses,
                                std::uint8_t* message, std::uint32_t num_moves,
                                std::uint32_t num_tiles) {
  reshard::kernels::run_region_tiles({table, addresses, message, num_moves, num_tiles});
}

}  // extern "C"

// What a launch of a kernel touches, read from its table (native/kernels/move_record.h and
// region_record.h).
#ifndef RESHARD_TESTS_DOUBLES_CUDA_KERNEL_MEMORY_H_
#define RESHARD_TESTS_DOUBLES_CUDA_KERNEL_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device_memory.h"

namespace doubles {

// What a table's records are.
enum class RecordKind { kMove, kRegion };

struct KernelTable {
  const std::uint64_t* table;
  const std::uint64_t* addresses;
  std::uint64_t message;
  std::uint32_t num_moves;
  RecordKind kind;
};

// Holds all that the launch reads and writes, the table first. False, and the device is broken,
// where a part of it is not inside one live allocation.
bool hold_kernel_memory(const KernelTable& launch, int device, const std::string& who,
                        std::vector<AllocationPtr>* held);

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_CUDA_KERNEL_MEMORY_H_

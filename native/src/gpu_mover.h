// Copies between a rank's arrays and its staging memory, queued on streams of its GPU.
//
// Batches are made once, with offsets alone, and run again and again with the addresses of the day.
#ifndef RESHARD_NATIVE_SRC_GPU_MOVER_H_
#define RESHARD_NATIVE_SRC_GPU_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bounded_stream.h"
#include "gpu_device.h"
#include "program.h"
#include "round_schedule.h"

namespace reshard {

enum class MoveKind { kPack, kUnpack };

// The streams of a rank. What one of them does is in order; the others are told by events.
enum class Role { kPack = 0, kNetwork = 1, kDomain = 2, kUnpack = 3 };
constexpr int kNumRoles = 4;

// What came of one call to queue something that may be long.
enum class Queued {
  kNothing,  // the stream is full
  kPart,     // a part, so that the caller can look at the clock
  kAll,
};
constexpr std::int64_t kMostPerCall = 256;  // copies, fills or launches

// How far a batch is queued.
struct BatchCursor {
  std::size_t item = 0;   // launch, or box
  std::int64_t copy = 0;  // of the box
};

class GpuMover {
 public:
  virtual ~GpuMover() = default;

  // Takes in moves that run together and returns their number.
  virtual std::size_t add(MoveKind kind, const std::vector<Move>& moves) = 0;

  // Called once after the last `add`.
  virtual void prepare() = 0;

  // Addresses of the program's buffers for what is queued from now on; those of other ranks are
  // ignored. Queued on the pack stream: the others must be held up until it is past.
  virtual void set_addresses(const std::vector<CudaAddress>& addresses, CudaStream stream) = 0;

  // What was given for a buffer of the program.
  virtual CudaAddress address_of(std::uint32_t buffer) const = 0;

  // Goes on with queueing a batch on the stream of a role, from `cursor` on, which it moves.
  // `staging` is the memory that Move::offset counts from where place is kStaging.
  virtual Queued run(std::size_t batch, CudaAddress staging, Role role, BoundedStream& stream,
                     BatchCursor& cursor) = 0;

  // Device memory that it holds besides the staging memory.
  virtual std::size_t nbytes() const = 0;

  // Kernels or copies that a run of all batches queues; for tests and statistics.
  virtual std::size_t num_launches() const = 0;
};

// One copy of the driver for every run of rows. Refuses casts at `add`, with kUnsupported.
std::unique_ptr<GpuMover> make_plain_mover(const Program& program, const GpuDevice& device);

// One launch for a whole batch, by compiled kernels.
//   buffers: of the program, that the rank touches, ascending.
//   image: of the kernels, for the device's architecture.
std::unique_ptr<GpuMover> make_kernel_mover(const Program& program,
                                            const std::vector<std::uint32_t>& buffers,
                                            const GpuDevice& device, const std::string& image);

// The kernels where there is an image, else plain copies.
std::unique_ptr<GpuMover> make_mover(const Program& program,
                                     const std::vector<std::uint32_t>& buffers,
                                     const GpuDevice& device, const std::string& image);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_GPU_MOVER_H_

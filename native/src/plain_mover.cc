// Copies by the CUDA driver alone, for machines without NVRTC: each box takes as many copies as it
// has indices in the dims that a three-dimensional copy does not cover.
#include <algorithm>
#include <utility>

#include "gpu_mover.h"
#include "pack_split.h"
#include "status.h"

namespace reshard {
namespace {

// A box of bytes in memory whose elements are dense, in order, at the other end.
struct ByteBox {
  StridedBox box;        // coalesced
  std::int64_t element;  // bytes
  CudaAddress memory;    // of its first element
  CudaAddress dense;
};

class PlainMover final : public GpuMover {
 public:
  PlainMover(const Program& program, const GpuDevice& device)
      : program_(program), device_(device) {}

  std::size_t add(MoveKind kind, const std::vector<Move>& moves) override {
    for (const Move& move : moves) {
      const Operation& operation = program_.operations[move.operation];
      if (operation.memory == operation.wire) continue;
      throw Error(
          StatusCode::kUnsupported,
          text("GPU ", device_.ordinal(), ": to turn ", name_of(operation.memory), " into ",
               name_of(operation.wire),
               " or back takes compiled kernels, and "
               "NVRTC is not there. Install nvidia-cuda-nvrtc-cu12 (or the extra cuda12)."));
    }
    batches_.push_back({kind, moves});
    return batches_.size() - 1;
  }

  void prepare() override {}

  void set_addresses(const std::vector<CudaAddress>& addresses, CudaStream /*stream*/) override {
    addresses_ = addresses;
  }

  void run(std::size_t batch, CudaAddress staging, Role /*role*/, BoundedStream& stream) override {
    const Batch& what = batches_[batch];
    for (const Move& move : what.moves) run_move(what.kind, move, staging, stream);
  }

  CudaAddress address_of(std::uint32_t buffer) const override { return addresses_[buffer]; }
  std::size_t nbytes() const override { return 0; }
  std::size_t num_launches() const override { return num_copies_; }

 private:
  struct Batch {
    MoveKind kind;
    std::vector<Move> moves;
  };

  void run_move(MoveKind kind, const Move& move, CudaAddress staging, BoundedStream& stream) {
    const Operation& operation = program_.operations[move.operation];
    const std::int64_t width = size_of(operation.wire);
    const CudaAddress memory = offset(addresses_[operation.buffer], operation.offset_bytes);
    CudaAddress dense =
        offset(move.place == kStaging ? staging : addresses_[move.place], move.offset);
    // The parts come in the order of their elements, because none is banded.
    const auto copy_part = [&](const BoxPart& part) {
      StridedBox box{operation.box.ndim, {}, {}};
      CudaAddress first = memory;
      for (int dim = 0; dim < box.ndim; ++dim) {
        box.size[dim] = part.size[dim];
        box.stride[dim] = operation.box.stride[dim];
        first = offset(first, part.start[dim] * box.stride[dim]);
      }
      copy_box(kind, {coalesce(box, width), width, first, dense}, stream);
      dense = offset(dense, num_elements(box) * width);
    };
    RangeSplit split(operation.box, -1, copy_part);
    split.split(move.first, move.count);
  }

  static CudaAddress offset(CudaAddress address, std::int64_t nbytes) {
    return address + static_cast<CudaAddress>(nbytes);
  }

  // Copies a box; recursive over the dims that one copy does not cover.
  void copy_box(MoveKind kind, ByteBox box, BoundedStream& stream) {
    StridedBox& dims = box.box;
    std::int64_t run = box.element;
    if (dims.ndim > 0 &&
        (dims.size[dims.ndim - 1] == 1 || dims.stride[dims.ndim - 1] == box.element)) {
      run *= dims.size[--dims.ndim];
    }
    const std::int64_t total = run * num_elements(dims);
    const int covered = covered_dims(dims, run);
    const int outer = dims.ndim - covered;
    std::int64_t count = 1;
    for (int dim = 0; dim < outer; ++dim) count *= dims.size[dim];
    const std::int64_t step = count == 0 ? 0 : total / count;  // dense bytes per index
    for (std::int64_t i = 0; i < count; ++i) {
      CudaAddress memory = box.memory;
      std::int64_t rest = i;
      for (int dim = outer - 1; dim >= 0; --dim) {
        memory = offset(memory, rest % dims.size[dim] * dims.stride[dim]);
        rest /= dims.size[dim];
      }
      const CudaAddress dense = offset(box.dense, i * step);
      if (covered > 0) {
        queue(kind, dims, covered, run, memory, dense, stream);
      } else {
        queue_run(kind, run, memory, dense, stream);
      }
    }
  }

  // A run is its own pitch, so it may be no longer than one.
  void queue_run(MoveKind kind, std::int64_t run, CudaAddress memory, CudaAddress dense,
                 BoundedStream& stream) {
    for (std::int64_t done = 0; done < run; done += device_.max_pitch()) {
      const std::int64_t part = std::min(run - done, device_.max_pitch());
      queue(kind, {}, 0, part, offset(memory, done), offset(dense, done), stream);
    }
  }

  // How many of the innermost dims one copy covers: rows need a pitch, planes a whole number of
  // rows.
  int covered_dims(const StridedBox& dims, std::int64_t run) const {
    if (dims.ndim == 0) return 0;
    const std::int64_t pitch = dims.stride[dims.ndim - 1];
    if (pitch < run || pitch > device_.max_pitch()) return 0;
    if (dims.ndim == 1) return 1;
    const std::int64_t plane = dims.stride[dims.ndim - 2];
    return plane >= pitch * dims.size[dims.ndim - 1] && plane % pitch == 0 ? 2 : 1;
  }

  void queue(MoveKind kind, const StridedBox& dims, int covered, std::int64_t run,
             CudaAddress memory, CudaAddress dense, BoundedStream& stream) {
    const std::int64_t rows = covered > 0 ? dims.size[dims.ndim - 1] : 1;
    const std::int64_t planes = covered > 1 ? dims.size[dims.ndim - 2] : 1;
    const std::int64_t pitch = covered > 0 ? dims.stride[dims.ndim - 1] : run;
    const std::int64_t plane_rows = covered > 1 ? dims.stride[dims.ndim - 2] / pitch : rows;
    const CudaCopyEnd strided = end_at(memory, pitch, plane_rows);
    const CudaCopyEnd packed = end_at(dense, run, rows);
    const bool is_pack = kind == MoveKind::kPack;
    const CudaCopy3D copy{is_pack ? strided : packed, is_pack ? packed : strided,
                          static_cast<std::size_t>(run), static_cast<std::size_t>(rows),
                          static_cast<std::size_t>(planes)};
    device_.check(device_.cuda().Memcpy3DAsync(&copy, stream.next()), "copying a box");
    ++num_copies_;
  }

  static CudaCopyEnd end_at(CudaAddress address, std::int64_t pitch, std::int64_t rows) {
    CudaCopyEnd end{};
    end.memory_type = kCudaMemoryTypeDevice;
    end.device = address;
    end.pitch = static_cast<std::size_t>(pitch);
    end.height = static_cast<std::size_t>(rows);
    return end;
  }

  const Program& program_;
  const GpuDevice& device_;
  std::vector<Batch> batches_;
  std::vector<CudaAddress> addresses_;
  std::size_t num_copies_ = 0;
};

}  // namespace

std::unique_ptr<GpuMover> make_plain_mover(const Program& program, const GpuDevice& device) {
  return std::make_unique<PlainMover>(program, device);
}

}  // namespace reshard

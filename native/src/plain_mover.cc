// Copies by the CUDA driver alone, for machines without NVRTC: each box takes as many copies as it
// has indices in the dims that a three-dimensional copy does not cover.
#include <algorithm>
#include <utility>

#include "gpu_mover.h"
#include "pack_split.h"
#include "status.h"

namespace reshard {
namespace {

// A box of bytes in memory whose elements are dense, in order, at the other end, as copies that
// are counted.
struct CopyBox {
  std::uint32_t buffer;
  std::uint32_t place;         // of the dense side
  std::int64_t memory_offset;  // of its first element
  std::int64_t dense_offset;
  StridedBox dims;        // without the run
  std::int64_t run;       // bytes that are dense on both sides
  int covered;            // innermost dims that one copy does; 0: it does a part of a run
  std::int64_t count;     // copies
  std::int64_t per_dims;  // of them for one index of the other dims
};

class PlainMover final : public GpuMover {
 public:
  PlainMover(const Program& program, const GpuDevice& device)
      : program_(program), device_(device) {}

  std::size_t add(MoveKind kind, const std::vector<Move>& moves) override {
    for (const Move& move : moves) {
      const Operation& operation = program_.operations[move.operation];
      if (operation.moves_bytes()) continue;
      const std::string what = operation.memory == operation.wire
                                   ? text("to change the values of ", name_of(operation.wire))
                                   : text("to turn ", name_of(operation.memory), " into ",
                                          name_of(operation.wire), " or back");
      throw Error(
          StatusCode::kUnsupported,
          text("GPU ", device_.ordinal(), ": ", what,
               " takes compiled kernels, and "
               "NVRTC is not there. Install nvidia-cuda-nvrtc-cu12 (or the extra cuda12)."));
    }
    Batch batch{kind, {}};
    for (const Move& move : moves) add_boxes(move, batch.boxes);
    batches_.push_back(std::move(batch));
    return batches_.size() - 1;
  }

  void prepare() override {}

  void set_addresses(const std::vector<CudaAddress>& addresses, CudaStream /*stream*/) override {
    addresses_ = addresses;
  }

  bool run(std::size_t batch, CudaAddress staging, Role /*role*/, BoundedStream& stream,
           BatchCursor& cursor) override {
    const Batch& what = batches_[batch];
    for (; cursor.item < what.boxes.size(); ++cursor.item, cursor.copy = 0) {
      const CopyBox& box = what.boxes[cursor.item];
      const CudaAddress dense = box.place == kStaging ? staging : addresses_[box.place];
      for (; cursor.copy < box.count; ++cursor.copy) {
        if (!stream.has_room()) return false;
        queue_copy(what.kind, box, cursor.copy, dense, stream);
      }
    }
    return true;
  }

  CudaAddress address_of(std::uint32_t buffer) const override { return addresses_[buffer]; }
  std::size_t nbytes() const override { return 0; }
  std::size_t num_launches() const override { return num_copies_; }

 private:
  struct Batch {
    MoveKind kind;
    std::vector<CopyBox> boxes;
  };

  static CudaAddress offset(CudaAddress address, std::int64_t nbytes) {
    return address + static_cast<CudaAddress>(nbytes);
  }

  void add_boxes(const Move& move, std::vector<CopyBox>& boxes) const {
    const Operation& operation = program_.operations[move.operation];
    const std::int64_t width = size_of(operation.wire);
    std::int64_t dense = move.offset;
    // The parts come in the order of their elements, because none is banded.
    const auto add_part = [&](const BoxPart& part) {
      StridedBox box{operation.box.ndim, {}, {}};
      std::int64_t memory = operation.offset_bytes;
      for (int dim = 0; dim < box.ndim; ++dim) {
        box.size[dim] = part.size[dim];
        box.stride[dim] = operation.box.stride[dim];
        memory += part.start[dim] * box.stride[dim];
      }
      const std::int64_t nbytes = num_elements(box) * width;
      if (nbytes > 0) {
        boxes.push_back(
            {operation.buffer, move.place, memory, dense, coalesce(box, width), width, 0, 0, 0});
        divide(boxes.back());
      }
      dense += nbytes;
    };
    RangeSplit split(operation.box, -1, add_part);
    split.split(move.first, move.count);
  }

  // Says which copies a box takes; `run` is the width of an element before.
  void divide(CopyBox& box) const {
    StridedBox& dims = box.dims;
    const int last = dims.ndim - 1;
    if (dims.ndim > 0 && (dims.size[last] == 1 || dims.stride[last] == box.run)) {
      box.run *= dims.size[last];
      --dims.ndim;
    }
    box.covered = covered_dims(dims, box.run);
    // A run is its own pitch, so one copy does no more of it than that.
    const std::int64_t most = device_.max_pitch();
    box.per_dims = box.covered > 0 ? 1 : (box.run + most - 1) / most;
    box.count = box.per_dims;
    for (int dim = 0; dim < dims.ndim - box.covered; ++dim) box.count *= dims.size[dim];
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

  // Queues copy `number` of a box, whose dense offsets count from `dense`.
  void queue_copy(MoveKind kind, const CopyBox& box, std::int64_t number, CudaAddress dense,
                  BoundedStream& stream) {
    const StridedBox& dims = box.dims;
    const int outer = dims.ndim - box.covered;
    const std::int64_t index = number / box.per_dims;
    const std::int64_t done = number % box.per_dims * device_.max_pitch();  // of the run
    std::int64_t memory_offset = box.memory_offset + done;
    std::int64_t rest = index;
    for (int dim = outer - 1; dim >= 0; --dim) {
      memory_offset += rest % dims.size[dim] * dims.stride[dim];
      rest /= dims.size[dim];
    }
    const std::int64_t rows = box.covered > 0 ? dims.size[dims.ndim - 1] : 1;
    const std::int64_t planes = box.covered > 1 ? dims.size[dims.ndim - 2] : 1;
    const std::int64_t width =
        box.covered > 0 ? box.run : std::min(box.run - done, device_.max_pitch());
    const std::int64_t pitch = box.covered > 0 ? dims.stride[dims.ndim - 1] : width;
    const std::int64_t plane_rows = box.covered > 1 ? dims.stride[dims.ndim - 2] / pitch : rows;
    const std::int64_t dense_offset = box.dense_offset + index * box.run * rows * planes + done;
    const CudaCopyEnd strided =
        end_at(offset(addresses_[box.buffer], memory_offset), pitch, plane_rows);
    const CudaCopyEnd packed = end_at(offset(dense, dense_offset), width, rows);
    const bool is_pack = kind == MoveKind::kPack;
    const CudaCopy3D copy{is_pack ? strided : packed, is_pack ? packed : strided,
                          static_cast<std::size_t>(width), static_cast<std::size_t>(rows),
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

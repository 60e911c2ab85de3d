#include "cuda/kernel_memory.h"

#include "cuda/machine.h"
#include "kernels/host_kernels.h"

namespace doubles {
namespace {

using reshard::kernels::MoveDim;
using reshard::kernels::MoveKind;
using reshard::kernels::Shape;

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// Reads one move after the other; stops at the first address that is not allowed.
class Reader {
 public:
  Reader(const KernelTable& launch, int device, const std::string& who,
         std::vector<AllocationPtr>* held)
      : launch_(launch), device_(device), who_(who), held_(*held) {}

  bool read() {
    if (!hold(number_of(launch_.table), launch_.num_moves * kWord, "table")) return false;
    for (std::uint32_t i = 0; i < launch_.num_moves; ++i) {
      const std::uint64_t* record = launch_.table + reshard::kernels::low_half(launch_.table[i]);
      // The word that says how long it is comes first.
      if (!hold(number_of(record), kWord, "record of the table") ||
          !(launch_.kind == RecordKind::kRegion ? read_region(record) : read_move(record))) {
        return false;
      }
    }
    return true;
  }

 private:
  bool hold(std::uintptr_t start, std::size_t nbytes, const char* what) {
    AllocationPtr found = machine().hold({start, nbytes}, device_, who_ + ", " + what);
    if (found == nullptr) return false;
    if (held_.empty() || held_.back() != found) held_.push_back(std::move(found));
    return true;
  }

  bool read_move(const std::uint64_t* record) {
    const Shape shape = reshard::kernels::shape_of(record[reshard::kernels::kShapeWord]);
    const std::size_t num_words =
        reshard::kernels::kFirstDimWord +
        static_cast<std::size_t>(reshard::kernels::kWordsPerDim * shape.ndim) +
        (shape.is_changed ? reshard::kAffineNumbers : 0);
    if (!hold(number_of(record), num_words * kWord, "record of the table")) return false;
    const std::uint64_t buffers = record[reshard::kernels::kBuffersWord];
    const std::uint64_t run = record[reshard::kernels::kRunWord];
    std::uint64_t memory_run = run;
    std::uint64_t wire_run = run;
    if (shape.kind == MoveKind::kCast || (shape.kind == MoveKind::kTranspose && run == 0)) {
      const std::uint64_t count = run == 0 ? 1 : run;
      memory_run = count * static_cast<std::uint64_t>(reshard::kernels::width_of(shape.memory));
      wire_run = count * static_cast<std::uint64_t>(reshard::kernels::width_of(shape.wire));
    }
    const auto memory = [](const MoveDim& dim) { return dim.memory; };
    const auto wire = [](const MoveDim& dim) { return dim.wire; };
    const std::uint64_t* dims = record + reshard::kernels::kFirstDimWord;
    if (!hold_side(dims, shape.ndim, reshard::kernels::low_half(buffers),
                   record[reshard::kernels::kMemoryOffsetWord], memory_run, memory, "memory")) {
      return false;
    }
    return hold_side(dims, shape.ndim, reshard::kernels::high_half(buffers),
                     record[reshard::kernels::kWireOffsetWord], wire_run, wire, "message");
  }

  bool read_region(const std::uint64_t* record) {
    const std::uint64_t shape = record[reshard::kernels::kRegionShapeWord];
    const int ndim = static_cast<int>(reshard::kernels::field_of(shape, 0));
    const bool is_changed = reshard::kernels::field_of(shape, 6) != 0;
    const std::size_t num_words = reshard::kernels::kRegionFirstDim +
                                  static_cast<std::size_t>(reshard::kernels::kWordsPerDim * ndim) +
                                  (is_changed ? reshard::kAffineNumbers : 0);
    if (!hold(number_of(record), num_words * kWord, "record of the table")) return false;
    const std::uint64_t place = record[reshard::kernels::kRegionPlaceWord];
    const auto stride = [](const MoveDim& dim) { return dim.memory; };
    return hold(static_cast<std::uintptr_t>(launch_.message) +
                    reshard::kernels::high_half(place) * kWord,
                kWord, "sums") &&
           hold_side(record + reshard::kernels::kRegionFirstDim, ndim,
                     reshard::kernels::low_half(place), record[reshard::kernels::kRegionOffsetWord],
                     reshard::kernels::field_of(shape, 4), stride, "memory");
  }

  // From the lowest byte of a side to its highest.
  template <typename StrideOf>
  bool hold_side(const std::uint64_t* dims, int ndim, std::uint32_t buffer, std::uint64_t offset,
                 std::uint64_t run, const StrideOf& stride_of, const char* what) {
    std::uint64_t base = launch_.message;
    if (buffer != reshard::kernels::kStaging) {
      if (!hold(number_of(launch_.addresses + buffer), kWord, "addresses")) return false;
      base = launch_.addresses[buffer];
    }
    std::int64_t low = static_cast<std::int64_t>(offset);
    std::int64_t high = low;
    for (int k = 0; k < ndim; ++k) {
      const std::uint64_t* words = dims + reshard::kernels::kWordsPerDim * k;
      const MoveDim dim = {static_cast<std::int64_t>(words[0]), static_cast<std::int64_t>(words[1]),
                           static_cast<std::int64_t>(words[2])};
      const std::int64_t last = (dim.size - 1) * stride_of(dim);
      (last < 0 ? low : high) += last;
    }
    return hold(static_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(low),
                static_cast<std::size_t>(high - low) + static_cast<std::size_t>(run), what);
  }

  const KernelTable& launch_;
  const int device_;
  const std::string& who_;
  std::vector<AllocationPtr>& held_;
};

}  // namespace

bool hold_kernel_memory(const KernelTable& launch, int device, const std::string& who,
                        std::vector<AllocationPtr>* held) {
  return Reader(launch, device, who, held).read();
}

}  // namespace doubles

// Copies by compiled kernels: a batch is one launch, or a few where its table is very long.
//
// Tables lie in pinned memory from the start; each launch is preceded by the upload of its own,
// into a place that its stream alone uses, so little device memory serves any number of batches.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "gpu_module.h"
#include "gpu_mover.h"
#include "move_table.h"
#include "status.h"

namespace reshard {
namespace {

static_assert(kStaging == MoveTable::kStaging);

// With the addresses of 74,000 arrays and what fingerprints need, below 1 MiB in all.
constexpr std::size_t kTableBytes = 80 << 10;
// Of the words of one move, which is cut into at most 31 boxes of 16 dims.
constexpr std::size_t kMostOfOneMove = 16 << 10;

class KernelMover final : public GpuMover {
 public:
  KernelMover(const Program& program, const std::vector<std::uint32_t>& buffers,
              const GpuDevice& device, const std::string& image)
      : program_(program),
        buffers_(buffers),
        device_(device),
        module_(device, image),
        pack_(module_.function("reshard_pack")),
        unpack_(module_.function("reshard_unpack")),
        table_memory_(device, kNumRoles * kTableBytes),
        address_memory_(device, buffers.size() * sizeof(CudaAddress)),
        pinned_addresses_(device, buffers.size() * sizeof(CudaAddress)) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      places_[buffers_[i]] = static_cast<std::uint32_t>(i);
    }
  }

  std::size_t add(MoveKind kind, const std::vector<Move>& moves) override {
    Batch batch{kind, launches_.size(), 0};
    MoveTable table;
    for (const Move& move : moves) {
      Operation operation = program_.operations[move.operation];
      operation.buffer = places_.at(operation.buffer);
      table.add(operation, {move.operation, move.first, move.count, 0}, move.offset,
                move.place == kStaging ? kStaging : places_.at(move.place));
      if (table.num_words() * sizeof(std::uint64_t) > kTableBytes - kMostOfOneMove) flush(table);
    }
    flush(table);
    batch.num_launches = launches_.size() - batch.first_launch;
    batches_.push_back(batch);
    return batches_.size() - 1;
  }

  void prepare() override {
    const std::size_t nbytes = words_.size() * sizeof(std::uint64_t);
    pinned_words_ = std::make_unique<PinnedMemory>(device_, nbytes);
    if (nbytes > 0) std::memcpy(pinned_words_->data(), words_.data(), nbytes);
    words_ = {};
  }

  void set_addresses(const std::vector<CudaAddress>& addresses, CudaStream stream) override {
    addresses_ = addresses;
    if (buffers_.empty()) return;
    auto* own = reinterpret_cast<CudaAddress*>(pinned_addresses_.data());
    for (std::size_t i = 0; i < buffers_.size(); ++i) own[i] = addresses[buffers_[i]];
    device_.check(device_.cuda().MemcpyHtoDAsync(address_memory_.address(), own,
                                                 address_memory_.nbytes(), stream),
                  "uploading addresses");
  }

  CudaAddress address_of(std::uint32_t buffer) const override { return addresses_[buffer]; }

  Queued run(std::size_t batch, CudaAddress staging, Role role, BoundedStream& stream,
             BatchCursor& cursor) override {
    const Batch& what = batches_[batch];
    std::int64_t num_queued = 0;
    const CudaAddress table =
        table_memory_.address() + static_cast<CudaAddress>(role) * kTableBytes;
    const CudaFunction function = what.kind == MoveKind::kPack ? pack_ : unpack_;
    for (; cursor.item < what.num_launches; ++cursor.item) {
      if (num_queued == kMostPerCall) return Queued::kPart;
      if (!stream.has_room()) return num_queued == 0 ? Queued::kNothing : Queued::kPart;
      const Launch& launch = launches_[what.first_launch + cursor.item];
      const std::byte* words = pinned_words_->data() + launch.first_word * sizeof(std::uint64_t);
      device_.check(device_.cuda().MemcpyHtoDAsync(
                        table, words, launch.num_words * sizeof(std::uint64_t), stream.next()),
                    "uploading a table");
      module_.launch(function, table, address_memory_.address(), staging, launch.num_moves,
                     launch.num_tiles, stream.next());
      ++num_launches_;
      ++num_queued;
    }
    return Queued::kAll;
  }

  std::size_t nbytes() const override { return table_memory_.nbytes() + address_memory_.nbytes(); }
  std::size_t num_launches() const override { return num_launches_; }

 private:
  struct Launch {
    std::size_t first_word;
    std::size_t num_words;
    std::uint32_t num_moves;
    std::uint32_t num_tiles;
  };

  struct Batch {
    MoveKind kind;
    std::size_t first_launch;
    std::size_t num_launches;
  };

  // Makes a launch of the moves in the table, and empties it.
  void flush(MoveTable& table) {
    if (table.empty()) return;
    const std::vector<std::uint64_t>& words = table.words();
    launches_.push_back({words_.size(), words.size(), table.num_moves(), table.num_tiles()});
    words_.insert(words_.end(), words.begin(), words.end());
    table.clear();
  }

  const Program& program_;
  const std::vector<std::uint32_t> buffers_;
  const GpuDevice& device_;
  const GpuModule module_;
  const CudaFunction pack_;
  const CudaFunction unpack_;
  const GpuMemory table_memory_;
  const GpuMemory address_memory_;
  const PinnedMemory pinned_addresses_;
  std::map<std::uint32_t, std::uint32_t> places_;  // of a buffer among those of the rank
  std::vector<std::uint64_t> words_;               // until they are pinned
  std::unique_ptr<PinnedMemory> pinned_words_;
  std::vector<Launch> launches_;
  std::vector<Batch> batches_;
  std::vector<CudaAddress> addresses_;
  std::size_t num_launches_ = 0;
};

}  // namespace

std::unique_ptr<GpuMover> make_kernel_mover(const Program& program,
                                            const std::vector<std::uint32_t>& buffers,
                                            const GpuDevice& device, const std::string& image) {
  return std::make_unique<KernelMover>(program, buffers, device, image);
}

std::unique_ptr<GpuMover> make_mover(const Program& program,
                                     const std::vector<std::uint32_t>& buffers,
                                     const GpuDevice& device, const std::string& image) {
  if (image.empty()) return make_plain_mover(program, device);
  return make_kernel_mover(program, buffers, device, image);
}

}  // namespace reshard

#include "gpu_worker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "status.h"

namespace reshard {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr int kNetwork = static_cast<int>(Channel::kNetwork);

Role role_of(Channel channel) {
  return channel == Channel::kNetwork ? Role::kNetwork : Role::kDomain;
}

}  // namespace

GpuWorker::GpuWorker(const Program& program, const RankRounds& rounds, GpuRank rank,
                     std::size_t local)
    : program_(program), rounds_(rounds), rank_(std::move(rank)), local_(local) {
  for (std::unique_ptr<BoundedStream>& each : streams_) {
    each = std::make_unique<BoundedStream>(device());
  }
  for (std::vector<std::unique_ptr<GpuEvent>>& ring : marks_) {
    for (std::size_t i = 0; i < kSlotsInFlight; ++i) {
      ring.push_back(std::make_unique<GpuEvent>(device()));
    }
  }
  ready_ = std::make_unique<GpuEvent>(device());
  finished_ = std::make_unique<GpuEvent>(device());
  for (std::unique_ptr<GpuEvent>& each : rest_) each = std::make_unique<GpuEvent>(device());
  mover_ = make_mover(program, rounds_.buffers, device(), rank_.kernels);
  add_batches();
  staging_ = std::make_unique<GpuMemory>(device(), static_cast<std::size_t>(rounds_.staging_bytes));
}

void GpuWorker::add_batches() {
  const auto add = [&](MoveKind kind, const std::vector<Move>& moves) {
    return moves.empty() ? kNone : mover_->add(kind, moves);
  };
  for (const RankSlot& slot : rounds_.slots) {
    Batches batches{};
    for (int channel = 0; channel < kNumChannels; ++channel) {
      const ChannelSlot& part = slot.channels[channel];
      batches.packs[channel] = add(MoveKind::kPack, part.packs);
      batches.relays[channel] = add(MoveKind::kPack, part.relays);
      batches.unpacks[channel] = add(MoveKind::kUnpack, part.unpacks);
    }
    batches_.push_back(batches);
  }
  mover_->prepare();
}

void GpuWorker::check_places(const std::vector<CudaAddress>& addresses) {
  if (addresses == checked_) return;
  for (const std::uint32_t buffer : rounds_.buffers) {
    const int ordinal = device().ordinal_of(addresses[buffer]);
    if (addresses[buffer] == 0 || ordinal == device().ordinal()) continue;
    throw Error(StatusCode::kInvalidArgument,
                text("program: buffer ", buffer, " of rank ", rank(), " lies ",
                     ordinal < 0 ? "in no memory that CUDA knows" : text("on GPU ", ordinal),
                     ", but the rank's GPU is ", device().ordinal(), "."),
                rank());
  }
  checked_ = addresses;
}

void GpuWorker::begin(const std::vector<CudaAddress>& addresses, CudaStream caller) {
  const GpuDevice::Scope scope(device());
  caller_ = caller;
  has_caller_ = true;
  ready_->record(caller);
  ready_->hold_up(stream(Role::kPack));
  mover_->set_addresses(addresses, stream(Role::kPack));
  ready_->record(stream(Role::kPack));
  for (const Role role : {Role::kNetwork, Role::kDomain, Role::kUnpack}) {
    ready_->hold_up(stream(role));
  }
}

Queued GpuWorker::fill_zero(const ZeroRegion& region, CudaAddress base) {
  const GpuDevice::Scope scope(device());
  StridedBox box = region.box;
  std::int64_t width = region.element_size;
  if (box.ndim > 0 && box.stride[box.ndim - 1] == width) width *= box.size[--box.ndim];
  // Rows go together where they are a pitch apart.
  const std::int64_t most = device().max_pitch();
  const std::int64_t stride = box.ndim > 0 ? box.stride[box.ndim - 1] : 0;
  const bool has_rows = stride >= width && stride <= most;
  const std::int64_t rows = has_rows ? box.size[--box.ndim] : 1;
  const std::int64_t per_index = (width + most - 1) / most;
  std::int64_t num_queued = 0;
  for (const std::int64_t count = num_elements(box) * per_index; cursor_.copy < count;
       ++cursor_.copy, ++num_queued) {
    if (num_queued == kMostPerCall) return Queued::kPart;
    if (!bounded(Role::kUnpack).has_room()) {
      return num_queued == 0 ? Queued::kNothing : Queued::kPart;
    }
    const std::int64_t done = cursor_.copy % per_index * most;
    std::int64_t offset = region.offset_bytes + done;
    std::int64_t rest = cursor_.copy / per_index;
    for (int dim = box.ndim - 1; dim >= 0; --dim) {
      offset += rest % box.size[dim] * box.stride[dim];
      rest /= box.size[dim];
    }
    const std::int64_t part = std::min(width - done, most);
    fill_rows(base + static_cast<CudaAddress>(offset), part, rows, has_rows ? stride : part);
  }
  cursor_ = {};
  return Queued::kAll;
}

void GpuWorker::fill_rows(CudaAddress first, std::int64_t width, std::int64_t rows,
                          std::int64_t pitch) {
  device().check(device().cuda().MemsetD2D8Async(
                     first, static_cast<std::size_t>(pitch), 0, static_cast<std::size_t>(width),
                     static_cast<std::size_t>(rows), bounded(Role::kUnpack).next()),
                 "filling padding with zeros");
}

void GpuWorker::hold_up(Role role, Mark which, std::size_t slot, std::size_t ago) const {
  if (slot >= ago) mark(which, slot - ago).hold_up(stream(role));
}

CudaAddress GpuWorker::half(std::size_t slot) const {
  const auto size = static_cast<CudaAddress>(rounds_.staging_bytes / 2);
  return staging_->address() + (slot % 2) * size;
}

bool GpuWorker::begin_stage() { return !std::exchange(is_in_stage_, true); }

Queued GpuWorker::end_stage() {
  is_in_stage_ = false;
  num_run_ = 0;
  return Queued::kAll;
}

Queued GpuWorker::run(std::size_t number, std::size_t batch, std::size_t slot, Role role) {
  if (number < num_run_) return Queued::kAll;
  if (batch != kNone) {
    const Queued queued = mover_->run(batch, half(slot), role, bounded(role), cursor_);
    if (queued != Queued::kAll) return queued;
  }
  ++num_run_;
  cursor_ = {};
  return Queued::kAll;
}

Queued GpuWorker::pack(std::size_t slot) {
  const GpuDevice::Scope scope(device());
  if (begin_stage()) {
    // Whatever was in this half has left it by then, and the half is everybody's when packed.
    hold_up(Role::kPack, kUnpacked, slot, 2);
    hold_up(Role::kPack, kDomainOver, slot, 2);
  }
  const Queued queued = run(0, batches_[slot].packs[kNetwork], slot, Role::kPack);
  if (queued != Queued::kAll) return queued;
  mark(kPacked, slot).record(stream(Role::kPack));
  return end_stage();
}

Queued GpuWorker::begin_exchange(Channel channel, std::size_t slot) {
  const GpuDevice::Scope scope(device());
  const Role role = role_of(channel);
  const int number = static_cast<int>(channel);
  if (begin_stage()) {
    hold_up(role, kPacked, slot, 0);
    if (part(channel, slot).sends_arrivals) {
      hold_up(role, kUnpacked, slot, 1);
      hold_up(role, kDomainOver, slot, 1);
    }
  }
  // What the network takes was packed before.
  const std::size_t packs = channel == Channel::kDomain ? batches_[slot].packs[number] : kNone;
  Queued queued = run(0, packs, slot, role);
  if (queued == Queued::kAll) queued = run(1, batches_[slot].relays[number], slot, role);
  if (queued != Queued::kAll) return queued;
  return end_stage();
}

bool GpuWorker::has_room(Channel channel) const {
  const GpuDevice::Scope scope(device());
  return bounded(role_of(channel)).has_room();
}

void GpuWorker::add_messages(Channel channel, std::size_t slot, std::int64_t number,
                             std::vector<GroupMessage>& messages) const {
  const CudaAddress staging = half(slot);
  const std::vector<MessageGroup>& groups = part(channel, slot).groups;
  const auto less = [](const MessageGroup& group, std::int64_t n) { return group.number < n; };
  const auto group = std::lower_bound(groups.begin(), groups.end(), number, less);
  if (group == groups.end() || group->number != number) return;
  const GpuDevice::Scope scope(device());
  const CudaStream own = bounded(role_of(channel)).next();  // of one launch
  for (const Message& message : group->messages) {
    const CudaAddress base =
        message.place == kStaging ? staging : mover_->address_of(message.place);
    messages.push_back({local_, message.is_send, message.peer,
                        base + static_cast<CudaAddress>(message.offset), message.nbytes, own});
  }
}

void GpuWorker::add_peers(std::size_t slot, std::set<std::int64_t>& peers) const {
  for (const ChannelSlot& each : rounds_.slots[slot].channels) {
    for (const MessageGroup& group : each.groups) {
      for (const Message& message : group.messages) peers.insert(message.peer);
    }
  }
}

Queued GpuWorker::end_exchange(Channel channel, std::size_t slot) {
  const GpuDevice::Scope scope(device());
  const Role role = role_of(channel);
  const int number = static_cast<int>(channel);
  // What the network brought is unpacked on a stream of its own.
  const std::size_t unpacks = channel == Channel::kDomain ? batches_[slot].unpacks[number] : kNone;
  const Queued queued = run(0, unpacks, slot, role);
  if (queued != Queued::kAll) return queued;
  mark(channel == Channel::kDomain ? kDomainOver : kExchanged, slot).record(stream(role));
  return end_stage();
}

Queued GpuWorker::unpack(std::size_t slot) {
  const GpuDevice::Scope scope(device());
  if (begin_stage()) hold_up(Role::kUnpack, kExchanged, slot, 0);
  const Queued queued = run(0, batches_[slot].unpacks[kNetwork], slot, Role::kUnpack);
  if (queued != Queued::kAll) return queued;
  mark(kUnpacked, slot).record(stream(Role::kUnpack));
  return end_stage();
}

bool GpuWorker::is_over(std::size_t slot) const {
  const GpuDevice::Scope scope(device());
  return mark(kUnpacked, slot).is_past() && mark(kDomainOver, slot).is_past();
}

void GpuWorker::end() {
  const GpuDevice::Scope scope(device());
  if (!rounds_.slots.empty()) {
    hold_up(Role::kUnpack, kDomainOver, rounds_.slots.size() - 1, 0);
  }
  finished_->record(stream(Role::kUnpack));
  finished_->hold_up(caller_);
  has_caller_ = false;
}

bool GpuWorker::is_finished() const {
  const GpuDevice::Scope scope(device());
  return finished_->is_past();
}

void GpuWorker::mark_rest() noexcept {
  const GpuDevice::Scope scope(device(), std::nothrow);
  if (!scope.is_entered()) return;
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    rest_[i]->try_record(streams_[i]->get());
    if (has_caller_) rest_[i]->try_hold_up(caller_);
  }
}

bool GpuWorker::is_idle() const noexcept {
  const GpuDevice::Scope scope(device(), std::nothrow);
  if (!scope.is_entered()) return true;
  for (const std::unique_ptr<GpuEvent>& each : rest_) {
    if (each->is_pending()) return false;
  }
  return true;
}

}  // namespace reshard

#include "transport/shm/ring.h"

#include "status.h"

namespace reshard {
namespace {

RingFront& front_of(std::byte* ring) { return *reinterpret_cast<RingFront*>(ring); }

[[noreturn]] void throw_broken(int process, const char* which, std::uint64_t value,
                               std::uint64_t own, std::int32_t num_slots) {
  throw Error(StatusCode::kProtocol,
              text("process ", process, ": its count of ", which, " messages is ", value,
                   " but with ours at ", own, " and ", num_slots,
                   " slots that cannot be. The peer or its memory is broken."));
}

}  // namespace

std::size_t RingGeometry::ring_bytes() const {
  return round_up(sizeof(RingFront), kPageBytes) +
         round_up(static_cast<std::size_t>(slot_bytes), kPageBytes) *
             static_cast<std::size_t>(num_slots);
}

std::size_t RingGeometry::slot_offset(std::uint64_t index) const {
  return round_up(sizeof(RingFront), kPageBytes) +
         round_up(static_cast<std::size_t>(slot_bytes), kPageBytes) *
             static_cast<std::size_t>(index % static_cast<std::uint64_t>(num_slots));
}

void SharedTotals::publish(const RunTotals& totals) {
  const std::uint64_t before = sequence.load();
  sequence.store(before + 1);
  run_id.store(totals.run_id);
  num_messages.store(totals.num_messages);
  nbytes.store(totals.nbytes);
  sequence.store(before + 2);
}

bool SharedTotals::read(std::uint64_t wanted_run_id, RunTotals* totals) const {
  const std::uint64_t before = sequence.load();
  if (before == 0 || before % 2 != 0) return false;
  totals->run_id = run_id.load();
  totals->num_messages = num_messages.load();
  totals->nbytes = nbytes.load();
  return sequence.load() == before && totals->run_id == wanted_run_id;
}

RingSender::RingSender(std::byte* ring, const RingGeometry& geometry, int process,
                       RingObserver& observer)
    : front_(front_of(ring)),
      ring_(ring),
      geometry_(geometry),
      process_(process),
      observer_(observer) {}

void RingSender::begin_run(const RunTotals& totals) {
  run_id_ = totals.run_id;
  front_.header.sender_totals.publish(totals);
}

// Messages that the receiver has not given back.
std::uint64_t RingSender::in_flight() {
  if (consumed_seen_ != produced_) {
    const std::uint64_t consumed = front_.header.consumed.load();
    if (consumed - consumed_seen_ > produced_ - consumed_seen_) {
      throw_broken(process_, "taken", consumed, produced_, geometry_.num_slots);
    }
    consumed_seen_ = consumed;
  }
  return produced_ - consumed_seen_;
}

std::byte* RingSender::try_acquire() {
  const auto num_slots = static_cast<std::uint64_t>(geometry_.num_slots);
  if (produced_ - consumed_seen_ == num_slots && in_flight() == num_slots) return nullptr;
  return ring_ + geometry_.slot_offset(produced_);
}

void RingSender::commit(const MessageHeader& header) {
  front_.slots[produced_ % static_cast<std::uint64_t>(geometry_.num_slots)].message = header;
  ++produced_;
  front_.header.produced.store(produced_);
  observer_.on_progress(process_, static_cast<std::int32_t>(in_flight()));
}

bool RingSender::is_drained() { return in_flight() == 0; }

bool RingSender::peer_totals(RunTotals* totals) {
  return front_.header.receiver_totals.read(run_id_, totals);
}

RingReceiver::RingReceiver(std::byte* ring, const RingGeometry& geometry, int process,
                           RingObserver& observer)
    : front_(front_of(ring)),
      ring_(ring),
      geometry_(geometry),
      process_(process),
      observer_(observer) {}

void RingReceiver::begin_run(const RunTotals& totals) {
  run_id_ = totals.run_id;
  front_.header.receiver_totals.publish(totals);
}

const std::byte* RingReceiver::try_receive(MessageHeader* header) {
  if (produced_seen_ == consumed_) {
    const std::uint64_t produced = front_.header.produced.load();
    if (produced - consumed_ > static_cast<std::uint64_t>(geometry_.num_slots)) {
      throw_broken(process_, "sent", produced, consumed_, geometry_.num_slots);
    }
    produced_seen_ = produced;
    if (produced_seen_ == consumed_) return nullptr;
  }
  *header = front_.slots[consumed_ % static_cast<std::uint64_t>(geometry_.num_slots)].message;
  return ring_ + geometry_.slot_offset(consumed_);
}

void RingReceiver::release() {
  ++consumed_;
  front_.header.consumed.store(consumed_);
  const auto waiting = static_cast<std::int32_t>(produced_seen_ - consumed_);
  observer_.on_progress(process_, geometry_.num_slots - waiting);
}

bool RingReceiver::peer_totals(RunTotals* totals) {
  return front_.header.sender_totals.read(run_id_, totals);
}

}  // namespace reshard

#include "round_schedule.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>

#include "status.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxPieces = std::size_t{1} << 24;
constexpr std::int64_t kPieceAlignment = 16;     // widest access of a copy
constexpr std::int64_t kMessageAlignment = 128;  // of what NVIDIA's links move at once

std::int64_t aligned(std::int64_t value, std::int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Elements of an operation that move in one slot.
struct Piece {
  std::int64_t slot;
  std::uint32_t stream;
  std::uint32_t operation;
  std::int64_t first;
  std::int64_t count;
};

using Wide = __int128;

// The elements of an operation that have moved before round `number`. Source: reshard/rounds.py.
std::int64_t moved_before(const Operation& operation, std::int64_t number,
                          std::int64_t num_rounds) {
  const Span& span = operation.span;
  const Wide passed =
      static_cast<Wide>(number) * span.total - static_cast<Wide>(span.start) * num_rounds;
  if (passed <= 0) return 0;
  const Wide whole = static_cast<Wide>(span.stop - span.start) * num_rounds;
  if (passed >= whole) return operation.elements;
  return static_cast<std::int64_t>(operation.elements * passed / whole);
}

std::vector<Piece> pieces_of(const Program& program) {
  std::vector<Piece> pieces;
  const Wide rounds = program.num_rounds;
  for (std::uint32_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    const Span& span = operation.span;
    const std::int64_t hop = program.streams[operation.stream].hop;
    auto number = static_cast<std::int64_t>(span.start * rounds / span.total);
    for (std::int64_t first = 0; first < operation.elements; ++number) {
      const std::int64_t stop = moved_before(operation, number + 1, program.num_rounds);
      if (stop > first) pieces.push_back({number + hop, operation.stream, i, first, stop - first});
      first = stop;
    }
    if (pieces.size() > kMaxPieces) {
      throw Error(StatusCode::kUnsupported,
                  text("program: the operations cut into more than ", kMaxPieces,
                       " pieces. Give more staging_bytes, so that there are fewer rounds."));
    }
  }
  // Both ends post what two ranks have in one slot in the order of hops.
  const auto key = [&](const Piece& piece) {
    const Stream& stream = program.streams[piece.stream];
    return std::make_tuple(piece.slot, stream.hop, stream.src_rank, stream.dst_rank, piece.stream);
  };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const Piece& a, const Piece& b) { return key(a) < key(b); });
  return pieces;
}

// Where a piece lies as one dense run of its buffer that is its wire form; false if it does not.
bool find_run(const Operation& operation, const Piece& piece, std::int64_t* offset) {
  const std::int64_t width = size_of(operation.wire);
  const StridedBox& box = operation.box;
  if (!operation.moves_bytes()) return false;
  const std::int64_t inner = box.ndim == 0 ? 1 : box.size[box.ndim - 1];
  if (inner > 1 && box.stride[box.ndim - 1] != width) return false;
  std::int64_t row = piece.first / inner;
  if ((piece.first + piece.count - 1) / inner != row) return false;
  *offset = operation.offset_bytes + piece.first % inner * width;
  for (int dim = box.ndim - 2; dim >= 0; --dim) {
    *offset += row % box.size[dim] * box.stride[dim];
    row /= box.size[dim];
  }
  return true;
}

class ScheduleWriter {
 public:
  ScheduleWriter(const Program& program, const std::vector<std::int64_t>& ranks,
                 const std::function<bool(std::int64_t, std::int64_t)>& shares_domain)
      : program_(program), shares_domain_(shares_domain), pieces_(pieces_of(program)) {
    for (const std::int64_t rank : ranks) {
      places_[rank] = schedule_.ranks.size();
      schedule_.ranks.push_back({rank, {}, {}, 0});
    }
    check_streams();
    number_buffers();
  }

  RoundSchedule write() {
    for (std::size_t begin = 0; begin < pieces_.size();) {
      std::size_t end = begin;
      while (end < pieces_.size() && pieces_[end].slot == pieces_[begin].slot) ++end;
      open_slot(pieces_[begin].slot);
      write_slot(begin, end);
      begin = end;
    }
    for (RankRounds& rank : schedule_.ranks) finish(rank);
    return std::move(schedule_);
  }

 private:
  static bool is_inside(const Stream& stream) { return stream.src_rank == stream.dst_rank; }

  std::int64_t own_rank(const Stream& stream) const {
    return stream.direction == Direction::kSend ? stream.src_rank : stream.dst_rank;
  }

  RankSlot& slot_of(const Stream& stream) {
    return schedule_.ranks[places_.at(own_rank(stream))].slots.back();
  }

  void check_streams() const {
    for (const Stream& stream : program_.streams) {
      if (places_.find(own_rank(stream)) == places_.end()) {
        throw Error(StatusCode::kInvalidArgument, text("program: ", describe(stream),
                                                       " has no end among the ranks of this "
                                                       "process's communicator."));
      }
    }
    for (const std::uint32_t s : program_.remote_streams) {
      if (!is_inside(program_.streams[s])) continue;
      throw Error(StatusCode::kInvalidArgument, text("program: ", describe(program_.streams[s]),
                                                     " has no other end in this program."));
    }
  }

  void number_buffers() {
    std::map<std::int64_t, std::vector<std::uint32_t>> found;
    for (const Operation& operation : program_.operations) {
      found[own_rank(program_.streams[operation.stream])].push_back(operation.buffer);
    }
    for (auto& [rank, buffers] : found) {
      std::sort(buffers.begin(), buffers.end());
      buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
      schedule_.ranks[places_.at(rank)].buffers = std::move(buffers);
    }
  }

  void open_slot(std::int64_t slot) {
    schedule_.slots.push_back(slot);
    for (RankRounds& rank : schedule_.ranks) rank.slots.emplace_back();
  }

  // Pieces [begin, end) are those of the slot, stream by stream; sends to the own rank come right
  // before or after what it receives from itself.
  void write_slot(std::size_t begin, std::size_t end) {
    std::map<std::int64_t, std::size_t> sent_inside;  // first piece, by rank
    for (std::size_t first = begin; first < end;) {
      std::size_t last = first;
      while (last < end && pieces_[last].stream == pieces_[first].stream) ++last;
      const Stream& stream = program_.streams[pieces_[first].stream];
      if (!is_inside(stream)) {
        write_messages(stream, first, last);
      } else if (const auto other = sent_inside.find(stream.src_rank); other != sent_inside.end()) {
        const bool is_send = stream.direction == Direction::kSend;
        write_inside(is_send ? first : other->second, is_send ? other->second : first,
                     last - first);
      } else {
        sent_inside[stream.src_rank] = first;
      }
      first = last;
    }
  }

  // What two ranks exchange in a slot: small pieces share a message, large ones have their own.
  void write_messages(const Stream& stream, std::size_t first, std::size_t last) {
    const bool is_send = stream.direction == Direction::kSend;
    const std::int64_t peer = is_send ? stream.dst_rank : stream.src_rank;
    const bool is_near = shares_domain_(stream.src_rank, stream.dst_rank);
    ChannelSlot& part =
        slot_of(stream).channels[static_cast<int>(is_near ? Channel::kDomain : Channel::kNetwork)];
    for (std::size_t i = first; i < last; ++i) {
      (is_send ? schedule_.bytes_sent : schedule_.bytes_received) += wire_bytes(pieces_[i]);
    }
    part.sends_arrivals = part.sends_arrivals || (is_send && stream.hop > 0);
    std::vector<Message> messages;
    Message small{is_send, peer, 0, 0, kStaging};
    for (std::size_t i = first; i < last; ++i) {
      if (wire_bytes(pieces_[i]) < kDirectBytes)
        small.nbytes = aligned(small.nbytes, kPieceAlignment) + wire_bytes(pieces_[i]);
    }
    if (small.nbytes > 0) {
      small.offset = take_staging(stream, small.nbytes);
      messages.push_back(small);
    }
    std::int64_t done = 0;
    for (std::size_t i = first; i < last; ++i) {
      const std::int64_t nbytes = wire_bytes(pieces_[i]);
      Message own{is_send, peer, nbytes, 0, kStaging};
      if (nbytes < kDirectBytes) {
        done = aligned(done, kPieceAlignment);
        add_move(part, stream, pieces_[i], small.offset + done);
        done += nbytes;
        continue;
      }
      const Operation& operation = program_.operations[pieces_[i].operation];
      if (find_run(operation, pieces_[i], &own.offset)) {
        own.place = operation.buffer;
      } else {
        own.offset = take_staging(stream, nbytes);
        add_move(part, stream, pieces_[i], own.offset);
      }
      messages.push_back(own);
    }
    post(part, stream, messages);
  }

  void post(ChannelSlot& part, const Stream& stream, const std::vector<Message>& messages) {
    const std::int64_t groups = program_.num_groups;
    const std::int64_t pair = ((stream.dst_rank - stream.src_rank) % groups + groups) % groups;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::int64_t number =
          (pair << 32) | (static_cast<std::int64_t>(i) / program_.messages_per_pair);
      const auto less = [](const MessageGroup& group, std::int64_t n) { return group.number < n; };
      auto place = std::lower_bound(part.groups.begin(), part.groups.end(), number, less);
      if (place == part.groups.end() || place->number != number) {
        place = part.groups.insert(place, {number, {}});
      }
      place->messages.push_back(messages[i]);
      ++schedule_.num_messages;
    }
  }

  void add_move(ChannelSlot& part, const Stream& stream, const Piece& piece, std::int64_t offset) {
    const Move move{piece.operation, piece.first, piece.count, offset, kStaging};
    if (stream.direction == Direction::kReceive) {
      part.unpacks.push_back(move);
    } else {
      (stream.hop == 0 ? part.packs : part.relays).push_back(move);
    }
  }

  // Copies inside a rank, whose two ends are alike (program_table.cc): in one pass where either end
  // is one run of memory. Those of what earlier slots brought wait for it, as the domain's do.
  void write_inside(std::size_t sent, std::size_t received, std::size_t count) {
    const Stream& stream = program_.streams[pieces_[sent].stream];
    const bool is_relay = stream.hop > 0;
    ChannelSlot& part =
        slot_of(stream).channels[static_cast<int>(is_relay ? Channel::kDomain : Channel::kNetwork)];
    part.sends_arrivals = part.sends_arrivals || is_relay;
    std::vector<Move>& packs = is_relay ? part.relays : part.packs;
    for (std::size_t i = 0; i < count; ++i) {
      const Piece& from = pieces_[sent + i];
      const Piece& to = pieces_[received + i];
      const Operation& source = program_.operations[from.operation];
      const Operation& destination = program_.operations[to.operation];
      std::int64_t offset = 0;
      if (find_run(destination, to, &offset)) {
        packs.push_back({from.operation, from.first, from.count, offset, destination.buffer});
      } else if (find_run(source, from, &offset)) {
        part.unpacks.push_back({to.operation, to.first, to.count, offset, source.buffer});
      } else {
        offset = take_staging(stream, wire_bytes(from));
        packs.push_back({from.operation, from.first, from.count, offset, kStaging});
        part.unpacks.push_back({to.operation, to.first, to.count, offset, kStaging});
      }
      schedule_.bytes_local += wire_bytes(from);
    }
  }

  std::int64_t wire_bytes(const Piece& piece) const {
    return piece.count * size_of(program_.operations[piece.operation].wire);
  }

  std::int64_t take_staging(const Stream& stream, std::int64_t nbytes) {
    RankSlot& slot = slot_of(stream);
    const std::int64_t offset = slot.staging_bytes;
    slot.staging_bytes = aligned(offset + nbytes, kMessageAlignment);
    return offset;
  }

  // Slots take turns with two halves of the staging memory.
  void finish(RankRounds& rank) {
    std::int64_t largest = 0;
    for (const RankSlot& slot : rank.slots) {
      largest = std::max(largest, slot.staging_bytes);
      for (const ChannelSlot& part : slot.channels) {
        for (const MessageGroup& group : part.groups) {
          schedule_.largest_group =
              std::max(schedule_.largest_group, static_cast<std::int64_t>(group.messages.size()));
        }
      }
    }
    rank.staging_bytes = (rank.slots.size() > 1 ? 2 : 1) * largest;
  }

  const Program& program_;
  const std::function<bool(std::int64_t, std::int64_t)>& shares_domain_;
  const std::vector<Piece> pieces_;
  std::map<std::int64_t, std::size_t> places_;
  RoundSchedule schedule_;
};

}  // namespace

RoundSchedule make_round_schedule(
    const Program& program, const std::vector<std::int64_t>& ranks,
    const std::function<bool(std::int64_t, std::int64_t)>& shares_domain) {
  return ScheduleWriter(program, ranks, shares_domain).write();
}

}  // namespace reshard

// When a process's bytes move in rounds: its slots, and what each of its ranks does in them.
//
// Hop h of round k is in slot k + h. In a slot a rank packs what it sends into its staging memory,
// exchanges messages with its peers in groups, and unpacks what it received; large runs of memory
// travel by themselves, without staging. Both ends of a stream find the same messages in the same
// groups, because these follow from what both have: the wire form of each operation, its span and
// the numbers of the two ranks. Source: docs/decisions/0012.
#ifndef RESHARD_NATIVE_SRC_ROUND_SCHEDULE_H_
#define RESHARD_NATIVE_SRC_ROUND_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "program.h"

namespace reshard {

// Stands for staging memory where else the number of a buffer is.
constexpr std::uint32_t kStaging = 0xFFFFFFFFU;

// A dense run of at least so many bytes is a message of its own. The same on both ends.
constexpr std::int64_t kDirectBytes = 256 << 10;

// Elements [first, first + count) of an operation and where they lie densely: `offset` bytes from
// the staging memory of the slot, or from the address of a buffer.
struct Move {
  std::uint32_t operation;
  std::int64_t first;
  std::int64_t count;
  std::int64_t offset;
  std::uint32_t place;  // kStaging or a buffer
};

// Bytes that go to or come from a peer.
struct Message {
  bool is_send;
  std::int64_t peer;
  std::int64_t nbytes;
  std::int64_t offset;
  std::uint32_t place;
};

// Sends and receives of one rank that are posted together; groups are posted by ascending number,
// which is alike on both ends.
struct MessageGroup {
  std::int64_t number;
  std::vector<Message> messages;
};

// How two ranks reach each other. Domains exchange what the network has brought meanwhile.
enum class Channel { kNetwork = 0, kDomain = 1 };
constexpr int kNumChannels = 2;

struct ChannelSlot {
  std::vector<Move> packs;   // from what a source holds
  std::vector<Move> relays;  // from what earlier slots brought
  std::vector<MessageGroup> groups;
  std::vector<Move> unpacks;
  bool sends_arrivals = false;  // something of what earlier slots brought
};

struct RankSlot {
  ChannelSlot channels[kNumChannels];
  std::int64_t staging_bytes = 0;
};

// What one rank does. `slots[i]` belongs to RoundSchedule::slots[i].
struct RankRounds {
  std::int64_t rank;
  std::vector<std::uint32_t> buffers;  // that it touches, ascending
  std::vector<RankSlot> slots;
  std::int64_t staging_bytes = 0;  // for two slots under way
};

struct RoundSchedule {
  std::vector<std::int64_t> slots;  // those in which this process has something to do, ascending
  std::vector<RankRounds> ranks;
  std::int64_t bytes_sent = 0;  // to other ranks, without what aligns pieces in messages
  std::int64_t bytes_received = 0;
  std::int64_t bytes_local = 0;  // inside ranks
  std::int64_t num_messages = 0;
  std::int64_t largest_group = 0;  // messages that one rank posts together
};

// Cuts a program that has rounds. Pure.
//   ranks: of this process, ascending. A stream whose own end is none of them is refused.
//   shares_domain: whether two ranks exchange over their domain's channel; alike on both ends.
RoundSchedule make_round_schedule(
    const Program& program, const std::vector<std::int64_t>& ranks,
    const std::function<bool(std::int64_t, std::int64_t)>& shares_domain);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_ROUND_SCHEDULE_H_

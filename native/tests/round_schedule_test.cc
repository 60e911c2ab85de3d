// Programs cut into rounds: what each rank finds in which slot, and that carrying it out by hand,
// on plain memory, brings every byte to its place.
#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "pack.h"
#include "round_case.h"

namespace reshard_test {
namespace {

// Carries out the slots of all ranks by hand, a whole slot after the other.
class ByHand {
 public:
  ByHand(std::vector<RoundProcess>& ranks,
         const std::function<bool(std::int64_t, std::int64_t)>& near)
      : ranks_(ranks) {
    for (const RoundProcess& rank : ranks) schedules_.push_back(rank.schedule(near));
  }

  const std::vector<RoundSchedule>& schedules() const { return schedules_; }

  void run() {
    std::int64_t last = 0;
    for (const RoundSchedule& each : schedules_) {
      if (!each.slots.empty()) last = std::max(last, each.slots.back());
    }
    for (std::int64_t slot = 0; slot <= last; ++slot) {
      std::map<Key, std::vector<std::vector<std::byte>>> sent;
      for (std::size_t r = 0; r < ranks_.size(); ++r) send(r, slot, sent);
      for (std::size_t r = 0; r < ranks_.size(); ++r) receive(r, slot, sent);
      for (const auto& [key, messages] : sent) CHECK_TRUE(messages.empty());
    }
  }

 private:
  // Channel, group, source and destination.
  using Key = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;

  const RankSlot* find(std::size_t r, std::int64_t slot) {
    const auto& slots = schedules_[r].slots;
    const auto place = std::lower_bound(slots.begin(), slots.end(), slot);
    if (place == slots.end() || *place != slot) return nullptr;
    return &schedules_[r].ranks[0].slots[static_cast<std::size_t>(place - slots.begin())];
  }

  std::byte* place_of(std::size_t r, std::uint32_t place, std::int64_t offset) {
    std::byte* base = place == kStaging ? staging_[r].data() : ranks_[r].memory(0, place).data();
    return base + offset;
  }

  void copy(std::size_t r, const std::vector<Move>& moves, bool is_pack) {
    for (const Move& move : moves) {
      const Operation& operation = ranks_[r].program().operations[move.operation];
      std::byte* memory = ranks_[r].memory(0, operation.buffer).data() + operation.offset_bytes;
      std::byte* dense = place_of(r, move.place, move.offset);
      if (is_pack) {
        reshard::pack(operation.box, memory, operation.memory, operation.wire, move.first,
                      move.count, dense, Stores::kCached);
      } else {
        reshard::unpack(operation.box, memory, operation.memory, operation.wire, move.first,
                        move.count, dense);
      }
    }
  }

  void send(std::size_t r, std::int64_t slot,
            std::map<Key, std::vector<std::vector<std::byte>>>& sent) {
    const RankSlot* own = find(r, slot);
    if (own == nullptr) return;
    staging_[r].assign(static_cast<std::size_t>(own->staging_bytes), std::byte{0xEE});
    for (int channel = 0; channel < kNumChannels; ++channel) {
      const ChannelSlot& part = own->channels[channel];
      copy(r, part.packs, true);
      copy(r, part.relays, true);
      for (const MessageGroup& group : part.groups) {
        for (const Message& message : group.messages) {
          if (!message.is_send) continue;
          const std::byte* from = place_of(r, message.place, message.offset);
          sent[{channel, group.number, ranks_[r].ranks()[0], message.peer}].emplace_back(
              from, from + message.nbytes);
        }
      }
    }
  }

  void receive(std::size_t r, std::int64_t slot,
               std::map<Key, std::vector<std::vector<std::byte>>>& sent) {
    const RankSlot* own = find(r, slot);
    if (own == nullptr) return;
    for (int channel = 0; channel < kNumChannels; ++channel) {
      const ChannelSlot& part = own->channels[channel];
      for (const MessageGroup& group : part.groups) {
        for (const Message& message : group.messages) {
          if (message.is_send) continue;
          auto& queue = sent[{channel, group.number, message.peer, ranks_[r].ranks()[0]}];
          CHECK_TRUE(!queue.empty());
          CHECK_EQ(static_cast<std::int64_t>(queue.front().size()), message.nbytes);
          std::copy(queue.front().begin(), queue.front().end(),
                    place_of(r, message.place, message.offset));
          queue.erase(queue.begin());
        }
      }
      copy(r, part.unpacks, false);
    }
  }

  std::vector<RoundProcess>& ranks_;
  std::vector<RoundSchedule> schedules_;
  std::map<std::size_t, std::vector<std::byte>> staging_;
};

// Rank 0 holds the tensors; 1 gets them, 2 gets them from 1, 3 from 2.
void run_chain(RoundCase what, std::int64_t num_rounds, std::int64_t num_groups,
               const std::function<bool(std::int64_t, std::int64_t)>& near, std::int64_t gap) {
  for (std::int64_t t = 0; t < static_cast<std::int64_t>(what.tensors.size()); ++t) {
    for (std::int64_t hop = 0; hop < 3; ++hop) what.handovers.push_back({t, hop, hop + 1, hop});
  }
  what.num_rounds = num_rounds;
  what.num_groups = num_groups;
  std::vector<RoundProcess> ranks;
  for (std::int64_t r = 0; r < 4; ++r) {
    ranks.emplace_back(std::vector{r}, what, r == 2 ? 1 : gap);
    ranks.back().fill(7);
  }
  ByHand by_hand(ranks, near);
  by_hand.run();
  for (RoundProcess& rank : ranks) rank.check(7);
}

TEST(what_is_passed_on_arrives_in_time_whatever_the_rounds) {
  const RoundCase what = {{{7, kI32, {0, 10, 100}},
                           {300'000, kI64, {10, 60, 100}},
                           {1, kU8, {60, 61, 100}},
                           {90'000, kU8, {61, 100, 100}}},
                          {}};
  for (const std::int64_t num_rounds : {1, 2, 7, 64, 1000}) {
    run_chain(what, num_rounds, 1, never_near, 1);
    run_chain(what, num_rounds, 4, near_in_pairs, 2);
  }
}

TEST(a_piece_that_was_left_out_would_show) {
  const RoundCase what = {{{50, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  std::vector<RoundProcess> ranks;
  for (std::int64_t r = 0; r < 2; ++r) ranks.emplace_back(std::vector{r}, what);
  ranks[0].fill(1);
  std::memset(ranks[0].memory(0, 0).data() + 31 * 4, 0, 4);
  ByHand by_hand(ranks, never_near);
  by_hand.run();
  CHECK_TRUE(ranks[1].first_difference(0, 0, 1) / 4 == 31);
}

// Tensors that rank 0 hands to rank 1 in one round.
RoundCase in_one_round(const std::vector<std::pair<std::int64_t, std::int64_t>>& tensors) {
  RoundCase made;
  for (const auto& [elements, dtype] : tensors) {
    made.handovers.push_back({static_cast<std::int64_t>(made.tensors.size()), 0, 1, 0});
    made.tensors.push_back({elements, dtype, {0, 1, 1}});
  }
  return made;
}

TEST(large_runs_travel_without_staging_and_small_ones_share_a_message) {
  const RoundCase what = in_one_round({{kDirectBytes, kU8}, {kDirectBytes - 1, kU8}, {100, kI32}});
  const RoundSchedule schedule = RoundProcess({0}, what).schedule(never_near);
  const ChannelSlot& part = schedule.ranks[0].slots[0].channels[0];
  CHECK_EQ(part.groups.size(), 1U);
  CHECK_EQ(part.groups[0].messages.size(), 2U);
  CHECK_EQ(part.groups[0].messages[0].nbytes, kDirectBytes + 400);  // the second piece is aligned
  CHECK_EQ(part.groups[0].messages[1].nbytes, kDirectBytes);
  CHECK_EQ(part.groups[0].messages[1].place, 0U);
  CHECK_EQ(part.packs.size(), 2U);
  CHECK_TRUE(schedule.ranks[0].staging_bytes < kDirectBytes + 1024);
  // Every second element: nothing is one run of memory, so all of it is packed.
  const RoundSchedule strided = RoundProcess({0}, what, 2).schedule(never_near);
  CHECK_EQ(strided.ranks[0].slots[0].channels[0].packs.size(), 3U);
  CHECK_TRUE(strided.ranks[0].staging_bytes >= 2 * kDirectBytes);
  CHECK_EQ(strided.bytes_sent, schedule.bytes_sent);
}

TEST(groups_have_as_many_messages_of_a_pair_of_ranks_as_are_agreed) {
  RoundCase what = in_one_round(std::vector(10, std::pair{kDirectBytes, kU8}));
  const auto expect = [&](std::int64_t per_pair, std::size_t num_groups) {
    what.messages_per_pair = per_pair;
    const RoundSchedule schedule = RoundProcess({0}, what).schedule(never_near);
    CHECK_EQ(schedule.ranks[0].slots[0].channels[0].groups.size(), num_groups);
    CHECK_EQ(schedule.largest_group, per_pair);
  };
  expect(4, 3);
  expect(9, 2);
  expect(10, 1);
}

TEST(more_rounds_need_less_staging) {
  RoundCase what = in_one_round({{1'000'000, kI32}});
  std::int64_t before = 8'000'000;
  for (const std::int64_t num_rounds : {2, 8, 64, 512}) {
    what.num_rounds = num_rounds;
    const RoundSchedule schedule = RoundProcess({0}, what, 2).schedule(never_near);
    CHECK_TRUE(schedule.ranks[0].staging_bytes <= 2 * (4'000'000 / num_rounds + 4 + 128));
    CHECK_TRUE(schedule.ranks[0].staging_bytes < before);
    before = schedule.ranks[0].staging_bytes;
  }
}

TEST(copies_inside_a_rank_take_one_pass_where_an_end_is_dense) {
  // Buffers 0 and 1 are the same tensor on both sides of rank 0: from every second byte to dense.
  const Values streams = {0, 0, 0, 1, 0, 0}, hops = {0, 0}, spans = {0, 1, 1, 0, 1, 1};
  const auto schedule_of = [&](std::int64_t from, std::int64_t to) {
    const Values operations = {0, 0, 0, kU8, kU8, 1, 100, from, 1, 1, 0, kU8, kU8, 1, 100, to};
    const Values extents = {0, 300, 0, 300};
    const Program program = read_program({{streams.data(), streams.size()},
                                          {operations.data(), operations.size()},
                                          {nullptr, 0},
                                          {extents.data(), extents.size()},
                                          2,
                                          64,
                                          {hops.data(), hops.size()},
                                          {spans.data(), spans.size()},
                                          1,
                                          1});
    return make_round_schedule(program, {0}, never_near);
  };
  const RankSlot to_dense = schedule_of(2, 1).ranks[0].slots[0];
  CHECK_EQ(to_dense.channels[0].packs.size(), 1U);
  CHECK_EQ(to_dense.channels[0].packs[0].place, 1U);
  const RankSlot from_dense = schedule_of(1, 2).ranks[0].slots[0];
  CHECK_EQ(from_dense.channels[0].unpacks.size(), 1U);
  CHECK_EQ(from_dense.channels[0].unpacks[0].place, 0U);
  CHECK_EQ(from_dense.staging_bytes, 0);
  const RankSlot both = schedule_of(2, 3).ranks[0].slots[0];
  CHECK_EQ(both.channels[0].packs.size() + both.channels[0].unpacks.size(), 2U);
  CHECK_TRUE(both.staging_bytes >= 100);
  CHECK_EQ(schedule_of(2, 3).bytes_local, 100);
}

TEST(a_rank_that_stores_elements_twice_copies_them_when_they_have_come) {
  // Rank 0 hands a tensor to rank 1, which hands it to itself.
  RoundCase what = {{{100, kI32, {0, 1, 1}}}, {{0, 0, 1, 0}}, 4, 1};
  const RoundSchedule without = RoundProcess({1}, what).schedule(never_near);
  CHECK_EQ(without.slots.size(), 4U);
  what.handovers.push_back({0, 1, 1, 1});
  const RoundSchedule schedule = RoundProcess({1}, what).schedule(never_near);
  CHECK_EQ(schedule.slots.size(), 5U);
  for (std::size_t slot = 1; slot < 5; ++slot) {
    const ChannelSlot& part = schedule.ranks[0].slots[slot].channels[1];
    CHECK_TRUE(part.sends_arrivals);
    CHECK_EQ(part.relays.size(), 1U);
  }
  CHECK_TRUE(schedule.ranks[0].slots[4].channels[0].unpacks.empty());
}

TEST(random_exchanges_bring_every_byte_to_its_place) {
  std::mt19937_64 random(20'26);
  for (int trial = 0; trial < 60; ++trial) {
    const auto num_ranks = static_cast<std::int64_t>(2 + random() % 5);
    const RoundCase what = random_case(random, num_ranks);
    std::vector<RoundProcess> ranks;
    for (std::int64_t r = 0; r < num_ranks; ++r) {
      ranks.emplace_back(std::vector{r}, what, static_cast<std::int64_t>(1 + random() % 2));
      ranks.back().fill(3);
    }
    ByHand by_hand(ranks, trial % 2 == 0 ? never_near : near_in_pairs);
    by_hand.run();
    for (RoundProcess& rank : ranks) rank.check(3);
  }
}

TEST(tables_of_times_are_checked) {
  const auto refusal = [](Tensor tensor, std::int64_t hop, std::int64_t num_rounds,
                          std::int64_t num_groups, std::int64_t per_pair = 4) {
    const RoundCase what = {{tensor}, {{0, 0, 1, hop}}, num_rounds, num_groups, per_pair};
    return error_of([&] { RoundProcess({0}, what); }).message();
  };
  const Tensor whole = {10, kU8, {0, 1, 1}};
  CHECK_CONTAINS(refusal(whole, 0, -1, 1), "num_rounds -1");
  CHECK_CONTAINS(refusal(whole, 0, (1 << 20) + 1, 1), "num_rounds 1048577");
  CHECK_CONTAINS(refusal(whole, 0, 1, 0), "num_groups 0 is not in 1..1048576.");
  CHECK_CONTAINS(refusal(whole, 0, 1, 1, 0), "messages_per_pair 0 is not in 1..1048576.");
  CHECK_CONTAINS(refusal(whole, 0, 0, 1), "hops table: 1 values for 1 streams and 0 rounds");
  CHECK_CONTAINS(refusal({10, kU8, {1, 1, 2}}, 0, 4, 1), "from 1 to 1 of 2");
  CHECK_CONTAINS(refusal({10, kU8, {0, 3, 2}}, 0, 4, 1), "from 0 to 3 of 2");
  CHECK_CONTAINS(refusal(whole, -1, 4, 1), "hops table, row 0: -1");
}

TEST(a_stream_of_strangers_is_refused) {
  const RoundProcess process({0}, in_one_round({{10, kU8}}));
  const Error error = error_of([&] { make_round_schedule(process.program(), {5}, never_near); });
  CHECK_TRUE(error.code() == StatusCode::kInvalidArgument);
  CHECK_CONTAINS(error.message(), "rank 0 -> rank 1 (send) has no end");
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

// Tensors that ranks hand to each other in rounds: tables, memory and checks of one process.
#ifndef RESHARD_NATIVE_TESTS_ROUND_CASE_H_
#define RESHARD_NATIVE_TESTS_ROUND_CASE_H_

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "fixtures.h"
#include "round_schedule.h"

namespace reshard_test {

using Values = std::vector<std::int64_t>;

constexpr std::int64_t kU8 = 1, kI32 = 6, kI64 = 8;

// A rank that has a tensor hands it to another one.
struct Handover {
  std::int64_t tensor, src, dst, hop;
};

struct Tensor {
  std::int64_t elements;
  std::int64_t dtype;
  Span span;

  std::int64_t width() const { return size_of(static_cast<DType>(dtype)); }
};

struct RoundCase {
  std::vector<Tensor> tensors;
  std::vector<Handover> handovers;
  std::int64_t num_rounds = 1;
  std::int64_t num_groups = 1;
  std::int64_t messages_per_pair = 4;
  std::int64_t padding = 0;  // bytes behind each tensor, which every run fills with zeros
};

// Every rank stores every tensor: dense, or every `gap`th element.
class RoundProcess {
 public:
  RoundProcess(std::vector<std::int64_t> ranks, const RoundCase& what, std::int64_t gap = 1)
      : ranks_(std::move(ranks)), case_(what), gap_(gap) {
    for (std::size_t local = 0; local < ranks_.size(); ++local) {
      for (const Tensor& tensor : case_.tensors) {
        const std::int64_t end = tensor.elements * tensor.width() * gap_;
        const std::int64_t nbytes = end + case_.padding;
        if (case_.padding > 0) {
          const auto buffer = static_cast<std::int64_t>(memory_.size());
          zeros_.insert(zeros_.end(), {buffer, end, 1, 1, case_.padding, 1});
        }
        memory_.emplace_back(static_cast<std::size_t>(nbytes));
        extents_.insert(extents_.end(), {0, nbytes});
      }
    }
    for (const Handover& each : case_.handovers) {
      add_row(0, each.src, each);
      add_row(1, each.dst, each);
    }
    program_ = read_program({{streams_.data(), streams_.size()},
                             {operations_.data(), operations_.size()},
                             {zeros_.data(), zeros_.size()},
                             {extents_.data(), extents_.size()},
                             static_cast<std::int64_t>(memory_.size()),
                             64,
                             {hops_.data(), hops_.size()},
                             {spans_.data(), spans_.size()},
                             case_.num_rounds,
                             case_.num_groups,
                             case_.messages_per_pair});
  }

  const Program& program() const { return program_; }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }

  RoundSchedule schedule(const std::function<bool(std::int64_t, std::int64_t)>& near) const {
    return make_round_schedule(program_, ranks_, near);
  }

  std::vector<std::byte>& memory(std::size_t local, std::size_t tensor) {
    return memory_[local * case_.tensors.size() + tensor];
  }
  std::vector<std::vector<std::byte>>& all_memory() { return memory_; }

  std::vector<void*> buffers() {
    std::vector<void*> pointers;
    for (auto& memory : memory_) pointers.push_back(memory.data());
    return pointers;
  }

  // What tensors are in a run: in the ranks that nobody hands them to, elsewhere something else.
  void fill(std::uint64_t run) {
    for (std::size_t local = 0; local < ranks_.size(); ++local) {
      for (std::size_t t = 0; t < case_.tensors.size(); ++t) {
        std::vector<std::byte>& memory = this->memory(local, t);
        std::fill(memory.begin(), memory.end(), std::byte{0x55});
        if (!is_given(ranks_[local], t)) write(memory, t, run);
      }
    }
  }

  // Checks every byte of every rank, gaps included.
  void check(std::uint64_t run) {
    for (std::size_t local = 0; local < ranks_.size(); ++local) {
      for (std::size_t t = 0; t < case_.tensors.size(); ++t) {
        const std::int64_t wrong = first_difference(local, t, run);
        if (wrong < 0) continue;
        reshard_test::fail(__FILE__, __LINE__, "rank ", ranks_[local], ", tensor ", t, ", run ",
                           run, ": byte ", wrong, " of ", memory(local, t).size(), " is wrong");
      }
    }
  }

  // The first byte that is not as it should be after a run; -1 if all are.
  std::int64_t first_difference(std::size_t local, std::size_t tensor, std::uint64_t run) {
    std::vector<std::byte> expected(memory(local, tensor).size(), std::byte{0x55});
    write(expected, tensor, run);
    std::fill(expected.end() - case_.padding, expected.end(), std::byte{0});
    const std::vector<std::byte>& found = memory(local, tensor);
    const auto place = std::mismatch(expected.begin(), expected.end(), found.begin());
    return place.first == expected.end() ? -1 : place.first - expected.begin();
  }

 private:
  bool is_given(std::int64_t rank, std::size_t tensor) const {
    for (const Handover& each : case_.handovers) {
      if (each.dst == rank && each.tensor == static_cast<std::int64_t>(tensor)) return true;
    }
    return false;
  }

  void write(std::vector<std::byte>& memory, std::size_t tensor, std::uint64_t run) const {
    const auto width = static_cast<std::size_t>(case_.tensors[tensor].width());
    const auto count = static_cast<std::size_t>(case_.tensors[tensor].elements);
    const auto dense = hashed_bytes(count * width, run * 1000 + tensor);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(memory.data() + i * width * static_cast<std::size_t>(gap_),
                  dense.data() + i * width, width);
    }
  }

  void add_row(std::int64_t direction, std::int64_t rank, const Handover& what) {
    const auto place = std::find(ranks_.begin(), ranks_.end(), rank);
    if (place == ranks_.end()) return;
    const auto key = std::make_tuple(direction, what.src, what.dst, what.hop);
    const auto [row, is_new] = rows_.emplace(key, static_cast<std::int64_t>(rows_.size()));
    if (is_new) {
      streams_.insert(streams_.end(), {direction, what.src, what.dst});
      hops_.push_back(what.hop);
    }
    const auto num_tensors = static_cast<std::int64_t>(case_.tensors.size());
    const Tensor& tensor = case_.tensors[static_cast<std::size_t>(what.tensor)];
    const std::int64_t buffer = (place - ranks_.begin()) * num_tensors + what.tensor;
    operations_.insert(operations_.end(), {row->second, buffer, 0, tensor.dtype, tensor.dtype, 1,
                                           tensor.elements, tensor.width() * gap_});
    spans_.insert(spans_.end(), {tensor.span.start, tensor.span.stop, tensor.span.total});
  }

  std::vector<std::int64_t> ranks_;
  RoundCase case_;
  std::int64_t gap_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, std::int64_t> rows_;
  Values streams_, hops_, operations_, spans_, zeros_, extents_;
  std::vector<std::vector<std::byte>> memory_;
  Program program_;
};

// Tensors of several sizes, each of which starts at some rank and visits others one after the
// other.
inline RoundCase random_case(std::mt19937_64& random, std::int64_t num_ranks) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  RoundCase made;
  made.num_rounds = between(1, 40);
  made.num_groups = std::int64_t{1} << between(0, 3);
  made.messages_per_pair = between(1, 8);
  const std::int64_t total = between(10, 1000);
  const std::int64_t count = between(1, 8);
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t start = between(0, total - 1);
    const std::int64_t most = between(0, 9) == 0 ? 600'000 : 900;
    made.tensors.push_back({between(1, most),
                            std::vector{kU8, kI32, kI64}[random() % 3],
                            {start, between(start + 1, total), total}});
    const std::int64_t visits = between(1, num_ranks - 1);
    for (std::int64_t hop = 0; hop < visits; ++hop) {
      made.handovers.push_back({t, (t + hop) % num_ranks, (t + hop + 1) % num_ranks, hop});
    }
  }
  return made;
}

inline bool never_near(std::int64_t, std::int64_t) { return false; }
inline bool near_in_pairs(std::int64_t a, std::int64_t b) { return a / 2 == b / 2; }

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_ROUND_CASE_H_

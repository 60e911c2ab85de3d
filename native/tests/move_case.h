// Tables of moves between random boxes in memory and a message, and what the host makes of them.
#ifndef RESHARD_NATIVE_TESTS_MOVE_CASE_H_
#define RESHARD_NATIVE_TESTS_MOVE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "device.h"
#include "kernel_case.h"

namespace reshard_test {

// Ranges of several operations, each with memory of its own, and one message.
struct MoveCase {
  std::vector<Operation> operations;
  std::vector<Segment> segments;
  std::vector<std::int64_t> message_offsets;
  std::vector<Memory> memory;
  std::int64_t message_size = 0;

  // What the host's code packs, at the places of the segments.
  void pack_on_host(Memory& message) {
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const Operation& operation = operations[segment.operation];
      reshard::host_device().pack(operation, {0, segment.first, segment.count, message_offsets[i]},
                                  memory[operation.buffer].data(), message.data(), false);
    }
  }

  // What memory holds when the host's code has unpacked a message.
  std::vector<Memory> unpacked_on_host(const Memory& message) const {
    MoveCase after = *this;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const Operation& operation = operations[segment.operation];
      reshard::host_device().unpack(operation,
                                    {0, segment.first, segment.count, message_offsets[i]},
                                    after.memory[operation.buffer].data(), message.data());
    }
    return after.memory;
  }

  std::vector<std::uint64_t> addresses() {
    std::vector<std::uint64_t> out;
    for (Memory& one : memory) out.push_back(reinterpret_cast<std::uintptr_t>(one.data()));
    return out;
  }

  std::string describe() const {
    std::string text;
    for (const Segment& segment : segments) {
      const Operation& operation = operations[segment.operation];
      text += std::string(name_of(operation.memory)) + "->" + name_of(operation.wire) +
              (operation.affine.is_identity() ? "" : " changed") + " box";
      for (int k = 0; k < operation.box.ndim; ++k) {
        text += " " + std::to_string(operation.box.size[k]) + "*" +
                std::to_string(operation.box.stride[k]);
      }
      text +=
          " range " + std::to_string(segment.first) + "+" + std::to_string(segment.count) + "; ";
    }
    return text;
  }
};

struct MoveCaseKind {
  Strides strides;
  bool has_casts;
};

inline void add_operation(MoveCase& test, Random& random, const MoveCaseKind& kind) {
  Operation operation = {};
  operation.memory = operation.wire = random_dtype(random);
  if (kind.has_casts && random.one_in(2)) {
    std::tie(operation.memory, operation.wire) = random_cast(random);
  }
  if (kind.has_casts && is_float(operation.memory) && is_float(operation.wire)) {
    if (random.one_in(2)) operation.affine = random_affine(random);
  }
  RandomDims dims = {static_cast<int>(random.between(0, 5)), 3000, 100};
  if (random.one_in(6)) dims = {static_cast<int>(random.between(6, 16)), 3000, 5};
  if (random.one_in(8)) dims = {static_cast<int>(random.between(1, 3)), 40000, 400};
  const std::int64_t width = size_of(operation.memory);
  const PlacedBox placed = random_placed_box(random, width, dims, kind.strides);
  operation.box = placed.box;
  operation.buffer = static_cast<std::uint32_t>(test.memory.size());
  operation.offset_bytes = placed.base + (random.one_in(3) ? random.between(0, 20) : 0) * width;
  operation.elements = num_elements(placed.box);
  const auto size = static_cast<std::size_t>(placed.span + operation.offset_bytes - placed.base);
  const std::int64_t shift = random.one_in(2) ? 0 : random.between(0, 15);
  test.memory.emplace_back(size, static_cast<std::size_t>(shift), random.next());
  if (!operation.moves_bytes()) {
    // NaNs at any place that an element may have: gaps need not be whole elements.
    std::memset(test.memory.back().data(), 0, size);
    Bytes numbers =
        hashed_bytes(static_cast<std::size_t>(operation.elements * width), random.next());
    remove_nans(numbers.data(), numbers.size(), operation.memory);
    unpack(operation.box, test.memory.back().data() + operation.offset_bytes, operation.memory,
           operation.memory, 0, kind.strides == Strides::kDistinct ? operation.elements : 0,
           numbers.data());
  }
  const auto index = static_cast<std::uint32_t>(test.operations.size());
  test.operations.push_back(operation);
  std::int64_t first = 0;
  while (first < operation.elements) {
    const std::int64_t rest = operation.elements - first;
    const std::int64_t count = random.one_in(2) ? rest : random.between(1, rest);
    if (random.one_in(4)) test.message_size += random.between(0, 40);
    test.segments.push_back({index, first, count, 0});
    test.message_offsets.push_back(test.message_size);
    test.message_size += count * size_of(operation.wire);
    if (random.one_in(8)) break;
    first += count;
  }
}

inline MoveCase random_move_case(Random& random, const MoveCaseKind& kind) {
  MoveCase test;
  const std::int64_t count = random.between(1, random.one_in(4) ? 12 : 3);
  for (std::int64_t i = 0; i < count; ++i) add_operation(test, random, kind);
  return test;
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_MOVE_CASE_H_

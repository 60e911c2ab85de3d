// Changes of values inside pack and unpack, against one element after the other, and against the
// arithmetic of models.
#include <cstring>

#include "check.h"
#include "float_oracle.h"
#include "memory_case.h"
#include "pack.h"

namespace reshard {
namespace {

using reshard_test::MemoryCase;
using reshard_test::offset_of;
using reshard_test::Random;
using reshard_test::random_box;
using namespace float_oracle;
using Bytes = std::vector<std::byte>;

Affine random_affine(Random& random) {
  Affine affine;
  for (AffineRule* rule : {&affine.source, &affine.destination}) {
    if (random.one_in(2)) rule->scale = 0.1 * static_cast<double>(random.between(1, 50));
    if (random.one_in(2)) rule->divisor = -0.7 * static_cast<double>(random.between(1, 50));
    if (random.one_in(2)) rule->offset = 0.3 * static_cast<double>(random.between(-9, 9));
  }
  return affine;
}

// Every step is rounded by itself: no compiler may keep more of it, or make one step of two.
double affine_oracle(double value, const Affine& affine) {
  volatile double result = value;
  result = result * affine.source.scale;
  result = result / affine.source.divisor;
  if (affine.source.offset != 0) result = result + affine.source.offset;
  result = result - affine.destination.offset;
  result = result * affine.destination.divisor;
  result = result / affine.destination.scale;
  return result;
}

// `in` has the elements of `from` one after the other, `out` what became of them.
void check_affine(const char* what, const Affine& affine, DType from, DType to, const Bytes& in,
                  const Bytes& out) {
  const std::size_t count = in.size() / static_cast<std::size_t>(size_of(from));
  for (std::size_t i = 0; i < count; ++i) {
    const double value =
        value_of(from, bits_at(from, in.data() + i * static_cast<std::size_t>(size_of(from))));
    const double expected = expected_value(DType::kF64, to, affine_oracle(value, affine));
    const double found =
        value_of(to, bits_at(to, out.data() + i * static_cast<std::size_t>(size_of(to))));
    CHECK(same_value(found, expected), std::string(what) + " " + name_of(from) + " to " +
                                           name_of(to) + " of " + std::to_string(value) +
                                           " gives " + std::to_string(found) + ", expected " +
                                           std::to_string(expected));
  }
}

// pack_affine and unpack_affine, against one element after the other.
void test_affine(Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const DType mem = kFloats[random.between(0, 5)];
    const DType wire = kFloats[random.between(0, 5)];
    const MemoryCase test = random_box(random, size_of(mem));
    const std::int64_t total = num_elements(test.box);
    const std::int64_t first = random.between(0, total);
    const std::int64_t count = random.between(0, total - first);
    const auto mem_width = static_cast<std::size_t>(size_of(mem));
    const Affine affine = random_affine(random);
    Bytes memory = reshard_test::hashed_bytes(static_cast<std::size_t>(test.size), random.next());
    Bytes message(static_cast<std::size_t>(count * size_of(wire)), std::byte{0x5A});
    Bytes elements(static_cast<std::size_t>(count) * mem_width);
    const auto gather = [&] {
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(elements.data() + static_cast<std::size_t>(i) * mem_width,
                    memory.data() + offset_of(test.box, first + i), mem_width);
      }
    };
    gather();
    pack_affine(test.box, memory.data(), mem, wire, affine, first, count, message.data());
    check_affine("pack_affine", affine, mem, wire, elements, message);
    message = reshard_test::hashed_bytes(message.size(), random.next());
    unpack_affine(test.box, memory.data(), mem, wire, affine, first, count, message.data());
    gather();
    check_affine("unpack_affine", affine, wire, mem, message, elements);
  }
}

// One step of float32 operands is what float32 arithmetic gives, and so for the 16-bit types.
void test_one_step_is_float32_arithmetic(Random& random) {
  const std::int64_t count = 20'000;
  const StridedBox box = {1, {count}, {4}};
  Bytes in = reshard_test::hashed_bytes(4 * count, random.next());
  Bytes out(in.size());
  const float constant = 50.5963f;
  for (int step = 0; step < 6; ++step) {
    Affine affine;
    AffineRule& rule = step < 3 ? affine.source : affine.destination;
    (step % 3 == 0 ? rule.scale : step % 3 == 1 ? rule.divisor : rule.offset) = constant;
    pack_affine(box, in.data(), DType::kF32, DType::kF32, affine, 0, count, out.data());
    for (std::int64_t i = 0; i < count; ++i) {
      float value = 0;
      float found = 0;
      std::memcpy(&value, in.data() + 4 * i, 4);
      std::memcpy(&found, out.data() + 4 * i, 4);
      volatile float expected = value;
      if (step == 0 || step == 4) expected = value * constant;
      if (step == 1 || step == 3) expected = value / constant;
      if (step == 2) expected = value + constant;
      if (step == 5) expected = value - constant;
      CHECK(same_value(found, expected), "step " + std::to_string(step) + " of " +
                                             std::to_string(value) + " gives " +
                                             std::to_string(found));
    }
  }
}

// The oracle must tell steps that are rounded from ones that are not.
void test_negative_controls() {
  Affine affine;
  affine.source = {3.0, 1.0, 0x1p-60};
  affine.destination = {7.0, 1.0, 1.0};
  CHECK(affine_oracle(1.0 / 3.0, affine) == 0.0, "each step is rounded");
  CHECK(affine_oracle(1.0, affine) != 0.0, "and followed");
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard_test::Random random(reshard_test::start(argc, argv));
  reshard::test_negative_controls();
  reshard::test_affine(random, 900);
  reshard::test_one_step_is_float32_arithmetic(random);
  return reshard_test::finish();
}

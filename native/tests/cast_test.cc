// The casts: every 16-bit and 8-bit source value, boundaries and random values of the wider ones;
// vector code against scalar code; casts inside pack and unpack.

#include "cast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "check.h"
#include "cpu_features.h"
#include "float_oracle.h"
#include "memory_case.h"
#include "pack.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace reshard {
namespace {

using reshard_test::MemoryCase;
using reshard_test::offset_of;
using reshard_test::Random;
using reshard_test::random_box;
using namespace float_oracle;
using Bytes = std::vector<std::byte>;

// Source bits: all of the narrow types; for the wide ones random bits and, around every value of
// every narrower type, the value, its neighbours and the half-way points with theirs.
Bytes source_bits(DType from, Random& random) {
  const std::int64_t width = size_of(from);
  std::vector<std::uint64_t> all;
  if (width <= 2) {
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << (8 * width)); ++bits) {
      all.push_back(bits);
    }
  } else {
    const Format wide = format_of(from);
    for (int kept = 2; kept <= 23 && kept < wide.mantissa_bits; ++kept) {
      if (kept != 2 && kept != 3 && kept != 7 && kept != 10 && kept != 23) continue;
      const int dropped = wide.mantissa_bits - kept;
      const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
      const int tops = kept > 10 ? 0 : 1 + wide.exponent_bits + kept;
      for (std::uint64_t top = 0; top < (std::uint64_t{1} << tops) && tops <= 16; ++top) {
        for (const std::uint64_t low :
             {std::uint64_t{0}, std::uint64_t{1}, half - 1, half, half + 1, 2 * half - 1}) {
          all.push_back((top << dropped) | low);
        }
      }
    }
    for (int i = 0; i < 200000; ++i) {
      std::uint64_t bits = random.next() >> (64 - 8 * width);
      if (random.one_in(2)) bits &= ~std::uint64_t{0} << random.between(0, wide.mantissa_bits);
      all.push_back(bits);
      // Exponents that the narrow types have.
      const double scaled = std::ldexp(1.0 + static_cast<double>(random.next() >> 12) * 0x1p-52,
                                       static_cast<int>(random.between(-30, 20)));
      std::uint64_t near = 0;
      if (width == 8) std::memcpy(&near, &scaled, sizeof(scaled));
      const auto single = static_cast<float>(scaled);
      if (width == 4) std::memcpy(&near, &single, sizeof(single));
      // Half of them on or next to a half-way point of some shorter mantissa.
      if (random.one_in(2)) near &= ~std::uint64_t{0} << random.between(0, wide.mantissa_bits);
      if (random.one_in(4)) near += random.one_in(2) ? 1U : ~std::uint64_t{0};
      if (width == 4) near &= 0xFFFFFFFFU;
      all.push_back(near | (random.next() & 1U) << (8 * width - 1));
    }
  }
  Bytes bytes(all.size() * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::memcpy(bytes.data() + i * static_cast<std::size_t>(width), &all[i],
                static_cast<std::size_t>(width));
  }
  return bytes;
}

Bytes cast_all(DType from, DType to, const Bytes& in, bool streaming) {
  const std::int64_t count = static_cast<std::int64_t>(in.size()) / size_of(from);
  Bytes out(static_cast<std::size_t>(count * size_of(to)));
  const FloatEnvironment environment;
  cast_function(from, to)(in.data(), out.data(), count, streaming);
  return out;
}

void check_values(DType from, DType to, const Bytes& in, const Bytes& out) {
  const std::int64_t count = static_cast<std::int64_t>(in.size()) / size_of(from);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = bits_at(from, in.data() + i * size_of(from));
    const std::uint64_t result = bits_at(to, out.data() + i * size_of(to));
    const double value = value_of(from, bits);
    const double expected = expected_value(from, to, value);
    CHECK(same_value(value_of(to, result), expected),
          std::string(name_of(from)) + " to " + name_of(to) + " of bits " + std::to_string(bits) +
              " gives bits " + std::to_string(result) + ", expected " + std::to_string(expected));
    if (std::isnan(value)) {
      const bool sign = (bits >> (8 * size_of(from) - 1)) != 0;
      const bool result_sign = (result >> (8 * size_of(to) - 1)) != 0;
      CHECK(sign == result_sign, "a NaN keeps its sign");
    }
  }
}

void test_values(Random& random) {
  for (const DType from : kFloats) {
    const Bytes in = source_bits(from, random);
    for (const DType to : kFloats) {
      if (cast_function(from, to) == nullptr) continue;
      restrict_cpu_features({true, true});
      const Bytes fast = cast_all(from, to, in, true);
      restrict_cpu_features({false, false});
      const Bytes plain = cast_all(from, to, in, false);
      check_values(from, to, in, plain);
      CHECK(fast == plain, std::string("vector and scalar code differ, NaN payloads included: ") +
                               name_of(from) + " to " + name_of(to));
    }
  }
  restrict_cpu_features({true, true});
}

// Lengths around the vector width at every alignment, with guards.
void test_lengths_and_alignments(Random& random) {
  for (const DType from : kFloats) {
    const Bytes in = source_bits(from, random);
    for (const DType to : kFloats) {
      const CastFunction cast = cast_function(from, to);
      if (cast == nullptr) continue;
      restrict_cpu_features({false, false});
      const Bytes all = cast_all(from, to, in, false);
      restrict_cpu_features({true, true});
      for (int round = 0; round < 200; ++round) {
        const std::int64_t count = random.between(0, random.one_in(2) ? 70 : 700);
        const std::int64_t total = static_cast<std::int64_t>(in.size()) / size_of(from);
        const std::int64_t first = random.between(0, std::max<std::int64_t>(total - count, 0));
        if (first + count > total) continue;
        const std::int64_t shift = random.between(0, 64);
        Bytes actual(static_cast<std::size_t>(count * size_of(to) + 192), std::byte{0x5A});
        Bytes expected = actual;
        std::copy(all.begin() + first * size_of(to), all.begin() + (first + count) * size_of(to),
                  expected.begin() + shift);
        const FloatEnvironment environment;
        cast(in.data() + first * size_of(from), actual.data() + shift, count, random.one_in(2));
        CHECK(actual == expected, std::string(name_of(from)) + " to " + name_of(to) + " count " +
                                      std::to_string(count) + " shift " + std::to_string(shift));
      }
    }
  }
}

// A caller's flush-to-zero and rounding modes change nothing, and are back afterwards.
void test_environment(Random& random) {
#if defined(__x86_64__)
  constexpr unsigned odd_modes = 0xFFC0U;  // flush to zero, subnormals are zero, round toward zero
  for (const DType from : kFloats) {
    const Bytes in = source_bits(from, random);
    const std::int64_t count = static_cast<std::int64_t>(in.size()) / size_of(from);
    const StridedBox box = {1, {count}, {size_of(from)}};
    for (const DType to : kFloats) {
      if (cast_function(from, to) == nullptr) continue;
      Bytes normal(static_cast<std::size_t>(count * size_of(to)));
      Bytes odd = normal;
      pack(box, in.data(), from, to, 0, count, normal.data());
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(odd_modes);
      pack(box, in.data(), from, to, 0, count, odd.data());
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      CHECK((after & 0xFFC0U) == odd_modes, "the caller's modes are restored");
      CHECK(odd == normal, std::string("modes change ") + name_of(from) + " to " + name_of(to));
    }
  }
#else
  static_cast<void>(random);
#endif
}

// pack and unpack with a cast, against one cast per element.
void test_strided_casts(Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const DType mem = kFloats[random.between(0, 5)];
    const DType wire = kFloats[random.between(0, 5)];
    const MemoryCase test = random_box(random, size_of(mem));
    const std::int64_t total = num_elements(test.box);
    const std::int64_t first = random.between(0, total);
    const std::int64_t count = random.one_in(3) ? total - first : random.between(0, total - first);
    const FloatEnvironment environment;
    if (const CastFunction cast = cast_function(mem, wire)) {
      const Bytes memory =
          reshard_test::hashed_bytes(static_cast<std::size_t>(test.size), random.next());
      Bytes actual(static_cast<std::size_t>(count * size_of(wire)), std::byte{0x5A});
      Bytes expected = actual;
      for (std::int64_t i = 0; i < count; ++i) {
        cast(memory.data() + offset_of(test.box, first + i), expected.data() + i * size_of(wire), 1,
             false);
      }
      pack(test.box, memory.data(), mem, wire, first, count, actual.data());
      CHECK(actual == expected, std::string("pack ") + name_of(mem) + " as " + name_of(wire));
    }
    if (const CastFunction cast = cast_function(wire, mem)) {
      const Bytes in = reshard_test::hashed_bytes(static_cast<std::size_t>(count * size_of(wire)),
                                                  random.next());
      Bytes actual(static_cast<std::size_t>(test.size), std::byte{0x5A});
      Bytes expected = actual;
      for (std::int64_t i = 0; i < count; ++i) {
        cast(in.data() + i * size_of(wire), expected.data() + offset_of(test.box, first + i), 1,
             false);
      }
      unpack(test.box, actual.data(), mem, wire, first, count, in.data());
      CHECK(actual == expected, std::string("unpack ") + name_of(wire) + " as " + name_of(mem));
    }
  }
}

void test_which_casts_exist() {
  CHECK(can_cast(DType::kF32, DType::kBF16), "float to float");
  CHECK(can_cast(DType::kF64, DType::kF8E4M3FN), "float to fp8");
  CHECK(can_cast(DType::kF8E5M2, DType::kF16), "fp8 to float");
  CHECK(can_cast(DType::kI32, DType::kI32), "equal types move");
  CHECK(!can_cast(DType::kF8E5M2, DType::kF8E4M3FN), "fp8 to fp8");
  CHECK(!can_cast(DType::kI32, DType::kF32), "integer to float");
  CHECK(!can_cast(DType::kBool, DType::kU8), "bool to integer");
  CHECK(!can_cast(DType::kF32, DType::kF8E8M0FNU), "float to a scale type");
  CHECK(!can_apply_affine(DType::kI32, DType::kF32), "an integer cannot be scaled");
  CHECK(!can_apply_affine(DType::kC64, DType::kC64), "nor can what has no cast");
  CHECK(can_apply_affine(DType::kBF16, DType::kBF16), "a float can, without a cast");
  for (std::int32_t code = 0; code < kNumDTypes; ++code) {
    CHECK(size_of(static_cast<DType>(code)) > 0, "code " + std::to_string(code));
  }
  CHECK(!is_dtype(kNumDTypes) && !is_dtype(-1), "codes outside the list");
}

// The oracle must tell wrong rounding, flushing and overflow from right.
void test_negative_controls() {
  const double tie = 1.0 + 0x1p-8;  // half-way between two bfloat16
  CHECK(round_to(DType::kBF16, tie) == 1.0, "ties go to even");
  CHECK(!same_value(round_to(DType::kBF16, tie), 1.0 + 0x1p-7), "not away from zero");
  CHECK(round_to(DType::kBF16, 1.0 + 0x1.8p-7) == 1.0 + 0x1p-6, "ties go to even, upward");
  CHECK(!same_value(round_to(DType::kBF16, 0x1p-130), 0.0), "subnormals are not flushed");
  CHECK(!same_value(0.0, -0.0), "the sign of zero counts");
  CHECK(round_to(DType::kF8E4M3FN, 1e9) == 448.0, "float8_e4m3fn saturates");
  CHECK(std::isinf(round_to(DType::kF8E5M2, 1e9)), "float8_e5m2 overflows");
  CHECK(round_to(DType::kF16, 65519.0) == 65504.0 && std::isinf(round_to(DType::kF16, 65520.0)),
        "float16 overflows from half-way on");
  const double doubled = 1.0 + 0x1p-11 + 0x1p-40;  // just above half-way between two float16
  CHECK(expected_value(DType::kF64, DType::kF16, doubled) == 1.0, "float64 goes by float32");
  CHECK(round_to(DType::kF16, doubled) == 1.0 + 0x1p-10, "once it would be another value");
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard_test::Random random(reshard_test::start(argc, argv));
  reshard::test_which_casts_exist();
  reshard::test_negative_controls();
  reshard::test_values(random);
  reshard::test_lengths_and_alignments(random);
  reshard::test_environment(random);
  reshard::test_strided_casts(random, 1500);
  return reshard_test::finish();
}

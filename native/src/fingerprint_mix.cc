#include "fingerprint_mix.h"

#include <cstring>

#include "cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reshard {

template <int width>
std::uint64_t RunMixer::sum_plain(const RunMixer& mixer, const std::byte* run, std::int64_t count,
                                  std::uint64_t index_term) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;  // little-endian: the low bytes are the element
    std::memcpy(&bits, run + i * width, width);
    sum += mix(index_term, bits);
    index_term += mixer.term_step_;
  }
  return sum;
}

#if defined(__x86_64__)
namespace {

#define RESHARD_AVX2 __attribute__((target("avx2")))

// Two sums, so that their additions do not wait for each other.
struct Sums {
  __m256i products;
  __m256i values;
};

// The high half of each lane, for mul_epu32, which ignores what is above its low half. A shuffle
// leaves the ports that multiply to the multiplications.
RESHARD_AVX2 inline __m256i high_halves(__m256i lanes) { return _mm256_shuffle_epi32(lanes, 0xF5); }

// Mixes four elements: `term` their index terms, `product` their bits times kValueStep.
RESHARD_AVX2 inline void add_mixed(Sums& sums, __m256i term, __m256i product) {
  const __m256i b = _mm256_xor_si256(term, _mm256_srli_epi64(term, 31));
  const __m256i c = _mm256_add_epi64(b, product);
  sums.values = _mm256_add_epi64(sums.values, c);
  sums.products = _mm256_add_epi64(sums.products, _mm256_mul_epu32(c, high_halves(c)));
}

constexpr long long kValueLow = static_cast<long long>(kValueStep & 0xFFFFFFFFU);
constexpr long long kValueHigh = static_cast<long long>(kValueStep >> 32);

// The low halves of the lanes times kValueStep.
RESHARD_AVX2 inline __m256i times_value_step_low(__m256i lanes) {
  const __m256i high = _mm256_mul_epu32(lanes, _mm256_set1_epi64x(kValueHigh));
  return _mm256_add_epi64(_mm256_mul_epu32(lanes, _mm256_set1_epi64x(kValueLow)),
                          _mm256_slli_epi64(high, 32));
}

// The high halves of the lanes times kValueStep; a 32-bit product in place saves the shift.
RESHARD_AVX2 inline __m256i times_value_step_high(__m256i lanes) {
  const __m256i high = _mm256_mullo_epi32(lanes, _mm256_set1_epi64x(kValueHigh << 32));
  const __m256i low = _mm256_mul_epu32(high_halves(lanes), _mm256_set1_epi64x(kValueLow));
  return _mm256_add_epi64(low, high);
}

// Whole 64-bit lanes times kValueStep: both cross products come from one 32-bit multiplication.
RESHARD_AVX2 inline __m256i times_value_step(__m256i lanes) {
  const __m256i swapped = _mm256_set1_epi64x(kValueHigh | (kValueLow << 32));
  const __m256i cross = _mm256_mullo_epi32(lanes, swapped);
  const __m256i high = _mm256_add_epi32(cross, _mm256_slli_epi64(cross, 32));
  const __m256i low = _mm256_mul_epu32(lanes, _mm256_set1_epi64x(kValueLow));
  return _mm256_add_epi64(low, _mm256_blend_epi32(high, _mm256_setzero_si256(), 0x55));
}

RESHARD_AVX2 inline __m256i term_of(__m256i first, const std::uint64_t* lane_terms) {
  return _mm256_add_epi64(first, _mm256_load_si256(reinterpret_cast<const __m256i*>(lane_terms)));
}

// Eight elements, zero-extended to 32 bits each.
RESHARD_AVX2 inline void add_pairs(Sums& sums, __m256i pairs, __m256i first,
                                   const std::uint64_t* low_terms,
                                   const std::uint64_t* high_terms) {
  add_mixed(sums, term_of(first, low_terms), times_value_step_low(pairs));
  add_mixed(sums, term_of(first, high_terms), times_value_step_high(pairs));
}

// All elements in 32 bytes. Elements stay in their lanes: only masks and shifts take them apart,
// and the lane terms follow them.
template <int width>
RESHARD_AVX2 inline void add_32_bytes(Sums& sums, __m256i bytes, __m256i first,
                                      const std::uint64_t (*terms)[4]) {
  if constexpr (width == 8) {
    add_mixed(sums, term_of(first, terms[0]), times_value_step(bytes));
  } else if constexpr (width == 4) {
    add_pairs(sums, bytes, first, terms[0], terms[1]);
  } else if constexpr (width == 2) {
    const __m256i even = _mm256_blend_epi16(bytes, _mm256_setzero_si256(), 0xAA);
    add_pairs(sums, even, first, terms[0], terms[2]);
    add_pairs(sums, _mm256_srli_epi32(bytes, 16), first, terms[1], terms[3]);
  } else {
    const __m256i mask = _mm256_set1_epi32(0xFF);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi32(bytes, 8), mask);
    const __m256i third = _mm256_and_si256(_mm256_srli_epi32(bytes, 16), mask);
    add_pairs(sums, _mm256_and_si256(bytes, mask), first, terms[0], terms[4]);
    add_pairs(sums, second, first, terms[1], terms[5]);
    add_pairs(sums, third, first, terms[2], terms[6]);
    add_pairs(sums, _mm256_srli_epi32(bytes, 24), first, terms[3], terms[7]);
  }
}

RESHARD_AVX2 inline std::uint64_t total_of(const Sums& sums) {
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                     _mm256_add_epi64(sums.products, sums.values));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace

template <int width>
RESHARD_AVX2 std::uint64_t RunMixer::sum_vectors(const RunMixer& mixer, const std::byte* run,
                                                 std::int64_t count, std::uint64_t index_term) {
  constexpr std::int64_t at_once = 32 / width;
  Sums sums = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const std::uint64_t step = mixer.term_step_ * at_once;
  const __m256i steps = _mm256_set1_epi64x(static_cast<long long>(step));
  __m256i first = _mm256_set1_epi64x(static_cast<long long>(index_term));
  const std::int64_t whole = count / at_once;
  for (std::int64_t i = 0; i < whole; ++i) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(run) + i);
    add_32_bytes<width>(sums, bytes, first, mixer.lane_terms_);
    first = _mm256_add_epi64(first, steps);
  }
  return total_of(sums) + sum_plain<width>(mixer, run + whole * 32, count - whole * at_once,
                                           index_term + step * static_cast<std::uint64_t>(whole));
}
#endif  // defined(__x86_64__)

template <int width>
RunMixer::Function RunMixer::choose() {
#if defined(__x86_64__)
  if (cpu_features().avx2) return sum_vectors<width>;
#endif
  return sum_plain<width>;
}

RunMixer::RunMixer(std::int64_t width, std::uint64_t index_step)
    : term_step_(index_step * kIndexStep),
      function_(width == 1   ? choose<1>()
                : width == 2 ? choose<2>()
                : width == 4 ? choose<4>()
                             : choose<8>()) {
  const auto per_lane = static_cast<std::uint64_t>(8 / width);
  for (std::uint64_t j = 0; j < 8; ++j) {
    for (std::uint64_t lane = 0; lane < 4; ++lane) {
      lane_terms_[j][lane] = (lane * per_lane + j) * term_step_;
    }
  }
}

}  // namespace reshard

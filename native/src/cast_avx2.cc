#include "cast_avx2.h"

#include "cast_plain.h"
#include "cpu_features.h"
#include "pack_prefetch.h"
#include "pack_stores.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reshard {

#if defined(__x86_64__)
namespace {

#define RESHARD_AVX2 __attribute__((target("avx2,f16c")))

// Every pair goes through 16 floats in two registers. Lanes<dtype> loads and stores 16 elements.
struct Floats16 {
  __m256 low;
  __m256 high;
};

template <DType dtype>
struct Lanes;

RESHARD_AVX2 inline __m256i load_32(const std::byte* src) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
}

RESHARD_AVX2 inline __m128i load_16(const std::byte* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}

template <bool streaming>
RESHARD_AVX2 inline void store_32(std::byte* dst, __m256i value) {
  auto* const to = reinterpret_cast<__m256i*>(dst);
  if constexpr (streaming) return _mm256_stream_si256(to, value);
  _mm256_storeu_si256(to, value);
}

template <bool streaming>
RESHARD_AVX2 inline void store_16(std::byte* dst, __m128i value) {
  auto* const to = reinterpret_cast<__m128i*>(dst);
  if constexpr (streaming) return _mm_stream_si128(to, value);
  _mm_storeu_si128(to, value);
}

// Zero-extended 32-bit lanes to 16 or 8 bits, in order; the values fit.
RESHARD_AVX2 inline __m256i narrow_to_16(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
}

RESHARD_AVX2 inline __m128i narrow_to_8(__m256i low, __m256i high) {
  const __m256i words = narrow_to_16(low, high);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

template <>
struct Lanes<DType::kF32> {
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    return {_mm256_castsi256_ps(load_32(src)), _mm256_castsi256_ps(load_32(src + 32))};
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    store_32<streaming>(dst, _mm256_castps_si256(floats.low));
    store_32<streaming>(dst + 32, _mm256_castps_si256(floats.high));
  }
};

template <>
struct Lanes<DType::kF64> {
  RESHARD_AVX2 static __m128 load_4(const std::byte* src) {
    return _mm256_cvtpd_ps(_mm256_castsi256_pd(load_32(src)));
  }
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    return {_mm256_set_m128(load_4(src + 32), load_4(src)),
            _mm256_set_m128(load_4(src + 96), load_4(src + 64))};
  }
  template <bool streaming>
  RESHARD_AVX2 static void store_4(std::byte* dst, __m128 floats) {
    store_32<streaming>(dst, _mm256_castpd_si256(_mm256_cvtps_pd(floats)));
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    store_4<streaming>(dst, _mm256_castps256_ps128(floats.low));
    store_4<streaming>(dst + 32, _mm256_extractf128_ps(floats.low, 1));
    store_4<streaming>(dst + 64, _mm256_castps256_ps128(floats.high));
    store_4<streaming>(dst + 96, _mm256_extractf128_ps(floats.high, 1));
  }
};

template <>
struct Lanes<DType::kF16> {
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    return {_mm256_cvtph_ps(load_16(src)), _mm256_cvtph_ps(load_16(src + 16))};
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    store_16<streaming>(dst, _mm256_cvtps_ph(floats.low, _MM_FROUND_TO_NEAREST_INT));
    store_16<streaming>(dst + 16, _mm256_cvtps_ph(floats.high, _MM_FROUND_TO_NEAREST_INT));
  }
};

template <>
struct Lanes<DType::kBF16> {
  RESHARD_AVX2 static __m256 load_8(const std::byte* src) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(src)), 16));
  }
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    return {load_8(src), load_8(src + 16)};
  }

  RESHARD_AVX2 static __m256i round(__m256 floats) {
    const __m256i bits = _mm256_castps_si256(floats);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  }
  RESHARD_AVX2 static __m256i replace_nans(__m256i rounded, __m256 floats) {
    const __m256i bits = _mm256_castps_si256(floats);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
    const __m256i quiet = _mm256_or_si256(sign, _mm256_set1_epi32(0x7FC0));
    const __m256 is_nan = _mm256_cmp_ps(floats, floats, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    __m256i low = round(floats.low);
    __m256i high = round(floats.high);
    const __m256 any_nan = _mm256_cmp_ps(floats.low, floats.high, _CMP_UNORD_Q);
    if (__builtin_expect(_mm256_movemask_ps(any_nan) != 0, 0)) {
      low = replace_nans(low, floats.low);
      high = replace_nans(high, floats.high);
    }
    store_32<streaming>(dst, narrow_to_16(low, high));
  }
};

// The rounding of round_to_narrow. Adding the float whose unit in the last place is the narrow
// format's subnormal unit makes the processor round a subnormal to it.
template <int mantissa, int bias>
RESHARD_AVX2 inline __m256i round_to_narrow_lanes(__m256i magnitude) {
  constexpr int drop = 23 - mantissa;
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, drop), _mm256_set1_epi32(1));
  constexpr int rebias = ((bias - 127) * (1 << 23)) + (1 << (drop - 1)) - 1;
  const __m256i biased = _mm256_add_epi32(magnitude, _mm256_set1_epi32(rebias));
  const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(biased, odd), drop);
  const __m256i unit = _mm256_set1_epi32((1 - bias - mantissa + 23 + 127) << 23);
  const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(unit));
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), unit);
  const __m256i min_normal = _mm256_set1_epi32((128 - bias) << 23);
  return _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(min_normal, magnitude));
}

// `limit` is the first float32 magnitude that rounds to more than the largest finite value.
template <int mantissa, int bias, int limit, int overflow>
RESHARD_AVX2 inline __m256i encode_f8(__m256 floats) {
  const __m256i bits = _mm256_castps_si256(floats);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  __m256i narrow = round_to_narrow_lanes<mantissa, bias>(magnitude);
  const __m256i is_over = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(limit - 1));
  narrow = _mm256_blendv_epi8(narrow, _mm256_set1_epi32(overflow), is_over);
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  narrow = _mm256_blendv_epi8(narrow, _mm256_set1_epi32(0x7F), is_nan);
  return _mm256_or_si256(sign, narrow);
}

template <>
struct Lanes<DType::kF8E4M3FN> {
  // The magnitude's bits, moved to a float32's place, are the value times 2**-120.
  RESHARD_AVX2 static __m256 decode(__m128i bytes) {
    const __m256i bits = _mm256_cvtepu8_epi32(bytes);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(bits, magnitude), 24);
    const __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23));
    const __m256 scaled =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), scale);
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    const __m256i value =
        _mm256_blendv_epi8(_mm256_castps_si256(scaled), _mm256_set1_epi32(0x7FF00000), is_nan);
    return _mm256_castsi256_ps(_mm256_or_si256(sign, value));
  }
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    const __m128i bytes = load_16(src);
    return {decode(bytes), decode(_mm_srli_si128(bytes, 8))};
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    constexpr int limit = 0x43E80000;  // 464
    store_16<streaming>(dst, narrow_to_8(encode_f8<3, 7, limit, 0x7E>(floats.low),
                                         encode_f8<3, 7, limit, 0x7E>(floats.high)));
  }
};

template <>
struct Lanes<DType::kF8E5M2> {
  RESHARD_AVX2 static Floats16 load(const std::byte* src) {
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16(src)), 8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  template <bool streaming>
  RESHARD_AVX2 static void store(std::byte* dst, const Floats16& floats) {
    constexpr int limit = 0x47800000;  // 65536
    store_16<streaming>(dst, narrow_to_8(encode_f8<2, 15, limit, 0x7C>(floats.low),
                                         encode_f8<2, 15, limit, 0x7C>(floats.high)));
  }
};

template <DType dtype>
constexpr auto kWidth = static_cast<std::int64_t>(sizeof(typename Codec<dtype>::Bits));

// How far ahead a long run is prefetched. The hardware prefetcher stops at the end of a page, and
// a conversion keeps too many instructions in flight to run ahead of its loads by itself.
constexpr std::int64_t kAhead = 16 * 1024;

template <DType from, DType to, bool streaming, bool prefetching>
RESHARD_AVX2 void cast_blocks(const std::byte* in, std::byte* out, std::int64_t blocks) {
  constexpr std::int64_t in_step = 16 * kWidth<from>;
  constexpr std::int64_t out_step = 16 * kWidth<to>;
  for (std::int64_t i = 0; i + 2 <= blocks; i += 2) {
    if constexpr (prefetching) {
      for (std::int64_t at = 0; at < 2 * in_step; at += 64) {
        prefetch_near(in + kAhead + at);
      }
    }
    const Floats16 first = Lanes<from>::load(in);
    const Floats16 second = Lanes<from>::load(in + in_step);
    Lanes<to>::template store<streaming>(out, first);
    Lanes<to>::template store<streaming>(out + out_step, second);
    in += 2 * in_step;
    out += 2 * out_step;
  }
  if (blocks % 2 != 0) Lanes<to>::template store<streaming>(out, Lanes<from>::load(in));
}

template <DType from, DType to, bool streaming>
void cast_prefetched(const std::byte* in, std::byte* out, std::int64_t blocks) {
  constexpr std::int64_t ahead = kAhead / (16 * kWidth<from>);
  const std::int64_t first = blocks > ahead ? (blocks - ahead) / 2 * 2 : 0;
  cast_blocks<from, to, streaming, true>(in, out, first);
  cast_blocks<from, to, streaming, false>(in + first * 16 * kWidth<from>,
                                          out + first * 16 * kWidth<to>, blocks - first);
}

// Streaming needs aligned stores; runs whose elements never meet an alignment are cached.
template <DType from, DType to>
void cast_run(const std::byte* in, std::byte* out, std::int64_t count, bool streaming) {
  constexpr std::int64_t in_size = kWidth<from>;
  constexpr std::int64_t out_size = kWidth<to>;
  const auto over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64);
  std::int64_t done = 0;
  if (streaming && count * out_size >= kMinStreamingRun && over % out_size == 0) {
    const std::int64_t head = over == 0 ? 0 : (64 - over) / out_size;
    cast_plain<from, to>(in, out, head, false);
    const std::int64_t blocks = (count - head) / 16;
    cast_prefetched<from, to, true>(in + head * in_size, out + head * out_size, blocks);
    done = head + blocks * 16;
  } else {
    cast_prefetched<from, to, false>(in, out, count / 16);
    done = count / 16 * 16;
  }
  cast_plain<from, to>(in + done * in_size, out + done * out_size, count - done, false);
}

struct VectorCast {
  template <DType from, DType to>
  static CastFunction function() {
    return cast_run<from, to>;
  }
};

}  // namespace

CastFunction vector_cast(DType from, DType to) {
  const CpuFeatures features = cpu_features();
  if (!features.avx2 || !features.f16c) return nullptr;
  return select_cast<VectorCast>(from, to);
}

#else

CastFunction vector_cast(DType /*from*/, DType /*to*/) { return nullptr; }

#endif  // defined(__x86_64__)

}  // namespace reshard

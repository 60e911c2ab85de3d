#include "pack_rows.h"

#include <cstring>

#include "pack_moves.h"
#include "pack_prefetch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu_features.h"
#endif

namespace reshard {
namespace {

// How far ahead of the copy its memory is prefetched, in copy order. The hardware follows one run
// but cannot guess where the next one starts, nor what comes after the end of a page.
constexpr std::int64_t kAhead = 8192;
constexpr std::int64_t kAheadOfShortRuns = 2048;

// Prefetches the side or sides of short runs that are not dense.
class ShortRunsAhead {
 public:
  ShortRunsAhead(std::int64_t dst_step, std::int64_t src_step, std::int64_t count, std::int64_t run)
      : run_(run),
        rows_(kAheadOfShortRuns / run),
        end_(count - rows_),
        dst_ahead_(dst_step == run ? 0 : rows_ * dst_step),
        src_ahead_(src_step == run ? 0 : rows_ * src_step) {}

  void fetch(std::int64_t i, const std::byte* dst, const std::byte* src) const {
    if (i >= end_) return;
    if (src_ahead_ != 0) prefetch_run_far(src + src_ahead_, run_);
    if (dst_ahead_ != 0) prefetch_run_far(dst + dst_ahead_, run_);
  }

 private:
  const std::int64_t run_;
  const std::int64_t rows_;
  const std::int64_t end_;
  const std::int64_t dst_ahead_;
  const std::int64_t src_ahead_;
};

// Runs below this are prefetched by the processor or share their cache lines.
constexpr std::int64_t kMinFetchedRun = 32;

template <std::int64_t width>
void rows_of_width(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                   std::int64_t src_step, std::int64_t count, std::int64_t /*run*/) {
  const ShortRunsAhead ahead(dst_step, src_step, count, width);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (width >= kMinFetchedRun) ahead.fetch(i, dst, src);
    move<width>(dst, src);
    dst += dst_step;
    src += src_step;
  }
}

template <std::int64_t width>
void rows_of_pair(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                  std::int64_t src_step, std::int64_t count, std::int64_t run) {
  const ShortRunsAhead ahead(dst_step, src_step, count, run);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (width >= kMinFetchedRun) ahead.fetch(i, dst, src);
    move_pair<width>(dst, src, run);
    dst += dst_step;
    src += src_step;
  }
}

// run >= 64.
void rows_of_blocks(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                    std::int64_t src_step, std::int64_t count, std::int64_t run) {
  const ShortRunsAhead ahead(dst_step, src_step, count, run);
  for (std::int64_t i = 0; i < count; ++i) {
    ahead.fetch(i, dst, src);
    for (std::int64_t at = 0; at + 64 < run; at += 64) move<64>(dst + at, src + at);
    move<64>(dst + run - 64, src + run - 64);
    dst += dst_step;
    src += src_step;
  }
}

void rows_of_memcpy(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                    std::int64_t src_step, std::int64_t count, std::int64_t run) {
  const std::int64_t rows_ahead = run < kAhead ? kAhead / run : 1;
  const std::int64_t fetched = run < kAhead ? run : kAhead;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + rows_ahead < count) prefetch_run_far(src + rows_ahead * src_step, fetched);
    std::memcpy(dst, src, static_cast<std::size_t>(run));
    dst += dst_step;
    src += src_step;
  }
}

#if defined(__x86_64__)

constexpr std::int64_t kCacheLine = 64;

// Copies whole cache lines to aligned `dst`, prefetching as many from `ahead`.
__attribute__((target("avx2"))) void stream_lines(std::byte* dst, const std::byte* src,
                                                  std::int64_t size, const std::byte* ahead) {
  for (std::int64_t at = 0; at < size; at += kCacheLine) {
    prefetch_near(ahead + at);
    const auto* const from = reinterpret_cast<const __m256i*>(src + at);
    auto* const to = reinterpret_cast<__m256i*>(dst + at);
    const __m256i low = _mm256_loadu_si256(from);
    const __m256i high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
}

// One run; `next` is the start of the run to prefetch at its end. The lines that it shares with its
// neighbours are written with cached stores.
void stream_run(std::byte* dst, const std::byte* src, std::int64_t size, const std::byte* next) {
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(dst) % 64);
  const std::int64_t head = misaligned == 0 ? 0 : kCacheLine - misaligned;
  move_below_64(dst, src, head);
  std::int64_t at = head;
  const std::int64_t end = head + (size - head) / kCacheLine * kCacheLine;
  while (at < end) {
    const std::int64_t part = end - at < kAhead ? end - at : kAhead;
    const std::byte* const ahead = end - at > kAhead ? src + at + kAhead : next;
    stream_lines(dst + at, src + at, part, ahead);
    at += part;
  }
  move_below_64(dst + end, src + end, size - end);
}

void rows_of_streams(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                     std::int64_t src_step, std::int64_t count, std::int64_t run) {
  const std::int64_t rows_ahead = run < kAhead ? kAhead / run : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool has_next = i + rows_ahead < count;
    // A streaming store waits for the page's translation; one line brings it in time.
    if (has_next && dst_step != run) prefetch_far(dst + rows_ahead * dst_step);
    stream_run(dst, src, run, has_next ? src + rows_ahead * src_step : src);
    dst += dst_step;
    src += src_step;
  }
}

#endif  // defined(__x86_64__)

}  // namespace

#if defined(__x86_64__)
void fence_streaming_stores() { _mm_sfence(); }
#else
void fence_streaming_stores() {}
#endif

void copy_run(std::byte* dst, const std::byte* src, std::int64_t size, Stores stores) {
  if (size < 64) return move_below_64(dst, src, size);
  rows_function(size, stores)(dst, 0, src, 0, 1, size);
}

RowsFunction rows_function(std::int64_t run, Stores stores) {
  switch (run) {
    case 1:
      return rows_of_width<1>;
    case 2:
      return rows_of_width<2>;
    case 4:
      return rows_of_width<4>;
    case 8:
      return rows_of_width<8>;
    case 16:
      return rows_of_width<16>;
    case 32:
      return rows_of_width<32>;
    default:
      break;
  }
  if (run < 4) return rows_of_pair<2>;
  if (run < 8) return rows_of_pair<4>;
  if (run < 16) return rows_of_pair<8>;
  if (run < 32) return rows_of_pair<16>;
  if (run < 64) return rows_of_pair<32>;
  if (run < kMinStreamingRun) return rows_of_blocks;
#if defined(__x86_64__)
  if (stores == Stores::kStreaming && cpu_features().avx2) return rows_of_streams;
#else
  static_cast<void>(stores);
#endif
  return rows_of_memcpy;
}

}  // namespace reshard

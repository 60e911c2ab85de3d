// How fast pack and unpack are beside memcpy, measured in turns in one process on one thread.
//
//   pack_speed [--quick] [--cpu-time] [--huge-pages] [part of a case's name]
//
// Every case is verified element by element before it is timed. The ratio compares traffic (bytes
// read plus bytes written per second) with that of memcpy, so that casts compare too. "whole" is
// one call; "chunked" is one call per 256 KiB of wire, as the executor cuts; "slots" is chunked,
// with the wire in four slots of 256 KiB that are used in turn and cached stores into them.
// --cpu-time counts the thread's processor time instead of wall time: for machines that others use
// meanwhile.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cast.h"
#include "cpu_features.h"
#include "pack.h"

namespace reshard {
namespace {

constexpr std::int64_t kPayload = 64 * 1024 * 1024;
constexpr std::int64_t kChunk = 256 * 1024;
constexpr std::int64_t kNumSlots = 4;
constexpr std::int64_t kMemory = 4 * kPayload + 4096 * 1024;

enum class Direction { kPack, kUnpack };
enum class Cut { kWhole, kChunked, kSlots };

struct Options {
  bool quick = false;
  bool cpu_time = false;
  bool huge_pages = false;
  std::string only;  // part of the names of the cases to run
};

struct Case {
  std::string name;
  StridedBox box;
  DType mem;
  DType wire;
  Direction direction;
  double target;  // 0: none
};

struct Buffers {
  std::byte* memory;
  std::byte* wire;
  std::byte* expected;
};

struct Timing {
  double min;
  double median;
  double max;
};

std::byte* allocate(std::int64_t size, const Options& options) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::size_t pages = (static_cast<std::size_t>(size) + huge_page - 1) / huge_page;
  const std::size_t rounded = pages * huge_page;
  void* const pointer = std::aligned_alloc(huge_page, rounded);
  if (pointer == nullptr) {
    std::fprintf(stderr, "pack_speed: no memory for %zu bytes\n", rounded);
    std::exit(1);
  }
  madvise(pointer, rounded, options.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(pointer, 0, rounded);
  return static_cast<std::byte*>(pointer);
}

double seconds(const Options& options) {
  if (options.cpu_time) {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void run_case(const Case& test, Cut cut, const Buffers& buffers) {
  const std::int64_t width = size_of(test.wire);
  const std::int64_t total = num_elements(test.box);
  const std::int64_t step = cut == Cut::kWhole ? total : kChunk / width;
  std::int64_t slot = 0;
  for (std::int64_t first = 0; first < total; first += step) {
    const std::int64_t count = std::min(step, total - first);
    std::byte* wire = buffers.wire + first * width;
    if (cut == Cut::kSlots) wire = buffers.wire + (slot++ % kNumSlots) * kChunk;
    if (test.direction == Direction::kPack) {
      const Stores stores = cut == Cut::kSlots ? Stores::kCached : Stores::kStreaming;
      pack(test.box, buffers.memory, test.mem, test.wire, first, count, wire, stores);
    } else {
      unpack(test.box, buffers.memory, test.mem, test.wire, first, count, wire);
    }
  }
}

std::uint64_t hash(std::uint64_t value) {
  value *= 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93U;
  return value ^ (value >> 32);
}

// Hashed bits, with exponents that no cast of ours overflows.
void fill(std::byte* bytes, std::int64_t size, DType dtype) {
  for (std::int64_t i = 0; i < size; i += 4) {
    auto bits = static_cast<std::uint32_t>(hash(static_cast<std::uint64_t>(i)) >> 32);
    if (dtype == DType::kF32) bits = (bits & 0x807FFFFFU) | 0x3F800000U;
    std::memcpy(bytes + i, &bits, sizeof(bits));
  }
}

void convert_one(const std::byte* from, DType from_type, std::byte* to, DType to_type) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(size_of(to_type)));
  } else {
    cast_function(from_type, to_type)(from, to, 1, false);
  }
}

// Calls visit(wire offset, memory offset) for every element of a box of two or three dims.
template <typename Visit>
void for_each_element(const Case& test, const Visit& visit) {
  StridedBox box = test.box;
  while (box.ndim < 3) {
    std::copy_backward(box.size, box.size + box.ndim, box.size + box.ndim + 1);
    std::copy_backward(box.stride, box.stride + box.ndim, box.stride + box.ndim + 1);
    box.size[0] = 1;
    ++box.ndim;
  }
  std::int64_t wire = 0;
  for (std::int64_t i = 0; i < box.size[0]; ++i) {
    for (std::int64_t j = 0; j < box.size[1]; ++j) {
      for (std::int64_t k = 0; k < box.size[2]; ++k) {
        visit(wire, i * box.stride[0] + j * box.stride[1] + k * box.stride[2]);
        wire += size_of(test.wire);
      }
    }
  }
}

// Compares one run with a loop over elements. Slots keep only the last chunks, so that way of
// cutting is covered by "chunked", which makes the same calls.
bool verify(const Case& test, Cut cut, const Buffers& buffers) {
  const std::int64_t wire_size = num_elements(test.box) * size_of(test.wire);
  bool equal = true;
  if (test.direction == Direction::kPack) {
    fill(buffers.memory, kMemory, test.mem);
    std::memset(buffers.wire, 0, static_cast<std::size_t>(wire_size));
    run_case(test, cut, buffers);
    for_each_element(test, [&](std::int64_t wire, std::int64_t memory) {
      convert_one(buffers.memory + memory, test.mem, buffers.expected + wire, test.wire);
    });
    equal = std::memcmp(buffers.expected, buffers.wire, static_cast<std::size_t>(wire_size)) == 0;
  } else {
    fill(buffers.wire, wire_size, test.wire);
    std::memset(buffers.memory, 0, static_cast<std::size_t>(kMemory));
    run_case(test, cut, buffers);
    for_each_element(test, [&](std::int64_t wire, std::int64_t memory) {
      std::byte expected[16] = {};
      convert_one(buffers.wire + wire, test.wire, expected, test.mem);
      const auto size = static_cast<std::size_t>(size_of(test.mem));
      equal = equal && std::memcmp(expected, buffers.memory + memory, size) == 0;
    });
  }
  if (!equal) std::fprintf(stderr, "pack_speed: %s gives wrong bytes\n", test.name.c_str());
  return equal;
}

Timing summarize(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], times.back()};
}

StridedBox rows(std::int64_t run, DType dtype) {
  const std::int64_t width = size_of(dtype);
  return {2, {kPayload / run, run / width}, {4 * run, width}};
}

// The wire is row-major, memory is its transpose.
StridedBox transposed(std::int64_t size, DType dtype, std::int64_t padding) {
  const std::int64_t width = size_of(dtype);
  return {2, {size, size}, {width, (size + padding) * width}};
}

std::vector<Case> make_cases() {
  constexpr DType bf16 = DType::kBF16;
  constexpr DType f32 = DType::kF32;
  const StridedBox flat = {1, {kPayload / 2}, {2}};
  const StridedBox flat_f32 = {1, {kPayload / 4}, {4}};
  // Memory (embed, heads, head_dim) of 4096, 32, 128; wire (heads, head_dim, embed).
  const StridedBox to_rows = {3, {32, 128, 4096}, {256, 2, 8192}};
  // Memory (heads, head_dim, embed); wire (heads, embed, head_dim).
  const StridedBox in_heads = {3, {32, 4096, 128}, {128 * 8192, 2, 8192}};
  std::vector<Case> cases;
  for (const Direction direction : {Direction::kPack, Direction::kUnpack}) {
    const auto add = [&](const std::string& name, const StridedBox& box, DType mem, DType wire,
                         double target) {
      const char* const verb = direction == Direction::kPack ? "pack " : "unpack ";
      cases.push_back({verb + name, box, mem, wire, direction, target});
    };
    add("contiguous", flat, bf16, bf16, 1.3);
    add("rows 64 KiB", rows(65536, bf16), bf16, bf16, 1.0);
    add("rows 4 KiB", rows(4096, bf16), bf16, bf16, 0.7);
    add("rows 512 B", rows(512, bf16), bf16, bf16, 0.4);
    add("rows 1000 B", rows(1000, bf16), bf16, bf16, 0);
    add("rows 64 B", rows(64, bf16), bf16, bf16, 0);
    add("transpose bf16", transposed(4096, bf16, 0), bf16, bf16, 0.3);
    add("transpose bf16 +64 B", transposed(4096, bf16, 32), bf16, bf16, 0.3);
    add("transpose bf16 4100", transposed(4100, bf16, 0), bf16, bf16, 0);
    add("transpose f32", transposed(4096, f32, 0), f32, f32, 0.3);
    add("transpose u8", transposed(4096, DType::kU8, 0), DType::kU8, DType::kU8, 0);
    add("embed last bf16", to_rows, bf16, bf16, 0.3);
    add("swap in heads bf16", in_heads, bf16, bf16, 0.3);
    if (direction == Direction::kPack) {
      add("f32 as bf16", flat_f32, f32, bf16, 1.2);
      add("transposed f32 as bf16", transposed(4096, f32, 0), f32, bf16, 0);
    } else {
      add("bf16 into f32", flat_f32, f32, bf16, 0);
      add("bf16 into transposed f32", transposed(4096, f32, 0), f32, bf16, 0);
    }
  }
  return cases;
}

const char* name_of_cut(Cut cut) {
  return cut == Cut::kWhole ? "whole" : cut == Cut::kChunked ? "chunked" : "slots";
}

// Many boxes of 64 rows of 8 bytes, as from Shard(0) to Shard(1) of (256, 16) bfloat16.
void time_small_boxes(const Buffers& buffers, const Options& options) {
  constexpr std::int64_t num_boxes = 1000;
  const StridedBox box = {2, {64, 4}, {32, 2}};
  for (const Direction direction : {Direction::kPack, Direction::kUnpack}) {
    std::vector<double> times;
    for (int round = 0; round < 20; ++round) {
      const double begin = seconds(options);
      for (std::int64_t i = 0; i < num_boxes; ++i) {
        std::byte* const memory = buffers.memory + i * 256 * 32;
        std::byte* const wire = buffers.wire + i * 512;
        if (direction == Direction::kPack) {
          pack(box, memory, DType::kBF16, DType::kBF16, 0, 256, wire);
        } else {
          unpack(box, memory, DType::kBF16, DType::kBF16, 0, 256, wire);
        }
      }
      times.push_back((seconds(options) - begin) / num_boxes * 1e9);
    }
    const Timing timing = summarize(times);
    std::printf("%-30s %-8s ns per box: min %.0f median %.0f max %.0f\n",
                direction == Direction::kPack ? "pack 64 rows of 8 B" : "unpack 64 rows of 8 B",
                "1000", timing.min, timing.median, timing.max);
  }
}

constexpr Cut kCuts[] = {Cut::kWhole, Cut::kChunked, Cut::kSlots};
constexpr std::size_t kNumCuts = 3;

struct Measurement {
  Timing copy;
  std::vector<Timing> cases;  // of case i and cut j at i * kNumCuts + j
};

// All cases in turn, round after round, with memcpy among them. Every timed run follows an untimed
// one of the same kind: what a run leaves unwritten in the caches, memcpy most of all, is paid for
// by the next, so that must be one of its own.
Measurement measure(const std::vector<Case>& cases, const Buffers& buffers,
                    const Options& options) {
  const int warm_ups = options.quick ? 1 : 5;
  const int rounds = options.quick ? 2 : 15;
  std::vector<double> copy_times;
  std::vector<std::vector<double>> times(cases.size() * kNumCuts);
  for (int round = -warm_ups; round < rounds; ++round) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (i % 12 == 0) {
        std::memcpy(buffers.memory, buffers.wire, static_cast<std::size_t>(kPayload));
        const double begin = seconds(options);
        std::memcpy(buffers.memory, buffers.wire, static_cast<std::size_t>(kPayload));
        if (round >= 0) copy_times.push_back(seconds(options) - begin);
      }
      run_case(cases[i / kNumCuts], kCuts[i % kNumCuts], buffers);
      const double begin = seconds(options);
      run_case(cases[i / kNumCuts], kCuts[i % kNumCuts], buffers);
      if (round >= 0) times[i].push_back(seconds(options) - begin);
    }
  }
  Measurement measurement = {summarize(copy_times), {}};
  for (std::vector<double>& each : times) measurement.cases.push_back(summarize(each));
  return measurement;
}

void print_row(const std::string& name, const char* cut, const Timing& timing, double nbytes) {
  std::printf("%-30s %-8s %9.2f %9.2f %9.2f %9.2f", name.c_str(), cut, timing.min * 1e3,
              timing.median * 1e3, timing.max * 1e3, nbytes / timing.median / 1e9);
}

void print(const std::vector<Case>& cases, const Measurement& measurement, const Options& options) {
  std::printf("cpu features: %s; %s time; %s pages\n", describe_cpu_features().c_str(),
              options.cpu_time ? "processor" : "wall", options.huge_pages ? "2 MiB" : "4 KiB");
  std::printf("%-30s %-8s %9s %9s %9s %9s %7s %7s\n", "case", "cut", "min ms", "median", "max",
              "GB/s wire", "ratio", "target");
  print_row("memcpy", "whole", measurement.copy, kPayload);
  std::printf(" %7.2f\n", 1.0);
  int missed = 0;
  for (std::size_t i = 0; i < measurement.cases.size(); ++i) {
    const Case& test = cases[i / kNumCuts];
    const Timing& timing = measurement.cases[i];
    const auto elements = static_cast<double>(num_elements(test.box));
    const double wire_bytes = elements * static_cast<double>(size_of(test.wire));
    const double traffic = wire_bytes + elements * static_cast<double>(size_of(test.mem));
    const double ratio = traffic / timing.median / (2.0 * kPayload / measurement.copy.median);
    const bool is_missed = test.target > 0 && ratio < test.target;
    missed += is_missed ? 1 : 0;
    print_row(test.name, name_of_cut(kCuts[i % kNumCuts]), timing, wire_bytes);
    std::printf(" %7.2f %7.2f%s\n", ratio, test.target, is_missed ? " missed" : "");
  }
  std::printf("%d targets missed\n", missed);
}

int run(const Options& options) {
  const Buffers buffers = {allocate(kMemory, options), allocate(kPayload, options),
                           allocate(kPayload, options)};
  std::vector<Case> cases;
  for (const Case& test : make_cases()) {
    if (test.name.find(options.only) != std::string::npos) cases.push_back(test);
  }
  bool all_equal = true;
  for (const Case& test : cases) {
    all_equal = verify(test, Cut::kWhole, buffers) && all_equal;
    all_equal = verify(test, Cut::kChunked, buffers) && all_equal;
  }
  if (!all_equal) return 1;
  print(cases, measure(cases, buffers, options), options);
  time_small_boxes(buffers, options);
  return 0;
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--cpu-time") {
      options.cpu_time = true;
    } else if (argument == "--huge-pages") {
      options.huge_pages = true;
    } else if (argument[0] != '-') {
      options.only = argument;
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--cpu-time] [--huge-pages] [name]\n", argv[0]);
      return 2;
    }
  }
  return reshard::run(options);
}

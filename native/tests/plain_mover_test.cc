// Copies by the driver alone, on its double, against the host's own packing: random boxes, ranges,
// dtypes, alignments and largest pitches, both ways; and how many copies boxes take.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cuda/cuda_double.h"
#include "gpu_mover.h"
#include "move_case.h"
#include "status.h"

namespace reshard_test {
namespace {

using reshard::BoundedStream;
using reshard::CudaAddress;
using reshard::GpuDevice;
using reshard::Move;
using reshard::MoveKind;

std::string violations() {
  std::string text(cudaDoubleViolations(nullptr, 0), '\0');
  text.resize(cudaDoubleViolations(text.data(), text.size()) - 1);
  return text;
}

CudaAddress address_of(Memory& memory) { return reinterpret_cast<CudaAddress>(memory.data()); }

// Memory of the GPU, to the byte: what a copy touches beside it is a violation.
class OnGpu {
 public:
  explicit OnGpu(Memory& memory) : memory_(memory) {
    CHECK(cudaDoubleRegister(memory.data(), memory.size(), 0) == 0, "it is registered already");
  }
  ~OnGpu() { cudaDoubleUnregister(memory_.data()); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  Memory& memory_;
};

// Does the moves of a case by plain copies; returns how many there were. The message is staging
// memory, or else a buffer.
std::size_t run(MoveCase& test, MoveKind kind, Memory& message, bool is_staging, int max_pitch) {
  static const auto driver = std::make_shared<const reshard::CudaDriver>(CUDA_DOUBLE_PATH);
  cudaDoubleSetMaxPitch(max_pitch);
  const GpuDevice device(driver, 0);
  std::vector<std::unique_ptr<OnGpu>> registered;
  for (Memory& memory : test.memory) registered.push_back(std::make_unique<OnGpu>(memory));
  if (message.size() > 0) registered.push_back(std::make_unique<OnGpu>(message));
  reshard::Program program;
  program.operations = test.operations;
  std::vector<CudaAddress> addresses;
  for (Memory& memory : test.memory) addresses.push_back(address_of(memory));
  const auto buffer = static_cast<std::uint32_t>(addresses.size());
  addresses.push_back(is_staging ? 0 : address_of(message));
  std::vector<Move> moves;
  for (std::size_t i = 0; i < test.segments.size(); ++i) {
    const Segment& segment = test.segments[i];
    moves.push_back({segment.operation, segment.first, segment.count, test.message_offsets[i],
                     is_staging ? reshard::kStaging : buffer});
  }
  const auto mover = make_plain_mover(program, device);
  const std::size_t batch = mover->add(kind, moves);
  mover->prepare();
  {
    const GpuDevice::Scope scope(device);
    BoundedStream stream(device);
    mover->set_addresses(addresses, stream.get());
    const reshard::CudaAddress staging = is_staging ? address_of(message) : 0;
    reshard::BatchCursor cursor;
    while (!mover->run(batch, staging, reshard::Role::kPack, stream, cursor)) {
      std::this_thread::yield();
    }
    CHECK(cudaDoubleDrain(60000) == 0, "copies go on and on");
  }
  return mover->num_launches();
}

void check_pack(Random& random, MoveCase& test, int max_pitch) {
  const auto shift = static_cast<std::size_t>(random.between(0, 15));
  Memory actual(static_cast<std::size_t>(test.message_size), shift, 7);
  Memory expected = actual;
  test.pack_on_host(expected);
  run(test, MoveKind::kPack, actual, random.one_in(2), max_pitch);
  CHECK(actual == expected, "pack " + actual.first_difference(expected) + ": " + test.describe());
}

void check_unpack(Random& random, MoveCase& test, int max_pitch) {
  const auto shift = static_cast<std::size_t>(random.between(0, 15));
  Memory message(static_cast<std::size_t>(test.message_size), shift, random.next());
  const std::vector<Memory> expected = test.unpacked_on_host(message);
  run(test, MoveKind::kUnpack, message, random.one_in(2), max_pitch);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(test.memory[i] == expected[i], "unpack, memory " + std::to_string(i) + " " +
                                             test.memory[i].first_difference(expected[i]) + ": " +
                                             test.describe());
  }
}

void test_random_boxes(Random& random, int rounds) {
  for (int round = 0; round < rounds && num_failures() == 0; ++round) {
    const int max_pitch = random.one_in(3) ? static_cast<int>(random.between(40, 400)) : INT_MAX;
    MoveCase any = random_move_case(random, {Strides::kAny, false});
    check_pack(random, any, max_pitch);
    MoveCase distinct = random_move_case(random, {Strides::kDistinct, false});
    check_pack(random, distinct, max_pitch);
    check_unpack(random, distinct, max_pitch);
    CHECK(violations().empty(), violations());
  }
}

// A box of bytes with distinct strides, all of it.
MoveCase whole_box(const StridedBox& box) {
  Operation operation = {};
  operation.memory = operation.wire = DType::kU8;
  operation.box = box;
  operation.elements = num_elements(box);
  std::int64_t size = 1;
  for (int k = 0; k < box.ndim; ++k) {
    const std::int64_t reach = (box.size[k] - 1) * box.stride[k];
    if (reach < 0) operation.offset_bytes -= reach;
    size += std::abs(reach);
  }
  MoveCase test;
  test.operations.push_back(operation);
  test.memory.emplace_back(static_cast<std::size_t>(size), 0, 5);
  test.segments.push_back({0, 0, operation.elements, 0});
  test.message_offsets.push_back(0);
  test.message_size = operation.elements;
  return test;
}

void check_count(const StridedBox& box, std::size_t expected) {
  for (const MoveKind kind : {MoveKind::kPack, MoveKind::kUnpack}) {
    MoveCase test = whole_box(box);
    Memory message(static_cast<std::size_t>(test.message_size), 0, 9);
    const std::size_t count = run(test, kind, message, true, INT_MAX);
    CHECK(count == expected, std::to_string(count) + " copies: " + test.describe());
  }
}

// One copy does rows, and planes that are a whole number of rows apart.
void test_counts() {
  check_count({1, {50}, {1}}, 1);
  check_count({2, {5, 8}, {10, 1}}, 1);
  check_count({3, {4, 5, 8}, {60, 10, 1}}, 1);
  check_count({3, {4, 5, 8}, {65, 10, 1}}, 4);   // planes at no whole number of rows
  check_count({3, {4, 5, 8}, {8, 100, 1}}, 4);   // planes between the rows of others
  check_count({3, {4, 5, 8}, {120, 20, 2}}, 4);  // bytes are rows, rows are planes
  check_count({2, {5, 8}, {10, -1}}, 40);        // no copy goes backwards
  check_count({4, {2, 3, 4, 8}, {1000, 200, 20, 1}}, 2);
  check_count({5, {2, 3, 4, 5, 8}, {9000, 2000, 400, 20, 1}}, 6);
}

void test_what_changes_is_refused() {
  MoveCase test = whole_box({1, {50}, {1}});
  test.operations[0].memory = test.operations[0].wire = DType::kF8E5M2;
  test.operations[0].affine.source.offset = 1.0;
  Memory message(static_cast<std::size_t>(test.message_size), 0, 9);
  std::string told;
  try {
    run(test, MoveKind::kPack, message, true, INT_MAX);
  } catch (const reshard::Error& error) {
    told = error.message();
  }
  CHECK(
      told.find("to change the values of float8_e5m2 takes compiled kernels") != std::string::npos,
      told);
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) {
  using namespace reshard_test;
  setenv("CUDA_DOUBLE_DEVICES", "1", 1);
  setenv("CUDA_DOUBLE_MAX_DELAY_US", "0", 1);
  Random random(start(argc, argv));
  test_random_boxes(random, 150);
  test_counts();
  test_what_changes_is_refused();
  CHECK(violations().empty(), violations());
  return finish();
}

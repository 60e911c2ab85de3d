// The double of the CUDA driver: that it works, and that each of its rules is enforced.
#include <array>
#include <cstdint>
#include <memory>

#include "doubles/world.h"

namespace reshard_test {
namespace {

constexpr std::array<const char*, 7> kLive{
    "allocated_bytes", "pinned_bytes", "allocations", "streams", "events", "modules", "contexts"};

void check_nothing_is_left() {
  for (const char* name : kLive) CHECK(cudaDoubleGet(name, -1) == 0, name);
  CHECK_TRUE(becomes([] { return cudaDoubleGet("threads", -1) == 0; }));
}

void copy(const Memory& dst, const Memory& src, std::size_t nbytes, const Stream& stream) {
  CHECK_EQ(cuMemcpyDtoDAsync_v2(dst.address(), src.address(), nbytes, stream.get()), 0);
}

// A copy on a second stream of what three copies on a first one made; how often it was wrong.
int num_wrong(bool with_event) {
  cudaDoubleSetDelay(7, 20000);
  constexpr std::size_t kNumBytes = 4096;
  int wrong = 0;
  for (unsigned round = 0; round < 5; ++round) {
    const Stream first;
    const Stream second;
    const Memory source(hashed_bytes(kNumBytes, round));
    const Memory one(kNumBytes);
    const Memory two(kNumBytes);
    const Memory result(kNumBytes);
    CUevent event = nullptr;
    CHECK_EQ(cuEventCreate(&event, 2), 0);
    copy(one, source, kNumBytes, first);
    copy(two, one, kNumBytes, first);
    CHECK_EQ(cuEventRecord(event, first.get()), 0);
    if (with_event) CHECK_EQ(cuStreamWaitEvent(second.get(), event, 0), 0);
    copy(result, two, kNumBytes, second);
    CHECK_TRUE(first.finishes() && second.finishes());
    wrong += result.bytes() != source.bytes();
    CHECK_EQ(cuEventDestroy_v2(event), 0);
  }
  return wrong;
}

}  // namespace

TEST(devices_are_what_was_said) {
  const CleanTest clean;
  CHECK_EQ(cuInit(0), 0);
  int value = 0;
  CHECK_EQ(cuDeviceGetCount(&value), 0);
  CHECK_EQ(value, 4);
  CHECK_EQ(cuDeviceGetAttribute(&value, 75, 1), 0);
  CHECK_EQ(value, 9);
  CHECK_EQ(cuDeviceGetAttribute(&value, 1000, 1), 1);
  CUdevice device = -1;
  CHECK_EQ(cuDeviceGet(&device, 3), 0);
  CHECK_EQ(cuDeviceGet(&device, 4), 101);
  char first[32] = {};
  char second[32] = {};
  CHECK_EQ(cuDeviceGetPCIBusId(first, sizeof(first), 0), 0);
  CHECK_EQ(cuDeviceGetPCIBusId(second, sizeof(second), 1), 0);
  CHECK_TRUE(std::string(first) != second);
  CHECK_EQ(cuDeviceGetPCIBusId(first, 5, 0), 1);
  const char* text = nullptr;
  CHECK_EQ(cuGetErrorString(700, &text), 0);
  CHECK_EQ(std::string(text), "an illegal memory access was encountered");
  CHECK_EQ(cuda_violations(), "");
}

TEST(a_stream_keeps_its_order) {
  const CleanTest clean;
  {
    const OnDevice device(0);
    CHECK_EQ(num_wrong(true), 0);
  }
  CHECK_EQ(cuda_violations(), "");
  check_nothing_is_left();
}

TEST(a_missing_event_shows_as_wrong_bytes) {
  const CleanTest clean;
  const OnDevice device(0);
  CHECK_TRUE(num_wrong(false) > 0);
}

TEST(events_say_when_they_are_reached) {
  const CleanTest clean;
  cudaDoubleSetDelay(3, 30000);
  const OnDevice device(0);
  const Stream stream;
  CUevent event = nullptr;
  CHECK_EQ(cuEventCreate(&event, 2), 0);
  CHECK_EQ(cuEventQuery(event), 0);                        // never recorded
  CHECK_EQ(cuStreamWaitEvent(stream.get(), event, 0), 0);  // no wait
  CHECK_TRUE(stream.finishes());
  bool was_waited_for = false;
  for (int i = 0; i < 20; ++i) {
    CHECK_EQ(cuEventRecord(event, stream.get()), 0);
    was_waited_for |= cuEventQuery(event) == 600;
    CHECK_TRUE(becomes([&] { return cuEventQuery(event) == 0; }));
  }
  CHECK_TRUE(was_waited_for);
  CHECK_EQ(cuEventDestroy_v2(event), 0);
  CHECK_EQ(cuda_violations(), "");
}

TEST(without_a_context_calls_are_refused) {
  const CleanTest clean;
  CHECK_EQ(cuInit(0), 0);
  CUstream stream = nullptr;
  CUdeviceptr address = 0;
  CHECK_EQ(cuStreamCreate(&stream, 1), 201);
  CHECK_EQ(cuMemAlloc_v2(&address, 16), 201);
  CHECK_EQ(cuCtxPopCurrent_v2(nullptr), 201);
  CHECK_EQ(cudaDoubleGet("violations", -1), 3);
  CHECK_CONTAINS(cuda_violations(), "cuStreamCreate: no context is current");
  CUcontext context = nullptr;
  CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), 0);
  CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
  CHECK_EQ(cuCtxPushCurrent_v2(context), 201);
  CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), 201);
}

TEST(the_current_context_is_one_of_the_thread) {
  const CleanTest clean;
  const OnDevice device(0);
  int in_thread = 0;
  std::thread([&] {
    CUstream stream = nullptr;
    in_thread = cuStreamCreate(&stream, 1);
  }).join();
  CHECK_EQ(in_thread, 201);
}

TEST(handles_of_another_context_or_destroyed_ones_are_refused) {
  const CleanTest clean;
  const OnDevice zero(0);
  const Stream on_zero;
  CUevent event_of_zero = nullptr;
  CHECK_EQ(cuEventCreate(&event_of_zero, 2), 0);
  {
    const OnDevice one(1);
    const Stream on_one;
    CHECK_EQ(cuEventRecord(event_of_zero, on_one.get()), 400);
    CHECK_EQ(cuEventQuery(event_of_zero), 400);
    CHECK_EQ(cuMemsetD2D8Async(0, 0, 0, 1, 1, on_zero.get()), 400);
    CHECK_EQ(cuStreamDestroy_v2(on_zero.get()), 400);
    CHECK_CONTAINS(cuda_violations(), "a stream of device 0 while device 1 is current");
    CHECK_EQ(cuStreamWaitEvent(on_one.get(), event_of_zero, 0), 0);  // may be of any device
  }
  CHECK_EQ(cuEventDestroy_v2(event_of_zero), 0);
  CHECK_EQ(cuEventDestroy_v2(event_of_zero), 400);
  CHECK_EQ(cuStreamWaitEvent(on_zero.get(), event_of_zero, 0), 400);
  CUstream gone = nullptr;
  CHECK_EQ(cuStreamCreate(&gone, 1), 0);
  CHECK_EQ(cuStreamDestroy_v2(gone), 0);
  CHECK_EQ(cuEventRecord(event_of_zero, gone), 400);
  CHECK_EQ(cuStreamDestroy_v2(nullptr), 400);
  CHECK_EQ(cudaDoubleGet("violations", -1), 8);
}

TEST(what_is_queued_runs_after_its_stream_was_destroyed) {
  const CleanTest clean;
  cudaDoubleSetDelay(5, 20000);
  const OnDevice device(0);
  const Memory source(hashed_bytes(100, 1));
  const Memory destination(100);
  {
    const Stream stream;
    for (int i = 0; i < 5; ++i) copy(destination, source, 100, stream);
  }
  // The streams are not in the table any more, their threads are.
  CHECK_TRUE(becomes([] { return cudaDoubleGet("threads", -1) == 0; }));
  CHECK_TRUE(destination.bytes() == source.bytes());
}

TEST(memory_is_poisoned_and_counted) {
  const CleanTest clean;
  {
    const OnDevice zero(0);
    const OnDevice one(1);
    const Memory memory(1000);
    CHECK_TRUE(memory.bytes() == Bytes(1000, std::byte{0xCB}));
    {
      const Memory more(5000);
    }
    void* pinned = nullptr;
    CHECK_EQ(cuMemAllocHost_v2(&pinned, 300), 0);
    CHECK_EQ(cudaDoubleGet("allocated_bytes", 1), 1000);
    CHECK_EQ(cudaDoubleGet("allocated_bytes", 0), 0);
    CHECK_EQ(cudaDoubleGet("peak_bytes", 1), 6000);
    CHECK_EQ(cudaDoubleGet("pinned_bytes", 1), 300);
    CHECK_EQ(cudaDoubleGet("contexts", -1), 2);
    CUdeviceptr too_much = 0;
    CHECK_EQ(cuMemAlloc_v2(&too_much, std::size_t{65} << 20), 2);
    int ordinal = -1;
    CHECK_EQ(cuPointerGetAttribute(&ordinal, 9, memory.address() + 999), 0);
    CHECK_EQ(ordinal, 1);
    CHECK_EQ(cuPointerGetAttribute(&ordinal, 9, memory.address() + 1000), 1);
    CHECK_EQ(cuMemFreeHost(pinned), 0);
    CHECK_EQ(cuda_violations(), "");
    CHECK_EQ(cuMemFreeHost(pinned), 1);
    CHECK_EQ(cuMemFree_v2(memory.address() + 1), 1);
    CHECK_EQ(cudaDoubleGet("violations", -1), 2);
  }
  check_nothing_is_left();
  CHECK_EQ(cudaDoubleGet("nonsense", -1), -1);
}

TEST(an_access_outside_of_one_allocation_breaks_the_device) {
  const CleanTest clean;
  const OnDevice device(0);
  const Stream stream;
  const Memory source(100);
  const Memory destination(100);
  CHECK_EQ(cuMemcpyDtoDAsync_v2(destination.address() + 1, source.address(), 100, stream.get()), 0);
  CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 1; }));
  CHECK_CONTAINS(cuda_violations(), "are not inside one live allocation");
  CUstream other = nullptr;
  CHECK_EQ(cuStreamCreate(&other, 1), 700);
  cudaDoubleReset();
  // Memory of another device, and host memory that is not pinned.
  Bytes pageable(100);
  CHECK_EQ(cuMemcpyDtoHAsync_v2(pageable.data(), source.address(), 100, stream.get()), 0);
  CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 1; }));
  CHECK_CONTAINS(cuda_violations(), "pinned host memory");
  cudaDoubleReset();
  CHECK_EQ(cudaDoubleRegister(pageable.data(), 100, 1), 0);
  CHECK_EQ(cuMemcpyDtoDAsync_v2(reinterpret_cast<std::uintptr_t>(pageable.data()), source.address(),
                                100, stream.get()),
           0);
  CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 1; }));
  CHECK_CONTAINS(cuda_violations(), "are memory of device 1, not of device 0");
  CHECK_EQ(cudaDoubleUnregister(pageable.data()), 0);
}

TEST(memory_that_is_used_must_not_be_freed) {
  const CleanTest clean;
  const OnDevice device(0);
  const Stream stream;
  const Memory destination(100);
  CUevent never = nullptr;
  {
    // The job cannot run before its memory is freed: it waits for the other stream.
    cudaDoubleSetDelay(1, 50000);
    const Stream slow;
    CHECK_EQ(cuEventCreate(&never, 2), 0);
    for (int i = 0; i < 20; ++i) CHECK_EQ(cuEventRecord(never, slow.get()), 0);
    CHECK_EQ(cuStreamWaitEvent(stream.get(), never, 0), 0);
    const Memory source(100);
    copy(destination, source, 100, stream);
  }
  CHECK_CONTAINS(cuda_violations(), "are still used by 1 jobs");
  CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 2; }));
  CHECK_CONTAINS(cuda_violations(), "cuMemcpyDtoDAsync: 100 bytes");
  cudaDoubleReset();
  CHECK_EQ(cuEventDestroy_v2(never), 0);
}

TEST(registered_memory_is_memory_of_its_device) {
  const CleanTest clean;
  const OnDevice device(0);
  const Stream stream;
  Bytes array = hashed_bytes(1000, 3);
  Bytes host(1000);
  CHECK_EQ(cudaDoubleRegister(array.data(), array.size(), 0), 0);
  CHECK_EQ(cudaDoubleRegister(array.data(), array.size(), 0), 0);
  CHECK_EQ(cudaDoubleRegister(array.data() + 10, 10, 0), 1);
  CHECK_EQ(cudaDoubleRegister(host.data(), host.size(), -1), 0);
  CHECK_EQ(cudaDoubleUnregister(array.data()), 0);
  CHECK_EQ(cudaDoubleGet("allocated_bytes", 0), 0);
  CHECK_EQ(cudaDoubleGet("registered_bytes", 0), 1000);
  CHECK_EQ(cuMemcpyDtoHAsync_v2(host.data(), reinterpret_cast<std::uintptr_t>(array.data()), 1000,
                                stream.get()),
           0);
  CHECK_TRUE(stream.finishes());
  CHECK_TRUE(host == array);
  CHECK_EQ(cudaDoubleUnregister(array.data()), 0);
  CHECK_EQ(cudaDoubleUnregister(array.data()), 1);
  CHECK_EQ(cudaDoubleUnregister(host.data()), 0);
  CHECK_EQ(cuda_violations(), "");
}

TEST(boxes_are_copied_with_their_pitches_and_offsets) {
  const CleanTest clean;
  const OnDevice device(0);
  const Stream stream;
  const Memory source(hashed_bytes(std::size_t{7} * 5 * 4, 4));  // 4 slices, 5 rows, 7 bytes
  const Memory destination(std::size_t{11} * 6 * 3);
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = source.address();
  box.srcXInBytes = 2;
  box.srcY = box.srcZ = 1;
  box.srcPitch = 7;
  box.srcHeight = 5;
  box.dstDevice = destination.address();
  box.dstXInBytes = 3;
  box.dstY = 2;
  box.dstPitch = 11;
  box.dstHeight = 6;
  box.WidthInBytes = 4;
  box.Height = 3;
  box.Depth = 3;
  CHECK_EQ(cuMemcpy3DAsync_v2(&box, stream.get()), 0);
  CHECK_TRUE(stream.finishes());
  Bytes expected(std::size_t{11} * 6 * 3, std::byte{0xCB});
  for (std::size_t z = 0; z < 3; ++z) {
    for (std::size_t y = 0; y < 3; ++y) {
      for (std::size_t x = 0; x < 4; ++x) {
        expected[(z * 6 + y + 2) * 11 + x + 3] = source.bytes()[((z + 1) * 5 + y + 1) * 7 + x + 2];
      }
    }
  }
  CHECK_TRUE(destination.bytes() == expected);
  CHECK_EQ(cuMemsetD2D8Async(destination.address() + 1, 11, 0, 2, 18, stream.get()), 0);
  CHECK_TRUE(stream.finishes());
  for (std::size_t y = 0; y < 18; ++y) expected[y * 11 + 1] = expected[y * 11 + 2] = std::byte{0};
  CHECK_TRUE(destination.bytes() == expected);
  CHECK_EQ(cuda_violations(), "");
  box.dstPitch = 6;
  CHECK_EQ(cuMemcpy3DAsync_v2(&box, stream.get()), 1);
  box.dstPitch = 11;
  box.dstZ = 1;  // beyond the end
  CHECK_EQ(cuMemcpy3DAsync_v2(&box, stream.get()), 0);
  CHECK_TRUE(becomes([] { return cudaDoubleGet("violations", -1) == 2; }));
}

TEST(what_a_context_still_has_is_told_when_it_is_released) {
  const CleanTest clean;
  CUstream stream = nullptr;
  CUdeviceptr address = 0;
  {
    const OnDevice device(0);
    CHECK_EQ(cuStreamCreate(&stream, 1), 0);
    CHECK_EQ(cuMemAlloc_v2(&address, 10), 0);
  }
  CHECK_EQ(cuda_violations(),
           "cuDevicePrimaryCtxRelease: device 0 is left with 1 streams, 0 events, 0 modules and 1 "
           "allocations\n");
  check_nothing_is_left();
}

}  // namespace reshard_test

int main(int argc, char** argv) {
  setenv("CUDA_DOUBLE_DEVICES", "4", 1);
  setenv("CUDA_DOUBLE_MEMORY_BYTES", "67108864", 1);
  return reshard_test::run_all(argc, argv);
}

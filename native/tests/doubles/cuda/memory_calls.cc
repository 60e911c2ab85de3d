// Memory and copies. Each copy looks up its memory when it runs, as work before it may free it.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda/machine.h"

using doubles::Allocation;
using doubles::AllocationPtr;
using doubles::ContextPtr;
using doubles::Machine;
using doubles::machine;
using doubles::Range;
using doubles::StreamPtr;

namespace {

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }
void* pointer_to(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

CUresult allocate(const char* who, Allocation::Kind kind, std::size_t nbytes,
                  std::uintptr_t* address) {
  ContextPtr context;
  const CUresult result = doubles::current_context(who, &context);
  if (result != CUDA_SUCCESS) return result;
  if (nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Machine& all = machine();
  const AllocationPtr made = all.memory.allocate(kind, nbytes, context->device, all.memory_limit);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = made->range.start;
  return CUDA_SUCCESS;
}

CUresult release(const char* who, Allocation::Kind kind, std::uintptr_t address) {
  ContextPtr context;
  const CUresult result = doubles::current_context(who, &context);
  if (result != CUDA_SUCCESS) return result;
  if (address == 0) return CUDA_SUCCESS;
  Machine& all = machine();
  const AllocationPtr gone = all.memory.take(kind, address);
  if (gone == nullptr) {
    return all.refuse(CUDA_ERROR_INVALID_VALUE, who,
                      "no allocation starts at " + doubles::hexadecimal(address));
  }
  if (gone->owner != context->device) {
    all.violations.add(std::string(who) + ": memory of device " + std::to_string(gone->owner) +
                       " while device " + std::to_string(context->device) + " is current");
  }
  const int uses = all.memory.num_uses(gone->range);
  if (uses > 0) {
    all.violations.add(std::string(who) + ": " + std::to_string(gone->range.nbytes) + " bytes at " +
                       doubles::hexadecimal(address) + " are still used by " +
                       std::to_string(uses) + " jobs");
  }
  return CUDA_SUCCESS;
}

CUresult find_queue(const char* who, CUstream handle, StreamPtr* stream) {
  ContextPtr context;
  const CUresult result = doubles::current_context(who, &context);
  return result == CUDA_SUCCESS ? doubles::find_stream(who, *context, handle, stream) : result;
}

enum class Place { kDevice, kHost };

std::size_t max_pitch() { return static_cast<std::size_t>(machine().max_pitch); }

AllocationPtr hold(Place place, Range range, int device, const char* who) {
  return place == Place::kDevice ? machine().hold(range, device, who)
                                 : machine().hold_host(range, device, who);
}

CUresult copy(const char* who, Place dst_place, std::uintptr_t dst, Place src_place,
              std::uintptr_t src, std::size_t nbytes, CUstream handle) {
  StreamPtr stream;
  const CUresult result = find_queue(who, handle, &stream);
  if (result != CUDA_SUCCESS || nbytes == 0) return result;
  ++machine().copies;
  const int device = stream->device();
  machine().queue(stream, {{dst, nbytes}, {src, nbytes}}, [=] {
    const AllocationPtr to = hold(dst_place, {dst, nbytes}, device, who);
    const AllocationPtr from = hold(src_place, {src, nbytes}, device, who);
    if (to != nullptr && from != nullptr) std::memmove(pointer_to(dst), pointer_to(src), nbytes);
  });
  return CUDA_SUCCESS;
}

// One side of a copy of a box: `depth` slices of `height` rows of `width` bytes.
struct Side {
  std::uintptr_t base;  // of the first byte that is copied
  std::size_t pitch;    // between rows
  std::size_t slice;    // between slices
};

// The bytes from the first one to the last one.
Range extent(const Side& side, const CUDA_MEMCPY3D& box) {
  return {side.base,
          (box.Depth - 1) * side.slice + (box.Height - 1) * side.pitch + box.WidthInBytes};
}

// Whether rows and slices are as far apart as the driver wants it.
bool is_valid(const CUDA_MEMCPY3D& box, std::size_t x, std::size_t y, std::size_t pitch,
              std::size_t height) {
  return (pitch == 0 || pitch >= x + box.WidthInBytes) &&
         std::max(pitch, x + box.WidthInBytes) <= max_pitch() &&
         (height == 0 || height >= y + box.Height);
}

Side make_side(std::uintptr_t base, std::size_t x, std::size_t y, std::size_t z, std::size_t pitch,
               std::size_t height, const CUDA_MEMCPY3D& box) {
  // Zero stands for rows and slices without gaps.
  const std::size_t row = pitch == 0 ? x + box.WidthInBytes : pitch;
  const std::size_t slice = row * (height == 0 ? y + box.Height : height);
  return {base + z * slice + y * row + x, row, slice};
}

void copy_box(const CUDA_MEMCPY3D& box, const Side& dst, const Side& src) {
  for (std::size_t z = 0; z < box.Depth; ++z) {
    for (std::size_t y = 0; y < box.Height; ++y) {
      std::memmove(pointer_to(dst.base + z * dst.slice + y * dst.pitch),
                   pointer_to(src.base + z * src.slice + y * src.pitch), box.WidthInBytes);
    }
  }
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t nbytes) {
  std::uintptr_t made = 0;
  const CUresult result = allocate("cuMemAlloc", Allocation::Kind::kDevice, nbytes, &made);
  if (result == CUDA_SUCCESS) *address = made;
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return release("cuMemFree", Allocation::Kind::kDevice, static_cast<std::uintptr_t>(address));
}

CUresult cuMemAllocHost_v2(void** address, std::size_t nbytes) {
  std::uintptr_t made = 0;
  const CUresult result = allocate("cuMemAllocHost", Allocation::Kind::kPinned, nbytes, &made);
  if (result == CUDA_SUCCESS) *address = pointer_to(made);
  return result;
}

CUresult cuMemFreeHost(void* address) {
  return release("cuMemFreeHost", Allocation::Kind::kPinned, number_of(address));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, std::size_t nbytes,
                              CUstream stream) {
  return copy("cuMemcpyHtoDAsync", Place::kDevice, static_cast<std::uintptr_t>(dst), Place::kHost,
              number_of(src), nbytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, std::size_t nbytes, CUstream stream) {
  return copy("cuMemcpyDtoHAsync", Place::kHost, number_of(dst), Place::kDevice,
              static_cast<std::uintptr_t>(src), nbytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t nbytes,
                              CUstream stream) {
  return copy("cuMemcpyDtoDAsync", Place::kDevice, static_cast<std::uintptr_t>(dst), Place::kDevice,
              static_cast<std::uintptr_t>(src), nbytes, stream);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* given, CUstream handle) {
  const char* who = "cuMemcpy3DAsync";
  StreamPtr stream;
  const CUresult result = find_queue(who, handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  const CUDA_MEMCPY3D box = *given;
  const auto is_known = [](int type) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_HOST;
  };
  if (!is_known(box.srcMemoryType) || !is_known(box.dstMemoryType) || box.srcLOD != 0 ||
      box.dstLOD != 0 || box.reserved0 != nullptr || box.reserved1 != nullptr ||
      !is_valid(box, box.srcXInBytes, box.srcY, box.srcPitch, box.srcHeight) ||
      !is_valid(box, box.dstXInBytes, box.dstY, box.dstPitch, box.dstHeight)) {
    return machine().refuse(CUDA_ERROR_INVALID_VALUE, who, "pitch, height or kind of memory");
  }
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0) return CUDA_SUCCESS;
  ++machine().copies;
  const Place src_place = box.srcMemoryType == CU_MEMORYTYPE_DEVICE ? Place::kDevice : Place::kHost;
  const Place dst_place = box.dstMemoryType == CU_MEMORYTYPE_DEVICE ? Place::kDevice : Place::kHost;
  const Side src =
      make_side(src_place == Place::kDevice ? static_cast<std::uintptr_t>(box.srcDevice)
                                            : number_of(box.srcHost),
                box.srcXInBytes, box.srcY, box.srcZ, box.srcPitch, box.srcHeight, box);
  const Side dst =
      make_side(dst_place == Place::kDevice ? static_cast<std::uintptr_t>(box.dstDevice)
                                            : number_of(box.dstHost),
                box.dstXInBytes, box.dstY, box.dstZ, box.dstPitch, box.dstHeight, box);
  const int device = stream->device();
  machine().queue(stream, {extent(dst, box), extent(src, box)}, [=] {
    const AllocationPtr to = hold(dst_place, extent(dst, box), device, who);
    const AllocationPtr from = hold(src_place, extent(src, box), device, who);
    if (to != nullptr && from != nullptr) copy_box(box, dst, src);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD2D8Async(CUdeviceptr address, std::size_t pitch, unsigned char value,
                           std::size_t width, std::size_t height, CUstream handle) {
  const char* who = "cuMemsetD2D8Async";
  StreamPtr stream;
  const CUresult result = find_queue(who, handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if ((height > 1 && pitch < width) || std::max(pitch, width) > max_pitch()) {
    return machine().refuse(CUDA_ERROR_INVALID_VALUE, who, "pitch or width");
  }
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  ++machine().memsets;
  const auto dst = static_cast<std::uintptr_t>(address);
  const Range range{dst, (height - 1) * pitch + width};
  const int device = stream->device();
  machine().queue(stream, {range}, [=] {
    const AllocationPtr to = machine().hold(range, device, who);
    if (to == nullptr) return;
    for (std::size_t y = 0; y < height; ++y) {
      std::memset(pointer_to(dst + y * pitch), value, width);
    }
  });
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  if (attribute != 9) return CUDA_ERROR_INVALID_VALUE;  // DEVICE_ORDINAL
  const AllocationPtr found = machine().memory.find({static_cast<std::uintptr_t>(address), 1});
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = found->device == doubles::kHost ? found->owner : found->device;
  if (ordinal < 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(value, &ordinal, sizeof(ordinal));
  return CUDA_SUCCESS;
}

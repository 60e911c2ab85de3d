// Streams and events.
#include <string>

#include "cuda/machine.h"

using doubles::Completion;
using doubles::CompletionPtr;
using doubles::ContextPtr;
using doubles::Event;
using doubles::Machine;
using doubles::machine;
using doubles::StreamPtr;

namespace {

CUresult find_event(const char* who, CUevent handle, std::shared_ptr<Event>* event) {
  Machine& all = machine();
  *event = all.events.find(handle);
  if (*event != nullptr) return CUDA_SUCCESS;
  return all.refuse(
      CUDA_ERROR_INVALID_HANDLE, who,
      "no event has the handle " + doubles::hexadecimal(reinterpret_cast<std::uintptr_t>(handle)));
}

CUresult check_same_device(const char* who, const char* what, int device, int current) {
  if (device == current) return CUDA_SUCCESS;
  return machine().refuse(CUDA_ERROR_INVALID_HANDLE, who,
                          std::string(what) + " of device " + std::to_string(device) +
                              " while device " + std::to_string(current) + " is current");
}

}  // namespace

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  ContextPtr context;
  const CUresult result = doubles::current_context("cuStreamCreate", &context);
  if (result != CUDA_SUCCESS) return result;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *stream =
      static_cast<CUstream>(machine().streams.add(machine().make_stream(context->device, false)));
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  const char* who = "cuStreamDestroy";
  ContextPtr context;
  StreamPtr found;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) result = doubles::find_stream(who, *context, stream, &found);
  if (result != CUDA_SUCCESS) return result;
  if (found->is_default()) {
    return machine().refuse(CUDA_ERROR_INVALID_HANDLE, who, "this is the default stream");
  }
  const StreamPtr gone = machine().streams.take(stream);
  if (gone != nullptr) gone->close();
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  const char* who = "cuStreamWaitEvent";
  ContextPtr context;
  StreamPtr found;
  std::shared_ptr<Event> waited;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) result = doubles::find_stream(who, *context, stream, &found);
  if (result == CUDA_SUCCESS) result = find_event(who, event, &waited);  // of any device
  if (result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CompletionPtr last;
  {
    const std::lock_guard<std::mutex> lock(waited->mutex);
    last = waited->last;
  }
  if (last != nullptr) found->push([last] { last->wait(); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  ContextPtr context;
  const CUresult result = doubles::current_context("cuEventCreate", &context);
  if (result != CUDA_SUCCESS) return result;
  if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
  *event = static_cast<CUevent>(machine().events.add(std::make_shared<Event>(context->device)));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  const char* who = "cuEventDestroy";
  ContextPtr context;
  std::shared_ptr<Event> found;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) result = find_event(who, event, &found);
  if (result == CUDA_SUCCESS) {
    result = check_same_device(who, "an event", found->device, context->device);
  }
  if (result == CUDA_SUCCESS) machine().events.take(event);
  return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const char* who = "cuEventRecord";
  ContextPtr context;
  StreamPtr on;
  std::shared_ptr<Event> found;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) result = doubles::find_stream(who, *context, stream, &on);
  if (result == CUDA_SUCCESS) result = find_event(who, event, &found);
  if (result == CUDA_SUCCESS) {
    result = check_same_device(who, "an event", found->device, context->device);
  }
  if (result != CUDA_SUCCESS) return result;
  auto reached = std::make_shared<Completion>();
  {
    const std::lock_guard<std::mutex> lock(found->mutex);
    found->last = reached;
  }
  on->push([reached] { reached->set(); });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  const char* who = "cuEventQuery";
  ContextPtr context;
  std::shared_ptr<Event> found;
  CUresult result = doubles::current_context(who, &context);
  if (result == CUDA_SUCCESS) result = find_event(who, event, &found);
  if (result == CUDA_SUCCESS) {
    result = check_same_device(who, "an event", found->device, context->device);
  }
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard<std::mutex> lock(found->mutex);
  return found->last == nullptr || found->last->is_set() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// One call as XLA makes it, and the functions of XLA that a foreign function may use.
#ifndef RESHARD_NATIVE_TESTS_XLA_CALL_H_
#define RESHARD_NATIVE_TESTS_XLA_CALL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xla/xla_ffi.h"

namespace reshard_test {

using namespace reshard;

struct FakeError {
  int code;
  std::string message;
};

struct FakeContext {
  std::int32_t device = 0;
  std::int64_t run_id = 0;
  void* stream = nullptr;
  bool is_silent = false;  // XLA's functions fail
};

inline XlaError* error_of(FakeError* error) { return reinterpret_cast<XlaError*>(error); }
inline FakeError* fake(XlaError* error) { return reinterpret_cast<FakeError*>(error); }
inline FakeContext& fake(XlaContext* context) { return *reinterpret_cast<FakeContext*>(context); }

inline XlaError* silence(XlaContext* context) {
  return fake(context).is_silent ? error_of(new FakeError{13, "the context is silent"}) : nullptr;
}

inline XlaApi fake_api() {
  XlaApi api{};
  api.size = sizeof(api);
  api.version.minor = kXlaFfiMinor;
  api.Error_Create = [](XlaErrorCreate* arguments) {
    return error_of(new FakeError{arguments->code, arguments->message});
  };
  api.Error_GetMessage = [](XlaErrorMessage* arguments) {
    arguments->message = fake(arguments->error)->message.c_str();
  };
  api.Error_Destroy = [](XlaErrorDestroy* arguments) { delete fake(arguments->error); };
  api.Stream_Get = [](XlaStreamGet* arguments) {
    arguments->stream = fake(arguments->context).stream;
    return silence(arguments->context);
  };
  api.RunId_Get = [](XlaRunIdGet* arguments) {
    arguments->run_id = fake(arguments->context).run_id;
    return silence(arguments->context);
  };
  api.DeviceOrdinal_Get = [](XlaDeviceOrdinalGet* arguments) {
    arguments->device_ordinal = fake(arguments->context).device;
    return silence(arguments->context);
  };
  return api;
}

// The frame of one call, with everything that it points to.
class XlaCall {
 public:
  XlaCall(std::int64_t key, std::int64_t site, std::int64_t timeout_ns) {
    attribute("key", key);
    attribute("site", site);
    attribute("timeout_ns", timeout_ns);
  }
  XlaCall(const XlaCall&) = delete;
  XlaCall& operator=(const XlaCall&) = delete;

  void operand(void* data, std::vector<std::int64_t> dims, int dtype = kXlaInt32) {
    add(operands_, data, std::move(dims), dtype);
  }
  void result(void* data, std::vector<std::int64_t> dims, int dtype = kXlaInt32) {
    add(results_, data, std::move(dims), dtype);
  }
  void attribute(const std::string& name, std::int64_t value, int dtype = kXlaInt64) {
    attribute_names_.push_back(name);
    values_.push_back(value);
    scalars_.push_back({dtype, &values_.back()});
  }
  FakeContext& context() { return context_; }
  XlaApi& api() { return api_; }

  XlaCallFrame& frame() {
    frame_ = {};
    frame_.size = sizeof(frame_);
    frame_.api = &api_;
    frame_.context = reinterpret_cast<XlaContext*>(&context_);
    frame_.stage = kXlaStageExecute;
    frame_.arguments = values_of(operands_, argument_list_);
    frame_.results = values_of(results_, result_list_);
    name_list_.clear();
    texts_.clear();
    attribute_list_.clear();
    for (std::size_t i = 0; i < scalars_.size(); ++i) {
      texts_.push_back({attribute_names_[i].data(), attribute_names_[i].size()});
      name_list_.push_back(&texts_.back());
      attribute_list_.push_back(&scalars_[i]);
    }
    types_.assign(scalars_.size(), kXlaAttributeScalar);
    frame_.attributes = {
        sizeof(XlaAttributes), nullptr,           static_cast<std::int64_t>(scalars_.size()),
        types_.data(),         name_list_.data(), attribute_list_.data()};
    return frame_;
  }

 private:
  void add(std::deque<XlaBuffer>& list, void* data, std::vector<std::int64_t> dims, int dtype) {
    dims_.push_back(std::move(dims));
    const auto ndim = static_cast<std::int64_t>(dims_.back().size());
    list.push_back({sizeof(XlaBuffer), nullptr, dtype, data, ndim, dims_.back().data()});
  }
  static XlaValues values_of(std::deque<XlaBuffer>& buffers, std::vector<void*>& list) {
    list.clear();
    for (XlaBuffer& buffer : buffers) list.push_back(&buffer);
    return {sizeof(XlaValues), nullptr, static_cast<std::int64_t>(list.size()), nullptr,
            list.data()};
  }

  XlaApi api_ = fake_api();
  FakeContext context_;
  XlaCallFrame frame_{};
  // Deques keep their elements where they are.
  std::deque<std::vector<std::int64_t>> dims_;
  std::deque<XlaBuffer> operands_;
  std::deque<XlaBuffer> results_;
  std::deque<std::string> attribute_names_;
  std::deque<std::int64_t> values_;
  std::deque<XlaScalar> scalars_;
  std::deque<XlaText> texts_;
  std::vector<int> types_;
  std::vector<XlaText*> name_list_;
  std::vector<void*> attribute_list_;
  std::vector<void*> argument_list_;
  std::vector<void*> result_list_;
};

// Takes an error over, as XLA does.
inline FakeError taken(XlaError* error) {
  if (error == nullptr) return {0, ""};
  const std::unique_ptr<FakeError> owned(fake(error));
  return *owned;
}

}  // namespace reshard_test

#endif  // RESHARD_NATIVE_TESTS_XLA_CALL_H_

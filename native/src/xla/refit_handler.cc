#include "xla/refit_handler.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "status.h"
#include "xla/mailboxes.h"

namespace reshard {
namespace {

XlaErrorCode code_for_xla(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return XlaErrorCode::kInvalidArgument;
    case StatusCode::kUnsupported:
      return XlaErrorCode::kUnimplemented;
    case StatusCode::kOutOfMemory:
      return XlaErrorCode::kResourceExhausted;
    case StatusCode::kTimeout:
      return XlaErrorCode::kDeadlineExceeded;
    case StatusCode::kSystem:
    case StatusCode::kPeerLost:
      return XlaErrorCode::kUnavailable;
    case StatusCode::kAborted:
      return XlaErrorCode::kAborted;
    case StatusCode::kProtocol:
      return XlaErrorCode::kDataLoss;
    case StatusCode::kInvalidState:
      return XlaErrorCode::kFailedPrecondition;
    default:
      return XlaErrorCode::kInternal;
  }
}

XlaError* make_error(const XlaApi& api, StatusCode code, const char* message) noexcept {
  XlaErrorCreate arguments{};
  arguments.size = sizeof(arguments);
  arguments.message = message;
  arguments.code = static_cast<int>(code_for_xla(code));
  return api.Error_Create(&arguments);
}

// Throws what a function of XLA returned, in its own words.
void check(const XlaApi& api, XlaError* error, const char* what) {
  if (error == nullptr) return;
  XlaErrorMessage words{};
  words.size = sizeof(words);
  words.error = error;
  api.Error_GetMessage(&words);
  const std::string message = text("XLA does not say ", what, ": ", words.message);
  XlaErrorDestroy done{};
  done.size = sizeof(done);
  done.error = error;
  api.Error_Destroy(&done);
  throw Error(StatusCode::kInternal, message);
}

std::int32_t device_of(const XlaCallFrame& frame) {
  XlaDeviceOrdinalGet arguments{};
  arguments.size = sizeof(arguments);
  arguments.context = frame.context;
  check(*frame.api, frame.api->DeviceOrdinal_Get(&arguments), "which device calls");
  return arguments.device_ordinal;
}

std::int64_t run_of(const XlaCallFrame& frame) {
  XlaRunIdGet arguments{};
  arguments.size = sizeof(arguments);
  arguments.context = frame.context;
  check(*frame.api, frame.api->RunId_Get(&arguments), "which execution this is");
  return arguments.run_id;
}

void* stream_of(const XlaCallFrame& frame) {
  XlaStreamGet arguments{};
  arguments.size = sizeof(arguments);
  arguments.context = frame.context;
  check(*frame.api, frame.api->Stream_Get(&arguments), "on which stream this is");
  return arguments.stream;
}

std::int64_t attribute(const XlaCallFrame& frame, const char* name) {
  const XlaAttributes& all = frame.attributes;
  for (std::int64_t i = 0; i < all.count; ++i) {
    const XlaText& found = *all.names[i];
    if (found.length != std::strlen(name) || std::memcmp(found.data, name, found.length) != 0) {
      continue;
    }
    const auto* scalar = static_cast<const XlaScalar*>(all.values[i]);
    if (all.types[i] != kXlaAttributeScalar || scalar->dtype != kXlaInt64) break;
    std::int64_t value = 0;
    std::memcpy(&value, scalar->value, sizeof(value));
    return value;
  }
  throw Error(StatusCode::kInvalidArgument, text("the call has no attribute '", name,
                                                 "' of 64 bits; only reshard_jax makes it."));
}

const XlaBuffer& buffer_at(const XlaValues& values, std::size_t position) {
  return *static_cast<const XlaBuffer*>(values.values[position]);
}

std::int64_t elements_of(const XlaBuffer& buffer) {
  std::int64_t count = 1;
  for (std::int64_t dim = 0; dim < buffer.ndim; ++dim) count *= buffer.dims[dim];
  return count;
}

// What the program hands in has to be what the site was made for, on this very device.
void check_operands(const XlaCallFrame& frame, const Site& site, std::int32_t device) {
  if (frame.arguments.count != static_cast<std::int64_t>(site.operand_sizes.size()) ||
      frame.results.count != static_cast<std::int64_t>(site.num_results)) {
    throw Error(
        StatusCode::kInvalidArgument,
        text("the call has ", frame.arguments.count, " operands and ", frame.results.count,
             " results, its site has ", site.operand_sizes.size(), " and ", site.num_results, "."));
  }
  for (std::size_t i = 0; i < site.operand_sizes.size(); ++i) {
    const XlaBuffer& operand = buffer_at(frame.arguments, i);
    if (elements_of(operand) != site.operand_sizes[i]) {
      throw Error(StatusCode::kInvalidArgument,
                  text("operand ", i, " has ", elements_of(operand), " elements on device ", device,
                       ", its shard has ", site.operand_sizes[i],
                       ": XLA gathered it first, as it does outside jax.shard_map. Use "
                       "publish_in_jit or refit_in_jit of the end."));
    }
    if (i >= site.num_results || site.operand_sizes[i] == 0) continue;
    if (buffer_at(frame.results, i).data != operand.data) {
      throw Error(StatusCode::kInternal,
                  text("result ", i, " is not in the memory of its operand on device ", device,
                       ": XLA did not keep to input_output_aliases. Please report it with the "
                       "version of JAX."));
    }
  }
}

std::size_t position_of(const Site& site, std::int32_t device) {
  const auto found = std::find(site.devices.begin(), site.devices.end(), device);
  if (found != site.devices.end()) {
    return static_cast<std::size_t>(found - site.devices.begin());
  }
  std::string known;
  for (const std::int32_t id : site.devices) known += text(known.empty() ? "" : ", ", id);
  throw Error(StatusCode::kInvalidArgument,
              text("device ", device, " called, which is none of the weights' devices here (",
                   known, "). The weights and the program have to be on one mesh."));
}

Answer visit(const XlaCallFrame& frame, const VersionReader& reader, bool has_stream) {
  if (frame.stage != kXlaStageExecute) {
    throw Error(StatusCode::kInvalidState, text("a call in stage ", frame.stage, " of XLA."));
  }
  const std::shared_ptr<Mailbox> mailbox = mailbox_of(attribute(frame, "key"));
  const std::int64_t number = attribute(frame, "site");
  const std::int64_t timeout_ns = attribute(frame, "timeout_ns");
  const std::shared_ptr<const Site> site = mailbox->site(number);
  const std::int32_t device = device_of(frame);
  Visit visit;
  visit.device = position_of(*site, device);
  check_operands(frame, *site, device);
  visit.run_id = run_of(frame);
  void* const stream = has_stream ? stream_of(frame) : nullptr;
  visit.stream = reinterpret_cast<std::uintptr_t>(stream);
  for (std::size_t i = 0; i < site->operand_sizes.size(); ++i) {
    visit.operands.push_back(buffer_at(frame.arguments, i).data);
  }
  if (site->has_version) {
    visit.version = reader.read(buffer_at(frame.arguments, 0), stream, timeout_ns);
  }
  return mailbox->visit(number, std::move(visit), timeout_ns);
}

// Whether XLA only asks what this function is. It does so when the function is registered.
bool tell_metadata(const XlaCallFrame& frame) {
  for (XlaExtension* each = frame.extensions; each != nullptr; each = each->next) {
    if (each->type != kXlaExtensionMetadata) continue;
    XlaMetadata& metadata = *reinterpret_cast<XlaMetadataExtension*>(each)->metadata;
    metadata.version.major = kXlaFfiMajor;
    metadata.version.minor = kXlaFfiMinor;
    metadata.traits = 0;  // not to be recorded and played again
    return true;
  }
  return false;
}

}  // namespace

XlaError* visit_for_xla(XlaCallFrame* frame, const VersionReader& reader,
                        bool has_stream) noexcept {
  if (tell_metadata(*frame)) return nullptr;
  const XlaApi& api = *frame->api;
  try {
    if (api.size < offsetof(XlaApi, DeviceOrdinal_Get) + sizeof(api.DeviceOrdinal_Get)) {
      throw Error(StatusCode::kUnsupported,
                  text("XLA's interface for foreign functions is ", api.version.major, ".",
                       api.version.minor, ", 0.3 is needed. Upgrade with: pip install -U jax"));
    }
    const Answer answer = visit(*frame, reader, has_stream);
    if (answer.code == StatusCode::kOk) return nullptr;
    return make_error(api, answer.code, text("reshard: ", answer.message).c_str());
  } catch (const Error& error) {
    return make_error(api, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return make_error(api, StatusCode::kOutOfMemory, "reshard: out of memory");
  } catch (const std::exception& error) {
    return make_error(api, StatusCode::kInternal, error.what());
  }
}

}  // namespace reshard

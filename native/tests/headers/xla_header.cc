// xla_ffi.h against the header that JAX brings; compiled for its static_asserts alone
// (tests/abi/test_xla_header.py).
#include <xla/ffi/api/c_api.h>

#include "headers/same_call.h"
#include "xla/xla_ffi.h"

namespace reshard {

static_assert(kXlaFfiMajor == XLA_FFI_API_MAJOR);
static_assert(kXlaFfiMinor <= XLA_FFI_API_MINOR);
static_assert(kXlaExtensionMetadata == XLA_FFI_Extension_Metadata);
static_assert(kXlaArgumentBuffer == XLA_FFI_ArgType_BUFFER);
static_assert(kXlaResultBuffer == XLA_FFI_RetType_BUFFER);
static_assert(kXlaAttributeScalar == XLA_FFI_AttrType_SCALAR);
static_assert(kXlaStageExecute == XLA_FFI_ExecutionStage_EXECUTE);
static_assert(kXlaInt32 == XLA_FFI_DataType_S32);
static_assert(kXlaInt64 == XLA_FFI_DataType_S64);

#define SAME_CODE(our, their) \
  static_assert(static_cast<int>(XlaErrorCode::our) == XLA_FFI_Error_Code_##their)
SAME_CODE(kCancelled, CANCELLED);
SAME_CODE(kInvalidArgument, INVALID_ARGUMENT);
SAME_CODE(kDeadlineExceeded, DEADLINE_EXCEEDED);
SAME_CODE(kResourceExhausted, RESOURCE_EXHAUSTED);
SAME_CODE(kFailedPrecondition, FAILED_PRECONDITION);
SAME_CODE(kAborted, ABORTED);
SAME_CODE(kUnimplemented, UNIMPLEMENTED);
SAME_CODE(kInternal, INTERNAL);
SAME_CODE(kUnavailable, UNAVAILABLE);
SAME_CODE(kDataLoss, DATA_LOSS);

// Every member, at the same place and of the same kind. What XLA appended is not ours to know.
#define SAME_HEAD(Ours, Theirs)                \
  SAME_FIELD(Ours, size, Theirs, struct_size); \
  SAME_FIELD(Ours, extensions, Theirs, extension_start)

SAME_FIELD(XlaExtension, size, XLA_FFI_Extension_Base, struct_size);
SAME_FIELD(XlaExtension, type, XLA_FFI_Extension_Base, type);
SAME_FIELD(XlaExtension, next, XLA_FFI_Extension_Base, next);
static_assert(sizeof(XlaExtension) == sizeof(XLA_FFI_Extension_Base));

SAME_HEAD(XlaVersion, XLA_FFI_Api_Version);
SAME_FIELD(XlaVersion, major, XLA_FFI_Api_Version, major_version);
SAME_FIELD(XlaVersion, minor, XLA_FFI_Api_Version, minor_version);
static_assert(sizeof(XlaVersion) == sizeof(XLA_FFI_Api_Version));

SAME_FIELD(XlaMetadata, size, XLA_FFI_Metadata, struct_size);
SAME_FIELD(XlaMetadata, version, XLA_FFI_Metadata, api_version);
SAME_FIELD(XlaMetadata, traits, XLA_FFI_Metadata, traits);
SAME_FIELD(XlaMetadataExtension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_FIELD(XlaMetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);

SAME_HEAD(XlaBuffer, XLA_FFI_Buffer);
SAME_FIELD(XlaBuffer, dtype, XLA_FFI_Buffer, dtype);
SAME_FIELD(XlaBuffer, data, XLA_FFI_Buffer, data);
SAME_FIELD(XlaBuffer, ndim, XLA_FFI_Buffer, rank);
SAME_FIELD(XlaBuffer, dims, XLA_FFI_Buffer, dims);

SAME_FIELD(XlaText, data, XLA_FFI_ByteSpan, ptr);
SAME_FIELD(XlaText, length, XLA_FFI_ByteSpan, len);
SAME_FIELD(XlaScalar, dtype, XLA_FFI_Scalar, dtype);
SAME_FIELD(XlaScalar, value, XLA_FFI_Scalar, value);

#define SAME_VALUES(Theirs, list)              \
  SAME_HEAD(XlaValues, Theirs);                \
  SAME_FIELD(XlaValues, count, Theirs, size);  \
  SAME_FIELD(XlaValues, types, Theirs, types); \
  SAME_FIELD(XlaValues, values, Theirs, list); \
  static_assert(sizeof(XlaValues) == sizeof(Theirs))
SAME_VALUES(XLA_FFI_Args, args);
SAME_VALUES(XLA_FFI_Rets, rets);

SAME_HEAD(XlaAttributes, XLA_FFI_Attrs);
SAME_FIELD(XlaAttributes, count, XLA_FFI_Attrs, size);
SAME_FIELD(XlaAttributes, types, XLA_FFI_Attrs, types);
SAME_FIELD(XlaAttributes, names, XLA_FFI_Attrs, names);
SAME_FIELD(XlaAttributes, values, XLA_FFI_Attrs, attrs);
static_assert(sizeof(XlaAttributes) == sizeof(XLA_FFI_Attrs));

#define SAME_REQUEST(Ours, our, Theirs, their) \
  SAME_HEAD(Ours, Theirs);                     \
  SAME_FIELD(Ours, our, Theirs, their);        \
  static_assert(sizeof(Ours) == sizeof(Theirs))
SAME_REQUEST(XlaErrorCreate, message, XLA_FFI_Error_Create_Args, message);
SAME_FIELD(XlaErrorCreate, code, XLA_FFI_Error_Create_Args, errc);
SAME_REQUEST(XlaErrorMessage, error, XLA_FFI_Error_GetMessage_Args, error);
SAME_FIELD(XlaErrorMessage, message, XLA_FFI_Error_GetMessage_Args, message);
SAME_REQUEST(XlaErrorDestroy, error, XLA_FFI_Error_Destroy_Args, error);
SAME_REQUEST(XlaStreamGet, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_FIELD(XlaStreamGet, stream, XLA_FFI_Stream_Get_Args, stream);
SAME_REQUEST(XlaRunIdGet, context, XLA_FFI_RunId_Get_Args, ctx);
SAME_FIELD(XlaRunIdGet, run_id, XLA_FFI_RunId_Get_Args, run_id);
SAME_REQUEST(XlaDeviceOrdinalGet, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME_FIELD(XlaDeviceOrdinalGet, device_ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

SAME_HEAD(XlaCallFrame, XLA_FFI_CallFrame);
SAME_FIELD(XlaCallFrame, api, XLA_FFI_CallFrame, api);
SAME_FIELD(XlaCallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_FIELD(XlaCallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_FIELD(XlaCallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_FIELD(XlaCallFrame, results, XLA_FFI_CallFrame, rets);
SAME_FIELD(XlaCallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME_FIELD(XlaCallFrame, future, XLA_FFI_CallFrame, future);

// The functions that are called, each at its place in the table and with the same arguments.
SAME_HEAD(XlaApi, XLA_FFI_Api);
SAME_FIELD(XlaApi, version, XLA_FFI_Api, api_version);
static_assert(offsetof(XlaApi, internal_api) == offsetof(XLA_FFI_Api, internal_api));
#define CALL(member, symbol)                                                                    \
  static_assert(offsetof(XlaApi, member) == offsetof(XLA_FFI_Api, symbol));                     \
  static_assert(                                                                                \
      reshard_test::IsSameCall<decltype(XlaApi::member), decltype(XLA_FFI_Api::symbol)>::value, \
      #symbol);
#include "calls.inc"

}  // namespace reshard

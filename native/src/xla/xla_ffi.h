// What is used here of the C interface through which XLA calls foreign functions (XLA FFI 0.3).
//
// Written down in our own words, so that the library builds without JAX; tests/abi compares sizes,
// offsets and values with the header that JAX brings. XLA passes the size of each struct, and
// appends members only.
#ifndef RESHARD_NATIVE_SRC_XLA_XLA_FFI_H_
#define RESHARD_NATIVE_SRC_XLA_XLA_FFI_H_

#include <cstddef>
#include <cstdint>

namespace reshard {

// Source: xla/ffi/api/c_api.h of jaxlib 0.10.2. XLA promises to serve a version for a year.
constexpr int kXlaFfiMajor = 0;
constexpr int kXlaFfiMinor = 3;

constexpr int kXlaExtensionMetadata = 1;
constexpr int kXlaArgumentBuffer = 1;
constexpr int kXlaResultBuffer = 1;
constexpr int kXlaAttributeScalar = 3;
constexpr int kXlaStageExecute = 3;

// Element types that a version may have, or an attribute of ours.
constexpr int kXlaInt32 = 4;
constexpr int kXlaInt64 = 5;

enum class XlaErrorCode : int {
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

using XlaError = struct XlaOpaqueError;
using XlaContext = struct XlaOpaqueContext;

struct XlaExtension {
  std::size_t size;
  int type;
  XlaExtension* next;
};

struct XlaVersion {
  std::size_t size;
  XlaExtension* extensions;
  int major;
  int minor;
};

struct XlaMetadata {
  std::size_t size;
  XlaVersion version;
  std::uint32_t traits;
  std::int64_t state_type;
};

struct XlaMetadataExtension {
  XlaExtension base;
  XlaMetadata* metadata;
};

struct XlaBuffer {
  std::size_t size;
  XlaExtension* extensions;
  int dtype;
  void* data;
  std::int64_t ndim;
  std::int64_t* dims;
};

struct XlaText {
  const char* data;
  std::size_t length;
};

struct XlaScalar {
  int dtype;
  void* value;
};

// Arguments, and results likewise.
struct XlaValues {
  std::size_t size;
  XlaExtension* extensions;
  std::int64_t count;
  int* types;
  void** values;
};

struct XlaAttributes {
  std::size_t size;
  XlaExtension* extensions;
  std::int64_t count;
  int* types;
  XlaText** names;
  void** values;
};

struct XlaErrorCreate {
  std::size_t size;
  XlaExtension* extensions;
  const char* message;
  int code;
};

struct XlaErrorMessage {
  std::size_t size;
  XlaExtension* extensions;
  XlaError* error;
  const char* message;  // out
};

struct XlaErrorDestroy {
  std::size_t size;
  XlaExtension* extensions;
  XlaError* error;
};

struct XlaStreamGet {
  std::size_t size;
  XlaExtension* extensions;
  XlaContext* context;
  void* stream;  // out
};

struct XlaRunIdGet {
  std::size_t size;
  XlaExtension* extensions;
  XlaContext* context;
  std::int64_t run_id;  // out
};

struct XlaDeviceOrdinalGet {
  std::size_t size;
  XlaExtension* extensions;
  XlaContext* context;
  std::int32_t device_ordinal;  // out
};

// The table of functions; those that are not used here have no type.
struct XlaApi {
  using Unused = void (*)();

  std::size_t size;
  XlaExtension* extensions;
  XlaVersion version;
  const void* internal_api;
  XlaError* (*Error_Create)(XlaErrorCreate* arguments);
  void (*Error_GetMessage)(XlaErrorMessage* arguments);
  void (*Error_Destroy)(XlaErrorDestroy* arguments);
  Unused Handler_Register;
  XlaError* (*Stream_Get)(XlaStreamGet* arguments);
  Unused Type_Register;
  Unused ExecutionContext_Get;
  Unused State_Set;
  Unused State_Get;
  Unused DeviceMemory_Allocate;
  Unused DeviceMemory_Free;
  Unused ThreadPool_Schedule;
  Unused ThreadPool_NumThreads;
  Unused Future_Create;
  Unused Future_SetAvailable;
  Unused Future_SetError;
  XlaError* (*RunId_Get)(XlaRunIdGet* arguments);
  XlaError* (*DeviceOrdinal_Get)(XlaDeviceOrdinalGet* arguments);
};

struct XlaCallFrame {
  std::size_t size;
  XlaExtension* extensions;
  const XlaApi* api;
  XlaContext* context;
  int stage;
  XlaValues arguments;
  XlaValues results;
  XlaAttributes attributes;
  void* future;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_XLA_XLA_FFI_H_

// What the files of the C border share: handles, argument checks, and exceptions to status codes.
#ifndef RESHARD_NATIVE_SRC_C_API_H_
#define RESHARD_NATIVE_SRC_C_API_H_

#include <memory>
#include <utility>

#include "c_api_guard.h"
#include "chunk_executor.h"
#include "communicator.h"
#include "cuda_driver.h"
#include "device.h"
#include "executor.h"
#include "gpu_fingerprint.h"
#include "program.h"
#include "reshard/reshard.h"
#include "round_executor.h"
#include "status.h"
#include "table_reader.h"
#include "transport/nccl/nccl_api.h"

struct reshard_program {
  explicit reshard_program(reshard::Program built)
      : program(std::move(built)), executor(make_executor(program)) {}

  const reshard::Program program;
  const std::unique_ptr<reshard::Executor> executor;

 private:
  static std::unique_ptr<reshard::Executor> make_executor(const reshard::Program& program) {
    if (program.num_rounds > 0) return std::make_unique<reshard::RoundExecutor>(program);
    return std::make_unique<reshard::ChunkExecutor>(program, reshard::host_device());
  }
};

struct reshard_nccl {
  std::shared_ptr<const reshard::NcclApi> api;
};

struct reshard_cuda {
  std::shared_ptr<const reshard::CudaDriver> driver;
};

struct reshard_communicator {
  explicit reshard_communicator(std::shared_ptr<reshard::Transport> transport)
      : communicator(std::move(transport)) {}

  reshard::Communicator communicator;
  std::unique_ptr<reshard::GpuFingerprints> fingerprints;  // made when first asked for
};

namespace reshard {

// A struct of the caller must hold at least the fields of this version.
template <typename Struct>
void require_struct(const Struct* value, const char* what) {
  require(value, what);
  if (value->size < sizeof(Struct)) {
    throw Error(StatusCode::kInvalidArgument,
                text(what, ".size is ", value->size, " but this library needs ", sizeof(Struct),
                     ". Rebuild the caller against this version of reshard.h."));
  }
}

inline Table as_table(const std::int64_t* data, std::uint64_t length, const char* what) {
  if (length > 0) require(data, what);
  return {data, static_cast<std::size_t>(length)};
}

inline RulesTable as_rules(const double* data, std::uint64_t length, const char* what) {
  if (length > 0) require(data, what);
  return {data, static_cast<std::size_t>(length)};
}

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_C_API_H_

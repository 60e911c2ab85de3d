// Libraries of NVIDIA by path and by name: what is found, and what is said where something is
// missing.
#include <dlfcn.h>

#include <string>

#include "check.h"
#include "cuda_driver.h"
#include "status.h"
#include "transport/nccl/nccl_api.h"

namespace reshard_test {
namespace {

using reshard::CudaDriver;
using reshard::Error;
using reshard::NcclApi;
using reshard::StatusCode;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename Api>
std::string refusal(const std::string& name) {
  try {
    Api api(name);
  } catch (const Error& error) {
    CHECK(error.code() == StatusCode::kUnsupported, error.message());
    return error.message();
  }
  return "";
}

void test_nccl() {
  const NcclApi api(NCCL_DOUBLE);
  CHECK(api.version() == 23203, std::to_string(api.version()));
  CHECK(api.path() == NCCL_DOUBLE, api.path());
  CHECK(api.functions().GroupStart() == 1, "the function of the double");
  CHECK(std::string(api.functions().GetErrorString(0)) == "no error", "");
  // The copy that is open already is found by its name.
  const std::string name = std::string(NCCL_DOUBLE).substr(std::string(NCCL_DOUBLE).rfind('/') + 1);
  CHECK(NcclApi(name).path() == api.path(), NcclApi(name).path());
}

void test_nccl_stays_open() {
  {
    const NcclApi api(NCCL_DOUBLE);
  }
  void* handle = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_NOLOAD);
  CHECK(handle != nullptr, "closed");
  if (handle != nullptr) dlclose(handle);
}

void test_nccl_refusals() {
  const std::string none = refusal<NcclApi>("/nowhere/libnccl.so.2");
  CHECK(contains(none, "/nowhere/libnccl.so.2 cannot be loaded: "), none);
  const std::string old = refusal<NcclApi>(NCCL_DOUBLE_OLD);
  CHECK(contains(old, " is NCCL 2.17.5, but 2.18.0 or newer is needed."), old);
  const std::string broken = refusal<NcclApi>(NCCL_DOUBLE_BROKEN);
  CHECK(contains(broken, "ncclGetVersion returned 1"), broken);
  const std::string partial = refusal<NcclApi>(NCCL_DOUBLE_PARTIAL);
  CHECK(contains(partial, "has no function ncclCommSplit, which NCCL has since 2.18.0"), partial);
  const std::string other = refusal<NcclApi>(CUDA_DOUBLE);
  CHECK(contains(other, "has no function ncclGetVersion"), other);
}

void test_versions_as_text() {
  CHECK(reshard::nccl_version_text(23203) == "2.32.3", reshard::nccl_version_text(23203));
  CHECK(reshard::nccl_version_text(2708) == "2.7.8", reshard::nccl_version_text(2708));
}

void test_cuda() {
  const CudaDriver api(CUDA_DOUBLE);
  CHECK(api.version() == 12080 && api.num_devices() == 2 && api.path() == CUDA_DOUBLE, api.path());
  const std::string no_device = refusal<CudaDriver>(CUDA_DOUBLE_NO_DEVICE);
  CHECK(contains(no_device, "cuInit says 100, no CUDA-capable device is detected"), no_device);
  const std::string partial = refusal<CudaDriver>(CUDA_DOUBLE_PARTIAL);
  CHECK(contains(partial, "has no function cuLaunchKernel, so it is no CUDA driver, or one before"),
        partial);
  const std::string other = refusal<CudaDriver>(NCCL_DOUBLE);
  CHECK(contains(other, "so it is no CUDA driver"), other);
  CHECK(contains(refusal<CudaDriver>("libcuda-nowhere.so.1"), "cannot be loaded"), "");
}

}  // namespace
}  // namespace reshard_test

int main() {
  reshard_test::test_nccl();
  reshard_test::test_nccl_stays_open();
  reshard_test::test_nccl_refusals();
  reshard_test::test_versions_as_text();
  reshard_test::test_cuda();
  return reshard_test::finish();
}

// The CUDA driver of this machine, opened at run time.
#ifndef RESHARD_NATIVE_SRC_CUDA_DRIVER_H_
#define RESHARD_NATIVE_SRC_CUDA_DRIVER_H_

#include <string>

#include "shared_library.h"

namespace reshard {

class CudaDriver {
 public:
  // Opens the driver and initialises it. Throws kUnsupported, saying what is missing.
  explicit CudaDriver(const std::string& name);

  const std::string& path() const { return library_.path(); }
  // 12080 for CUDA 12.8: the newest that the driver supports.
  int version() const { return version_; }
  int num_devices() const { return num_devices_; }

 private:
  SharedLibrary library_;
  int version_ = 0;
  int num_devices_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CUDA_DRIVER_H_

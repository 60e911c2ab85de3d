// Reads the version that a program hands to a publish: a number in the memory of its device.
#ifndef RESHARD_NATIVE_SRC_XLA_VERSION_READER_H_
#define RESHARD_NATIVE_SRC_XLA_VERSION_READER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "cuda_driver.h"
#include "xla/xla_ffi.h"

namespace reshard {

class VersionReader {
 public:
  virtual ~VersionReader() = default;

  // `buffer` has one int32 or int64, which is there once the stream has come so far.
  // Throws kInvalidArgument for another type, kTimeout, and what the device says.
  virtual std::int64_t read(const XlaBuffer& buffer, void* stream,
                            std::int64_t timeout_ns) const = 0;

 protected:
  // How many bytes one number has.
  static std::size_t width_of(const XlaBuffer& buffer);
  static std::int64_t number_at(const void* address, std::size_t nbytes);
};

class HostVersionReader final : public VersionReader {
 public:
  std::int64_t read(const XlaBuffer& buffer, void* stream, std::int64_t timeout_ns) const override;
};

class CudaVersionReader final : public VersionReader {
 public:
  explicit CudaVersionReader(std::shared_ptr<const CudaDriver> driver)
      : driver_(std::move(driver)) {}
  std::int64_t read(const XlaBuffer& buffer, void* stream, std::int64_t timeout_ns) const override;

 private:
  int ordinal_of(CudaAddress address) const;

  std::shared_ptr<const CudaDriver> driver_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_XLA_VERSION_READER_H_

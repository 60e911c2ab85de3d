// The text of the device kernels; the build makes it of native/kernels (embed.cmake).
#ifndef RESHARD_NATIVE_SRC_KERNEL_SOURCE_H_
#define RESHARD_NATIVE_SRC_KERNEL_SOURCE_H_

namespace reshard {

// All that a compiler of the device needs: no header is included.
extern const char* const kKernelSource;

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_KERNEL_SOURCE_H_

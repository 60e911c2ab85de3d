// The C border of the device kernels' compiler.
#include "c_api_guard.h"
#include "kernel_source.h"
#include "nvrtc_compiler.h"
#include "reshard/reshard.h"

struct reshard_kernels {
  reshard::KernelImage image;
};

extern "C" {

const char* reshard_kernels_source(void) { return reshard::kKernelSource; }

reshard_status reshard_nvrtc_version(const char* nvrtc, int32_t* version) {
  return reshard::guarded([&] {
    reshard::require(nvrtc, "nvrtc");
    reshard::require(version, "version");
    *version = reshard::NvrtcCompiler(nvrtc).version();
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_kernels_compile(const char* nvrtc, const char* arch,
                                       reshard_kernels** kernels) {
  return reshard::guarded([&] {
    reshard::require(nvrtc, "nvrtc");
    reshard::require(arch, "arch");
    reshard::require(kernels, "kernels");
    *kernels = nullptr;
    *kernels =
        new reshard_kernels{reshard::NvrtcCompiler(nvrtc).compile(reshard::kKernelSource, arch)};
    return RESHARD_STATUS_OK;
  });
}

void reshard_kernels_destroy(reshard_kernels* kernels) { delete kernels; }

const void* reshard_kernels_image(const reshard_kernels* kernels) {
  return kernels->image.cubin.data();
}

uint64_t reshard_kernels_image_size(const reshard_kernels* kernels) {
  return kernels->image.cubin.size();
}

const char* reshard_kernels_log(const reshard_kernels* kernels) {
  return kernels->image.log.c_str();
}

}  // extern "C"

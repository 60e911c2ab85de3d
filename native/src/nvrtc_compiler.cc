#include "nvrtc_compiler.h"

#include <cstddef>
#include <memory>

#include "status.h"

namespace reshard {
namespace {

constexpr int kNvrtcSuccess = 0;
constexpr int kNvrtcInvalidOption = 5;
constexpr int kNvrtcCompilation = 6;

constexpr char kConsequence[] =
    "so it is no NVRTC, or one before 11.2. Install nvidia-cuda-nvrtc-cu12.";

}  // namespace

NvrtcCompiler::NvrtcCompiler(const std::string& name) : library_(name) {
  library_.set(&functions_.Version, "nvrtcVersion", kConsequence);
  library_.set(&functions_.GetErrorString, "nvrtcGetErrorString", kConsequence);
  library_.set(&functions_.CreateProgram, "nvrtcCreateProgram", kConsequence);
  library_.set(&functions_.CompileProgram, "nvrtcCompileProgram", kConsequence);
  library_.set(&functions_.GetProgramLogSize, "nvrtcGetProgramLogSize", kConsequence);
  library_.set(&functions_.GetProgramLog, "nvrtcGetProgramLog", kConsequence);
  library_.set(&functions_.GetCUBINSize, "nvrtcGetCUBINSize", kConsequence);
  library_.set(&functions_.GetCUBIN, "nvrtcGetCUBIN", kConsequence);
  library_.set(&functions_.DestroyProgram, "nvrtcDestroyProgram", kConsequence);
  int major = 0;
  int minor = 0;
  check("nvrtcVersion", functions_.Version(&major, &minor));
  version_ = 1000 * major + 10 * minor;
}

void NvrtcCompiler::check(const char* call, int result) const {
  if (result == kNvrtcSuccess) return;
  throw Error(StatusCode::kUnsupported,
              text("NVRTC at ", path(), " cannot be used: ", call, " says ", result, ", ",
                   functions_.GetErrorString(result), "."));
}

template <typename Size, typename Get>
std::string NvrtcCompiler::text_of(Program program, const char* what, Size size_of, Get get) const {
  std::size_t size = 0;
  check(what, size_of(program, &size));
  std::string out(size, '\0');
  if (size > 0) check(what, get(program, out.data()));
  return out;
}

KernelImage NvrtcCompiler::compile(const char* source, const std::string& arch) const {
  Program made = nullptr;
  check("nvrtcCreateProgram",
        functions_.CreateProgram(&made, source, "reshard_kernels.cu", 0, nullptr, nullptr));
  const auto destroy = [this](Program* program) { functions_.DestroyProgram(program); };
  const std::unique_ptr<Program, decltype(destroy)> owner(&made, destroy);
  const std::string architecture = "--gpu-architecture=" + arch;
  // What is shared with the host says nothing of devices, hence the second option.
  const char* const options[] = {architecture.c_str(), "--device-as-default-execution-space",
                                 "--std=c++17", "--ptxas-options=-v"};
  const int result = functions_.CompileProgram(made, 4, options);
  KernelImage image;
  image.log =
      text_of(made, "nvrtcGetProgramLog", functions_.GetProgramLogSize, functions_.GetProgramLog);
  while (!image.log.empty() && image.log.back() == '\0') image.log.pop_back();
  if (result == kNvrtcInvalidOption) {
    throw Error(StatusCode::kUnsupported,
                text("NVRTC ", version_ / 1000, ".", version_ % 1000 / 10, " at ", path(),
                     " does not compile for ", arch, ": ", image.log,
                     " Install a newer one, such as nvidia-cuda-nvrtc-cu12."));
  }
  if (result == kNvrtcCompilation) {
    throw Error(StatusCode::kInternal,
                text("the device kernels do not compile for ", arch, " with NVRTC ",
                     version_ / 1000, ".", version_ % 1000 / 10, ":\n", image.log));
  }
  check("nvrtcCompileProgram", result);
  image.cubin = text_of(made, "nvrtcGetCUBIN", functions_.GetCUBINSize, functions_.GetCUBIN);
  if (image.cubin.empty()) {
    throw Error(StatusCode::kUnsupported,
                text(arch,
                     " names no real architecture, such as sm_90, so there is no machine "
                     "code for it."));
  }
  return image;
}

}  // namespace reshard

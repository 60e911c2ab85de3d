// NVIDIA's run-time compiler (NVRTC), opened at run time; it needs neither a GPU nor a driver.
#ifndef RESHARD_NATIVE_SRC_NVRTC_COMPILER_H_
#define RESHARD_NATIVE_SRC_NVRTC_COMPILER_H_

#include <string>

#include "shared_library.h"

namespace reshard {

struct KernelImage {
  std::string cubin;
  std::string log;  // registers, spills and shared memory of each kernel
};

class NvrtcCompiler {
 public:
  // Opens NVRTC by the path of its file or by its name. Throws kUnsupported, saying what is
  // missing.
  explicit NvrtcCompiler(const std::string& name);

  const std::string& path() const { return library_.path(); }
  // 12090 for 12.9.
  int version() const { return version_; }

  // Compiles a source to machine code for one architecture, "sm_90". Not PTX, which only drivers as
  // new as this compiler would take. Takes seconds. Throws kUnsupported for an architecture that
  // this version does not know, kInternal with the compiler's words for a source that is wrong.
  KernelImage compile(const char* source, const std::string& arch) const;

 private:
  using Program = void*;
  // As in nvrtc.h; results are 0 or an error.
  struct Functions {
    int (*Version)(int* major, int* minor);
    const char* (*GetErrorString)(int result);
    int (*CreateProgram)(Program* program, const char* source, const char* name, int num_headers,
                         const char* const* headers, const char* const* include_names);
    int (*CompileProgram)(Program program, int num_options, const char* const* options);
    int (*GetProgramLogSize)(Program program, size_t* size);
    int (*GetProgramLog)(Program program, char* log);
    int (*GetCUBINSize)(Program program, size_t* size);
    int (*GetCUBIN)(Program program, char* cubin);
    int (*DestroyProgram)(Program* program);
  };

  template <typename Size, typename Get>
  std::string text_of(Program program, const char* what, Size size_of, Get get) const;
  void check(const char* call, int result) const;

  SharedLibrary library_;
  Functions functions_ = {};
  int version_ = 0;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_NVRTC_COMPILER_H_

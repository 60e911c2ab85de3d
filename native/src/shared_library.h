// A library that is opened at run time and stays open until the process ends.
//
// NCCL and CUDA run threads of their own, so they are never unloaded. Nothing of them is linked:
// this library loads and works without either.
#ifndef RESHARD_NATIVE_SRC_SHARED_LIBRARY_H_
#define RESHARD_NATIVE_SRC_SHARED_LIBRARY_H_

#include <string>

namespace reshard {

class SharedLibrary {
 public:
  // Opens a file by its path, or by its name what the process has open already or the loader finds.
  // Throws kUnsupported with the loader's words.
  //   function: of the library. If the whole process sees that of another file, calls of this one
  //   would go there, so it is opened such that they stay inside of it.
  explicit SharedLibrary(const std::string& name, const char* function = nullptr);

  // The file that is open.
  const std::string& path() const { return path_; }

  // Sets a pointer to the function of that name. Throws kUnsupported where there is none, in words
  // that end with what follows from that.
  template <typename Function>
  void set(Function** pointer, const char* symbol, const std::string& consequence) const {
    *pointer = reinterpret_cast<Function*>(function(symbol, consequence));
  }

 private:
  void* function(const char* symbol, const std::string& consequence) const;

  void* handle_;
  std::string path_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_SHARED_LIBRARY_H_

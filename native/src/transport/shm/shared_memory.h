// Memory shared between processes: an anonymous file of fixed size, and mappings of parts of it.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHARED_MEMORY_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHARED_MEMORY_H_

#include <cstddef>

namespace reshard {

constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// A mapping that unmaps itself. Every page is present after construction, so that the first use
// takes no page fault. A child made by fork does not inherit it.
class Mapping {
 public:
  Mapping() = default;
  // Bytes [offset, offset + nbytes) of the file; both multiples of kPageBytes.
  Mapping(int fd, std::size_t offset, std::size_t nbytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return nbytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

// A new anonymous file of zeros, all of it allocated, whose size nobody can change any more.
FileDescriptor create_shared_memory(std::size_t nbytes);

// Throws kProtocol unless `fd` is shared memory of exactly `nbytes` whose size is sealed: only then
// can a mapping of it not disappear under our feet.
void check_shared_memory(int fd, std::size_t nbytes);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_SHARED_MEMORY_H_

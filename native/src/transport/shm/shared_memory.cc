#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "status.h"

namespace reshard {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Mapping::Mapping(int fd, std::size_t offset, std::size_t nbytes) : nbytes_(nbytes) {
  void* address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                       static_cast<off_t>(offset));
  if (address == MAP_FAILED)
    throw_system(text("mapping ", nbytes, " bytes of shared memory"), errno);
  data_ = static_cast<std::byte*>(address);
  if (madvise(address, nbytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(address, nbytes);
    throw_system("madvise(MADV_DONTFORK) on shared memory", error);
  }
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, nbytes_);
}

FileDescriptor create_shared_memory(std::size_t nbytes) {
  FileDescriptor fd(memfd_create("reshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) throw_system("memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
    throw_system(text("sizing shared memory to ", nbytes, " bytes"), errno);
  }
  // Allocates now: without memory this fails here and not with a signal at the first access.
  int error = 0;
  do {
    error = posix_fallocate(fd.get(), 0, static_cast<off_t>(nbytes));
  } while (error == EINTR);
  if (error != 0) throw_system(text("allocating ", nbytes, " bytes of shared memory"), error);
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) throw_system("sealing shared memory", errno);
  return fd;
}

void check_shared_memory(int fd, std::size_t nbytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    throw Error(StatusCode::kProtocol,
                text("the peer's shared memory is not sealed (seals ", seals, ")."));
  }
  struct stat facts{};
  if (fstat(fd, &facts) != 0) throw_system("fstat of the peer's shared memory", errno);
  if (facts.st_size != static_cast<off_t>(nbytes)) {
    throw Error(StatusCode::kProtocol, text("the peer's shared memory has ", facts.st_size,
                                            " bytes but it announced ", nbytes, "."));
  }
}

}  // namespace reshard

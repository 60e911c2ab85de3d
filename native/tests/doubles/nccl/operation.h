// A send or a receive of one rank.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_OPERATION_H_
#define RESHARD_TESTS_DOUBLES_NCCL_OPERATION_H_

#include <cstddef>
#include <cstdint>

namespace doubles {

struct Operation {
  bool is_send;
  char* buffer;
  std::uint64_t count;  // elements
  int type;
  int peer;
  void* stream;

  std::size_t nbytes() const;
};

// Bytes of an element; 0 for an unknown type.
inline std::size_t size_of_type(int type) {
  constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type > 11 ? 0 : kSizes[type];
}

inline std::size_t Operation::nbytes() const {
  return static_cast<std::size_t>(count) * size_of_type(type);
}

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_OPERATION_H_

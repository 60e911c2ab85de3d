// Moves the bytes of all operations of one communicator in one group, together.
#ifndef RESHARD_TESTS_DOUBLES_NCCL_EXCHANGE_H_
#define RESHARD_TESTS_DOUBLES_NCCL_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nccl/comm.h"
#include "nccl/operation.h"

namespace doubles {

class Exchange {
 public:
  enum class Step { kDone, kMoved, kNothing, kWrong };

  Exchange(Comm& comm, const std::vector<Operation>& operations);
  // Moves what can be moved now.
  Step step();
  // What is wrong.
  const std::string& error() const { return error_; }
  std::size_t bytes_sent() const { return bytes_sent_; }

 private:
  // What goes before the bytes of each message.
  struct Header {
    std::uint64_t count;
    std::int64_t type;
  };
  // The operations of one direction with one peer, in their order.
  struct Line {
    std::vector<Operation> operations;
    std::size_t at = 0;      // the operation that is under way
    std::size_t header = 0;  // bytes of its header that went
    std::size_t body = 0;    // bytes of it that went
    Header incoming{};
    bool is_done() const { return at == operations.size(); }
  };

  bool move_own();
  bool send(Line& line, int peer);
  bool receive(Line& line, int peer);
  // A message was announced that is not the one that is wanted.
  bool is_wrong(const Line& line, int peer);

  Comm& comm_;
  std::map<int, Line> sends_;
  std::map<int, Line> receives_;
  std::string error_;
  std::size_t bytes_sent_ = 0;
};

}  // namespace doubles

#endif  // RESHARD_TESTS_DOUBLES_NCCL_EXCHANGE_H_

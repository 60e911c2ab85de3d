// Pairs a process up with its peers: of two peers the lower index dials, the higher one listens.
//
// Both send a hello with the descriptor of their segment; sockets close as soon as a pair is
// complete. A member that is set up differently ends the attempt on both sides; a stranger (wrong
// user, wrong token) is refused, counted and otherwise ignored.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONNECTOR_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONNECTOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/shm/hello.h"
#include "transport/shm/session.h"
#include "transport/shm/shared_memory.h"

namespace reshard {

// This process's segment, as its peers get to see it.
struct OwnSegment {
  int fd = -1;
  std::size_t nbytes = 0;
  std::map<int, std::size_t> ring_offsets;  // by process sent to
};

struct ConnectedPeer {
  int process = 0;
  std::int32_t pid = 0;
  Mapping control;
  Mapping ring;  // that it sends to this process through; empty when it sends nothing
};

class Connector {
 public:
  // Listens from here on. `config` and `own` outlive the connector.
  Connector(const ShmConfig& config, const OwnSegment& own);

  // Goes on until all peers are connected (returns true) or for about `slice_ns`.
  bool advance(std::int64_t slice_ns);

  // The peers that are connected so far, moved out.
  std::vector<ConnectedPeer> take_connected();

  // For the message of a timeout: who is missing and what was refused.
  std::string describe_missing() const;

 private:
  // A peer with a higher index; `socket` is open while its hello is awaited.
  struct Outgoing {
    int process;
    FileDescriptor socket;
    std::int32_t pid;
  };
  // Somebody who dialled and has not said hello.
  struct Incoming {
    FileDescriptor socket;
    std::int32_t pid;
  };

  bool is_complete() const;
  void dial_all();
  void accept_all();
  void receive_all();
  bool receive_outgoing(Outgoing& outgoing);
  bool receive_incoming(Incoming& incoming);
  void refuse(int socket, const std::string& reason);
  void finish_pair(const Hello& hello, const FileDescriptor& memory, std::int32_t pid);
  Hello hello_for(int process) const;
  void wait(std::int64_t timeout_ns);

  const ShmConfig& config_;
  const OwnSegment& own_;
  FileDescriptor listener_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<int> awaited_;  // peers with a lower index that have not dialled
  std::vector<ConnectedPeer> connected_;
  int num_refused_ = 0;
  std::string last_refusal_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_SHM_CONNECTOR_H_

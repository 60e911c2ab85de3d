#include "nccl/exchange.h"

#include <cstring>

namespace doubles {

Exchange::Exchange(Comm& comm, const std::vector<Operation>& operations) : comm_(comm) {
  for (const Operation& operation : operations) {
    auto& lines = operation.is_send ? sends_ : receives_;
    lines[operation.peer].operations.push_back(operation);
  }
}

bool Exchange::move_own() {
  const auto found = sends_.find(comm_.rank());
  if (found == sends_.end()) return false;
  Line& from = found->second;
  Line& to = receives_[comm_.rank()];  // as many: that was checked when the group was ended
  if (from.is_done()) return false;
  for (; !from.is_done(); ++from.at, ++to.at) {
    const Operation& send = from.operations[from.at];
    to.incoming = {send.count, send.type};
    if (is_wrong(to, comm_.rank())) return false;
    std::memmove(to.operations[to.at].buffer, send.buffer, send.nbytes());
    bytes_sent_ += send.nbytes();
  }
  return true;
}

// Fills the ring with one message after the other; all of them have gone when all were read.
bool Exchange::send(Line& line, int peer) {
  Ring& ring = comm_.meeting().ring(comm_.rank(), peer);
  bool moved = false;
  while (!line.is_done()) {
    const Operation& operation = line.operations[line.at];
    const Header header{operation.count, operation.type};
    std::size_t put = ring.put(reinterpret_cast<const char*>(&header) + line.header,
                               sizeof(header) - line.header);
    line.header += put;
    if (line.header == sizeof(header)) {
      const std::size_t body =
          ring.put(operation.buffer + line.body, operation.nbytes() - line.body);
      line.body += body;
      put += body;
    }
    moved |= put > 0;
    if (line.header < sizeof(header) || line.body < operation.nbytes()) break;
    bytes_sent_ += operation.nbytes();
    ++line.at;
    line.header = line.body = 0;
  }
  if (ring.refused.load() != 0) {
    error_ = "rank " + std::to_string(peer) + " wants another message than rank " +
             std::to_string(comm_.rank()) + " sends";
  }
  if (moved) comm_.meeting().wake(peer);
  return moved;
}

bool Exchange::is_wrong(const Line& line, int peer) {
  const Operation& wanted = line.operations[line.at];
  if (line.incoming.count == wanted.count && line.incoming.type == wanted.type) return false;
  error_ = "rank " + std::to_string(comm_.rank()) + " receives " + std::to_string(wanted.count) +
           " elements of type " + std::to_string(wanted.type) + " from rank " +
           std::to_string(peer) + ", which sends " + std::to_string(line.incoming.count) +
           " of type " + std::to_string(line.incoming.type);
  return true;
}

bool Exchange::receive(Line& line, int peer) {
  Ring& ring = comm_.meeting().ring(peer, comm_.rank());
  bool moved = false;
  while (!line.is_done()) {
    const Operation& operation = line.operations[line.at];
    std::size_t got = 0;
    if (line.header < sizeof(Header)) {
      got = ring.get(reinterpret_cast<char*>(&line.incoming) + line.header,
                     sizeof(Header) - line.header);
      line.header += got;
      if (line.header == sizeof(Header) && is_wrong(line, peer)) {
        ring.refused = 1;
        moved = true;
        break;
      }
    }
    if (line.header == sizeof(Header)) {
      const std::size_t body =
          ring.get(operation.buffer + line.body, operation.nbytes() - line.body);
      line.body += body;
      got += body;
    }
    moved |= got > 0;
    if (line.header < sizeof(Header) || line.body < operation.nbytes()) break;
    ++line.at;
    line.header = line.body = 0;
  }
  if (moved) comm_.meeting().wake(peer);
  return moved;
}

Exchange::Step Exchange::step() {
  bool moved = move_own();
  bool done = true;
  for (auto& [peer, line] : sends_) {
    if (peer == comm_.rank()) continue;
    moved |= send(line, peer);
    const Ring& ring = comm_.meeting().ring(comm_.rank(), peer);
    done &= line.is_done() && ring.read.load() == ring.written.load();
  }
  for (auto& [peer, line] : receives_) {
    if (peer == comm_.rank()) continue;
    moved |= receive(line, peer);
    done &= line.is_done();
  }
  if (!error_.empty()) return Step::kWrong;
  if (done) return Step::kDone;
  return moved ? Step::kMoved : Step::kNothing;
}

}  // namespace doubles

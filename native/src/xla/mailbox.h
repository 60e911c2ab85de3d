// Where the devices of a compiled program meet the end that does the refit for them.
//
// A program of XLA calls a foreign function once per device, each on a thread of its own. Each call
// is a *visit*: it brings the addresses of one device, and waits. When all devices of the process
// are there, the visits are one *call*, which whoever serves the mailbox takes and answers. Every
// visit returns the answer.
#ifndef RESHARD_NATIVE_SRC_XLA_MAILBOX_H_
#define RESHARD_NATIVE_SRC_XLA_MAILBOX_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "status.h"

namespace reshard {

// One place in programs from which devices visit: what has to be the same in every call from there.
struct Site {
  std::vector<std::int32_t> devices;        // ordinals, as XLA says them, of this process
  std::vector<std::int64_t> operand_sizes;  // elements of each operand, on each device
  std::size_t num_results = 0;              // result i is operand i, in place
  bool has_version = false;                 // operand 0 is one
};

struct Visit {
  std::size_t device = 0;   // position in Site::devices
  std::int64_t run_id = 0;  // equal for all devices of one execution of a program
  std::vector<void*> operands;
  std::int64_t version = 0;
  std::uint64_t stream = 0;
};

struct Answer {
  StatusCode code = StatusCode::kOk;
  std::string message;
};

struct Call {
  enum class State { kGathering, kReady, kServed, kAnswered };

  std::int64_t site = 0;
  std::shared_ptr<const Site> shape;
  std::int64_t run_id = 0;
  std::vector<Visit> visits;  // by position in Site::devices
  std::vector<bool> has_come;
  std::size_t num_come = 0;
  std::int64_t deadline_ns = 0;  // of the monotonic clock; the first that any visit brought
  State state = State::kGathering;
  Answer answer;
};

// Any thread may call anything, except that one thread serves: wait, answer.
class Mailbox {
 public:
  // Returns the number of a new site, from 0 on. Throws kInvalidArgument.
  std::int64_t add_site(Site site);
  // Throws kInvalidArgument for a number that add_site did not return.
  std::shared_ptr<const Site> site(std::int64_t number) const;

  // Waits for the other devices, then for the answer. The timeout ends a wait for devices or for
  // whoever serves; from when the call is taken until its answer its memory is in use, and the
  // limit is that of whoever serves.
  Answer visit(std::int64_t site, Visit visit, std::int64_t timeout_ns);

  // Takes the next call of which all devices are there; null when there is none within the slice.
  // It lives until its answer. Throws kAborted once the mailbox is closed, and kInvalidState while
  // a call is taken.
  const Call* wait(std::int64_t slice_ns);
  // Throws kInvalidState if no call is taken.
  void answer(Answer answer);

  // Answers whatever waits, and every later visit, with kAborted; a call that is taken still waits
  // for its answer. The first reason stays.
  void close(const std::string& reason);

 private:
  using Run = std::pair<std::int64_t, std::int64_t>;  // site, run id

  std::shared_ptr<Call> join(std::int64_t site, Visit visit, std::int64_t deadline_ns);
  std::shared_ptr<Call> call_of(const Run& run, std::size_t device);
  void finish(const std::shared_ptr<Call>& call, Answer answer);
  void give_up(const std::shared_ptr<Call>& call);

  mutable std::mutex mutex_;  // guards all below; nothing else is called under it
  std::condition_variable answered_;
  std::condition_variable arrived_;
  std::vector<std::shared_ptr<const Site>> sites_;
  std::map<Run, std::shared_ptr<Call>> gathering_;
  std::deque<std::shared_ptr<Call>> ready_;
  std::deque<std::shared_ptr<Call>> given_up_;  // for devices that come too late
  std::shared_ptr<Call> served_;
  bool is_closed_ = false;
  std::string reason_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_XLA_MAILBOX_H_

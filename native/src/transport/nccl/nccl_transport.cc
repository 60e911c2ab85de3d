#include "transport/nccl/nccl_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "clock.h"
#include "status.h"

namespace reshard {
namespace {

// How often a thread that has nothing else to do asks NCCL whether it has got on.
constexpr std::chrono::microseconds kPollInterval{50};

// The longest wait for peers that do not take part in closing.
constexpr std::int64_t kCloseNs = 1'000'000'000;

bool is_fine(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

// A group of calls. One that stayed open would take in whatever its thread calls next.
class CallGroup {
 public:
  explicit CallGroup(const NcclFunctions& nccl) : nccl_(nccl), result_(nccl.GroupStart()) {
    is_open_ = result_ == kNcclSuccess;
  }
  ~CallGroup() {
    if (is_open_) nccl_.GroupEnd();
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;

  // What its start said.
  int result() const { return result_; }
  int end() {
    is_open_ = false;
    return nccl_.GroupEnd();
  }

 private:
  const NcclFunctions& nccl_;
  int result_;
  bool is_open_ = false;
};

}  // namespace

NcclTransport::NcclTransport(NcclSetup setup)
    : setup_(std::move(setup)),
      communicators_(std::make_shared<NcclCommunicators>(setup_.api, setup_.ranks)) {
  std::map<std::int64_t, std::int64_t> sizes;
  for (const std::int64_t domain : setup_.domains) domain_numbers_.push_back(sizes[domain]++);
  for (const std::int64_t domain : setup_.domains) domain_sizes_.push_back(sizes[domain]);
}

NcclTransport::~NcclTransport() { close(); }

std::ptrdiff_t NcclTransport::place_of(std::int64_t rank) const {
  const auto place = std::lower_bound(setup_.members.begin(), setup_.members.end(), rank);
  const bool is_member = place != setup_.members.end() && *place == rank;
  return is_member ? place - setup_.members.begin() : -1;
}

bool NcclTransport::has_domain(std::int64_t rank) const {
  return !domain_sizes_.empty() && domain_sizes_[static_cast<std::size_t>(place_of(rank))] > 1;
}

// The number of a rank in the communicators of a channel.
int NcclTransport::number_in(Channel channel, std::int64_t rank) const {
  const std::ptrdiff_t place = place_of(rank);
  if (place < 0) {
    throw Error(StatusCode::kInvalidArgument,
                text("program: rank ", rank, " is none of the communicator's."), kNoRank, rank);
  }
  const bool is_near = channel == Channel::kDomain;
  return static_cast<int>(is_near ? domain_numbers_[static_cast<std::size_t>(place)] : place);
}

bool NcclTransport::shares_domain(std::int64_t a, std::int64_t b) const {
  const std::ptrdiff_t first = place_of(a);
  const std::ptrdiff_t second = place_of(b);
  if (domain_sizes_.empty() || first < 0 || second < 0) return false;
  return setup_.domains[static_cast<std::size_t>(first)] ==
         setup_.domains[static_cast<std::size_t>(second)];
}

bool NcclTransport::connect(std::int64_t timeout_ns, std::int64_t slice_ns) {
  const std::int64_t start = monotonic_ns();
  if (connect_start_ns_ == 0) connect_start_ns_ = start;
  try {
    for (;;) {
      check_not_aborted();
      if (advance()) return true;
      const std::int64_t now = monotonic_ns();
      if (now - connect_start_ns_ >= timeout_ns) {
        throw Error(StatusCode::kTimeout,
                    text("NCCL: not all of the ", setup_.members.size(),
                         " ranks have joined within ", static_cast<double>(timeout_ns) / 1e9,
                         " s. A process is missing or "
                         "cannot be reached; NCCL_DEBUG=INFO says which network it tries."));
      }
      if (now - start >= slice_ns) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
  } catch (const Error& error) {
    abort(error);
    stop();
    throw;
  }
}

// Goes on with joining; returns whether it is over.
bool NcclTransport::advance() {
  switch (stage_) {
    case Stage::kNew:
      join();
      stage_ = Stage::kJoining;
      return false;
    case Stage::kJoining:
      if (!are_settled(of(Channel::kNetwork), "joining")) return false;
      if (!setup_.domains.empty()) split();
      stage_ = setup_.domains.empty() ? Stage::kConnected : Stage::kSplitting;
      return is_connected();
    case Stage::kSplitting: {
      if (!are_settled(of(Channel::kNetwork), "joining the domain")) return false;
      // The new communicators are known when the old ones are settled, and settle by themselves.
      for (std::size_t i = 0; i < setup_.ranks.size(); ++i) {
        if (has_domain(setup_.ranks[i].rank) && of(Channel::kDomain)[i] == nullptr) return false;
      }
      if (!are_settled(of(Channel::kDomain), "joining the domain")) return false;
      stage_ = Stage::kConnected;
      return true;
    }
    case Stage::kConnected:
      return true;
    case Stage::kOver:
      break;
  }
  throw Error(StatusCode::kInvalidState, "communicator: used after it was closed.");
}

void NcclTransport::join() {
  const NcclFunctions& nccl = setup_.api->functions();
  CallGroup group(nccl);
  check_result(nullptr, group.result(), "starting a group");
  int failure = kNcclSuccess;
  for (std::size_t i = 0; i < setup_.ranks.size() && is_fine(failure); ++i) {
    const GpuDevice::Scope scope(*setup_.ranks[i].device);
    NcclConfig config;
    failure = nccl.CommInitRankConfig(&of(Channel::kNetwork)[i],
                                      static_cast<int>(setup_.members.size()), setup_.id,
                                      number_in(Channel::kNetwork, setup_.ranks[i].rank), &config);
  }
  const int end = group.end();
  check_result(nullptr, failure, "joining");
  check_result(nullptr, end, "joining");
}

void NcclTransport::split() {
  const NcclFunctions& nccl = setup_.api->functions();
  CallGroup group(nccl);
  check_result(nullptr, group.result(), "starting a group");
  int failure = kNcclSuccess;
  for (std::size_t i = 0; i < setup_.ranks.size() && is_fine(failure); ++i) {
    const std::int64_t rank = setup_.ranks[i].rank;
    const auto place = static_cast<std::size_t>(place_of(rank));
    const auto domain = static_cast<int>(setup_.domains[place]);
    const GpuDevice::Scope scope(*setup_.ranks[i].device);
    NcclConfig config;
    failure =
        nccl.CommSplit(of(Channel::kNetwork)[i], has_domain(rank) ? domain : kNcclSplitNoColor,
                       static_cast<int>(place), &of(Channel::kDomain)[i], &config);
  }
  const int end = group.end();
  check_result(of(Channel::kNetwork).front(), failure, "joining the domain");
  check_result(of(Channel::kNetwork).front(), end, "joining the domain");
}

bool NcclTransport::are_settled(const std::vector<NcclComm>& communicators,
                                const char* what) const {
  bool is_settled = true;
  for (const NcclComm communicator : communicators) {
    if (communicator == nullptr) continue;
    int state = kNcclSuccess;
    const int result = setup_.api->functions().CommGetAsyncError(communicator, &state);
    check_result(communicator, result, what);
    check_result(communicator, state, what);
    is_settled = is_settled && state != kNcclInProgress;
  }
  return is_settled;
}

void NcclTransport::check_result(NcclComm communicator, int result, const char* what) const {
  if (is_fine(result)) return;
  const NcclFunctions& nccl = setup_.api->functions();
  const char* detail = nccl.GetLastError(communicator);
  const std::string words =
      text("NCCL ", nccl_version_text(setup_.api->version()), ", ", what, ": ", result, ", ",
           nccl.GetErrorString(result), detail == nullptr || *detail == '\0' ? "" : "; ",
           detail == nullptr ? "" : detail, ".");
  if (result == kNcclRemoteError) {
    throw Error(StatusCode::kPeerLost, text(words, " A peer died or cannot be reached any more."));
  }
  const bool is_double = std::strstr(words.c_str(), "Duplicate GPU") != nullptr;
  throw Error(StatusCode::kSystem,
              text(words, is_double ? " Give each rank a GPU of its own: a trainer and an engine "
                                      "that take turns on one GPU are two ranks on one, which NCCL "
                                      "refuses before 2.30, and later unless "
                                      "NCCL_MULTI_RANK_GPU_ENABLE=1."
                                    : " NCCL_DEBUG=INFO says more."));
}

void NcclTransport::post(Channel channel, const std::vector<GroupMessage>& messages) {
  const NcclFunctions& nccl = setup_.api->functions();
  const std::vector<NcclComm>& communicators = of(channel);
  // NCCL goes back to the device that was current, and would make a context where none was.
  const GpuDevice::Scope scope(*setup_.ranks.front().device);
  CallGroup group(nccl);
  check_result(nullptr, group.result(), "starting a group");
  int failure = kNcclSuccess;
  NcclComm failed = nullptr;
  for (const GroupMessage& message : messages) {
    const NcclComm communicator = communicators[message.local];
    const auto stream = reinterpret_cast<NcclStream>(message.stream);
    const auto nbytes = static_cast<std::size_t>(message.nbytes);
    const int peer = number_in(channel, message.peer);
    void* memory = reinterpret_cast<void*>(message.address);
    const int result = message.is_send
                           ? nccl.Send(memory, nbytes, kNcclUint8, peer, communicator, stream)
                           : nccl.Recv(memory, nbytes, kNcclUint8, peer, communicator, stream);
    if (is_fine(result)) continue;
    failure = result;
    failed = communicator;
    break;
  }
  const int end = group.end();
  check_result(failed, failure, "sending and receiving");
  check_result(failed, end, "sending and receiving");
}

bool NcclTransport::is_posted(Channel channel) {
  return are_settled(of(channel), "sending and receiving");
}

void NcclTransport::check() {
  check_not_aborted();
  for (const Channel channel : {Channel::kNetwork, Channel::kDomain}) {
    are_settled(of(channel), "sending and receiving");
  }
}

void NcclTransport::check_not_aborted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reason_) {
    throw Error(StatusCode::kAborted, reason_->message(), reason_->rank(), reason_->peer());
  }
  if (stage_ == Stage::kOver) {
    throw Error(StatusCode::kInvalidState, "communicator: used after it was closed.");
  }
}

// Whether a peer lives is the control plane's to say: NCCL tells nobody who died.
void NcclTransport::check_peers() { check_not_aborted(); }

void NcclTransport::abort(const Error& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_) reason_ = reason;
}

std::function<bool()> NcclTransport::stop() {
  end(NcclCommunicators::Ending::kAbort);
  return [all = ended_] { return all->are_ended(); };
}

void NcclTransport::end(NcclCommunicators::Ending how) {
  if (stage_.exchange(Stage::kOver) == Stage::kOver) return;
  ended_ = communicators_;
  communicators_ = std::make_shared<NcclCommunicators>(setup_.api, setup_.ranks);
  NcclCommunicators::end(ended_, how);
}

void NcclTransport::close() {
  bool is_whole = stage_ == Stage::kConnected;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_whole = is_whole && !reason_;
  }
  const std::int64_t deadline = monotonic_ns() + kCloseNs;
  is_whole = is_whole && finalize(of(Channel::kDomain), deadline) &&
             finalize(of(Channel::kNetwork), deadline);
  end(is_whole ? NcclCommunicators::Ending::kDestroy : NcclCommunicators::Ending::kAbort);
}

// Has communicators finish what they do; returns whether all of them did.
bool NcclTransport::finalize(const std::vector<NcclComm>& communicators, std::int64_t deadline_ns) {
  const NcclFunctions& nccl = setup_.api->functions();
  const GpuDevice::Scope scope(*setup_.ranks.front().device, std::nothrow);
  for (const NcclComm communicator : communicators) {
    if (communicator != nullptr && !is_fine(nccl.CommFinalize(communicator))) return false;
  }
  for (const NcclComm communicator : communicators) {
    int state = communicator == nullptr ? kNcclSuccess : kNcclInProgress;
    while (state == kNcclInProgress) {
      if (nccl.CommGetAsyncError(communicator, &state) != kNcclSuccess) return false;
      if (state != kNcclInProgress) break;
      if (monotonic_ns() >= deadline_ns) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
    if (state != kNcclSuccess) return false;
  }
  return true;
}

}  // namespace reshard

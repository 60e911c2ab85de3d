#include "xla/mailbox.h"

#include <algorithm>
#include <chrono>

#include "clock.h"

namespace reshard {
namespace {

using State = Call::State;

constexpr std::size_t kMaxGivenUp = 64;
constexpr std::int64_t kMaxTimeoutNs = std::int64_t{1} << 60;

std::chrono::steady_clock::time_point time_of(std::int64_t monotonic_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(monotonic_ns));
}

std::string missing_text(const Call& call) {
  std::string come;
  std::string missing;
  for (std::size_t i = 0; i < call.has_come.size(); ++i) {
    std::string& list = call.has_come[i] ? come : missing;
    list += text(list.empty() ? "" : ", ", call.shape->devices[i]);
  }
  return text("the deadline passed before all devices of this process called: ", call.num_come,
              " of ", call.has_come.size(), " did (ids ", come, "), missing are ids ", missing,
              ". On CPU, programs on other devices of one process wait for each other: move both "
              "ends of a refit in separate processes or threads outside jit.");
}

}  // namespace

std::int64_t Mailbox::add_site(Site site) {
  if (site.devices.empty()) {
    throw Error(StatusCode::kInvalidArgument, "a site has no device of this process.");
  }
  std::vector<std::int32_t> sorted = site.devices;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw Error(StatusCode::kInvalidArgument, "a site names one device twice.");
  }
  if (site.num_results > site.operand_sizes.size() ||
      (site.has_version && site.operand_sizes.empty())) {
    throw Error(StatusCode::kInvalidArgument,
                text("a site has ", site.num_results, " results in place and a version or not (",
                     site.has_version, ") but ", site.operand_sizes.size(), " operands."));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  sites_.push_back(std::make_shared<const Site>(std::move(site)));
  return static_cast<std::int64_t>(sites_.size()) - 1;
}

std::shared_ptr<const Site> Mailbox::site(std::int64_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number < 0 || static_cast<std::size_t>(number) >= sites_.size()) {
    throw Error(StatusCode::kInvalidArgument,
                text("site ", number, " is none of the ", sites_.size(), " of this end."));
  }
  return sites_[static_cast<std::size_t>(number)];
}

Answer Mailbox::visit(std::int64_t site_number, Visit visit, std::int64_t timeout_ns) {
  const std::int64_t limit = std::clamp(timeout_ns, std::int64_t{0}, kMaxTimeoutNs);
  const std::int64_t deadline_ns = monotonic_ns() + limit;
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_) return {StatusCode::kAborted, reason_};
  const std::shared_ptr<Call> call = join(site_number, std::move(visit), deadline_ns);
  while (call->state != State::kAnswered) {
    if (call->state == State::kServed) {
      answered_.wait(lock);
    } else if (monotonic_ns() >= deadline_ns) {
      give_up(call);
    } else {
      answered_.wait_until(lock, time_of(deadline_ns));
    }
  }
  return call->answer;
}

std::shared_ptr<Call> Mailbox::join(std::int64_t site_number, Visit visit,
                                    std::int64_t deadline_ns) {
  const std::shared_ptr<const Site>& shape = sites_.at(static_cast<std::size_t>(site_number));
  const Run run{site_number, visit.run_id};
  std::shared_ptr<Call> call = call_of(run, visit.device);
  if (call == nullptr) {
    call = std::make_shared<Call>();
    call->site = site_number;
    call->shape = shape;
    call->run_id = visit.run_id;
    call->visits.resize(shape->devices.size());
    call->has_come.resize(shape->devices.size());
    call->deadline_ns = deadline_ns;
    gathering_[run] = call;
  }
  const std::size_t device = visit.device;
  call->visits.at(device) = std::move(visit);
  call->has_come[device] = true;
  ++call->num_come;
  call->deadline_ns = std::min(call->deadline_ns, deadline_ns);
  if (call->state == State::kGathering && call->num_come == call->visits.size()) {
    gathering_.erase(run);
    ready_.push_back(call);
    call->state = State::kReady;
    arrived_.notify_one();
  }
  return call;
}

// The call of a run that waits for this device, or that was given up without it.
std::shared_ptr<Call> Mailbox::call_of(const Run& run, std::size_t device) {
  const auto found = gathering_.find(run);
  if (found != gathering_.end()) {
    if (found->second->has_come.at(device)) {
      throw Error(StatusCode::kInvalidState,
                  text("device ", found->second->shape->devices[device],
                       " called twice at once from one place of a program."));
    }
    return found->second;
  }
  for (const std::shared_ptr<Call>& call : given_up_) {
    if (call->site == run.first && call->run_id == run.second && !call->has_come.at(device)) {
      return call;
    }
  }
  return nullptr;
}

void Mailbox::finish(const std::shared_ptr<Call>& call, Answer answer) {
  call->answer = std::move(answer);
  call->state = State::kAnswered;
  answered_.notify_all();
}

void Mailbox::give_up(const std::shared_ptr<Call>& call) {
  if (call->state == State::kReady) {
    ready_.erase(std::find(ready_.begin(), ready_.end(), call));
    finish(call, {StatusCode::kTimeout,
                  "the deadline passed while an earlier call of this end was under way."});
    return;
  }
  gathering_.erase({call->site, call->run_id});
  finish(call, {StatusCode::kTimeout, missing_text(*call)});
  if (given_up_.size() == kMaxGivenUp) given_up_.pop_front();
  given_up_.push_back(call);
}

const Call* Mailbox::wait(std::int64_t slice_ns) {
  const auto until = time_of(monotonic_ns() + std::clamp(slice_ns, std::int64_t{0}, kMaxTimeoutNs));
  std::unique_lock<std::mutex> lock(mutex_);
  if (served_ != nullptr) {
    throw Error(StatusCode::kInvalidState, "the call that was taken has no answer yet.");
  }
  arrived_.wait_until(lock, until, [this] { return is_closed_ || !ready_.empty(); });
  if (is_closed_) throw Error(StatusCode::kAborted, reason_);
  if (ready_.empty()) return nullptr;
  served_ = std::move(ready_.front());
  ready_.pop_front();
  served_->state = State::kServed;
  return served_.get();
}

void Mailbox::answer(Answer answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (served_ == nullptr) throw Error(StatusCode::kInvalidState, "no call waits for an answer.");
  finish(served_, std::move(answer));
  served_.reset();
}

void Mailbox::close(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  reason_ = reason;
  for (const auto& [run, call] : gathering_) finish(call, {StatusCode::kAborted, reason_});
  for (const std::shared_ptr<Call>& call : ready_) finish(call, {StatusCode::kAborted, reason_});
  gathering_.clear();
  ready_.clear();
  given_up_.clear();
  arrived_.notify_all();
}

}  // namespace reshard

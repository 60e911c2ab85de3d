// How ranks of a communicator come to smaller ones: in steps, each when all that it needs is there.
#include <algorithm>
#include <tuple>

#include "nccl/comm.h"
#include "nccl/injections.h"
#include "nccl/library.h"

namespace doubles {

void Comm::start_split(int color, int key, ncclComm_t* out) {
  *out = nullptr;
  ++num_splits_;
  split_ = std::make_unique<Split>();
  split_->color = color;
  split_->key = key;
  split_->out = out;
  split_->step = Split::Step::kWaitForLast;
}

namespace {

// Whether all ranks have come so far with splits.
template <typename Counter>
bool all_reached(Meeting& meeting, Counter counter, std::uint64_t count) {
  for (int rank = 0; rank < meeting.num_ranks(); ++rank) {
    if ((meeting.member(rank).*counter).load() < count) return false;
  }
  return true;
}

}  // namespace

// Color and key of all ranks are there.
void Comm::choose_members() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (meeting_->member(rank).color == split_->color) split_->members.push_back(rank);
  }
  std::sort(split_->members.begin(), split_->members.end(), [this](int a, int b) {
    return std::make_tuple(meeting_->member(a).key, a) <
           std::make_tuple(meeting_->member(b).key, b);
  });
}

// The first member makes the meeting, the others open it.
bool Comm::open_child() {
  const Member& first = meeting_->member(split_->members.front());
  if (first.split_child_made.load() < num_splits_) return false;
  const auto mine = std::find(split_->members.begin(), split_->members.end(), rank_);
  split_->child = std::make_shared<Comm>(static_cast<int>(split_->members.size()),
                                         static_cast<int>(mine - split_->members.begin()), device_,
                                         first.child);
  split_->child->start_joining();
  return true;
}

bool Comm::poll_split() {
  Member& me = meeting_->member(rank_);
  if (split_->step == Split::Step::kWaitForLast) {
    if (injections().hangs_split()) return false;
    // What is posted for a split stays until all ranks have done it.
    if (!all_reached(*meeting_, &Member::split_done, num_splits_ - 1)) return false;
    me.color = split_->color;
    me.key = split_->key;
    me.split_posted = num_splits_;
    split_->step = Split::Step::kWaitForAll;
  }
  if (split_->step == Split::Step::kWaitForAll) {
    if (!all_reached(*meeting_, &Member::split_posted, num_splits_)) return false;
    if (split_->color == NCCL_SPLIT_NOCOLOR) {
      me.split_done = num_splits_;
      return true;
    }
    choose_members();
    if (split_->members.front() == rank_) {
      if (!Meeting::create(&me.child)) return false;
      me.split_child_made = num_splits_;
    }
    split_->step = Split::Step::kOpenChild;
  }
  if (split_->step == Split::Step::kOpenChild) {
    if (!open_child()) return false;
    split_->step = Split::Step::kWaitForChild;
  }
  const int result = split_->child->poll();
  if (result == ncclInProgress) return false;
  if (result != ncclSuccess) {
    fail(result, library().last_error());
    return false;
  }
  *split_->out = static_cast<ncclComm_t>(library().comms.add(split_->child));
  me.split_done = num_splits_;
  return true;
}

}  // namespace doubles

// Moves groups of messages between GPUs through communicators of one copy of NCCL.
//
// Each local rank has one communicator of all ranks, and one of its domain where the plan exchanges
// inside domains. All of them are non-blocking, so no call waits for a peer and abort is safe from
// any state; what ends them may wait, and has a limit (nccl_communicators.h). Source: NCCL 2.18
// to 2.32, user guide, "Fault Tolerance" and "Group Calls".
//
// Threads: one drives it. abort and check_peers may come from any thread: they touch only the
// reason, which `mutex_` guards; no other lock is taken under it.
#ifndef RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/group_transport.h"
#include "transport/nccl/nccl_api.h"
#include "transport/nccl/nccl_communicators.h"

namespace reshard {

struct NcclSetup {
  std::shared_ptr<const NcclApi> api;
  NcclUniqueId id;                    // the same on all processes, new for every transport
  std::vector<std::int64_t> members;  // ranks of all processes, ascending
  std::vector<GpuRank> ranks;         // of this process
  std::vector<std::int64_t> domains;  // of each member; empty: there is no channel of domains
};

class NcclTransport final : public GroupTransport {
 public:
  explicit NcclTransport(NcclSetup setup);
  ~NcclTransport() override;

  bool connect(std::int64_t timeout_ns, std::int64_t slice_ns) override;
  bool is_connected() const override { return stage_ == Stage::kConnected; }
  void check_not_aborted() override;
  void check_peers() override;
  void abort(const Error& reason) override;
  void close() override;

  const std::vector<GpuRank>& local_ranks() const override { return setup_.ranks; }
  bool has_rank(std::int64_t rank) const override { return place_of(rank) >= 0; }
  bool shares_domain(std::int64_t a, std::int64_t b) const override;
  void post(Channel channel, const std::vector<GroupMessage>& messages) override;
  bool is_posted(Channel channel) override;
  void check() override;
  std::function<bool()> stop() override;

 private:
  enum class Stage { kNew, kJoining, kSplitting, kConnected, kOver };

  // The place of a rank among the members; -1 if it is none.
  std::ptrdiff_t place_of(std::int64_t rank) const;
  bool has_domain(std::int64_t rank) const;
  int number_in(Channel channel, std::int64_t rank) const;
  void join();
  void split();
  bool advance();
  bool finalize(const std::vector<NcclComm>& communicators, std::int64_t deadline_ns);
  void end(NcclCommunicators::Ending how);
  std::vector<NcclComm>& of(Channel channel) const { return communicators_->of(channel); }
  void check_result(NcclComm communicator, int result, const char* what) const;
  // Whether all of them have taken over what was called. Throws what broke one.
  bool are_settled(const std::vector<NcclComm>& communicators, const char* what) const;

  const NcclSetup setup_;
  std::vector<std::int64_t> domain_sizes_;            // of the domain of each member
  std::vector<std::int64_t> domain_numbers_;          // of each member inside its domain
  std::shared_ptr<NcclCommunicators> communicators_;  // none any more from the end on
  std::shared_ptr<NcclCommunicators> ended_;          // whose end may still be under way
  std::atomic<Stage> stage_{Stage::kNew};
  std::int64_t connect_start_ns_ = 0;
  std::mutex mutex_;
  std::optional<Error> reason_;
};

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

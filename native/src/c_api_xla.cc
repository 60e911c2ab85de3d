// The part of the C border that is about programs of XLA: mailboxes, and what XLA calls.
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c_api.h"
#include "clock.h"
#include "xla/mailboxes.h"
#include "xla/refit_handler.h"

namespace {

using reshard::Answer;
using reshard::Error;
using reshard::guarded;
using reshard::require;
using reshard::require_struct;
using reshard::StatusCode;
using reshard::text;

constexpr std::int32_t kLastStatus = reshard::kNumStatusCodes - 1;

// Any device of XLA may call while Python names the driver.
struct Cuda {
  std::mutex mutex;  // guards the driver
  std::shared_ptr<const reshard::CudaDriver> driver;
};

Cuda& cuda() {
  static Cuda& named = *new Cuda;  // never destroyed, as XLA may call while the process ends
  return named;
}

reshard::Site as_site(const reshard_mailbox_site& given) {
  if (given.num_devices > 0) require(given.devices, "site.devices");
  if (given.num_operands > 0) require(given.operand_sizes, "site.operand_sizes");
  reshard::Site site;
  site.devices.assign(given.devices, given.devices + given.num_devices);
  site.operand_sizes.assign(given.operand_sizes, given.operand_sizes + given.num_operands);
  site.num_results = static_cast<std::size_t>(given.num_results);
  site.has_version = given.has_version != 0;
  return site;
}

}  // namespace

struct reshard_mailbox {
  const std::shared_ptr<reshard::Mailbox> mailbox = std::make_shared<reshard::Mailbox>();
  const std::int64_t key = reshard::add_mailbox(mailbox);
  const pid_t pid = getpid();

  // The call that is taken, as flat tables.
  std::vector<void*> operands;
  std::vector<std::int64_t> versions;
  std::vector<std::uint64_t> streams;
};

extern "C" {

reshard_status reshard_mailbox_create(reshard_mailbox** mailbox) {
  return guarded([&] {
    require(mailbox, "mailbox");
    *mailbox = new reshard_mailbox;
    return RESHARD_STATUS_OK;
  });
}

void reshard_mailbox_destroy(reshard_mailbox* mailbox) {
  // In a forked child a lock may be held for good by a thread that there is not.
  if (mailbox == nullptr || mailbox->pid != getpid()) return;
  guarded([&] {
    reshard::remove_mailbox(mailbox->key);
    mailbox->mailbox->close("the end of this program was closed.");
    return RESHARD_STATUS_OK;
  });
  guarded([&] {
    mailbox->mailbox->answer({StatusCode::kAborted, "nobody serves this end any more."});
    return RESHARD_STATUS_OK;
  });
  delete mailbox;
}

int64_t reshard_mailbox_key(const reshard_mailbox* mailbox) {
  return mailbox == nullptr ? 0 : mailbox->key;
}

reshard_status reshard_mailbox_add_site(reshard_mailbox* mailbox, const reshard_mailbox_site* site,
                                        int64_t* number) {
  return guarded([&] {
    require(mailbox, "mailbox");
    require_struct(site, "site");
    require(number, "number");
    *number = mailbox->mailbox->add_site(as_site(*site));
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_mailbox_wait(reshard_mailbox* mailbox, int64_t slice_ns,
                                    reshard_mailbox_call* call) {
  return guarded([&] {
    require(mailbox, "mailbox");
    require_struct(call, "call");
    const reshard::Call* const taken = mailbox->mailbox->wait(slice_ns);
    if (taken == nullptr) return static_cast<int>(RESHARD_STATUS_IN_PROGRESS);
    mailbox->operands.clear();
    mailbox->versions.clear();
    mailbox->streams.clear();
    for (const reshard::Visit& visit : taken->visits) {
      mailbox->operands.insert(mailbox->operands.end(), visit.operands.begin(),
                               visit.operands.end());
      mailbox->versions.push_back(visit.version);
      mailbox->streams.push_back(visit.stream);
    }
    call->site = taken->site;
    call->timeout_ns = taken->deadline_ns - reshard::monotonic_ns();
    call->operands = mailbox->operands.data();
    call->num_operands = mailbox->operands.size();
    call->versions = mailbox->versions.data();
    call->streams = mailbox->streams.data();
    call->num_devices = taken->visits.size();
    return static_cast<int>(RESHARD_STATUS_OK);
  });
}

reshard_status reshard_mailbox_answer(reshard_mailbox* mailbox, reshard_status status,
                                      const char* message) {
  return guarded([&] {
    require(mailbox, "mailbox");
    if (status < 0 || status > kLastStatus || status == RESHARD_STATUS_IN_PROGRESS) {
      throw Error(StatusCode::kInvalidArgument, text("status ", status, " is no answer."));
    }
    const std::string words = message == nullptr ? "" : message;
    mailbox->mailbox->answer({static_cast<StatusCode>(status), words});
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_mailbox_close(reshard_mailbox* mailbox, const char* reason) {
  return guarded([&] {
    require(mailbox, "mailbox");
    mailbox->mailbox->close(reason == nullptr ? "the end was closed." : reason);
    return RESHARD_STATUS_OK;
  });
}

void reshard_xla_use_cuda(const reshard_cuda* driver) {
  Cuda& named = cuda();
  const std::lock_guard<std::mutex> lock(named.mutex);
  named.driver = driver == nullptr ? nullptr : driver->driver;
}

void* reshard_xla_refit(void* call_frame) {
  static const reshard::HostVersionReader reader;
  return reshard::visit_for_xla(static_cast<reshard::XlaCallFrame*>(call_frame), reader, false);
}

void* reshard_xla_refit_cuda(void* call_frame) {
  std::shared_ptr<const reshard::CudaDriver> driver;
  {
    Cuda& named = cuda();
    const std::lock_guard<std::mutex> lock(named.mutex);
    driver = named.driver;
  }
  const reshard::CudaVersionReader reader(driver);
  return reshard::visit_for_xla(static_cast<reshard::XlaCallFrame*>(call_frame), reader, true);
}

}  // extern "C"

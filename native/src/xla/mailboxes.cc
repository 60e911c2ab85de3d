#include "xla/mailboxes.h"

#include <map>
#include <mutex>
#include <utility>

namespace reshard {
namespace {

struct Registry {
  std::mutex mutex;  // guards the rest; nothing else is called under it
  std::map<std::int64_t, std::shared_ptr<Mailbox>> mailboxes;
  std::int64_t last_key = 0;
};

// Never destroyed: threads of XLA may call while the process ends.
Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

}  // namespace

std::int64_t add_mailbox(std::shared_ptr<Mailbox> mailbox) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::int64_t key = ++all.last_key;
  all.mailboxes.emplace(key, std::move(mailbox));
  return key;
}

void remove_mailbox(std::int64_t key) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.mailboxes.erase(key);
}

std::shared_ptr<Mailbox> mailbox_of(std::int64_t key) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.mailboxes.find(key);
  if (found == all.mailboxes.end()) {
    throw Error(StatusCode::kAborted,
                "the end for which this program was compiled is closed. Trace the function anew "
                "with an open one: make a new function and a new jax.jit of it.");
  }
  return found->second;
}

}  // namespace reshard

// The mailboxes of this process by key. A compiled program holds the key of an end, and nothing
// else of it: no address, so whatever an end makes anew (communicators, plans) compiles nothing
// anew.
#ifndef RESHARD_NATIVE_SRC_XLA_MAILBOXES_H_
#define RESHARD_NATIVE_SRC_XLA_MAILBOXES_H_

#include <cstdint>
#include <memory>

#include "xla/mailbox.h"

namespace reshard {

// Makes a mailbox, and returns its key, which no other ever has: from 1 on. Processes that make
// their ends in the same order get equal keys, so they compile equal programs. Any thread.
std::int64_t add_mailbox(std::shared_ptr<Mailbox> mailbox);

// Forgets a mailbox; those that visit it keep it.
void remove_mailbox(std::int64_t key);

// Throws kAborted if there is none.
std::shared_ptr<Mailbox> mailbox_of(std::int64_t key);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_XLA_MAILBOXES_H_

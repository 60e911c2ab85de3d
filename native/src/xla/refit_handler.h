// The foreign function of a compiled program: one device visits the mailbox of its end.
#ifndef RESHARD_NATIVE_SRC_XLA_REFIT_HANDLER_H_
#define RESHARD_NATIVE_SRC_XLA_REFIT_HANDLER_H_

#include "xla/version_reader.h"
#include "xla/xla_ffi.h"

namespace reshard {

// Serves a call of XLA: tells which interface it knows, or visits and waits. The attributes `key`,
// `site` and `timeout_ns` say where and how long; operands are those of the site.
//   reader:     for the memory of this platform's devices.
//   has_stream: whether XLA has a stream that the memory belongs to.
// Returns null, or an error of XLA, which takes it over.
XlaError* visit_for_xla(XlaCallFrame* frame, const VersionReader& reader, bool has_stream) noexcept;

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_XLA_REFIT_HANDLER_H_

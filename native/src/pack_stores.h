// How a copy writes its destination.
#ifndef RESHARD_NATIVE_SRC_PACK_STORES_H_
#define RESHARD_NATIVE_SRC_PACK_STORES_H_

#include <cstdint>

namespace reshard {

// Streaming stores go past the caches: right for bytes that nobody reads soon. Cached stores are
// right for a slot or bounce buffer that is read back at once: the reader then finds the bytes in a
// cache, where after streaming stores it would wait for memory.
enum class Stores { kCached, kStreaming };

// Shorter runs are written with cached stores even when streaming is asked for: most of their
// cache lines would be shared with a neighbour.
constexpr std::int64_t kMinStreamingRun = 256;

// Smaller copies altogether are too: the fence at the end would cost more than they gain.
constexpr std::int64_t kMinStreamingTotal = 32 * 1024;

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PACK_STORES_H_

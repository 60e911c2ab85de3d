// What the threads of a block do with one tile, as phases with barriers between them.
#ifndef RESHARD_NATIVE_KERNELS_MOVE_KERNELS_H_
#define RESHARD_NATIVE_KERNELS_MOVE_KERNELS_H_

#include <cstdint>

#include "kernels/cast_rows.h"
#include "kernels/copy_rows.h"
#include "kernels/move_record.h"
#include "kernels/move_tile.h"
#include "kernels/transpose.h"

namespace reshard::kernels {

inline Shape shape_of(const Tile& tile) { return shape_of(tile.record[kShapeWord]); }

// Whether the tile has a second phase: a barrier, end_tile, and one more barrier before the next.
inline bool has_end(const Tile& tile) { return shape_of(tile).kind == MoveKind::kTranspose; }

template <Way way>
void begin_tile(const Launch& launch, const Tile& tile, const Thread& thread,
                std::uint8_t* shared) {
  const Shape shape = shape_of(tile);
  switch (shape.kind) {
    case MoveKind::kRows:
      return move_rows<way>(launch, tile, shape, thread);
    case MoveKind::kCast:
      return cast_rows<way>(launch, tile, shape, thread);
    case MoveKind::kTranspose:
      return transpose<way>(Phase::kLoad, launch, tile, shape, thread, shared);
  }
}

template <Way way>
void end_tile(const Launch& launch, const Tile& tile, const Thread& thread, std::uint8_t* shared) {
  transpose<way>(Phase::kStore, launch, tile, shape_of(tile), thread, shared);
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_MOVE_KERNELS_H_

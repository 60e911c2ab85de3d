// Casts eight floats at a time.
#ifndef RESHARD_NATIVE_SRC_CAST_AVX2_H_
#define RESHARD_NATIVE_SRC_CAST_AVX2_H_

#include "cast.h"

namespace reshard {

// The same values as the plain cast of the pair, bit for bit; nullptr when the processor lacks AVX2
// or F16C or the pair has no cast.
CastFunction vector_cast(DType from, DType to);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CAST_AVX2_H_

// Reads the int64 tables of the C border into a Program and refuses whatever a run could trip over.
#ifndef RESHARD_NATIVE_SRC_PROGRAM_TABLE_H_
#define RESHARD_NATIVE_SRC_PROGRAM_TABLE_H_

#include <cstdint>

#include "program.h"
#include "table_reader.h"

namespace reshard {

// The layout of each table is documented at `reshard_program_tables` in reshard.h.
struct ProgramTables {
  Table streams;
  Table operations;
  Table zeros;
  Table extents;
  std::int64_t num_buffers;
  std::int64_t chunk_bytes;
  Table hops{};
  Table spans{};
  std::int64_t num_rounds = 0;
  std::int64_t num_groups = 1;
  std::int64_t messages_per_pair = 1;
  RulesTable rules{};
  Table changes{};
};

// Throws kInvalidArgument (or kUnsupported for a cast or a change of values) naming the row and the
// values.
Program read_program(const ProgramTables& tables);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_PROGRAM_TABLE_H_

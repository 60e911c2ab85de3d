// Reads flat int64 tables with rows of variable length, as they come over the C border.
#ifndef RESHARD_NATIVE_SRC_TABLE_READER_H_
#define RESHARD_NATIVE_SRC_TABLE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "affine.h"
#include "dtype.h"
#include "strided_box.h"

namespace reshard {

// A flat table of int64; borrowed.
struct Table {
  const std::int64_t* data;
  std::size_t length;
};

// Rules of values: six float64 a row; borrowed.
struct RulesTable {
  const double* data;
  std::size_t length;
};

// Throws kInvalidArgument.
[[noreturn]] void refuse(const std::string& message);

class TableReader {
 public:
  // `name` is used in messages and must outlive the reader.
  TableReader(const char* name, Table table) : name_(name), table_(table) {}

  bool at_end() const { return position_ == table_.length; }

  // The next `count` values; `row` says where we are in messages.
  const std::int64_t* take(std::int64_t count, std::int64_t row);

 private:
  const char* name_;
  Table table_;
  std::size_t position_ = 0;
};

// Checks of single values; `where` starts the message ("zeros table, row 3: ").
int read_ndim(const std::string& where, std::int64_t ndim);
DType read_dtype(const std::string& where, const char* which, std::int64_t code);
std::size_t read_index(const std::string& where, const char* what, std::int64_t value,
                       std::int64_t limit);
StridedBox read_box(const std::string& where, int ndim, const std::int64_t* sizes,
                    const std::int64_t* strides);

// The rule in a row of the table; none for row -1. Refuses numbers that are no rule, and, with
// kUnsupported, what is no pair of floats that have casts.
Affine read_affine(const std::string& where, RulesTable rules, std::int64_t row, DType from,
                   DType to);

// Elements of a box; refuses one of more than 2^62 bytes.
std::int64_t count_elements(const std::string& where, const StridedBox& box,
                            std::int64_t element_size);

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_TABLE_READER_H_

// What shm_speed moves: matrices, who holds which block of them, and what their bytes are.
#ifndef RESHARD_NATIVE_BENCHMARKS_WORKLOAD_H_
#define RESHARD_NATIVE_BENCHMARKS_WORKLOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace reshard_benchmark {

constexpr std::int64_t kElementBytes = 2;

struct Shape {
  std::int64_t rows;
  std::int64_t cols;
};

// Half-open block of a matrix.
struct Block {
  std::int64_t row, rows, col, cols;
  std::int64_t nbytes() const { return rows * cols * kElementBytes; }
};

struct Settings {
  std::string workload;
  int num_sources = 4;
  int num_destinations = 4;
  std::vector<Shape> shapes;
  int rounds = 7;
  std::int64_t slot_bytes = 262144;
  int num_slots = 4;
};

inline Block split_rows(const Shape& shape, std::int64_t part, std::int64_t parts) {
  const std::int64_t size = (shape.rows + parts - 1) / parts;
  const std::int64_t row = std::min(part * size, shape.rows);
  return {row, std::min(size, shape.rows - row), 0, shape.cols};
}

inline Block split_cols(const Shape& shape, std::int64_t part, std::int64_t parts) {
  const std::int64_t size = shape.cols / parts;
  return {0, shape.rows, part * size, size};
}

inline Block source_block(const Settings& settings, const Shape& shape, int source) {
  if (settings.workload == "C") {
    const Block rows = split_rows(shape, source / 2, 2);
    const Block cols = split_cols(shape, source % 2, 2);
    return {rows.row, rows.rows, cols.col, cols.cols};
  }
  return split_rows(shape, source, settings.num_sources);
}

inline Block destination_block(const Settings& settings, const Shape& shape, int destination) {
  if (settings.workload == "B") return split_rows(shape, destination % 2, 2);
  return split_cols(shape, destination, settings.num_destinations);
}

inline Block intersect(const Block& a, const Block& b) {
  const std::int64_t row = std::max(a.row, b.row);
  const std::int64_t col = std::max(a.col, b.col);
  return {row, std::min(a.row + a.rows, b.row + b.rows) - row, col,
          std::min(a.col + a.cols, b.col + b.cols) - col};
}

inline std::uint16_t pattern(std::size_t tensor, std::int64_t index) {
  std::uint64_t x = (static_cast<std::uint64_t>(tensor) << 40) + static_cast<std::uint64_t>(index);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<std::uint16_t>(x >> 48);
}

// Which source serves the block of a destination when several hold it: all sources hold disjoint
// blocks here, so each serves its part.
class Layout {
 public:
  explicit Layout(const Settings& settings) : settings_(settings) {
    for (int s = 0; s < settings.num_sources; ++s) {
      std::int64_t offset = 0;
      std::vector<std::int64_t> offsets;
      for (const Shape& shape : settings.shapes) {
        offsets.push_back(offset);
        offset += source_block(settings, shape, s).nbytes();
      }
      source_offsets_.push_back(offsets);
      source_bytes_.push_back(offset);
    }
    for (int d = 0; d < settings.num_destinations; ++d) {
      std::int64_t offset = 0;
      std::vector<std::int64_t> offsets;
      for (const Shape& shape : settings.shapes) {
        offsets.push_back(offset);
        offset += destination_block(settings, shape, d).nbytes();
      }
      destination_offsets_.push_back(offsets);
      destination_bytes_.push_back(offset);
    }
  }

  std::int64_t source_bytes(int s) const { return source_bytes_[static_cast<std::size_t>(s)]; }
  std::int64_t destination_bytes(int d) const {
    return destination_bytes_[static_cast<std::size_t>(d)];
  }
  std::int64_t total_bytes() const {
    std::int64_t total = 0;
    for (const std::int64_t nbytes : destination_bytes_) total += nbytes;
    return total;
  }

  // Calls f(block, source offset, source pitch, destination offset, destination pitch) for every
  // non-empty transfer of a pair.
  template <typename Function>
  void for_each(int s, int d, Function f) const {
    for (std::size_t t = 0; t < settings_.shapes.size(); ++t) {
      const Block from = source_block(settings_, settings_.shapes[t], s);
      const Block to = destination_block(settings_, settings_.shapes[t], d);
      const Block block = intersect(from, to);
      if (block.rows <= 0 || block.cols <= 0) continue;
      const std::int64_t source_at =
          source_offsets_[static_cast<std::size_t>(s)][t] +
          ((block.row - from.row) * from.cols + block.col - from.col) * kElementBytes;
      const std::int64_t destination_at =
          destination_offsets_[static_cast<std::size_t>(d)][t] +
          ((block.row - to.row) * to.cols + block.col - to.col) * kElementBytes;
      f(block, source_at, from.cols * kElementBytes, destination_at, to.cols * kElementBytes);
    }
  }

  void fill_source(int s, std::uint16_t* memory) const {
    for (std::size_t t = 0; t < settings_.shapes.size(); ++t) {
      const Block block = source_block(settings_, settings_.shapes[t], s);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        for (std::int64_t c = 0; c < block.cols; ++c) {
          *memory++ = pattern(t, (block.row + r) * settings_.shapes[t].cols + block.col + c);
        }
      }
    }
  }

  bool check_destination(int d, const std::uint16_t* memory) const {
    for (std::size_t t = 0; t < settings_.shapes.size(); ++t) {
      const Block block = destination_block(settings_, settings_.shapes[t], d);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        for (std::int64_t c = 0; c < block.cols; ++c) {
          const auto expected =
              pattern(t, (block.row + r) * settings_.shapes[t].cols + block.col + c);
          if (*memory++ != expected) return false;
        }
      }
    }
    return true;
  }

 private:
  const Settings& settings_;
  std::vector<std::vector<std::int64_t>> source_offsets_, destination_offsets_;
  std::vector<std::int64_t> source_bytes_, destination_bytes_;
};

inline std::vector<Shape> dense_model(std::int64_t scale) {
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 16; ++layer) {
    shapes.insert(shapes.end(), {{2048, 2048},
                                 {512, 2048},
                                 {512, 2048},
                                 {2048, 2048},
                                 {5632, 2048},
                                 {5632, 2048},
                                 {2048, 5632},
                                 {4, 512}});
  }
  shapes.push_back({20000, 2048});
  for (Shape& shape : shapes) shape.rows = std::max<std::int64_t>(shape.rows / scale, 4);
  return shapes;
}

}  // namespace reshard_benchmark

#endif  // RESHARD_NATIVE_BENCHMARKS_WORKLOAD_H_

// Changes of values in programs: what tables may say, and what arrives, whichever end changes them
// and however the two ends lie.
#include "affine.h"

#include <cmath>
#include <limits>

#include "fixtures.h"

namespace reshard_test {
namespace {

using Values = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

constexpr std::int64_t kI32 = 6, kBF16 = 10, kF32 = 11;

// Four elements that rank 0 hands to rank 1 inside the process, one and `strides` elements apart.
struct Local {
  Values rules_of_operations = {0, -1};
  Numbers rules = {3, 1, 0.5, 1, 1, 0};
  std::int64_t memory = kF32, wire = kF32, destination = kF32;
  std::int64_t source_stride = 1, destination_stride = 1;

  Program program() const {
    const Values streams = {0, 0, 1, 1, 0, 1};
    const auto width = [](std::int64_t dtype) { return size_of(static_cast<DType>(dtype)); };
    const Values operations = {
        0, 0, 0, memory,      wire, 1, 4, source_stride * width(memory),
        1, 1, 0, destination, wire, 1, 4, destination_stride * width(destination)};
    const Values extents = {0, 64, 0, 64};
    return read_program({{streams.data(), streams.size()},
                         {operations.data(), operations.size()},
                         {nullptr, 0},
                         {extents.data(), extents.size()},
                         2,
                         64,
                         {},
                         {},
                         0,
                         1,
                         1,
                         {rules.data(), rules.size()},
                         {rules_of_operations.data(), rules_of_operations.size()}});
  }

  // What arrives of 1, 2, 3, 4.
  std::vector<float> moved() const {
    const Program built = program();
    std::vector<float> source(16, -1.0F), destination_memory(16, -1.0F);
    for (std::size_t i = 0; i < 4; ++i) {
      source[i * static_cast<std::size_t>(source_stride)] = static_cast<float>(i + 1);
    }
    ChunkExecutor executor(built, host_device());
    void* const buffers[] = {source.data(), destination_memory.data()};
    executor.begin(nullptr, buffers, 2, {1, kSecond, 1});
    while (!executor.progress(kSecond)) {
    }
    std::vector<float> found;
    for (std::size_t i = 0; i < 4; ++i) {
      found.push_back(destination_memory[i * static_cast<std::size_t>(destination_stride)]);
    }
    return found;
  }
};

TEST(what_arrives_is_changed_once_however_both_ends_lie) {
  for (const std::int64_t source_stride : {1, 3}) {
    for (const std::int64_t destination_stride : {1, 2}) {
      for (const Values& which : {Values{0, -1}, Values{-1, 0}}) {
        Local local;
        local.source_stride = source_stride;
        local.destination_stride = destination_stride;
        local.rules_of_operations = which;
        CHECK_TRUE(local.moved() == std::vector<float>({3.5F, 6.5F, 9.5F, 12.5F}));
      }
    }
  }
}

TEST(the_rule_of_the_destination_is_undone) {
  Local local;
  local.rules = {1, 1, 0, 2, 8, 0.5};
  CHECK_TRUE(local.moved() == std::vector<float>({2, 6, 10, 14}));
}

TEST(nothing_changes_where_no_rule_is_named) {
  Local local;
  local.rules_of_operations = {};
  CHECK_TRUE(local.moved() == std::vector<float>({1, 2, 3, 4}));
  local.rules_of_operations = {-1, -1};
  CHECK_TRUE(local.moved() == std::vector<float>({1, 2, 3, 4}));
}

TEST(what_is_no_rule_is_refused_with_its_numbers) {
  const auto refused = [](const Numbers& rules) {
    return error_of([&] {
             Local local;
             local.rules = rules;
             local.program();
           })
        .message();
  };
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_CONTAINS(refused({0, 1, 0, 1, 1, 0}), "operations table, row 0, rank 0 -> rank 1 (send): ");
  CHECK_CONTAINS(refused({0, 1, 0, 1, 1, 0}), "scale 0, divisor 1 and offset 0 are no rule");
  CHECK_CONTAINS(refused({1, 1, 0, 1, 0, 2}), "scale 1, divisor 0 and offset 2 are no rule");
  CHECK_CONTAINS(refused({1, 1, infinity, 1, 1, 0}), "offset inf are no rule");
  CHECK_CONTAINS(refused({1, 1, 0, 1, 1}), "rule 0 is not in");
}

TEST(a_table_of_changes_has_a_value_per_operation) {
  const auto refused = [](const Values& which) {
    return error_of([&] {
             Local local;
             local.rules_of_operations = which;
             local.program();
           })
        .message();
  };
  CHECK_CONTAINS(refused({0}), "changes table: 1 values; one per row");
  CHECK_CONTAINS(refused({0, -1, -1}), "changes table: 3 values for 2 operations");
  CHECK_CONTAINS(refused({0, 1}), "row 1, rank 0 -> rank 1 (receive): rule 1 is not in 0..0");
  CHECK_CONTAINS(refused({-2, -1}), "rule -2 is not in 0..0");
}

TEST(values_of_integers_are_not_changed) {
  Local local;
  local.memory = local.wire = local.destination = kI32;
  const Error error = error_of([&] { local.program(); });
  CHECK_EQ(error.code(), StatusCode::kUnsupported);
  CHECK_CONTAINS(error.message(), "the values of int32 or int32 cannot be changed");
}

TEST(a_change_is_rounded_to_float32_before_it_is_cast) {
  Local local;
  local.wire = kBF16;
  local.rules = {1, 1, 0x1p-8 + 0x1p-40, 1, 1, 0};  // above a tie of bfloat16; float32 drops that
  local.destination = kF32;
  CHECK_TRUE(local.moved() == std::vector<float>({1, 2, 3, 4}));
}

TEST(what_does_nothing_leaves_the_sign_of_zero) {
  Affine affine;
  affine.source.scale = 2.0;
  CHECK_TRUE(std::signbit(changed(-0.0, affine)));
  affine.source = {};
  affine.destination.divisor = 3.0;
  CHECK_TRUE(std::signbit(changed(-0.0, affine)));
  affine.destination.offset = 1.0;
  CHECK_EQ(changed(2.0, affine), 3.0);
}

}  // namespace
}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

// The function that XLA calls, with XLA's own functions in its place.
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "named_tests.h"
#include "xla/mailboxes.h"
#include "xla/refit_handler.h"
#include "xla_call.h"

namespace reshard_test {
namespace {

constexpr std::int64_t kLong = 60'000'000'000;

const HostVersionReader kReader;

FakeError run(XlaCall& call, bool has_stream = false) {
  return taken(visit_for_xla(&call.frame(), kReader, has_stream));
}

// An end with one device and one weight of four elements.
struct End {
  explicit End(bool has_version = false) : mailbox(std::make_shared<Mailbox>()) {
    key = add_mailbox(mailbox);
    Site made;
    made.devices = {2048};
    made.operand_sizes =
        has_version ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{4};
    made.num_results = 1;
    made.has_version = has_version;
    site = mailbox->add_site(made);
  }
  ~End() { remove_mailbox(key); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // Answers the next call after it was looked at.
  template <typename Look>
  void serve(Answer answer, Look look) {
    const Call* call = nullptr;
    for (int i = 0; i < 200 && call == nullptr; ++i) call = mailbox->wait(kLong / 600);
    if (call == nullptr) fail(__FILE__, __LINE__, "no call came");
    look(*call);
    mailbox->answer(std::move(answer));
  }

  std::shared_ptr<Mailbox> mailbox;
  std::int64_t key = 0;
  std::int64_t site = 0;
};

}  // namespace

TEST(metadata_says_which_interface_this_is_and_visits_nothing) {
  XlaMetadata metadata{};
  metadata.size = sizeof(metadata);
  metadata.version.major = 7;
  metadata.traits = 7;
  XlaMetadataExtension asked{{sizeof(XlaMetadataExtension), kXlaExtensionMetadata, nullptr},
                             &metadata};
  XlaExtension other{sizeof(XlaExtension), 99, &asked.base};
  XlaCallFrame frame{};
  frame.extensions = &other;
  CHECK_TRUE(visit_for_xla(&frame, kReader, false) == nullptr);
  CHECK_EQ(metadata.version.major, 0);
  CHECK_EQ(metadata.version.minor, 3);
  CHECK_EQ(metadata.traits, 0U);
}

TEST(addresses_version_and_stream_arrive_and_the_answer_goes_back) {
  End end(true);
  float weight[4] = {};
  std::int32_t version = 41;
  int stream = 0;
  XlaCall call(end.key, end.site, kLong);
  call.context() = {2048, 9, &stream, false};
  call.operand(&version, {});
  call.operand(weight, {2, 2});
  call.result(&version, {});
  auto visit = std::async(std::launch::async, [&] { return run(call, true); });
  end.serve({}, [&](const Call& taken) {
    CHECK_EQ(taken.visits[0].version, 41);
    CHECK_EQ(taken.visits[0].run_id, 9);
    CHECK_TRUE(taken.visits[0].operands[1] == weight);
    CHECK_TRUE(taken.visits[0].stream == reinterpret_cast<std::uintptr_t>(&stream));
  });
  CHECK_EQ(visit.get().code, 0);
}

TEST(versions_have_32_or_64_bits) {
  for (const bool is_wide : {false, true}) {
    std::int64_t wide = (std::int64_t{1} << 40) + 5;
    std::int32_t narrow = -3;
    void* const memory = is_wide ? static_cast<void*>(&wide) : &narrow;
    XlaBuffer buffer{
        sizeof(XlaBuffer), nullptr, is_wide ? kXlaInt64 : kXlaInt32, memory, 0, nullptr};
    CHECK_EQ(kReader.read(buffer, nullptr, 0), is_wide ? wide : narrow);
  }
  End end(true);
  std::int64_t memory[4] = {};
  XlaCall call(end.key, end.site, kLong);
  call.context().device = 2048;
  call.operand(memory, {}, 11);  // a float
  call.operand(memory, {4});
  call.result(memory, {}, 11);
  const FakeError error = run(call);
  CHECK_EQ(error.code, 3);
  CHECK_CONTAINS(error.message, "one int32 or int64");
}

TEST(every_status_has_a_code_of_xla) {
  const std::vector<std::pair<StatusCode, int>> pairs{
      {StatusCode::kInvalidArgument, 3}, {StatusCode::kUnsupported, 12},
      {StatusCode::kOutOfMemory, 8},     {StatusCode::kSystem, 14},
      {StatusCode::kTimeout, 4},         {StatusCode::kPeerLost, 14},
      {StatusCode::kAborted, 10},        {StatusCode::kProtocol, 15},
      {StatusCode::kInvalidState, 9},    {StatusCode::kInternal, 13}};
  CHECK_EQ(pairs.size() + 2, static_cast<std::size_t>(kNumStatusCodes));  // ok, in progress
  for (const auto& [status, code] : pairs) {
    End end;
    float weight[4] = {};
    XlaCall call(end.key, end.site, kLong);
    call.context().device = 2048;
    call.operand(weight, {4});
    call.result(weight, {4});
    auto visit = std::async(std::launch::async, [&] { return run(call); });
    end.serve({status, "words"}, [](const Call&) {});
    const FakeError error = visit.get();
    CHECK_EQ(error.code, code);
    CHECK_EQ(error.message, "reshard: words");
  }
}

// jax-ml/jax#32098: under plain jit XLA hands every device the whole array.
TEST(case_41_a_gathered_array_is_refused) {
  End end;
  float whole[16] = {};
  XlaCall call(end.key, end.site, kLong);
  call.context().device = 2048;
  call.operand(whole, {4, 4});
  call.result(whole, {4, 4});
  const FakeError error = run(call);
  CHECK_EQ(error.code, 3);
  CHECK_CONTAINS(error.message, "operand 0 has 16 elements on device 2048, its shard has 4");
  CHECK_CONTAINS(error.message, "gathered");
}

TEST(results_that_are_not_in_place_are_refused) {
  End end;
  float weight[4] = {};
  float other[4] = {};
  XlaCall call(end.key, end.site, kLong);
  call.context().device = 2048;
  call.operand(weight, {4});
  call.result(other, {4});
  const FakeError error = run(call);
  CHECK_EQ(error.code, 13);
  CHECK_CONTAINS(error.message, "input_output_aliases");
}

TEST(wrong_calls_say_what_is_wrong) {
  End end;
  float weight[4] = {};
  const auto refusal = [&](std::int64_t key, std::int64_t site, auto change) {
    XlaCall call(key, site, kLong);
    call.context().device = 2048;
    call.operand(weight, {4});
    call.result(weight, {4});
    change(call);
    return run(call);
  };
  const auto nothing = [](XlaCall&) {};
  CHECK_CONTAINS(refusal(end.key + 1000, 0, nothing).message, "closed");
  CHECK_EQ(refusal(end.key + 1000, 0, nothing).code, 10);
  CHECK_CONTAINS(refusal(end.key, 3, nothing).message, "site 3 is none of the 1");
  const auto elsewhere = [](XlaCall& call) { call.context().device = 1; };
  CHECK_CONTAINS(refusal(end.key, 0, elsewhere).message, "device 1 called");
  const auto twice = [&](XlaCall& call) { call.operand(weight, {4}); };
  CHECK_CONTAINS(refusal(end.key, 0, twice).message, "2 operands and 1 results");
  const auto silent = [](XlaCall& call) { call.context().is_silent = true; };
  CHECK_CONTAINS(refusal(end.key, 0, silent).message, "the context is silent");
  const auto old = [](XlaCall& call) { call.api().size = offsetof(XlaApi, RunId_Get); };
  CHECK_EQ(refusal(end.key, 0, old).code, 12);
  XlaCall bare(end.key, end.site, kLong);
  bare.frame().attributes.count = 0;
  XlaCallFrame frame = bare.frame();
  frame.attributes.count = 0;
  CHECK_CONTAINS(taken(visit_for_xla(&frame, kReader, false)).message, "no attribute 'key'");
  frame = bare.frame();
  frame.stage = 0;
  CHECK_EQ(taken(visit_for_xla(&frame, kReader, false)).code, 9);
}

TEST(nothing_is_asked_of_weights_without_elements) {
  const auto mailbox = std::make_shared<Mailbox>();
  Site site;
  site.devices = {0};
  site.operand_sizes = {0};
  site.num_results = 1;
  const std::int64_t number = mailbox->add_site(site);
  const std::int64_t key = add_mailbox(mailbox);
  int one = 0;
  int two = 0;
  XlaCall call(key, number, 0);
  call.operand(&one, {0, 4});
  call.result(&two, {0, 4});
  CHECK_EQ(run(call).code, 4);  // it came as far as the mailbox, which nobody serves
  remove_mailbox(key);
}

}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

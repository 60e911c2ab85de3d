// Devices as threads that visit a mailbox, and one thread that serves it.
#include "xla/mailbox.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"
#include "named_tests.h"
#include "xla/mailboxes.h"

namespace reshard_test {
namespace {

using reshard::add_mailbox;
using reshard::Answer;
using reshard::Call;
using reshard::Error;
using reshard::Mailbox;
using reshard::mailbox_of;
using reshard::monotonic_ns;
using reshard::remove_mailbox;
using reshard::Site;
using reshard::StatusCode;
using reshard::Visit;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLong = 60 * kSecond;

Site site_of(std::vector<std::int32_t> devices) {
  Site site;
  site.devices = std::move(devices);
  site.operand_sizes = {4};
  site.num_results = 1;
  return site;
}

Visit visit_of(std::size_t device, std::int64_t run_id, void* memory = nullptr) {
  Visit visit;
  visit.device = device;
  visit.run_id = run_id;
  visit.operands = {memory};
  return visit;
}

// Visits on a thread of its own.
std::future<Answer> visit(Mailbox& mailbox, std::int64_t site, Visit each, std::int64_t limit) {
  return std::async(std::launch::async,
                    [&mailbox, site, each, limit] { return mailbox.visit(site, each, limit); });
}

const Call* next_call(Mailbox& mailbox) {
  const std::int64_t deadline = monotonic_ns() + 20 * kSecond;
  while (monotonic_ns() < deadline) {
    if (const Call* const call = mailbox.wait(kSecond / 10)) return call;
  }
  fail(__FILE__, __LINE__, "no call came");
}

int code_of(StatusCode code) { return static_cast<int>(code); }

template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  fail(__FILE__, __LINE__, "nothing was thrown");
}

}  // namespace

TEST(all_devices_of_a_run_get_one_answer_and_their_addresses_arrive_in_order) {
  Mailbox mailbox;
  const std::int64_t site = mailbox.add_site(site_of({5, 2049, 7}));
  int memory[3] = {};
  std::vector<std::future<Answer>> visits;
  for (const std::size_t device : {2U, 0U, 1U}) {
    visits.push_back(visit(mailbox, site, visit_of(device, 1, &memory[device]), kLong));
  }
  const Call* const call = next_call(mailbox);
  CHECK_EQ(call->site, site);
  for (std::size_t i = 0; i < 3; ++i) CHECK_TRUE(call->visits[i].operands[0] == &memory[i]);
  for (auto& each : visits) {
    CHECK_TRUE(each.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout);
  }
  mailbox.answer({StatusCode::kProtocol, "words"});
  for (auto& each : visits) {
    const Answer answer = each.get();
    CHECK_EQ(code_of(answer.code), code_of(StatusCode::kProtocol));
    CHECK_EQ(answer.message, "words");
  }
}

TEST(runs_and_sites_are_never_mixed) {
  Mailbox mailbox;
  const std::int64_t one = mailbox.add_site(site_of({0, 1}));
  const std::int64_t two = mailbox.add_site(site_of({0, 1}));
  // Device 0 of run 1, device 1 of run 2, and device 1 of run 1 at another place: no call.
  auto first = visit(mailbox, one, visit_of(0, 1), kLong);
  auto second = visit(mailbox, one, visit_of(1, 2), kLong);
  auto third = visit(mailbox, two, visit_of(1, 1), kLong);
  CHECK_TRUE(mailbox.wait(kSecond / 5) == nullptr);
  auto fourth = visit(mailbox, one, visit_of(1, 1), kLong);
  const Call* const call = next_call(mailbox);
  CHECK_EQ(call->run_id, 1);
  CHECK_EQ(call->site, one);
  mailbox.answer({});
  CHECK_EQ(code_of(first.get().code), 0);
  CHECK_EQ(code_of(fourth.get().code), 0);
  mailbox.close("over");
  CHECK_EQ(second.get().message, "over");
  CHECK_EQ(third.get().message, "over");
}

TEST(missing_devices_are_named_and_late_ones_hear_the_same) {
  Mailbox mailbox;
  const std::int64_t site = mailbox.add_site(site_of({3, 2048, 9}));
  auto first = visit(mailbox, site, visit_of(0, 7), kLong);
  auto second = visit(mailbox, site, visit_of(2, 7), kSecond / 10);
  const Answer answer = second.get();
  CHECK_EQ(code_of(answer.code), code_of(StatusCode::kTimeout));
  CHECK_CONTAINS(answer.message, "2 of 3 did (ids 3, 9), missing are ids 2048");
  CHECK_EQ(first.get().message, answer.message);
  // It does not wait for the others until its own deadline.
  CHECK_EQ(mailbox.visit(site, visit_of(1, 7), kLong).message, answer.message);
  // The next run has nothing to do with it.
  std::vector<std::future<Answer>> visits;
  for (std::size_t i = 0; i < 3; ++i) visits.push_back(visit(mailbox, site, visit_of(i, 8), kLong));
  CHECK_EQ(next_call(mailbox)->run_id, 8);
  mailbox.answer({});
  for (auto& each : visits) CHECK_EQ(code_of(each.get().code), 0);
}

TEST(a_call_that_is_taken_outlives_the_deadline_of_its_devices) {
  Mailbox mailbox;
  const std::int64_t site = mailbox.add_site(site_of({0}));
  auto visitor = visit(mailbox, site, visit_of(0, 1), kSecond / 10);
  const Call* const call = next_call(mailbox);
  while (monotonic_ns() < call->deadline_ns + kSecond / 10) std::this_thread::yield();
  CHECK_TRUE(visitor.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout);
  mailbox.close("closed meanwhile");
  CHECK_TRUE(visitor.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  mailbox.answer({});
  CHECK_EQ(code_of(visitor.get().code), 0);
}

TEST(a_call_that_nobody_takes_ends_at_its_deadline) {
  Mailbox mailbox;
  const std::int64_t site = mailbox.add_site(site_of({0}));
  const Answer answer = mailbox.visit(site, visit_of(0, 1), kSecond / 20);
  CHECK_EQ(code_of(answer.code), code_of(StatusCode::kTimeout));
  CHECK_CONTAINS(answer.message, "an earlier call");
  CHECK_TRUE(mailbox.wait(0) == nullptr);
}

TEST(closing_answers_all_that_wait_and_all_that_come) {
  Mailbox mailbox;
  const std::int64_t site = mailbox.add_site(site_of({0, 1}));
  auto alone = visit(mailbox, site, visit_of(0, 1), kLong);
  auto first = visit(mailbox, site, visit_of(0, 2), kLong);
  auto second = visit(mailbox, site, visit_of(1, 2), kLong);
  mailbox.close("the source is closed.");
  mailbox.close("another reason");
  for (auto* each : {&alone, &first, &second}) {
    const Answer answer = each->get();
    CHECK_EQ(code_of(answer.code), code_of(StatusCode::kAborted));
    CHECK_EQ(answer.message, "the source is closed.");
  }
  CHECK_EQ(mailbox.visit(site, visit_of(0, 3), kLong).message, "the source is closed.");
  CHECK_EQ(code_of(error_of([&] { mailbox.wait(0); }).code()), code_of(StatusCode::kAborted));
}

// Whenever it comes: before the devices, between them, or when they are all there.
TEST(closing_at_any_moment_answers_all) {
  for (int round = 0; round < 100; ++round) {
    Mailbox mailbox;
    const std::int64_t site = mailbox.add_site(site_of({0, 1}));
    auto first = visit(mailbox, site, visit_of(0, 1), kLong);
    auto second = visit(mailbox, site, visit_of(1, 1), kLong);
    for (int i = 0; i < round * 50; ++i) std::this_thread::yield();
    mailbox.close("over");
    CHECK_EQ(first.get().message, "over");
    CHECK_EQ(second.get().message, "over");
  }
}

TEST(closing_wakes_whoever_serves) {
  Mailbox mailbox;
  mailbox.add_site(site_of({0}));
  auto server = std::async(std::launch::async,
                           [&] { return error_of([&] { mailbox.wait(kLong); }).message(); });
  mailbox.close("over");
  CHECK_EQ(server.get(), "over");
}

TEST(wrong_uses_are_refused) {
  Mailbox mailbox;
  CHECK_CONTAINS(error_of([&] { mailbox.add_site(site_of({})); }).message(), "no device");
  CHECK_CONTAINS(error_of([&] { mailbox.add_site(site_of({1, 2, 1})); }).message(), "twice");
  Site site = site_of({0});
  site.num_results = 2;
  CHECK_CONTAINS(error_of([&] { mailbox.add_site(site); }).message(), "2 results");
  CHECK_CONTAINS(error_of([&] { mailbox.site(0); }).message(), "site 0 is none of the 0");
  CHECK_CONTAINS(error_of([&] { mailbox.answer({}); }).message(), "no call");
  const std::int64_t number = mailbox.add_site(site_of({0, 1}));
  auto first = visit(mailbox, number, visit_of(0, 1), kLong);
  CHECK_TRUE(mailbox.wait(kSecond / 5) == nullptr);
  CHECK_CONTAINS(error_of([&] { mailbox.visit(number, visit_of(0, 1), 0); }).message(), "twice");
  auto second = visit(mailbox, number, visit_of(1, 1), kLong);
  next_call(mailbox);
  CHECK_CONTAINS(error_of([&] { mailbox.wait(0); }).message(), "no answer yet");
  mailbox.answer({});
  CHECK_EQ(code_of(first.get().code), 0);
  CHECK_EQ(code_of(second.get().code), 0);
}

TEST(keys_name_mailboxes_and_are_not_used_again) {
  const auto mailbox = std::make_shared<Mailbox>();
  const std::int64_t key = add_mailbox(mailbox);
  CHECK_TRUE(mailbox_of(key) == mailbox);
  remove_mailbox(key);
  const Error error = error_of([&] { mailbox_of(key); });
  CHECK_EQ(code_of(error.code()), code_of(StatusCode::kAborted));
  CHECK_CONTAINS(error.message(), "is closed");
  CHECK_EQ(add_mailbox(std::make_shared<Mailbox>()), key + 1);
}

// Devices of eight threads go through many runs, one after the other as in a loop of a program;
// some fail. What a device gets is the answer to its own run.
TEST(many_runs_of_many_devices) {
  constexpr std::size_t kDevices = 8;
  constexpr std::int64_t kRuns = 200;
  Mailbox mailbox;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < kDevices; ++i) ids.push_back(static_cast<std::int32_t>(i));
  const std::int64_t site = mailbox.add_site(site_of(ids));
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> devices;
  for (std::size_t device = 0; device < kDevices; ++device) {
    devices.emplace_back([&, device] {
      for (std::int64_t run = 0; run < kRuns; ++run) {
        const Answer answer = mailbox.visit(site, visit_of(device, run / 4), kLong);
        if (answer.message != std::to_string(run)) ++num_wrong;
      }
    });
  }
  for (std::int64_t run = 0; run < kRuns; ++run) {
    const Call* const call = next_call(mailbox);
    if (call->run_id != run / 4) ++num_wrong;
    const StatusCode code = run % 5 == 0 ? StatusCode::kAborted : StatusCode::kOk;
    mailbox.answer({code, std::to_string(run)});
  }
  for (std::thread& device : devices) device.join();
  CHECK_EQ(num_wrong.load(), 0);
}

}  // namespace reshard_test

int main(int argc, char** argv) { return reshard_test::run_all(argc, argv); }

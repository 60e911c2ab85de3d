"""The rules of the store on a clock of the test: who forms a refit, who gets which error."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from reshard.control_messages import (
    Begin,
    Bye,
    Done,
    Ended,
    Fail,
    Failed,
    Gathered,
    Hello,
    Member,
    Post,
    Refuse,
    Reply,
    Request,
    Started,
    Unknown,
    Welcome,
    Withdraw,
)
from reshard.error_report import ErrorReport
from reshard.membership import Membership


class Desk:
    """A membership, its clock, and the replies that each process has got."""

    def __init__(self, max_members: int = 100) -> None:
        self.membership = Membership(max_members=max_members, max_message_bytes=1000)
        self.now = 0.0
        self.requests = 0
        self.replies: dict[str, list[tuple[Reply, Sequence[bytes]]]] = {}
        self.ends: dict[str, list[Ended]] = {}
        self.unanswered: set[int] = set()  # requests whose `Done` no test looks at

    def send(self, who: str, request: Request, payload: bytes = b"") -> None:
        self.membership.receive(who.encode(), request, payload, self.now)
        self.collect()

    def collect(self) -> None:
        for connection, reply, frames in self.membership.take_outbox():
            if isinstance(reply, Ended):
                self.ends.setdefault(connection.decode(), []).append(reply)
            elif not (isinstance(reply, Done) and reply.request in self.unanswered):
                self.replies.setdefault(connection.decode(), []).append((reply, list(frames)))

    def number(self) -> int:
        self.requests += 1
        return self.requests

    def hello(
        self,
        who: str,
        *,
        num_processes: int = 1,
        ranks: Sequence[int] | None = None,
        **options: int,
    ) -> None:
        """`who` is like "source.0" or "engine.1": the group and the process."""
        group, process = who.split(".")[0], int(who.split(".")[1])
        member = Member(
            role="source" if group.startswith("source") else "destination",
            group=group,
            process=process,
            num_processes=num_processes,
            ranks=tuple(ranks if ranks is not None else [process]),
            num_ranks=options.pop("num_ranks", num_processes),
            host="host",
            pid=100 + process,
            library_version="0.1",
        )
        self.send(who, Hello(request=self.number(), member=member, **options))

    def begin(
        self, who: str, *, timeout_s: float = 10.0, version: int | None = None, known_epoch: int = 0
    ) -> int:
        request = self.number()
        message = Begin(
            request=request, timeout_s=timeout_s, version=version, known_epoch=known_epoch
        )
        self.send(who, message, who.encode())
        return request

    def post(
        self,
        who: str,
        name: str = "done",
        *,
        epoch: int = 1,
        refit: int = 1,
        timeout_s: float = 5.0,
    ) -> None:
        request = self.number()
        message = Post(request=request, epoch=epoch, refit=refit, name=name, timeout_s=timeout_s)
        self.send(who, message, f"{who} {name}".encode())

    def fail(self, who: str, text: str, *, epoch: int = 1, refit: int = 1, **options: int) -> None:
        error = ErrorReport("PlanError", text)
        number = self.number()
        self.unanswered.add(number)
        self.send(who, Fail(request=number, epoch=epoch, refit=refit, error=error, **options))

    def refuse(self, who: str, text: str = "w: bad.") -> None:
        error = ErrorReport("LayoutError", text)
        number = self.number()
        self.unanswered.add(number)
        self.send(who, Refuse(request=number, error=error))

    def lose(self, who: str) -> None:
        self.membership.lose(who.encode(), "lost its connection", self.now)
        self.collect()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.membership.expire(self.now)
        self.collect()

    def take(self, who: str) -> Reply:
        """Returns the one reply that a process has got since."""
        replies = self.replies.pop(who, [])
        assert len(replies) == 1, f"{who}: {replies}"
        return replies[0][0]

    def error(self, who: str) -> ErrorReport:
        reply = self.take(who)
        assert isinstance(reply, Failed), reply
        return reply.error

    def started(self, who: str) -> Started:
        reply = self.take(who)
        assert isinstance(reply, Started), reply
        return reply

    def idle(self, *who: str) -> bool:
        return not any(name in self.replies for name in who)


def joined(*who: str, **sizes: int) -> Desk:
    """Returns a desk at which these processes have registered."""
    desk = Desk()
    for name in who:
        desk.hello(name, num_processes=sizes.get(name.split(".")[0], 1))
        assert isinstance(desk.take(name), Welcome)
    return desk


def in_refit(*who: str, **sizes: int) -> Desk:
    """Returns a desk at which these processes are inside the first refit."""
    desk = joined(*who, **sizes)
    for name in who:
        desk.begin(name)
    for name in who:
        assert (desk.started(name).epoch, 1) == (1, 1)
    return desk


FOUR = ("source.0", "source.1", "engine.0", "engine.1")
SIZES = {"source": 2, "engine": 2}


# Forming a refit


def test_a_refit_forms_when_everybody_waits() -> None:
    desk = joined(*FOUR, **SIZES)
    for who in ("engine.1", "source.1", "engine.0"):
        desk.begin(who)
        assert desk.idle(*FOUR)
    desk.begin("source.0", version=None)
    for index, who in enumerate(FOUR):
        reply, payloads = desk.replies.pop(who)[0]
        assert isinstance(reply, Started)
        assert (reply.epoch, reply.refit, reply.process) == (1, 1, index)
        assert list(payloads) == [name.encode() for name in FOUR]
        assert reply.members is not None
        assert [m.group for m in reply.members] == ["source", "source", "engine", "engine"]


def test_members_are_ordered_by_role_then_name_whatever_the_order_of_arrival() -> None:
    desk = joined("zeta.0", "alpha.0", "source.0")
    for who in ("alpha.0", "zeta.0", "source.0"):
        desk.begin(who)
    members = desk.started("zeta.0").members
    assert members is not None
    assert [member.group for member in members] == ["source", "alpha", "zeta"]


def test_the_same_members_stay_in_their_epoch_and_are_not_told_again_who_they_are() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.begin("source.0", known_epoch=1)
    desk.begin("engine.0", known_epoch=0)
    first, second = desk.started("source.0"), desk.started("engine.0")
    assert (first.epoch, first.refit) == (second.epoch, second.refit) == (1, 2)
    assert first.members is None
    assert second.members is not None


def test_a_joiner_starts_a_new_epoch() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.hello("late.0")
    desk.take("late.0")
    for who in ("source.0", "engine.0", "late.0"):
        desk.begin(who, known_epoch=1)
    replies = [desk.started(who) for who in ("source.0", "engine.0", "late.0")]
    assert [(reply.epoch, reply.refit, reply.process) for reply in replies] == [
        (2, 1, 0),
        (2, 1, 1),
        (2, 1, 2),
    ]
    assert all(reply.members is not None for reply in replies)


def test_a_complete_destination_is_waited_for() -> None:
    desk = joined("source.0", "engine.0", "other.0")
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.idle("source.0", "engine.0")
    desk.begin("other.0")
    assert desk.started("other.0").process == 2


def test_an_incomplete_destination_is_not_waited_for() -> None:
    desk = joined("source.0", "engine.0", "half.0", half=2)
    desk.begin("half.0")
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.started("engine.0").members is not None
    assert desk.idle("half.0")


def test_min_destinations_is_waited_for() -> None:
    desk = Desk()
    desk.hello("source.0", min_destinations=2)
    desk.hello("engine.0")
    desk.begin("source.0")
    desk.begin("engine.0")
    desk.replies.clear()
    desk.hello("other.0")
    desk.begin("other.0")
    assert [type(reply).__name__ for reply, _ in desk.replies["other.0"]] == ["Welcome", "Started"]
    assert desk.started("source.0").epoch == 1


def test_epochs_go_on_from_the_largest_that_a_process_has_seen() -> None:
    desk = Desk()
    desk.hello("source.0")
    desk.hello("engine.0", last_epoch=57)
    desk.replies.clear()
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.started("engine.0").epoch == 58


def test_a_new_registration_of_the_same_name_is_a_new_member() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.lose("engine.0")
    desk.hello("engine.0")
    desk.take("engine.0")
    desk.begin("source.0", known_epoch=1)
    desk.begin("engine.0")
    assert desk.started("source.0").epoch == 2


# Versions


def test_the_version_travels_and_must_not_fall() -> None:
    desk = joined("source.0", "engine.0")
    for version in (3, 3, 5):
        desk.begin("source.0", version=version)
        desk.begin("engine.0")
        desk.take("source.0")
        assert desk.started("engine.0").version == version
    desk.begin("source.0", version=4)
    assert "version 4 is below 5" in desk.error("source.0").message
    desk.begin("source.0", version=5)
    desk.begin("engine.0")
    assert desk.started("engine.0").version == 5


def test_a_version_that_failed_may_be_published_again() -> None:
    desk = joined("source.0", "engine.0")
    desk.begin("source.0", version=7)
    desk.begin("engine.0")
    desk.replies.clear()
    desk.fail("engine.0", "broken")
    desk.begin("source.0", version=7)
    desk.begin("engine.0")
    assert (desk.started("engine.0").epoch, desk.started("source.0").version) == (2, 7)


def test_source_processes_that_disagree_about_the_version_all_hear_of_it() -> None:
    desk = joined("source.0", "source.1", "engine.0", source=2)
    desk.begin("source.0", version=1)
    desk.begin("source.1", version=2)
    for who in ("source.0", "source.1"):
        assert "publishes version 2, process 0 version 1" in desk.error(who).message


# Exchanges


def test_everybody_gets_all_payloads_in_order() -> None:
    desk = in_refit(*FOUR, **SIZES)
    for who in reversed(FOUR):
        assert desk.idle(*FOUR)
        desk.post(who, "digest")
    for who in FOUR:
        [(reply, payloads)] = desk.replies.pop(who)
        assert isinstance(reply, Gathered)
        assert payloads == [f"{name} digest".encode() for name in FOUR]


def test_exchanges_follow_each_other() -> None:
    desk = in_refit("source.0", "engine.0")
    for name in ("layouts", "digest", "done"):
        desk.post("engine.0", name)
        desk.post("source.0", name)
        assert isinstance(desk.take("engine.0"), Gathered)
        assert isinstance(desk.take("source.0"), Gathered)


def test_disagreement_about_the_name_reaches_all_and_closes_the_epoch() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.post("source.0", "digest")
    desk.post("engine.0", "done")
    for who in ("source.0", "engine.0"):
        assert "enters exchange 'done' while source 'source'" in desk.error(who).message
    desk.post("other.0", "digest")
    assert "enters exchange 'done'" in desk.error("other.0").message


def test_posting_twice_closes_the_epoch() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.post("engine.0")
    desk.post("engine.0")
    errors = [reply.error for reply, _ in desk.replies["engine.0"] if isinstance(reply, Failed)]
    assert len(errors) == 2
    assert "twice" in errors[0].message


def test_one_that_begins_the_next_refit_instead_is_told_on() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.post("source.0")
    desk.begin("engine.0")
    assert "engine" in desk.error("source.0").message
    assert desk.idle("engine.0")
    desk.post("other.0")
    assert "began the next refit" in desk.error("other.0").message


def test_entering_an_exchange_after_another_member_has_moved_on_fails_at_once() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.begin("engine.0")
    desk.post("source.0")
    assert "has begun the next refit" in desk.error("source.0").message
    assert desk.idle("engine.0")
    desk.begin("source.0")
    assert desk.started("engine.0").epoch == 2


# Errors: to everybody, once, and not into the next epoch


def test_a_failure_reaches_waiting_members_now_and_the_others_at_their_next_exchange() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.post("source.0")
    desk.fail("engine.0", "digests differ")
    report = desk.error("source.0")
    assert report.kind == "PlanError"
    assert report.process == 1
    assert report.message.startswith("destination 'engine' process 0 (rank 0, pid 100 on host): ")
    assert report.message.endswith("digests differ")
    assert desk.idle("engine.0", "other.0")
    # Told at once, for whoever finds the store gone when it comes to the exchange.
    assert [(e.epoch, e.refit, e.error) for e in desk.ends["other.0"]] == [(1, 1, report)]
    assert "source.0" not in desk.ends
    desk.post("other.0")
    assert desk.error("other.0") == report


def test_what_ends_a_store_is_told_to_those_who_wait_alone() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.post("source.0")
    desk.membership.close("the store was closed.")
    desk.collect()
    assert desk.error("source.0").message == "the store was closed."
    assert desk.ends == {}  # the others see that it is gone, and that they may look for a new one


def test_a_failure_and_a_refusal_are_answered_when_the_others_have_been_told() -> None:
    desk = in_refit("source.0", "engine.0")
    error = ErrorReport("PlanError", "first")
    desk.membership.receive(b"engine.0", Fail(request=77, epoch=1, refit=1, error=error), b"", 0.0)
    sent = [(each.connection, type(each.reply)) for each in desk.membership.take_outbox()]
    assert sent[-1] == (b"engine.0", Done)
    assert (b"source.0", Ended) in sent[:-1]
    desk.membership.receive(b"engine.0", Refuse(request=78, error=error), b"", 0.0)
    assert desk.membership.take_outbox()[-1].reply == Done(request=78)


def test_a_failure_does_not_reach_the_next_epoch() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.fail("engine.0", "first")
    for who in ("source.0", "engine.0"):
        desk.begin(who, known_epoch=1)
    assert [desk.started(who).epoch for who in ("source.0", "engine.0")] == [2, 2]
    for who in ("source.0", "engine.0"):
        desk.post(who, epoch=2)
    assert all(isinstance(desk.take(who), Gathered) for who in ("source.0", "engine.0"))


def test_the_first_failure_stands() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.fail("engine.0", "first")
    desk.fail("other.0", "second")
    desk.post("source.0")
    assert desk.error("source.0").message.endswith("first")


def test_a_late_message_of_a_closed_epoch_gets_that_epochs_error() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.fail("engine.0", "first")
    for who in ("source.0", "engine.0"):
        desk.begin(who)
    desk.replies.clear()
    desk.post("source.0", epoch=1)
    assert desk.error("source.0").message.endswith("first")
    desk.fail("source.0", "of the past", epoch=1)
    desk.post("source.0", epoch=2)
    desk.post("engine.0", epoch=2)
    assert isinstance(desk.take("source.0"), Gathered)


def test_a_late_message_of_an_earlier_refit_changes_nothing() -> None:
    desk = in_refit("source.0", "engine.0")
    for who in ("source.0", "engine.0"):
        desk.begin(who)
    desk.replies.clear()
    desk.post("engine.0", refit=1)
    assert "epoch 1, refit 1 is over" in desk.error("engine.0").message
    desk.fail("engine.0", "of the past", refit=1)
    for who in ("source.0", "engine.0"):
        desk.post(who, refit=2)
    assert isinstance(desk.take("source.0"), Gathered)
    assert isinstance(desk.take("engine.0"), Gathered)


def test_only_a_few_closed_epochs_are_remembered() -> None:
    desk = joined("source.0", "engine.0")
    for epoch in range(1, 30):
        for who in ("source.0", "engine.0"):
            desk.begin(who)
        assert desk.started("source.0").epoch == epoch
        desk.take("engine.0")
        desk.fail("engine.0", f"error {epoch}", epoch=epoch)
    desk.post("source.0", epoch=29)
    assert desk.error("source.0").message.endswith("error 29")
    desk.post("source.0", epoch=1)
    assert "is over" in desk.error("source.0").message


# Culprits


def test_a_culprit_is_dropped_and_rejoins_with_its_next_begin() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.fail("source.0", "engine was silent", culprit=1)
    desk.begin("source.0")
    desk.begin("other.0")
    first = desk.started("source.0")
    assert first.epoch == 2
    assert first.members is not None
    assert [member.group for member in first.members] == ["source", "other"]
    desk.take("other.0")
    for who in ("engine.0", "source.0", "other.0"):
        desk.begin(who)
    assert [desk.started(who).epoch for who in ("source.0", "engine.0", "other.0")] == [3, 3, 3]


def test_a_culprit_can_be_named_after_the_epoch_has_closed() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.fail("other.0", "first")
    desk.fail("source.0", "engine is to blame", culprit=1)
    desk.begin("source.0")
    desk.begin("other.0")
    assert desk.started("source.0").epoch == 2


def test_naming_a_culprit_lets_a_refit_form_that_waited_for_it() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.fail("other.0", "first")
    desk.begin("other.0")
    desk.begin("source.0")
    assert desk.idle("source.0", "other.0")
    desk.fail("source.0", "engine is to blame", culprit=1)
    assert desk.started("source.0").epoch == desk.started("other.0").epoch == 2


def test_a_culprit_that_has_moved_on_is_not_dropped() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.fail("source.0", "first")
    desk.begin("engine.0")
    desk.fail("source.0", "engine is to blame", culprit=1)
    desk.begin("source.0")
    assert desk.started("engine.0").epoch == 2


def test_a_source_is_never_dropped() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.fail("engine.0", "source is to blame", culprit=0)
    desk.fail("engine.0", "nobody is to blame", culprit=9)
    for who in ("source.0", "engine.0"):
        desk.begin(who)
    assert desk.started("source.0").epoch == 2


# Timeouts


def test_a_silent_destination_is_named_and_the_next_begin_goes_on_without_it() -> None:
    desk = joined("source.0", "engine.0", "silent.0")
    desk.begin("source.0", timeout_s=5.0)
    desk.begin("engine.0", timeout_s=50.0)
    desk.advance(4.9)
    assert desk.idle("source.0", "engine.0")
    desk.advance(0.2)
    for who in ("source.0", "engine.0"):
        report = desk.error(who)
        assert report.kind == "TransferTimeout"
        assert (
            "Missing: destination 'silent' process 0 (rank 0, pid 100 on host)." in report.message
        )
        assert "Dropped until they begin again: 'silent'" in report.message
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.started("source.0").epoch == desk.started("engine.0").epoch == 1
    for who in ("silent.0", "source.0", "engine.0"):
        desk.begin(who)
    assert desk.started("silent.0").epoch == 2


def test_a_destination_that_gives_up_speaks_only_for_itself() -> None:
    desk = joined("source.0", "engine.0", "silent.0")
    desk.begin("engine.0", timeout_s=1.0)
    desk.begin("source.0", timeout_s=5.0)
    desk.advance(1.1)
    assert "Missing: destination 'silent'" in desk.error("engine.0").message
    assert desk.idle("source.0")
    desk.begin("engine.0", timeout_s=10.0)
    desk.begin("silent.0")
    assert desk.started("source.0").epoch == 1


def test_a_destination_that_gave_up_just_before_is_not_dropped() -> None:
    desk = joined("source.0", "engine.0", "silent.0")
    desk.begin("engine.0", timeout_s=1.0)
    desk.begin("source.0", timeout_s=1.1)
    desk.advance(1.05)
    desk.take("engine.0")
    desk.advance(0.1)
    message = desk.error("source.0").message
    assert "engine' process 0 (rank 0, pid 100 on host) (gave up 0.1 s ago)" in message
    assert "Dropped until they begin again: 'silent'" in message
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.started("engine.0").epoch == 1


def test_a_silent_source_is_named_to_the_destination() -> None:
    desk = joined("source.0", "source.1", "engine.0", source=2)
    desk.begin("engine.0", timeout_s=1.0)
    desk.begin("source.1", timeout_s=9.0)
    desk.advance(1.0)
    assert "Missing: source 'source' process 0 (" in desk.error("engine.0").message
    desk.begin("source.0")
    assert desk.idle("source.0", "source.1")
    desk.begin("engine.0")
    assert desk.started("engine.0").epoch == 1


def test_an_absent_source_is_named_to_the_destination() -> None:
    desk = joined("engine.0")
    desk.begin("engine.0", timeout_s=1.0)
    desk.advance(1.0)
    assert "Missing: a source (none has called publish)" in desk.error("engine.0").message


def test_a_silent_process_of_the_own_program_is_named_and_others_go_on() -> None:
    desk = joined("source.0", "engine.0", "engine.1", "other.0", engine=2)
    desk.begin("engine.0", timeout_s=1.0)
    desk.begin("other.0")
    desk.begin("source.0")
    assert desk.idle("source.0")
    desk.advance(1.0)
    assert "Missing: destination 'engine' process 1 (" in desk.error("engine.0").message
    assert desk.started("source.0").epoch == desk.started("other.0").epoch == 1


def test_the_missing_process_of_a_needed_destination_is_named() -> None:
    desk = joined("source.0", "engine.0", engine=2)
    desk.begin("source.0", timeout_s=1.0)
    desk.begin("engine.0", timeout_s=2.0)
    desk.advance(1.0)
    for who in ("source.0", "engine.0"):
        message = desk.error(who).message
        assert "destinations (0 of min_destinations=1 have called refit)" in message
        assert "'engine' process 1 of 2 (not registered)" in message


def test_a_source_without_destinations_times_out() -> None:
    desk = joined("source.0")
    desk.membership.remark = " 3 connections were refused."
    desk.begin("source.0", timeout_s=1.0)
    desk.advance(1.0)
    message = desk.error("source.0").message
    assert "Missing: destinations (0 of min_destinations=1 have called refit)" in message
    assert message.endswith(" 3 connections were refused.")


def test_a_silent_member_of_an_exchange_is_named_and_dropped() -> None:
    desk = in_refit("source.0", "engine.0", "silent.0")
    desk.post("source.0", timeout_s=1.0)
    desk.post("engine.0", timeout_s=5.0)
    desk.advance(1.0)
    for who in ("source.0", "engine.0"):
        report = desk.error(who)
        assert report.kind == "TransferTimeout"
        assert "exchange 'done': 2 of 3 processes came" in report.message
        assert "Silent: destination 'silent' process 0" in report.message
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.started("source.0").epoch == 2
    desk.post("silent.0")
    assert desk.error("silent.0").kind == "TransferTimeout"


def test_deadlines_are_told_and_end() -> None:
    desk = joined("source.0", "engine.0")
    assert desk.membership.next_deadline == float("inf")
    desk.begin("source.0", timeout_s=3.0)
    assert desk.membership.next_deadline == 3.0
    desk.advance(3.0)
    assert desk.membership.next_deadline == float("inf")


# Leaving


def test_a_lost_member_of_an_exchange_is_told_to_all() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.post("source.0")
    desk.lose("engine.0")
    text = "destination 'engine' process 0 (rank 0, pid 100 on host) lost its connection."
    assert desk.error("source.0").message == text
    desk.post("other.0")
    assert desk.error("other.0").message == text


def test_a_program_leaves_when_one_process_does() -> None:
    desk = joined("source.0", "engine.0", "engine.1", "other.0", engine=2)
    for who in ("source.0", "other.0", "engine.0"):
        desk.begin(who)
    desk.lose("engine.1")
    assert "'engine' process 1" in desk.error("engine.0").message
    assert desk.started("source.0").epoch == desk.started("other.0").epoch == 1


def test_the_rest_of_a_program_waits_for_a_new_process() -> None:
    desk = in_refit("source.0", "engine.0", "engine.1", engine=2)
    desk.lose("engine.1")
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.idle("engine.0", "source.0")
    desk.hello("engine.1", num_processes=2)
    desk.take("engine.1")
    desk.begin("engine.1")
    assert desk.started("engine.0").epoch == 2


def test_a_program_that_lost_a_process_may_be_started_anew_as_a_whole() -> None:
    """Its other processes may be alive still, but they are not the program any more."""
    desk = in_refit("source.0", "engine.0", "engine.1", engine=2)
    desk.lose("engine.1")
    for who in ("engine.0.again", "engine.1.again"):
        desk.hello(who, num_processes=2)
        assert isinstance(desk.take(who), Welcome)
        desk.begin(who)
    desk.begin("engine.0")
    assert "cannot take part again" in desk.error("engine.0").message
    desk.begin("source.0")
    for who in ("source.0", "engine.0.again", "engine.1.again"):
        assert desk.started(who).epoch == 2


def test_a_loss_between_refits_is_no_error_for_the_others() -> None:
    desk = in_refit("source.0", "engine.0", "other.0")
    desk.lose("engine.0")
    desk.begin("source.0")
    desk.begin("other.0")
    assert desk.started("source.0").epoch == desk.started("other.0").epoch == 2


def test_a_departure_is_mentioned_in_a_later_timeout() -> None:
    desk = joined("source.0", "engine.0")
    desk.lose("engine.0")
    desk.advance(2.0)
    desk.begin("source.0", timeout_s=1.0)
    desk.advance(1.0)
    message = desk.error("source.0").message
    assert "Gone before: destination 'engine' process 0" in message
    assert "lost its connection 3.0 s ago" in message


def test_a_departure_after_a_refusal_tells_the_reason_in_a_later_timeout() -> None:
    desk = joined("source.0", "engine.0")
    desk.refuse("engine.0", "w: bad.")
    desk.lose("engine.0")
    desk.begin("source.0", timeout_s=1.0)
    desk.advance(1.0)
    assert (
        "lost its connection 1.0 s ago after its error: w: bad." in desk.error("source.0").message
    )


def test_a_refit_forms_as_soon_as_the_last_that_kept_it_back_is_dropped() -> None:
    """The next program timed out in the same moment, and missed nobody."""
    desk = joined("source.0", "a.0", "a.1", "b.0", a=2)
    desk.begin("source.0", timeout_s=60.0)
    desk.begin("a.0", timeout_s=5.0)
    desk.begin("b.0", timeout_s=5.0)
    desk.advance(5.0)
    assert "a' process 1" in desk.error("a.0").message
    assert desk.started("source.0").epoch == desk.started("b.0").epoch == 1


def test_a_lost_source_process_is_told_to_everybody_who_waits() -> None:
    desk = joined("source.0", "source.1", "engine.0", source=2)
    desk.begin("engine.0")
    desk.begin("source.0")
    desk.lose("source.1")
    for who in ("engine.0", "source.0"):
        assert "source 'source' process 1" in desk.error(who).message


def test_bye_is_answered_and_told_as_leaving() -> None:
    desk = joined("source.0", "engine.0")
    desk.begin("engine.0")
    desk.send("source.0", Bye(request=desk.number()))
    assert isinstance(desk.take("source.0"), Done)
    assert desk.error("engine.0").message.endswith("left.")
    desk.lose("source.0")
    assert desk.idle("source.0", "engine.0")


def test_a_new_source_may_start_its_versions_anew() -> None:
    desk = joined("source.0", "engine.0")
    desk.begin("source.0", version=9)
    desk.begin("engine.0")
    desk.replies.clear()
    desk.lose("source.0")
    desk.hello("source2.0")
    desk.take("source2.0")
    desk.begin("source2.0", version=0)
    desk.begin("engine.0")
    started = desk.started("engine.0")
    assert (started.epoch, started.version) == (2, 0)


def test_closing_the_store_is_told_to_everybody_who_waits() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.post("source.0")
    desk.begin("engine.0")
    desk.replies.clear()
    desk.begin("source.0")
    desk.hello("late.0", num_processes=2)
    desk.begin("late.0")
    desk.replies.clear()
    desk.membership.close("closed.")
    desk.collect()
    assert desk.error("late.0").message == "closed."


# Giving up


def test_a_withdrawn_begin_is_forgotten() -> None:
    desk = joined("source.0", "engine.0")
    request = desk.begin("source.0")
    desk.send("source.0", Withdraw(request=request))
    desk.begin("engine.0")
    assert desk.idle("source.0", "engine.0")
    desk.begin("source.0")
    assert desk.started("engine.0").epoch == 1


def test_a_begin_withdrawn_too_late_fails_the_refit() -> None:
    desk = joined("source.0", "engine.0")
    request = desk.begin("source.0")
    desk.begin("engine.0")
    desk.replies.clear()
    desk.send("source.0", Withdraw(request=request))
    desk.post("engine.0")
    assert "gave up just as the refit began" in desk.error("engine.0").message


def test_an_old_withdrawal_changes_nothing() -> None:
    desk = joined("source.0", "engine.0")
    request = desk.begin("source.0")
    desk.begin("engine.0")
    desk.replies.clear()
    desk.begin("source.0")
    desk.begin("engine.0")
    desk.replies.clear()
    desk.send("source.0", Withdraw(request=request))
    desk.post("engine.0", refit=2)
    assert desk.idle("engine.0")


# Taking no part


def test_whoever_waits_hears_why_a_process_takes_no_part() -> None:
    desk = joined(*FOUR, **SIZES)
    waiting = [who for who in FOUR if who != "source.1"]
    for who in waiting:
        desk.begin(who)
    desk.refuse("source.1")
    for who in waiting:
        error = desk.error(who)
        assert error.kind == "LayoutError"
        assert "source 'source' process 1" in error.message
        assert error.message.endswith("w: bad.")
    assert desk.idle("source.1")


def test_whoever_comes_later_hears_it_once_and_then_waits() -> None:
    desk = joined("source.0", "engine.0", "engine.1", engine=2)
    desk.refuse("engine.1")
    for who in ("source.0", "engine.0"):
        desk.begin(who)
        assert desk.error(who).kind == "LayoutError"
    for who in ("source.0", "engine.0"):
        desk.begin(who)
    assert desk.idle("source.0", "engine.0")
    desk.begin("engine.1")
    assert desk.started("source.0").epoch == desk.started("engine.1").epoch == 1


def test_others_hear_a_refusal_although_the_process_has_begun_again() -> None:
    desk = joined("source.0", "engine.0")
    desk.refuse("source.0")
    desk.begin("source.0")
    desk.begin("engine.0")
    assert desk.error("engine.0").kind == "LayoutError"
    assert desk.idle("source.0")
    desk.begin("engine.0")
    assert desk.started("source.0").epoch == desk.started("engine.0").epoch == 1


def test_a_refusal_is_forgotten_once_a_refit_has_formed() -> None:
    desk = joined("source.0", "engine.0")
    desk.begin("engine.0")
    desk.refuse("source.0")
    assert desk.error("engine.0").kind == "LayoutError"
    for who in ("engine.0", "source.0"):
        desk.begin(who)
    desk.replies.clear()
    desk.hello("late.0")
    desk.take("late.0")
    for who in ("late.0", "engine.0", "source.0"):
        desk.begin(who)
    assert desk.started("late.0").epoch == 2


def test_a_refusal_while_others_are_in_an_exchange_closes_the_epoch() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.post("engine.0")
    desk.refuse("source.0")
    assert "began the next refit while others wait for it" in desk.error("engine.0").message


def test_a_dropped_program_refuses_for_itself_only() -> None:
    desk = joined("source.0", "engine.0", "late.0")
    desk.begin("source.0", timeout_s=1.0)
    desk.begin("engine.0", timeout_s=9.0)
    desk.advance(1.0)
    desk.replies.clear()
    desk.begin("source.0")
    desk.refuse("late.0")
    desk.begin("engine.0")
    assert desk.started("source.0").epoch == desk.started("engine.0").epoch


# Refusals


@pytest.mark.parametrize(
    ("num_processes", "ranks", "num_ranks", "reason"),
    [
        (3, [1], 3, "was introduced with 2 processes"),
        (2, [1], 9, "and 9"),
        (2, [0], 2, "rank 0 is also driven by"),
        (2, [1, 1], 2, "not distinct"),
        (2, [2], 2, "not distinct numbers below 2"),
        (1, [0], 1, "process 1 is not below"),
    ],
)
def test_a_process_that_does_not_fit_is_refused(
    num_processes: int, ranks: list[int], num_ranks: int, reason: str
) -> None:
    desk = joined("engine.0", engine=2)
    desk.hello("engine.1", num_processes=num_processes, ranks=ranks, num_ranks=num_ranks)
    assert reason in desk.error("engine.1").message


def test_ranks_without_a_process_are_refused() -> None:
    desk = Desk()
    desk.hello("engine.0", num_processes=2, num_ranks=3)
    desk.take("engine.0")
    desk.hello("engine.1", num_processes=2, num_ranks=3)
    assert "drive 2 of its 3 ranks" in desk.error("engine.1").message


def test_a_second_process_with_the_same_index_is_refused_while_the_first_lives() -> None:
    desk = joined("engine.0")
    desk.replies.clear()
    member = Member("destination", "engine", 0, 1, (0,), 1, "elsewhere", 7, "0.1")
    desk.send("twin", Hello(request=1, member=member))
    assert "pid 100 on host) is registered already" in desk.error("twin").message
    desk.lose("engine.0")
    desk.send("twin", Hello(request=2, member=member))
    assert isinstance(desk.take("twin"), Welcome)


def test_a_dropped_process_whose_place_is_taken_cannot_come_back() -> None:
    desk = in_refit("source.0", "engine.0")
    desk.fail("source.0", "engine was silent", culprit=1)
    member = Member("destination", "engine", 0, 1, (0,), 1, "elsewhere", 7, "0.1")
    desk.send("twin", Hello(request=1, member=member))
    assert isinstance(desk.take("twin"), Welcome)
    desk.begin("engine.0")
    assert "pid 7 on elsewhere) is registered already" in desk.error("engine.0").message


def test_a_second_source_and_other_options_of_it_are_refused() -> None:
    desk = joined("source.0", source=2)
    desk.hello("source2.0")
    assert "has a source, 'source'" in desk.error("source2.0").message
    desk.hello("source.1", num_processes=2, min_destinations=4)
    assert "min_destinations=4 differs from 1" in desk.error("source.1").message


def test_too_many_processes_are_refused() -> None:
    desk = Desk(max_members=1)
    desk.hello("source.0")
    desk.take("source.0")
    desk.hello("engine.0")
    assert "at most 1 processes" in desk.error("engine.0").message


def test_a_connection_says_hello_first_and_once() -> None:
    desk = Desk()
    desk.begin("source.0")
    assert isinstance(desk.take("source.0"), Unknown)
    desk.hello("source.0")
    desk.take("source.0")
    desk.hello("source.0")
    assert "said hello already" in desk.error("source.0").message

"""Who takes part in the next refit: the rules of the store, without any socket.

A process is *registered* (it said hello) or not; a program is *complete* when each of its processes
is. A refit forms when every process of the source and of every complete destination waits for it.
The same members as before go on in the same *epoch*; an error closes the epoch.

    connected --hello, begin--> registered --begin--> waiting --all are there--> inside a refit
        ^                         |   ^ ^                |                            |
        +-- dropped: silent, -----+   | +-- timeout -----+                            |
            to blame, lost a process  +------- begin of the next, error --------------+

Errors belong to the epoch in which they happened. A member that waits in an exchange gets the error
at once; any other member is told, and raises it in its next exchange of that epoch, or never if it
begins the next refit instead. So no error is raised twice and none reaches the next epoch.

A destination that was silent, or is to blame, or lost a process, is dropped as a whole, so that the
next refit does not wait for it; its next begin registers it anew. A source is never dropped.
The time is an argument everywhere, so that tests need no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from reshard.control_messages import (
    Begin,
    Bye,
    Done,
    Ended,
    Fail,
    Failed,
    Gathered,
    Hello,
    Post,
    Refuse,
    Reply,
    Request,
    Started,
    Unknown,
    Welcome,
    Withdraw,
)
from reshard.epoch import ClosedEpochs, Epoch, PostRecord
from reshard.error_report import ErrorReport
from reshard.group import Group, Process, Refusal, Waiting
from reshard.registry import Registry, join_texts

__all__ = ["Membership", "Outgoing"]


class Outgoing(NamedTuple):
    """A reply on its way to one connection."""

    connection: bytes
    reply: Reply
    frames: Sequence[bytes] = ()


class Membership:
    """The registry and the state of the current refit.

    Args:
        max_members: how many processes may be connected.
        max_message_bytes: told to every process in the welcome.

    Attributes:
        next_deadline: time at which `expire` has something to do at the earliest.
        remark: text that ends every message about a timeout, or empty.
    """

    def __init__(self, *, max_members: int, max_message_bytes: int) -> None:
        self.next_deadline = math.inf
        self.remark = ""
        self._max_message_bytes = max_message_bytes
        self._registry = Registry(max_members)
        self._last_epoch = 0
        self._last_version: int | None = None
        self._epoch: Epoch | None = None
        self._closed = ClosedEpochs()
        self._outbox: list[Outgoing] = []

    def take_outbox(self) -> list[Outgoing]:
        """Returns the replies that came up since the last call."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def receive(self, connection: bytes, request: Request, payload: bytes, now: float) -> None:
        """Serves one request.

        Args:
            connection: routing id of the sender.
            request: what it sent.
            payload: frame after the header, or empty.
            now: time in seconds.
        """
        if isinstance(request, Hello):
            self._hello(connection, request)
            return
        process = self._registry.find(connection)
        if process is None:
            self._outbox.append(Outgoing(connection, Unknown(request=request.request)))
        elif isinstance(request, Post):
            self._post(process, request, payload, now)
        elif isinstance(request, Begin):
            self._begin(process, request, payload, now)
        elif isinstance(request, Fail):
            self._fail(process, request)
            self._outbox.append(Outgoing(connection, Done(request=request.request)))
        elif isinstance(request, Withdraw):
            self._withdraw(process, request, now)
        elif isinstance(request, Refuse):
            self._refuse(process, request)
            self._outbox.append(Outgoing(connection, Done(request=request.request)))
        elif isinstance(request, Bye):
            self._outbox.append(Outgoing(connection, Done(request=request.request)))
            self.lose(connection, "left", now)

    def lose(self, connection: bytes, reason: str, now: float) -> None:
        """Forgets a connection; whoever depends on its process gets an error.

        Args:
            connection: routing id; one without a process is ignored.
            reason: what happened to it, as in "process 3 left".
            now: time in seconds.
        """
        process = self._registry.find(connection)
        if process is None:
            return
        group = process.group
        was_registered = process.incarnation != 0
        report = _report(f"{process.member.describe()} {reason}.")
        group.stop_waiting(process)
        self._registry.remove(process, reason, now)
        if self._epoch is not None and self._epoch.index_of(process) is not None:
            self._close_epoch(self._epoch, report)
        if group.role == "source":
            self._fail_waiting(self._registry, report)
            if self._registry.source is None:
                self._last_version = None
        elif was_registered:
            self._fail_waiting([group], report)
            self._registry.drop(group)
        self._form_refit()

    def expire(self, now: float) -> None:
        """Gives an error to everybody whose deadline has passed."""
        if now < self.next_deadline:
            return
        if self._epoch is not None and now >= self._epoch.deadline:
            self._time_out_exchange(self._epoch, now)
        for group in self._registry:
            waits = [p.waiting for p in group.processes if p.waiting is not None]
            if any(now >= wait.deadline for wait in waits):
                self._time_out_group(group, min(wait.started for wait in waits), now)
                self._form_refit()  # at once: the next group may have waited for this one alone
        exchange_deadline = math.inf if self._epoch is None else self._epoch.deadline
        self.next_deadline = min(exchange_deadline, self._registry.first_deadline)

    def close(self, reason: str) -> None:
        """Gives an error to everybody who waits; the store ends."""
        report = _report(reason)
        if self._epoch is not None:
            self._answer_posts(self._epoch, report)  # the others see that the store is gone
        self._fail_waiting(self._registry, report)

    # Requests

    def _hello(self, connection: bytes, request: Hello) -> None:
        refusal = self._registry.refusal_of(connection, request)
        if refusal is not None:
            report = _report(f"{request.member.describe()} cannot take part: {refusal}")
            self._outbox.append(Outgoing(connection, Failed(request=request.request, error=report)))
            return
        self._registry.add(connection, request)
        self._last_epoch = max(self._last_epoch, request.last_epoch)
        welcome = Welcome(request=request.request, max_message_bytes=self._max_message_bytes)
        self._outbox.append(Outgoing(connection, welcome))

    def _begin(self, process: Process, request: Begin, payload: bytes, now: float) -> None:
        group = process.group
        self._leave_epoch(process)
        if not process.incarnation:
            refusal = group.refusal_of(process.member)
            if refusal is not None:
                text = f"{process.member.describe()} cannot take part again: {refusal}"
                self._answer_error(process, request.request, _report(text))
                return
            self._registry.register(process)
        if group.role == "source" and not self._check_version(process, request):
            return
        if (report := self._registry.take_refusal(process)) is not None:
            self._answer_error(process, request.request, report)
            return
        deadline = now + request.timeout_s
        group.start_waiting(
            process,
            Waiting(request.request, now, deadline, request.known_epoch, request.version, payload),
        )
        self.next_deadline = min(self.next_deadline, deadline)
        self._form_refit()

    def _refuse(self, process: Process, request: Refuse) -> None:
        """Ends the wait of everybody for a refit that a process cannot take part in."""
        self._leave_epoch(process)
        process.group.stop_waiting(process)
        text = f"{process.member.describe()}: {request.error.message}"
        report = msgspec.structs.replace(request.error, message=text)
        told = {other.connection for other in self._registry.waiting()}
        process.refusal = Refusal(request.error.message, report, {process.connection, *told})
        # A program that was dropped is missed by its own processes only.
        self._fail_waiting(self._registry if process.incarnation else [process.group], report)

    def _leave_epoch(self, process: Process) -> None:
        """Notes that a process is through with its refit; others may not wait for it there."""
        epoch = self._epoch
        if epoch is not None and (index := epoch.index_of(process)) is not None:
            complaint = epoch.leave(index)
            if complaint is not None:
                self._close_epoch(epoch, _report(complaint, index))

    def _check_version(self, process: Process, request: Begin) -> bool:
        """Refuses a version that falls, or that differs between the source's processes."""
        version, last = request.version, self._last_version
        if version is not None and last is not None and version < last:
            text = f"version {version} is below {last}, which was published; versions never fall."
            self._answer_error(process, request.request, _report(text))
            return False
        for other in process.group.processes:
            if other.waiting is not None and other.waiting.version != version:
                report = _report(
                    f"{process.member.describe()} publishes version {version}, "
                    f"process {other.member.process} version {other.waiting.version}."
                )
                self._answer_error(process, request.request, report)
                self._fail_waiting([process.group], report)
                return False
        return True

    def _post(self, process: Process, request: Post, payload: bytes, now: float) -> None:
        epoch = self._epoch
        index = None if epoch is None else epoch.index_of(process)
        place = (request.epoch, request.refit)
        if epoch is None or index is None or place != (epoch.number, epoch.refit):
            self._answer_error(process, request.request, self._error_of_past(request))
            return
        deadline = now + request.timeout_s
        record = PostRecord(process, request.request, payload)
        complaint = epoch.post(index, request.name, record, now, deadline)
        if complaint is not None:
            report = _report(complaint, index)
            self._close_epoch(epoch, report)
            self._answer_error(process, request.request, report)
        elif epoch.is_gathered:
            posts = epoch.take_posts()
            payloads = [post.payload for post in posts]
            for post in posts:
                reply = Gathered(request=post.request)
                self._outbox.append(Outgoing(post.process.connection, reply, payloads))
        else:
            self.next_deadline = min(self.next_deadline, deadline)

    def _fail(self, process: Process, request: Fail) -> None:
        """Closes the epoch unless an earlier error did; drops the culprit in both cases."""
        epoch = self._epoch
        if epoch is None or epoch.number != request.epoch:
            epoch = self._closed.find(request.epoch)
        if epoch is None or (index := epoch.index_of(process)) is None:
            return
        if epoch.refit != request.refit:
            return
        if epoch is self._epoch:
            text = f"{process.member.describe()}: {request.error.message}"
            self._close_epoch(
                epoch, msgspec.structs.replace(request.error, message=text, process=index)
            )
        if request.culprit is None or request.culprit >= len(epoch.processes):
            return
        culprit = epoch.processes[request.culprit]
        has_not_moved_on = (
            culprit.incarnation == epoch.key[request.culprit] and not culprit.group.num_waiting
        )
        if has_not_moved_on and culprit.group.role != "source":
            self._registry.drop(culprit.group)
            self._form_refit()

    def _withdraw(self, process: Process, request: Withdraw, now: float) -> None:
        wait, epoch = process.waiting, self._epoch
        if wait is not None and wait.request == request.request:
            process.group.stop_waiting(process)
            process.group.gave_up_at = now
        elif process.started_request == request.request and epoch is not None:
            index = epoch.index_of(process)
            if index is not None:
                text = f"{process.member.describe()} gave up just as the refit began."
                self._close_epoch(epoch, _report(text, index))

    # What follows from them

    def _form_refit(self) -> None:
        """Starts a refit if everybody who is needed waits for it."""
        processes = self._registry.ready_processes()
        if processes is None:
            return
        epoch = self._epoch
        if epoch is None or epoch.key != tuple(process.incarnation for process in processes):
            self._last_epoch += 1
            epoch = self._epoch = Epoch(self._last_epoch, processes)
        epoch.start_refit()
        waits = [process.waiting for process in processes if process.waiting is not None]
        payloads = [wait.payload for wait in waits]
        version = waits[0].version
        if version is not None:
            self._last_version = version
        for index, (process, wait) in enumerate(zip(processes, waits, strict=True)):
            reply = Started(
                request=wait.request,
                epoch=epoch.number,
                refit=epoch.refit,
                version=version,
                process=index,
                members=None if wait.known_epoch == epoch.number else epoch.members,
            )
            process.started_request, process.refusal = wait.request, None
            process.group.stop_waiting(process)
            self._outbox.append(Outgoing(process.connection, reply, payloads))

    def _time_out_exchange(self, epoch: Epoch, now: float) -> None:
        silent = epoch.silent()
        names = join_texts(process.member.describe() for process in silent)
        self._close_epoch(
            epoch, self._timeout(f"{epoch.describe_exchange(now)}. Silent: {names}.", now)
        )
        for group in {process.group for process in silent}:
            if group.role != "source" and not group.num_waiting:
                self._registry.drop(group)

    def _time_out_group(self, group: Group, started: float, now: float) -> None:
        """Ends the wait of a program for a refit.

        A source speaks for everybody, since nobody can go on without it. A destination speaks for
        itself: its limit must not cut short what others are still willing to wait for.
        """
        missing, to_drop = self._registry.missing(group, started, now)
        text = (
            f"{group.role} {group.name!r} waited {now - started:.1f} s for a refit. "
            f"Missing: {join_texts(missing)}."
        )
        if to_drop:
            names = join_texts(repr(other.name) for other in to_drop)
            text += f" Dropped until they begin again: {names}."
        everybody = self._registry if group.role == "source" else [group]
        self._fail_waiting(everybody, self._timeout(text, now))
        group.gave_up_at = now
        for other in to_drop:
            self._registry.drop(other)

    def _close_epoch(self, epoch: Epoch, report: ErrorReport) -> None:
        """Ends the open epoch; members that do not wait in its exchange are told for later."""
        epoch.error = report
        self._epoch = None
        self._closed.add(epoch)
        others = {p.connection for p in epoch.processes} - self._answer_posts(epoch, report)
        ended = Ended(request=0, epoch=epoch.number, refit=epoch.refit, error=report)
        self._outbox += [Outgoing(connection, ended) for connection in sorted(others)]

    def _answer_posts(self, epoch: Epoch, report: ErrorReport) -> set[bytes]:
        posts = epoch.take_posts()
        for post in posts:
            self._answer_error(post.process, post.request, report)
        return {post.process.connection for post in posts}

    def _error_of_past(self, request: Post) -> ErrorReport:
        return self._closed.error_of(request.epoch, request.refit) or _report(
            f"exchange {request.name!r}: epoch {request.epoch}, refit {request.refit} is over."
        )

    def _fail_waiting(self, groups: Iterable[Group], report: ErrorReport) -> None:
        """Gives an error to every process of some programs that waits for a refit."""
        for group in groups:
            for process in group.processes:
                wait = process.waiting
                if wait is not None:
                    group.stop_waiting(process)
                    self._answer_error(process, wait.request, report)

    def _answer_error(self, process: Process, request: int, report: ErrorReport) -> None:
        reply = Failed(request=request, error=report)
        self._outbox.append(Outgoing(process.connection, reply))

    def _timeout(self, text: str, now: float) -> ErrorReport:
        departures = self._registry.describe_departures(now)
        return ErrorReport("TransferTimeout", f"{text}{departures}{self.remark}")


def _report(text: str, process: int | None = None) -> ErrorReport:
    return ErrorReport("RendezvousError", text, process)

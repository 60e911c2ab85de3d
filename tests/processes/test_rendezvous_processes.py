"""Real processes at one store: killed, stopped, late, foreign, joining and leaving.

Every test is a script: the parent tells single processes what to do and looks at what came of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.ranks import ProcessGroup, listen, tell

from reshard import control_messages
from reshard.errors import PlanError, ReshardError
from reshard.local_member import local_member
from reshard.rendezvous import EpochExchange, Go, Rendezvous
from reshard.store_server import StoreServer

pytestmark = pytest.mark.processes

WAIT_S = 30.0
LIMIT_S = 90.0
PROMPT_S = 5.0  # what "well before the deadline" means here, on a loaded machine


class Child:
    """What one process can be told to do; each method is one command."""

    def __init__(self) -> None:
        self.server: StoreServer | None = None
        self.rendezvous: Rendezvous | None = None
        self.exchanging: EpochExchange | None = None

    def serve(self, address: str, heartbeat_s: float, token: str | None) -> str:
        self.server = StoreServer(
            address,
            token=token,
            heartbeat_interval_s=heartbeat_s / 4,
            heartbeat_timeout_s=heartbeat_s,
        )
        return self.server.address

    def connect(
        self,
        address: str,
        name: str,
        process: int,
        num_processes: int,
        heartbeat_s: float,
        token: str | None,
    ) -> None:
        member = local_member(
            "source" if name == "source" else "destination",
            name,
            process=process,
            num_processes=num_processes,
            ranks=[process],
            num_ranks=num_processes,
        )
        self.rendezvous = Rendezvous(
            address,
            member,
            token=token,
            heartbeat_interval_s=heartbeat_s / 4,
            heartbeat_timeout_s=heartbeat_s,
        )
        self.rendezvous.connect(WAIT_S)

    def speak_version(self, version: int) -> None:
        control_messages._PREFIX = b"reshard-control/%d\n" % version  # type: ignore[misc]

    def begin(self, timeout_s: float = WAIT_S) -> Go:
        assert self.rendezvous is not None
        go = self.rendezvous.begin(timeout_s=timeout_s)
        self.exchanging = self.rendezvous.exchange_of(go)
        return go

    def begin_and_say_when_it_waits(self) -> None:
        """An interrupt while a message is sent ends the connection; from here on it does not."""
        assert self.rendezvous is not None
        said: list[str] = []

        def say() -> None:
            if not said:
                said.append("waiting")
                tell("waiting")

        self.rendezvous.begin(timeout_s=WAIT_S, while_waiting=say)

    def exchange(self, timeout_s: float = WAIT_S) -> list[bytes]:
        assert self.exchanging is not None
        return self.exchanging.exchange(
            "done", b"%d" % self.exchanging.process, timeout_s=timeout_s
        )

    def fail_refits(self, count: int) -> tuple[int, int]:
        """Takes part in refits that all fail; returns by how much threads and files grew."""
        sizes = []
        for number in range(count + 1):
            go = self.begin()
            assert self.exchanging is not None
            with contextlib.suppress(PlanError):
                if go.process == number % len(go.members):
                    self.exchanging.fail(PlanError("on purpose"))
                else:
                    self.exchange()
            sizes.append((_count("task"), _count("fd")))
        return sizes[-1][0] - sizes[0][0], sizes[-1][1] - sizes[0][1]

    def close(self) -> None:
        if self.rendezvous is not None:
            self.rendezvous.close()
        if self.server is not None:
            self.server.close()

    def refused_handshakes(self) -> int:
        assert self.server is not None
        return self.server.handshakes_refused

    def messages(self) -> int:
        assert self.server is not None
        return self.server.messages_received

    def wait_for_messages(self, count: int) -> None:
        """Waits until the store has received so many messages; it tells nobody when it does."""
        assert self.server is not None
        limit = time.monotonic() + WAIT_S
        while self.server.messages_received < count:
            assert time.monotonic() < limit, f"{self.server.messages_received} of {count} came"
            time.sleep(0.002)


def _count(folder: str) -> int:
    return len(list(Path(f"/proc/self/{folder}").iterdir()))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of one command."""

    value: Any
    error: ReshardError | None
    seconds: float


def _play(process: int, num_processes: int) -> None:
    """Runs in every process: does as it is told until it is told to end."""
    child = Child()
    while True:
        command, arguments = listen(LIMIT_S)
        if command == "end":
            return
        started = time.monotonic()
        value, error = None, None
        try:
            value = getattr(child, command)(*arguments)
        except ReshardError as caught:
            error = caught
        except KeyboardInterrupt:
            value = "interrupted"
        tell(Answer(value, error, time.monotonic() - started))


class Crew:
    """The parent's hold on the processes; process 0 serves the store and is the source."""

    def __init__(self, group: ProcessGroup, heartbeat_s: float, token: str | None) -> None:
        self.group = group
        self.heartbeat_s = heartbeat_s
        self.token = token
        self.address = self.do(0, "serve", "tcp://127.0.0.1:0", heartbeat_s, token)

    def start(self, process: int, command: str, *arguments: object) -> None:
        self.group.send(process, (command, arguments))

    def answer(self, process: int) -> Answer:
        answer: Answer = self.group.expect(process, WAIT_S + PROMPT_S)
        return answer

    def do(self, process: int, command: str, *arguments: object) -> Any:
        self.start(process, command, *arguments)
        answer = self.answer(process)
        assert answer.error is None, answer.error
        return answer.value

    def error(self, process: int) -> tuple[str, str, float]:
        """Returns class, text and seconds of the error that a process got."""
        answer = self.answer(process)
        assert answer.error is not None, answer.value
        return type(answer.error).__name__, str(answer.error), answer.seconds

    def connect(self, process: int, name: str, index: int = 0, size: int = 1) -> None:
        self.start_connecting(process, name, index, size)
        answer = self.answer(process)
        assert answer.error is None, answer.error

    def start_connecting(self, process: int, name: str, index: int = 0, size: int = 1) -> None:
        self.start(
            process, "connect", self.address, name, index, size, self.heartbeat_s, self.token
        )

    def begin(self, *processes: int) -> list[Go]:
        for process in processes:
            self.start(process, "begin")
        answers = [self.answer(process) for process in processes]
        for answer in answers:
            assert answer.error is None, answer.error
        return [answer.value for answer in answers]

    def refit(self, *processes: int) -> list[int]:
        """Runs a whole refit; returns the epochs."""
        epochs = [go.epoch for go in self.begin(*processes)]
        for process in processes:
            self.start(process, "exchange")
        everybody = [b"%d" % i for i in range(len(processes))]
        for process in processes:
            answer = self.answer(process)
            assert answer.error is None, answer.error
            assert answer.value == everybody
        return epochs

    def end(self) -> None:
        for process in range(self.group.num_processes):
            with contextlib.suppress(ConnectionError):  # a process that has ended
                self.start(process, "end")


@contextlib.contextmanager
def _crew(
    num_processes: int, *, heartbeat_s: float = 20.0, token: str | None = None
) -> Iterator[Crew]:
    with ProcessGroup(_play, num_processes, LIMIT_S) as group:
        crew = Crew(group, heartbeat_s, token)
        yield crew
        crew.end()
        for outcome in group.finish():
            assert outcome.exit_code in (0, -signal.SIGKILL), outcome


def _three(crew: Crew) -> None:
    """A source and two engines."""
    for process, name in enumerate(("source", "left", "right")):
        crew.connect(process, name)


def _wait_in_exchange(crew: Crew, *processes: int) -> None:
    for process in processes:
        crew.start(process, "exchange")


def test_programs_of_two_processes_make_refits() -> None:
    with _crew(4, token="a secret of sixteen") as crew:
        for process in range(4):
            crew.connect(process, "source" if process < 2 else "engine", process % 2, 2)
        for _ in range(5):
            assert crew.refit(0, 1, 2, 3) == [1, 1, 1, 1]
        for process in (3, 2, 1, 0):
            crew.do(process, "close")


def test_a_receiver_killed_in_a_refit_is_named_and_the_next_engine_can_join() -> None:
    with _crew(4) as crew:
        _three(crew)
        crew.begin(0, 1, 2)
        _wait_in_exchange(crew, 0, 1)
        crew.group.signal(2, signal.SIGKILL)
        for process in (0, 1):
            kind, text, seconds = crew.error(process)
            assert kind == "RendezvousError"
            assert f"'right' process 0 (rank 0, pid {crew.group.pid(2)} on " in text
            assert "lost its connection" in text
            assert seconds < PROMPT_S
        assert crew.refit(0, 1) == [2, 2]
        crew.connect(3, "right")
        assert crew.refit(0, 1, 3) == [3, 3, 3]


def test_a_receiver_killed_before_it_begins_is_not_waited_for() -> None:
    with _crew(3) as crew:
        _three(crew)
        crew.start(0, "begin")
        crew.start(1, "begin")
        crew.group.signal(2, signal.SIGKILL)
        for process in (0, 1):
            answer = crew.answer(process)
            assert answer.error is None
            assert answer.seconds < PROMPT_S
            assert len(answer.value.members) == 2


def test_one_killed_process_of_an_engine_is_told_to_its_other_process() -> None:
    with _crew(4) as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine", 0, 2)
        crew.connect(2, "engine", 1, 2)
        crew.begin(0, 1, 2)
        _wait_in_exchange(crew, 0, 1)
        crew.group.signal(2, signal.SIGKILL)
        for process in (0, 1):
            assert "'engine' process 1 (" in crew.error(process)[1]
        crew.connect(3, "engine", 1, 2)
        assert crew.refit(0, 1, 3) == [2, 2, 2]


def test_a_stopped_receiver_is_lost_by_its_heartbeat_and_can_rejoin() -> None:
    with _crew(3, heartbeat_s=2.0) as crew:
        _three(crew)
        crew.begin(0, 1, 2)
        _wait_in_exchange(crew, 0, 1)
        crew.group.signal(2, signal.SIGSTOP)
        for process in (0, 1):
            kind, text, seconds = crew.error(process)
            assert kind == "RendezvousError"
            assert "'right' process 0" in text
            assert seconds < 2.0 + PROMPT_S
        assert crew.refit(0, 1) == [2, 2]
        crew.group.signal(2, signal.SIGCONT)
        crew.start(2, "exchange")
        assert "is gone" in crew.error(2)[1]
        before = crew.do(0, "messages")
        crew.start(2, "begin")
        crew.do(0, "wait_for_messages", before + 2)  # it says hello again, then begins
        crew.start(0, "begin")
        crew.start(1, "begin")
        assert [crew.answer(process).value.epoch for process in (0, 1, 2)] == [3, 3, 3]


def test_a_stopped_receiver_is_named_at_the_limit_of_the_exchange() -> None:
    with _crew(3) as crew:
        _three(crew)
        crew.begin(0, 1, 2)
        crew.group.signal(2, signal.SIGSTOP)
        crew.start(0, "exchange", 1.0)
        crew.start(1, "exchange", WAIT_S)
        for process in (0, 1):
            kind, text, seconds = crew.error(process)
            assert kind == "TransferTimeout"
            assert f"Silent: destination 'right' process 0 (rank 0, pid {crew.group.pid(2)}" in text
            assert seconds < 1.0 + PROMPT_S
        assert crew.refit(0, 1) == [2, 2]
        crew.group.signal(2, signal.SIGCONT)
        crew.start(2, "exchange")
        assert crew.error(2)[0] == "TransferTimeout"


def test_a_killed_store_is_gone_for_everybody_and_a_new_one_is_joined() -> None:
    with _crew(4) as crew:
        _three(crew)
        crew.begin(0, 1, 2)
        _wait_in_exchange(crew, 1, 2)
        crew.group.signal(0, signal.SIGKILL)
        for process in (1, 2):
            _, text, seconds = crew.error(process)
            assert f"the store at {crew.address} is gone" in text
            assert seconds < PROMPT_S
        for process in (1, 2):
            crew.start(process, "begin")
        # The kernel closes a dying process's connections before its listening socket.
        crew.group.wait(0)
        crew.do(3, "serve", crew.address, 20.0, None)
        crew.connect(3, "source")
        crew.do(3, "wait_for_messages", 5)  # three times hello, twice begin
        crew.start(3, "begin")
        epochs = [crew.answer(process).value.epoch for process in (3, 1, 2)]
        assert epochs == [2, 2, 2]


def test_a_stopped_store_is_gone_by_its_heartbeat() -> None:
    with _crew(2, heartbeat_s=1.0) as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine")
        crew.start(1, "begin")
        crew.group.signal(0, signal.SIGSTOP)
        _, text, seconds = crew.error(1)
        assert "is gone" in text
        assert seconds < 1.0 + PROMPT_S
        crew.group.signal(0, signal.SIGCONT)


def test_a_late_process_is_waited_for() -> None:
    with _crew(3) as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine", 0, 2)
        crew.start(0, "begin")
        crew.start(1, "begin")
        crew.connect(2, "engine", 1, 2)
        crew.start(2, "begin")
        assert [crew.answer(process).value.epoch for process in range(3)] == [1, 1, 1]


def test_a_process_that_does_not_come_is_named() -> None:
    with _crew(2) as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine", 0, 2)
        crew.start(1, "begin", WAIT_S)
        crew.start(0, "begin", 0.5)
        for process in (0, 1):
            kind, text, _ = crew.error(process)
            assert kind == "TransferTimeout"
            assert "'engine' process 1 of 2 (not registered)" in text


def test_a_process_with_another_token_is_refused_and_the_others_go_on() -> None:
    with _crew(3, token="a secret of sixteen") as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine")
        crew.token = "a guess of sixteen"
        crew.start_connecting(2, "guesser")
        kind, text, seconds = crew.error(2)
        assert kind == "RendezvousError"
        assert "wrong or missing token" in text
        assert seconds < PROMPT_S
        assert crew.do(0, "refused_handshakes") > 0
        assert crew.refit(0, 1) == [1, 1]


def test_a_process_of_another_protocol_version_is_refused_and_the_others_go_on() -> None:
    with _crew(3) as crew:
        crew.connect(0, "source")
        crew.connect(1, "engine")
        crew.do(2, "speak_version", 3)
        crew.start_connecting(2, "future")
        _, text, seconds = crew.error(2)
        assert "control protocol version 3 meets version 2" in text
        assert seconds < PROMPT_S
        assert crew.refit(0, 1) == [1, 1]


def test_two_engines_join_and_one_leaves() -> None:
    with _crew(3) as crew:
        crew.connect(0, "source")
        crew.connect(1, "left")
        assert crew.refit(0, 1) == [1, 1]
        crew.connect(2, "right")
        assert crew.refit(0, 1, 2) == [2, 2, 2]
        assert crew.refit(0, 1, 2) == [2, 2, 2]
        crew.do(1, "close")
        assert crew.refit(0, 2) == [3, 3]


def test_a_program_that_ends_without_a_word_ends_cleanly_and_is_not_waited_for() -> None:
    with _crew(3) as crew:
        _three(crew)
        crew.start(2, "end")
        assert crew.group.wait(2).is_success
        assert crew.refit(0, 1) == [1, 1]


def test_an_interrupted_begin_is_withdrawn() -> None:
    with _crew(3) as crew:
        _three(crew)
        before = crew.do(0, "messages")
        crew.start(1, "begin_and_say_when_it_waits")
        assert crew.group.expect(1, WAIT_S) == "waiting"
        crew.do(0, "wait_for_messages", before + 1)
        crew.group.signal(1, signal.SIGINT)
        assert crew.answer(1).value == "interrupted"
        # The withdrawal, which the begin of another connection could overtake.
        crew.do(0, "wait_for_messages", before + 2)
        assert crew.refit(0, 1, 2) == [1, 1, 1]


def test_failed_refits_leave_no_threads_and_files_behind() -> None:
    with _crew(3) as crew:
        _three(crew)
        for process in range(3):
            crew.start(process, "fail_refits", 100)
        assert [crew.answer(process).value for process in range(3)] == [(0, 0)] * 3

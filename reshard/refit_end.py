"""What both ends of a refit share: meeting, one session per epoch, errors that reach all."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

import msgspec

from reshard.beginning import Beginning, place_members, problem_among
from reshard.buffers import Buffer, BufferChecks, BufferKey, BufferSnapshot
from reshard.contribution import decode_all, make_contribution
from reshard.control_messages import Role
from reshard.device_kernels import prepare_kernels
from reshard.end_arguments import MAX_STAGING_BYTES, read_flag, read_streams
from reshard.environment import configure_logging
from reshard.epoch_exchange import check_timeout
from reshard.error_report import ErrorReport, report_error
from reshard.errors import (
    LayoutError,
    RendezvousError,
    ReshardError,
    TransportError,
    UnsupportedError,
)
from reshard.local_member import local_member, number_in
from reshard.matching import Casts, read_casts
from reshard.nccl_check import check_nccl
from reshard.one_call import OneCall
from reshard.patterns import patterns_of
from reshard.rendezvous import EpochExchange, Go, Rendezvous
from reshard.report import RefitReport
from reshard.schedule import DEFAULT_STAGING_BYTES
from reshard.session import Session
from reshard.tensor_spec import TensorSpec
from reshard.topology import Topology
from reshard.transport_choice import Transport, check_transport

__all__ = ["RefitEnd"]

_logger = logging.getLogger("reshard")
_REFUSE_S = 2.0  # for the store to be there, where this process has not met it yet


class RefitEnd:
    """One process of a source or a destination.

    Args:
        role: which side.
        address: `tcp://host:port` of the store.
        specs: tensors of the whole side as far as this process knows them, ranks 0 to num_ranks -
            1.
        ranks: the ranks that this process drives.
        num_ranks: ranks of the side.
        process, num_processes: index of this process in its program, and how many there are.
        group: name of the program; the same in all of its processes, unique among all programs.
        token: shared secret of all programs; required unless the address is loopback.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that may stay without a partner.
        staging_bytes: memory of this process for chunks under way.
        transport: `auto` goes by the memory that the weights of all programs are in; `shm` moves
            host memory between processes of one machine, `nccl` GPU memory.
        min_destinations: on a source, how many destination programs a refit needs at least.
        timeout_s: limit of every wait unless a call gives its own.

    Raises:
        UnsupportedError: NCCL was asked for, and something that it needs is missing here.
    """

    def __init__(
        self,
        role: Role,
        address: str,
        specs: Sequence[TensorSpec],
        *,
        ranks: Sequence[int],
        num_ranks: int,
        process: int = 0,
        num_processes: int = 1,
        group: str,
        token: str | None = None,
        casts: Casts = (),
        allow_unmatched: Iterable[str] = (),
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        min_destinations: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        # Loaded here, so that a missing library is told at once and not by the first refit.
        import reshard._native  # noqa: F401

        configure_logging()
        member = local_member(
            role,
            group,
            ranks=ranks,
            num_ranks=num_ranks,
            process=process,
            num_processes=num_processes,
        )
        self._staging_bytes = number_in(
            f"{role} {group!r}", "staging_bytes", staging_bytes, 1, MAX_STAGING_BYTES
        )
        self._transport = check_transport(transport)
        self.timeout_s = check_timeout(timeout_s)
        self._role: Role = role
        self._calls = OneCall(f"this {role}")
        self._who = f"{member.describe()} at {address}"
        self._ranks = member.ranks
        self._specs = tuple(specs)
        self._casts = read_casts(casts)
        self._allow_unmatched = patterns_of("allow_unmatched", allow_unmatched)
        self._copy_rate = 0.0
        self._session: Session | None = None
        self._session_epoch = -1
        self._checks = BufferChecks(self._specs, self._ranks, writes=role == "destination")
        self._checked: BufferSnapshot | None = None
        self._devices: dict[int, int | None] = {}
        self._report: RefitReport | None = None
        self._topology: Topology | None = None
        self._has_left = False
        self._rendezvous = Rendezvous(
            address, member, token=token, min_destinations=min_destinations
        )
        if self._transport == "nccl":
            with self.opening():
                check_nccl()

    def __repr__(self) -> str:
        state = ", closed" if self._has_left else ""
        return f"<{self._who}, {len(self._specs)} tensors, last refit: {self._report}{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def report(self) -> RefitReport | None:
        """The last finished refit."""
        return self._report

    @property
    def topology(self) -> Topology | None:
        """Where the ranks of both sides are, as their processes report it; None before a refit.

        Ranks of the source come first, then those of each destination in the order in which they
        joined. `reshard plan --topology FILE` reads what its `to_json` writes.
        """
        return self._topology

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors of this side as this process knows them."""
        return self._specs

    def describe_plan(self) -> str:
        """Returns the summary of the current plan.

        Raises:
            LayoutError: there is none: before the first refit, after one that failed, or closed.
        """
        if self._session is None:
            raise LayoutError(
                f"this {self._role} has no plan at the moment: one is made by the first refit, and "
                "by the next one after a refit that failed."
            )
        return self._session.plan.describe()

    def replace_specs(self, specs: Sequence[TensorSpec]) -> None:
        """Declares that tensors changed; the next refit plans anew, on all members.

        Collective: every process of this side, before the same refit.
        """
        if tuple(specs) != self._specs:
            self._specs = tuple(specs)
            writes = self._role == "destination"
            self._checks = BufferChecks(self._specs, self._ranks, writes=writes)
            self._checked = None
            self._drop_session()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call of this end; adapters make theirs in here, so that no two overlap.

        Raises:
            LayoutError: another thread is in a call, or this is closed.
        """
        with self._calls.calling():
            if self._has_left:
                raise LayoutError(f"this {self._role} is closed; make a new one.")
            yield

    @contextmanager
    def telling_others(self) -> Iterator[None]:
        """What fails in here, before `publish` or `refit`, fails the others' call as well.

        Without it they would wait for this process until their deadline. Whoever prepares buffers
        does so in here (`reshard_torch.Source.publish`). The error itself goes on unchanged.
        """
        try:
            yield
        except Exception as error:
            self._refuse(error)
            raise

    @contextmanager
    def opening(self) -> Iterator[None]:
        """What fails in here, while an adapter is made, is told as by `telling_others`, and closes.

        An adapter opens its end first, with the ranks alone, and describes its tensors in here.
        """
        try:
            with self.telling_others():
                yield
        except BaseException:
            self.close()
            raise

    def _refuse(self, error: Exception) -> None:
        if self._has_left:
            return
        try:
            self._rendezvous.refuse(error, timeout_s=min(self.timeout_s, _REFUSE_S))
        except ReshardError as trouble:  # the error at hand is the one to raise
            _logger.warning("%s: the others were not told: %s", self._who, trouble)

    def close(self) -> None:
        """Leaves and frees everything; closing twice is fine.

        Any thread: a call that another one is in raises soon.

        Raises:
            TransferTimeout: that call did not end; nothing was freed.
        """
        self._has_left = True
        self._calls.close(self._interrupt, self._free)

    def _free(self) -> None:
        self._rendezvous.close()  # first: to free may take a moment, and others wait for the word
        self._drop_session()

    def _interrupt(self) -> None:
        """Makes the call that is under way raise; called from the thread that closes."""
        self._rendezvous.interrupt()
        if (session := self._session) is not None:
            with suppress(TransportError):  # the other thread has closed it by itself
                session.abort(f"this {self._role} was closed during a refit.")

    def _check_not_closed(self) -> None:
        """Raises RendezvousError once `close` was called while a call is under way."""
        if self._has_left:
            raise RendezvousError(f"this {self._role} was closed while a refit began.")

    def _take_part(
        self,
        buffers: Mapping[BufferKey, Buffer],
        *,
        version: int | None,
        verify: bool,
        timeout_s: float | None,
        streams: Mapping[int, int],
    ) -> RefitReport:
        """Meets the others, and refits once everybody is there."""
        with self.telling_others():
            limit = check_timeout(self.timeout_s if timeout_s is None else timeout_s)
            wants_check = read_flag("verify", verify)
            streams = read_streams(streams, self._ranks)
        start = time.perf_counter()
        with self.telling_others():
            problem_here = self._problem_of(buffers)  # drops a session if memory is elsewhere now
        own = Beginning(wants_check, self._session is None, problem_here, limit)
        exchange: EpochExchange | None = None
        try:
            # A destination that died since is the store's to notice: the source goes on without it.
            go = self._rendezvous.begin(
                msgspec.msgpack.encode(own), timeout_s=limit, version=version
            )
            exchange = self._rendezvous.exchange_of(go)
            waited = time.perf_counter()
            everybody: list[Beginning] = decode_all(go.payloads, Beginning)
            # Whoever gave up soonest must not end what all others would still wait for.
            deadline = time.monotonic() + max(each.timeout_s for each in everybody)
            is_verified = any(each.verify for each in everybody)
            problem = problem_among(go, everybody)
            if problem is None:
                session = self._session_of(go, exchange, buffers, everybody, deadline)
                problem = session.problem_of(verify=is_verified)
            if problem is None:
                phases = {"wait": waited - start, "setup": time.perf_counter() - waited}
                self._check_not_closed()  # `close` may have come before there was a session
                self._before_move()
                self._report = session.refit(
                    exchange,
                    *self._sides(buffers),
                    streams=streams,
                    run_id=go.epoch << 32 | go.refit,
                    version=go.version or 0,
                    epoch=go.epoch,
                    verify=is_verified,
                    timeout_s=max(0.0, deadline - time.monotonic()),
                    phases=phases,
                )
                _logger.info("%s: %s", self._who, self._report)
                return self._report
        except BaseException as error:
            self._give_up(exchange, error)
            raise
        # All members raise it, so nobody has to be told, and the session stays good.
        raise problem

    def _give_up(self, exchange: EpochExchange | None, error: BaseException) -> None:
        """Tells the others that this process leaves the refit, however far it got."""
        if exchange is None:
            self._rendezvous.withdraw()
            if not self._rendezvous.was_refused:
                self._drop_session()
            # Else nothing has begun, and the plan stays good as long as the members are the same.
            return
        try:
            try:
                exchange.fail(error)  # which an interrupt may end
            finally:
                if self._session is not None:
                    self._session.abort(str(error) or type(error).__name__)
                self._drop_session()
        except TransportError as trouble:  # what ended the refit is the error to raise
            _logger.warning("%s: while giving up: %s", self._who, trouble)

    def _before_move(self) -> None:
        """Called when everybody agreed and bytes are about to move."""

    def _problem_of(self, buffers: Mapping[BufferKey, Buffer]) -> ErrorReport | None:
        """Returns what is wrong with the arrays, for all members to hear before any byte moves."""
        if self._checked is not None and self._checked.is_of(buffers):
            return None
        try:
            devices = self._checks.check(buffers)
            if devices != self._devices and self._transport != "shm":
                prepare_kernels(devices.values())  # may take seconds, so before this limit runs
        except (LayoutError, UnsupportedError) as error:
            return report_error(error)
        self._checked = BufferSnapshot(buffers)
        if devices != self._devices:
            self._devices = devices
            self._drop_session()  # it chose its transport for other memory
        return None

    def _sides(
        self, buffers: Mapping[BufferKey, Buffer]
    ) -> tuple[Mapping[BufferKey, Buffer], Mapping[BufferKey, Buffer]]:
        return (buffers, {}) if self._role == "source" else ({}, buffers)

    def _session_of(
        self,
        go: Go,
        exchange: EpochExchange,
        buffers: Mapping[BufferKey, Buffer],
        everybody: Sequence[Beginning],
        deadline: float,
    ) -> Session:
        """Returns the session of the epoch; all members make a new one if any of them has none."""
        must_agree = go.epoch != self._session_epoch or any(e.has_no_session for e in everybody)
        if self._session is not None and not must_agree:
            return self._session
        self._drop_session()
        is_source = self._role == "source"
        contribution = make_contribution(
            self._specs if is_source else (),
            () if is_source else self._specs,
            casts=self._casts,
            allow_unmatched=self._allow_unmatched,
            staging_bytes=self._staging_bytes,
            copy_rate=self._copy_rate,
            devices=self._devices,
            transport=self._transport,
        )
        roster, offsets = place_members(go)
        self._session = Session(
            exchange,
            roster,
            contribution,
            *self._sides(buffers),
            rank_offset=offsets[go.process],
            timeout_s=max(0.0, deadline - time.monotonic()),
            while_waiting=self._check_not_closed,
        )
        self._session_epoch = go.epoch
        self._topology = self._session.topology
        _logger.info("%s: epoch %d, %r", self._who, go.epoch, self._session.plan)
        return self._session

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

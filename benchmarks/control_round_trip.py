"""Time of the control messages of one refit: a begin and one exchange, on processes of one machine.

    python benchmarks/control_round_trip.py --processes 4 --rounds 2000

Half of the processes are a source, the first of which carries the store, half are a destination.
Nothing is moved in between, so the two round trips are all there is. The time of a round is that of
its slowest process. What the numbers do not show: networks between machines, and a main thread that
keeps the interpreter busy while the store has to answer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reshard.control_messages import Member
from reshard.local_member import local_member
from reshard.rendezvous import Rendezvous
from reshard.store_server import StoreServer

_TIMEOUT_S = 60.0
_WARM_UP_ROUNDS = 50


def _member(process: int, num_processes: int) -> Member:
    num_sources = num_processes // 2
    is_source = process < num_sources
    size = num_sources if is_source else num_processes - num_sources
    index = process if is_source else process - num_sources
    return local_member(
        "source" if is_source else "destination",
        "trainer" if is_source else "engine",
        ranks=[index],
        num_ranks=size,
        process=index,
        num_processes=size,
    )


def _work(
    process: int,
    num_processes: int,
    rounds: int,
    payload_bytes: int,
    pipe: multiprocessing.connection.Connection,
) -> None:
    """Runs one process: gets the address, runs all rounds, sends back their times in seconds."""
    server = StoreServer("tcp://127.0.0.1:0") if process == 0 else None
    if server is not None:
        pipe.send(server.address)
    address = pipe.recv()
    payload = os.urandom(payload_bytes)
    times: list[tuple[float, float]] = []
    with Rendezvous(address, _member(process, num_processes)) as rendezvous:
        rendezvous.connect(_TIMEOUT_S)
        for _ in range(rounds + _WARM_UP_ROUNDS):
            # The barrier of the round before lets all processes start at about the same time.
            started = time.perf_counter()
            go = rendezvous.begin(payload, timeout_s=_TIMEOUT_S)
            formed = time.perf_counter()
            exchange = rendezvous.exchange_of(go)
            exchange.exchange("done", payload, timeout_s=_TIMEOUT_S)
            times.append((formed - started, time.perf_counter() - formed))
        pipe.send(times[_WARM_UP_ROUNDS:])
        pipe.recv()
    if server is not None:
        server.close()


def _measure(num_processes: int, rounds: int, payload_bytes: int) -> list[tuple[float, float]]:
    """Returns the times of begin and exchange of the slowest process of each round."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for process in range(num_processes):
        ours, theirs = context.Pipe()
        arguments = (process, num_processes, rounds, payload_bytes, theirs)
        processes.append(context.Process(target=_work, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    address = pipes[0].recv()
    for pipe in pipes:
        pipe.send(address)
    per_process = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("end")
    for running in processes:
        running.join(_TIMEOUT_S)
    by_round = zip(*per_process, strict=True)
    return [(max(b for b, _ in times), max(e for _, e in times)) for times in by_round]


def _print_row(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    high = ordered[int(len(ordered) * 0.99) - 1]
    microseconds = [ordered[0], statistics.median(ordered), high, ordered[-1]]
    print(f"{name:<18}" + "".join(f"{value * 1e6:>12.0f}" for value in microseconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--payload-bytes", type=int, default=256)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    options = parser.parse_args()
    rounds = 50 if options.quick else options.rounds
    times = _measure(options.processes, rounds, options.payload_bytes)
    print(
        f"{options.processes} processes on {os.cpu_count()} cores, {rounds} rounds, "
        f"payloads of {options.payload_bytes} bytes; microseconds"
    )
    print(f"{'':<18}" + "".join(f"{name:>12}" for name in ("min", "median", "p99", "max")))
    _print_row("begin", [begin for begin, _ in times])
    _print_row("exchange", [exchange for _, exchange in times])
    _print_row("begin + exchange", [begin + exchange for begin, exchange in times])


if __name__ == "__main__":
    main()

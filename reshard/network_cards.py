"""Which network cards this machine has and how fast they are, as the kernel says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Cards", "find_cards"]

_SYSTEM = Path("/sys/class")
_BITS = 8e-9  # of a byte, in Gb
_NO_SPEED = OSError, ValueError
_UNKNOWN = 1e5  # Gb/s; old kernels give the largest number of 32 bits


class Cards(NamedTuple):
    """Network cards that are alike.

    Attributes:
        number: how many; 0 if none says its speed, as in many virtual machines.
        bytes_per_second: of one, in each direction.
    """

    number: int
    bytes_per_second: float


def find_cards(system: Path = _SYSTEM) -> Cards:
    """Returns the fastest kind of card that is up: InfiniBand and RoCE ports, else Ethernet.

    Args:
        system: where the kernel lists devices.
    """
    speeds = Counter(_infiniband(system / "infiniband")) or Counter(_ethernet(system / "net"))
    if not speeds:
        return Cards(0, 0.0)
    fastest = max(speeds)
    return Cards(speeds[fastest], fastest / _BITS)


def _infiniband(folder: Path) -> Iterator[float]:
    """Yields Gb/s of each active port; a rate reads `400 Gb/sec (4X NDR)`."""
    for port in sorted(folder.glob("*/ports/*")):
        if (port.parent.parent / "device" / "physfn").exists():
            continue  # a part of a card that is there too
        try:
            is_active = "ACTIVE" in (port / "state").read_text()
            speed = float((port / "rate").read_text().split()[0])
        except (*_NO_SPEED, IndexError):
            continue
        if is_active and 0 < speed < _UNKNOWN:
            yield speed


def _ethernet(folder: Path) -> Iterator[float]:
    """Yields Gb/s of each interface of a device that is up; the kernel counts in Mb/s."""
    for interface in sorted(folder.glob("*")):
        if not (interface / "device").exists() or (interface / "device" / "physfn").exists():
            continue  # loopback, bridges, tunnels; a part of a card that is there too
        try:
            is_up = (interface / "operstate").read_text().strip() == "up"
            speed = int((interface / "speed").read_text()) / 1e3
        except _NO_SPEED:
            continue
        if is_up and 0 < speed < _UNKNOWN:
            yield speed

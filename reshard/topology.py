"""Where ranks are and how fast their links are: rank -> host -> domain.

A *domain* is a set of ranks whose memory is joined by fast links of their own (NVLink, or the
memory of one machine). Everything that leaves a domain goes through network cards (NICs) of a host.
"""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Self

from reshard.errors import LayoutError

__all__ = ["Topology"]

_RANKS_PER_RACK = 72
_MOST = 1e18
"""Bytes per second that no link reaches; sums and quotients of such numbers stay finite."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster, as far as a refit is concerned.

    Args:
        hosts: host of each rank; any numbers, ranks from 0 on.
        domains: domain of each rank; a domain may span hosts.
        nics_per_host: network cards of each host, shared evenly by its ranks.
        nic_bytes_per_second: of one card, in each direction.
        link_bytes_per_second: of one rank's links inside its domain, in each direction.
        name: for people.

    Raises:
        LayoutError: if a number is not above 0, or not whole where it counts, or the lists are of
            different lengths.

    Example:
        >>> topology = Topology.dgx_h100(16)
        >>> topology.num_domains, topology.domains[9]
        (2, 1)
    """

    hosts: tuple[int, ...]
    domains: tuple[int, ...]
    nics_per_host: int
    nic_bytes_per_second: float
    link_bytes_per_second: float
    name: str = "custom"

    def __post_init__(self) -> None:
        for name in ("hosts", "domains"):
            object.__setattr__(self, name, _read_places(self.name, name, getattr(self, name)))
        if len(self.hosts) != len(self.domains) or not self.hosts:
            raise LayoutError(
                f"topology {self.name!r} has hosts of {len(self.hosts)} and domains of "
                f"{len(self.domains)} ranks. Give one of each per rank."
            )
        if not isinstance(self.name, str):
            raise LayoutError(f"topology: name={self.name!r} is no text. Give a name.")
        _check_number(self.name, "nics_per_host", self.nics_per_host, is_whole=True)
        for name in ("nic_bytes_per_second", "link_bytes_per_second"):
            _check_number(self.name, name, getattr(self, name))

    @classmethod
    def dgx_h100(cls, num_ranks: int) -> Self:
        """Returns hosts of 8 GPUs that are a domain each, with a NIC of 400 Gb/s per GPU."""
        hosts = tuple(rank // 8 for rank in range(num_ranks))
        return cls(hosts, hosts, 8, 50e9, 450e9, "dgx-h100")

    @classmethod
    def gb200_nvl72(cls, num_ranks: int, *, ranks_per_domain: int = 72) -> Self:
        """Returns racks of trays of 4 GPUs, with a NIC of 400 Gb/s per GPU; a rack is a domain.

        Args:
            num_ranks: GPUs that are used.
            ranks_per_domain: how many of a rack's 72 GPUs are used.
        """
        if not 1 <= ranks_per_domain <= _RANKS_PER_RACK:
            raise LayoutError(
                f"ranks_per_domain={ranks_per_domain} is not from 1 to {_RANKS_PER_RACK}, the GPUs "
                "of a rack."
            )
        ranks = range(num_ranks)
        domains = tuple(rank // ranks_per_domain for rank in ranks)
        hosts = tuple(
            domain * 18 + rank % ranks_per_domain // 4
            for rank, domain in zip(ranks, domains, strict=True)
        )
        return cls(hosts, domains, 4, 50e9, 900e9, "gb200-nvl72")

    @classmethod
    def one_host(cls, num_ranks: int, *, bytes_per_second: float = 10e9) -> Self:
        """Returns one machine whose ranks copy through its memory.

        Args:
            num_ranks: ranks of the machine.
            bytes_per_second: at which one rank copies.
        """
        here = (0,) * num_ranks
        return cls(here, here, 1, 12.5e9, bytes_per_second, "one-host")

    @classmethod
    def of_places(
        cls,
        places: Sequence[tuple[str, str]],
        *,
        nics_per_host: int,
        nic_bytes_per_second: float,
        link_bytes_per_second: float,
    ) -> Self:
        """Returns the topology of ranks that said where they are.

        Args:
            places: names of host and domain, per rank; equal names are the same one.
            nics_per_host, nic_bytes_per_second, link_bytes_per_second: as in the class.
        """
        return cls(
            _numbered(host for host, _ in places),
            _numbered(domain for _, domain in places),
            nics_per_host,
            nic_bytes_per_second,
            link_bytes_per_second,
            "discovered",
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the topology that `to_json` wrote.

        Raises:
            LayoutError: if the text is not one.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            raise LayoutError(f"topology: not JSON, {error}.") from None
        wanted = {field.name for field in fields(cls)}
        names = set(found) if isinstance(found, Mapping) else set()
        missing, unknown = wanted - {"name"} - names, names - wanted
        if missing or unknown:
            problems = f"; it lacks {', '.join(sorted(missing))}" if missing else ""
            problems += f"; it has {', '.join(map(repr, sorted(unknown)[:4]))}" if unknown else ""
            raise LayoutError(
                f"topology: not an object with the fields {', '.join(sorted(wanted))}{problems}. "
                "Write it as Topology.to_json does."
            )
        return cls(**found)

    def to_json(self) -> str:
        """Returns the topology as one line of JSON."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def num_ranks(self) -> int:
        """How many ranks are placed."""
        return len(self.hosts)

    @property
    def num_domains(self) -> int:
        """How many domains there are."""
        return len(set(self.domains))

    def network_rate(self, ranks: Iterable[int]) -> float:
        """Returns the bytes per second that ranks can send to other domains, all together."""
        per_host = Counter([self.hosts[rank] for rank in ranks])
        on_host = _ranks_per_host(self.hosts)
        rate = self.nics_per_host * self.nic_bytes_per_second
        return math.fsum([rate * count / on_host[host] for host, count in per_host.items()])


@lru_cache(maxsize=64)
def _ranks_per_host(hosts: tuple[int, ...]) -> Counter[int]:
    return Counter(hosts)


def _numbered(names: Iterable[str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple([numbers.setdefault(name, len(numbers)) for name in names])


def _read_places(topology: str, name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, Iterable):
        raise LayoutError(
            f"topology {topology!r}: {name} is {given!r}. Give a list, a whole number per rank."
        )
    places = []
    for rank, place in enumerate(given):
        try:
            places.append(operator.index(place))
        except TypeError:
            raise LayoutError(
                f"topology {topology!r}: {name} has {place!r:.60} for rank {rank}. Give a whole "
                "number per rank."
            ) from None
    return tuple(places)


def _check_number(topology: str, name: str, given: object, *, is_whole: bool = False) -> None:
    is_number = isinstance(given, int if is_whole else int | float) and not isinstance(given, bool)
    if is_number and 0 < given <= _MOST:  # type: ignore[operator]
        return
    what = "a whole number" if is_whole else "a finite number"
    problem = "is text" if isinstance(given, str) else f"is not {what}"
    if is_number and given <= 0:  # type: ignore[operator]
        problem = "is not above 0"
    elif is_number and given > _MOST:  # type: ignore[operator]
        problem = f"is above {_MOST:g}"
    raise LayoutError(
        f"topology {topology!r}: {name}={given!r:.60} {problem}. Give {what} above 0."
    )

"""The time below which no schedule can go, whatever it sends from where to where.

The argument is that of cuts. Take any set of ranks that wants bytes which none of its ranks holds:
those bytes have to enter it once, and they cannot enter it faster than all its links together
allow. The same holds for bytes that only ranks of some set hold and others want: they have to leave
it once. So each such set gives a time, and the longest of them is the floor. Looked at are

- each domain, entered through the network cards of its hosts;
- each set of domains that alone holds some bytes, left through its cards;
- each rank, entered through its link and the cards of its host;
- each set of ranks that alone holds some bytes, left through their links and cards.

No larger sets of receivers are needed: a union of sets of receivers wants at most the sum of what
they want, at the sum of their rates, so its time is at most that of the slowest member. Nor are
other sets of holders, where the sets that hold some bytes are nested or apart, as they are in
meshes: any union splits into such sets, and the same sum applies. Elsewhere the floor may be lower
than the best schedule; it is never above it.

Bytes that several tensors of a destination read from one source tensor are counted once, and bytes
count as the narrower of the two element types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reshard.needs import find_needs
from reshard.planner import Planner
from reshard.topology import Topology

__all__ = ["Cut", "Floor", "find_floor"]

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of ranks that bytes have to enter or to leave.

    Attributes:
        name: what it is, such as `into domain 3`.
        nbytes: bytes that have to pass at least once.
        bytes_per_second: what its links and cards let pass.
    """

    name: str
    nbytes: int
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """The time that takes at least."""
        return self.nbytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Floor:
    """The limit of all plans that move the same tensors between the same ranks.

    Attributes:
        cuts: the narrowest cut of each kind that bytes have to pass, the slowest first.
        crossing: bytes that have to enter domains, all together.
    """

    cuts: tuple[Cut, ...]
    crossing: int

    @property
    def seconds(self) -> float:
        """No schedule takes less; 0 if nothing has to move between ranks."""
        return self.cuts[0].seconds if self.cuts else 0.0

    @property
    def reason(self) -> str:
        """The narrowest cut in words."""
        return self.cuts[0].name if self.cuts else "nothing moves between ranks"


def find_floor(planner: Planner, topology: Topology) -> Floor:
    """Returns the floor of what a planner plans.

    Args:
        planner: of the plan.
        topology: where all ranks are and how fast their links are.

    Raises:
        PlanError: if a source layout does not hold what a destination wants.
    """
    needs = find_needs(planner, topology)
    rates = _Rates(topology, planner.ranks)
    cuts = (
        _narrowest("into domain", needs.into_domains.items(), rates.of_domains),
        _narrowest("out of domain", _closed_sums(needs.only_in_domains), rates.of_domains),
        _narrowest("into rank", needs.into_ranks.items(), rates.of_ranks),
        _narrowest("out of rank", _closed_sums(needs.only_on_ranks), rates.of_ranks),
    )
    slowest = sorted([cut for cut in cuts if cut is not None], key=lambda cut: -cut.seconds)
    return Floor(tuple(slowest), sum(needs.into_domains.values()))


def _narrowest(
    what: str, sums: Iterable[tuple[Group, int]], rate: Callable[[Group], float]
) -> Cut | None:
    cuts = [(nbytes / rate(group), group, nbytes) for group, nbytes in sums]
    if not cuts:
        return None
    _, group, nbytes = max(cuts, key=lambda cut: cut[0])
    return Cut(_named(what, group), nbytes, rate(group))


class _Rates:
    """What sets of ranks can send or receive at most, all their links and cards together.

    A card may serve any rank of its host, and in a domain any rank may use any host's cards, so the
    cards of a set are all those that it could reach.
    """

    def __init__(self, topology: Topology, ranks: tuple[int, ...]) -> None:
        self._topology = topology
        per_host = topology.nics_per_host * topology.nic_bytes_per_second
        # Cards carry nothing between ranks of one domain.
        self._per_host = per_host if len({topology.domains[rank] for rank in ranks}) > 1 else 0.0
        self._hosts: dict[int, set[int]] = {}
        for host, domain in zip(topology.hosts, topology.domains, strict=True):
            self._hosts.setdefault(domain, set()).add(host)

    def of_domains(self, domains: Group) -> float:
        hosts: set[int] = set().union(*[self._hosts[domain] for domain in domains])
        return len(hosts) * self._per_host

    def of_ranks(self, ranks: Group) -> float:
        cards = self.of_domains(tuple({self._topology.domains[rank] for rank in ranks}))
        return len(ranks) * self._topology.link_bytes_per_second + cards


def _closed_sums(held: Counter[Group]) -> list[tuple[Group, int]]:
    """Returns, per set of holders, the bytes that it or a part of it alone holds."""
    everyone = tuple(sorted({holder for holders in held for holder in holders}))
    bit = {holder: 1 << number for number, holder in enumerate(everyone)}
    masks = {holders: sum([bit[holder] for holder in holders]) for holders in held}
    sets = dict.fromkeys((*held, everyone) if held else ())
    sums: list[tuple[Group, int]] = []
    for holders in sets:
        if len(holders) == 1:
            sums.append((holders, held[holders]))
            continue
        outside = ~sum([bit[holder] for holder in holders])
        inside = [nbytes for part, nbytes in held.items() if not masks[part] & outside]
        sums.append((holders, sum(inside)))
    return sums


def _named(what: str, numbers: Group) -> str:
    """Returns ascending numbers in few words, such as `ranks 0 to 15`."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{what}s {numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} {what}s from {numbers[0]} to {numbers[-1]}"

"""A model of how long a refit takes: bandwidths, a cost per round, a cost per message.

Links of a rank and cards of its host work side by side, rounds overlap, and messages of the next
round are posted while bytes of this one are under way. So a refit takes as long as its busiest link
is busy or its messages take to post, plus the slots in which the first rounds have not yet come and
the last ones are passed on, plus what each slot costs by itself. One `Platform` holds the
constants; they are not fitted to single refits (docs/published_refits.md says where they are from).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from reshard.loads import Loads
from reshard.topology import Topology

__all__ = [
    "POSTING",
    "LinkLoad",
    "Platform",
    "Prediction",
    "busiest_link",
    "link_loads",
    "predict",
    "predict_gather_and_broadcast",
]

POSTING = "posting messages"
"""What is busiest where messages are small."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What is known of a kind of machine besides its topology.

    Attributes:
        name: of the kind.
        network_share: part of a card's rate that large messages reach.
        link_share: the same for links inside a domain.
        slot_seconds: what a slot costs besides its bytes: launch, latency, waiting for peers.
        message_seconds: what posting one message takes.
        gathered_bytes_per_second: at which gather-and-broadcast goes through a model's bytes, from
            the trainer's shards to loaded tensors, whatever the number of ranks; None if unknown.
    """

    name: str
    network_share: float
    link_share: float
    slot_seconds: float
    message_seconds: float
    gathered_bytes_per_second: float | None

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Returns the constants of a topology's kind, by its name.

        A new kind has those of H100 hosts, but nobody knows how it gathers and broadcasts.
        """
        known = _CONSTANTS.get(topology.name)
        if known is None:
            return cls(topology.name, *_CONSTANTS["dgx-h100"][:-1], None)
        return cls(topology.name, *known)


_CONSTANTS = {
    "dgx-h100": (0.94, 0.80, 15e-6, 0.5e-6, 81e9),
    "gb200-nvl72": (0.94, 0.80, 15e-6, 0.5e-6, 172e9),
    "one-host": (1.0, 1.0, 20e-6, 2e-6, 2e9),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a refit takes, by the model.

    Attributes:
        seconds: all together.
        busy_seconds: of these, what the busiest link needs for its bytes, or the busiest rank to
            post its messages.
        busiest: which of them that is.
        fill_seconds: until the first rounds have come and the last ones have been passed on.
        slot_seconds: what slots cost besides.
        num_rounds, num_slots: of the schedule; a slot is the time of a round.
    """

    seconds: float
    busy_seconds: float
    busiest: str
    fill_seconds: float
    slot_seconds: float
    num_rounds: int
    num_slots: int

    def share_of(self, floor_seconds: float) -> float:
        """Returns the floor divided by the predicted time; 1.0 is the limit."""
        return floor_seconds / self.seconds if self.seconds else 1.0


class LinkLoad(NamedTuple):
    """What one rank's links inside its domain, or its share of its host's cards, carry one way.

    Attributes:
        is_network: True for cards.
        name: such as `card out of rank 3`.
        nbytes: bytes on the wire.
        bytes_per_second: what it lets pass.
    """

    is_network: bool
    name: str
    nbytes: int
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """How long it is busy."""
        return self.nbytes / self.bytes_per_second


def link_loads(
    loads: Loads, topology: Topology, platform: Platform | None = None
) -> Iterator[LinkLoad]:
    """Yields the load of every rank's links and cards; each rank uses its own share of the cards.

    Args:
        loads: of all ranks.
        topology: where the ranks are.
        platform: whose shares of the rates are reached; None means the rates of the topology.
    """
    network_share = 1.0 if platform is None else platform.network_share
    link = topology.link_bytes_per_second * (1.0 if platform is None else platform.link_share)
    for index, rank in enumerate(loads.ranks):
        card = topology.network_rate((rank,)) * network_share
        yield LinkLoad(True, f"card out of rank {rank}", loads.network_sent[index], card)
        yield LinkLoad(True, f"card into rank {rank}", loads.network_received[index], card)
        yield LinkLoad(False, f"link out of rank {rank}", loads.link_sent[index], link)
        yield LinkLoad(False, f"link into rank {rank}", loads.link_received[index], link)


def busiest_link(
    loads: Loads, topology: Topology, platform: Platform | None = None
) -> tuple[float, str]:
    """Returns how long the busiest link is busy, in seconds, and its name; as `link_loads`."""
    busiest = max(link_loads(loads, topology, platform), key=lambda each: each.seconds)
    if not busiest.nbytes:
        return 0.0, "nothing moves between ranks"
    return busiest.seconds, busiest.name


def predict(
    loads: Loads,
    topology: Topology,
    platform: Platform,
    *,
    num_rounds: int,
    num_hops: int,
    num_messages: int,
) -> Prediction:
    """Returns the predicted time of a plan.

    Args:
        loads: of all ranks.
        topology: where the ranks are.
        platform: the constants.
        num_rounds, num_hops: of the schedule.
        num_messages: that the busiest rank sends and receives in a round, at most.
    """
    busy, busiest = busiest_link(loads, topology, platform)
    if not busy:
        return Prediction(0.0, 0.0, busiest, 0.0, 0.0, num_rounds, num_rounds)
    posting = num_rounds * num_messages * platform.message_seconds
    if posting > busy:
        busy, busiest = posting, POSTING
    num_slots = num_rounds + num_hops - 1
    fill = _passing_seconds(loads, topology, platform) * (num_hops - 1) / num_rounds
    slots = num_slots * platform.slot_seconds
    return Prediction(busy + fill + slots, busy, busiest, fill, slots, num_rounds, num_slots)


def _passing_seconds(loads: Loads, topology: Topology, platform: Platform) -> float:
    """Returns how long the busiest rank passes on what it received.

    After the last round has come in, that is all that is still on its way.
    """
    link = topology.link_bytes_per_second * platform.link_share
    slowest = 0.0
    for index, rank in enumerate(loads.ranks):
        if loads.forwarded[index]:
            far = loads.network_forwarded[index]
            card = topology.network_rate((rank,)) * platform.network_share
            slowest = max(slowest, far / card, (loads.forwarded[index] - far) / link)
    return slowest


def predict_gather_and_broadcast(nbytes: int, platform: Platform) -> float | None:
    """Returns the predicted seconds of the conventional way; None if the platform is unknown.

    Args:
        nbytes: of all parameters, once.
        platform: the constants.
    """
    rate = platform.gathered_bytes_per_second
    return None if rate is None else nbytes / rate

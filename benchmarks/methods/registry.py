"""All methods by name, in the order in which reports list them."""

from __future__ import annotations

from benchmarks.methods.checkpoint import Checkpoint
from benchmarks.methods.gather_broadcast import GatherBroadcast
from benchmarks.methods.gloo_p2p import GlooBuckets, GlooPointToPoint
from benchmarks.methods.method import Method
from benchmarks.methods.one_copy import OneCopy
from benchmarks.methods.ours import Ours, OursVerified
from benchmarks.methods.torchstore import TorchStore

__all__ = ["METHODS"]

_ALL: tuple[type[Method], ...] = (
    OneCopy,
    Ours,
    OursVerified,
    GlooPointToPoint,
    GlooBuckets,
    TorchStore,
    Checkpoint,
    GatherBroadcast,
)

METHODS = {method.name: method for method in _ALL}

"""Move a model's weights from the layout a trainer holds to the one an inference engine wants.

The names in `__all__` are the promise; everything else may change. Importing this package loads no
framework and no native library, and opens nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from reshard.box import Box
from reshard.buffers import Buffer, BufferKey, check_apart, check_buffers, devices_of
from reshard.dtypes import DType
from reshard.elementwise import Elementwise
from reshard.errors import (
    LayoutError,
    NativeLibraryError,
    PlanError,
    RendezvousError,
    ReshardError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
    VerificationError,
)
from reshard.fingerprint import fingerprint_of_values, seed_of_name
from reshard.form import Form
from reshard.forms import (
    Forms,
    Paddings,
    check_config,
    check_forms,
    check_names,
    padding_of,
    parts_of,
)
from reshard.layout import AnyLayout, BoxLayout, Layout, LocalBox
from reshard.matching import Casts, match, read_casts
from reshard.mesh import Mesh
from reshard.model import Model
from reshard.one_call import OneCall
from reshard.parallelism import Parallelism
from reshard.patterns import patterns_of
from reshard.placement import Placement, Replicate, Shard
from reshard.plan import Plan, make_plan
from reshard.reference_planner import reference_transfers
from reshard.schedule import DEFAULT_STAGING_BYTES
from reshard.segmented_layout import SegmentedLayout
from reshard.tensor_spec import Padding, Part, TensorSpec
from reshard.topology import Topology
from reshard.transfer import Transfer
from reshard.transport_choice import Transport

if TYPE_CHECKING:
    from reshard.contribution import Roster, make_contribution
    from reshard.destination import Destination
    from reshard.exchange import Exchange, SingleProcessExchange
    from reshard.job import JobSides, job_session
    from reshard.loopback import local_array, run_in_process
    from reshard.report import RefitReport
    from reshard.session import Session
    from reshard.source import Source
    from reshard.store_exchange import KeyValueStore, MemberWords, StoreExchange
    from reshard.versions import show_versions

__all__ = [
    "DEFAULT_STAGING_BYTES",
    "AnyLayout",
    "Box",
    "BoxLayout",
    "Buffer",
    "BufferKey",
    "Casts",
    "DType",
    "Destination",
    "Elementwise",
    "Exchange",
    "Form",
    "Forms",
    "JobSides",
    "KeyValueStore",
    "Layout",
    "LayoutError",
    "LocalBox",
    "MemberWords",
    "Mesh",
    "Model",
    "NativeLibraryError",
    "OneCall",
    "Padding",
    "Paddings",
    "Parallelism",
    "Part",
    "Placement",
    "Plan",
    "PlanError",
    "RefitReport",
    "RendezvousError",
    "Replicate",
    "ReshardError",
    "Roster",
    "SegmentedLayout",
    "Session",
    "Shard",
    "SingleProcessExchange",
    "Source",
    "StoreExchange",
    "TensorSpec",
    "Topology",
    "Transfer",
    "TransferTimeout",
    "Transport",
    "TransportError",
    "UnsupportedError",
    "VerificationError",
    "check_apart",
    "check_buffers",
    "check_config",
    "check_forms",
    "check_names",
    "devices_of",
    "fingerprint_of_values",
    "job_session",
    "local_array",
    "make_contribution",
    "make_plan",
    "match",
    "padding_of",
    "parts_of",
    "patterns_of",
    "read_casts",
    "reference_transfers",
    "run_in_process",
    "seed_of_name",
    "show_versions",
]

# Names whose modules need ZeroMQ or the native library are loaded on first use.
_LAZY = {
    "Exchange": "reshard.exchange",
    "JobSides": "reshard.job",
    "Roster": "reshard.contribution",
    "MemberWords": "reshard.store_exchange",
    "SingleProcessExchange": "reshard.exchange",
    "KeyValueStore": "reshard.store_exchange",
    "StoreExchange": "reshard.store_exchange",
    "Session": "reshard.session",
    "job_session": "reshard.job",
    "make_contribution": "reshard.contribution",
    "Destination": "reshard.destination",
    "RefitReport": "reshard.report",
    "Source": "reshard.source",
    "local_array": "reshard.loopback",
    "run_in_process": "reshard.loopback",
    "show_versions": "reshard.versions",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("reshard.versions").library_version()
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'reshard' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)

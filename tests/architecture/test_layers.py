"""The layers of the core, read from source text; and what a process that imports has loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.source_text import ROOT, imports_of, library_files, module_name

# Layers of reshard, lowest first; a module imports from its own layer and from lower ones only.
LAYERS = {
    "values": {
        "errors", "dtypes", "box", "mesh", "placement", "division", "local_boxes", "layout",
        "segmented_layout",
        "form", "elementwise", "tensor_spec", "forms", "patterns", "transfer", "legs", "topology",
        "padding", "suggestion",
    },
    "planning": {
        "logical_space", "remedies", "matching", "holders", "fair_shares", "lines", "delivery",
        "domain_delivery", "places", "grid", "grid_pair", "sweep", "geometry_plan", "kinds",
        "place_table", "supplies", "rank_plan", "planner", "spans", "timeline", "traffic",
        "domain_choice",
        "reference_planner", "schedule", "spec_codec", "spec_merge",
        "box_sets", "shipment", "loads", "needs", "floor", "rounds", "timing", "cluster_view",
        "imbalance", "unevenness", "stream_sums",
        "explanation", "peer_sums", "plan_text", "plan_summary", "finding",
        "lint_time", "lint", "plan",
    },
    "models": {
        "sharding_rules", "parameter", "model", "model_file", "config_shapes", "json_file",
        "safetensors_header", "checkpoint", "model_reader", "stage_layouts", "parallelism",
        "scaled_model",
    },
    "pictures": {
        "page", "page.figures", "page.html", "page.name_groups", "page.page_data", "page.streams",
    },
    "memory and border": {
        "buffers", "overlap", "_native", "_native_bindings", "_native_border",
        "_native_communicator", "_native_libraries", "busy_memory",
        "fingerprint", "program_table", "library_files", "nccl_choice", "nccl_copies", "nccl_check",
        "kernel_cache", "device_kernels", "verification", "local_program",
        "environment", "versions", "exclusive", "run_stats",
    },
    "control": {
        "addresses", "token_keys", "control_messages", "error_report", "group", "registry",
        "epoch", "membership", "connections", "forked", "store_server", "store", "epoch_exchange",
        "local_member", "one_call", "rendezvous", "exchange", "store_exchange",
    },
    "session": {
        "network_cards", "machine", "copy_rate", "report", "outcome", "transport_choice",
        "end_arguments",
        "contribution", "epoch_transport", "run_watch", "shm_epoch", "nccl_epoch", "session",
        "job",
    },
    "ends": {
        "refit_end", "beginning", "source", "destination", "loopback", "simulation",
    },
    "package": {"reshard"},
    "command line": {
        "__main__", "cli", "cli.arguments", "cli.console", "cli.machine_checks", "cli.plan",
        "cli.field_words", "cli.parser", "cli.explain", "cli.lint", "cli.diff", "cli.simulate",
        "cli.doctor",
    },
}  # fmt: skip

# Of the models' layer, what reads files is not pure.
READERS = {"json_file", "safetensors_header", "checkpoint", "model_reader"}
PURE = LAYERS["values"] | LAYERS["planning"] | (LAYERS["models"] - READERS)
# What all members of an epoch choose alike, each by itself.
PURE |= {"nccl_choice", "transport_choice"}

# What planning must not depend on: other processes, time, the environment, randomness.
IMPURE = {
    "asyncio", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "signal",
    "socket", "subprocess", "threading", "time", "uuid", "zmq",
}  # fmt: skip


def short(module: str) -> str:
    return module.removeprefix("reshard.")


def core_imports(path):
    """Returns the modules of reshard that a file imports."""
    found = set()
    for module, name in imports_of(path):
        if module == "reshard" and name:
            found.add(name if any(name in layer for layer in LAYERS.values()) else "reshard")
        elif module.startswith("reshard."):
            inner = f"{short(module)}.{name}"
            found.add(inner if any(inner in layer for layer in LAYERS.values()) else short(module))
    return found


@pytest.mark.parametrize("path", library_files("reshard"), ids=module_name)
def test_modules_import_downward_only(path):
    order = list(LAYERS)
    mine = next(i for i, layer in enumerate(order) if short(module_name(path)) in LAYERS[layer])
    allowed = set().union(*(LAYERS[layer] for layer in order[: mine + 1]))
    assert core_imports(path) <= allowed


@pytest.mark.parametrize(
    "path",
    [path for path in library_files("reshard") if short(module_name(path)) in PURE],
    ids=module_name,
)
def test_values_and_planning_are_pure(path):
    imported = {module.split(".")[0] for module, _ in imports_of(path)}
    assert not imported & IMPURE


def run_alone(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_import_reshard_loads_no_framework_no_native_code_and_opens_nothing():
    code = """
import os, sys, threading
before = set(os.listdir("/proc/self/fd"))
import reshard
maps = open("/proc/self/maps").read()
unwanted = {"torch", "jax", "jaxlib", "cupy", "numpy", "zmq", "cffi", "_cffi_backend", "socket",
            "rich"}
print(sorted(unwanted & set(sys.modules)))
print("libreshard" in maps, "libcuda" in maps, "libnccl" in maps)
print(set(os.listdir("/proc/self/fd")) - before, threading.active_count())
"""
    assert run_alone(code).splitlines() == ["[]", "False False False", "set() 1"]


@pytest.mark.parametrize("name", ["Source", "Destination", "run_in_process", "show_versions"])
def test_names_that_need_more_are_loaded_when_they_are_used(name):
    code = f"""
import sys
import reshard
reshard.{name}
print(sorted({{"torch", "jax", "cupy"}} & set(sys.modules)))
"""
    assert run_alone(code).strip() == "[]"


@pytest.mark.torch
def test_the_torch_adapter_loads_no_jax():
    pytest.importorskip("torch", reason="install it with: pip install 'reshard[torch]'")
    code = "import sys, reshard_torch; print('jax' in sys.modules)"
    assert run_alone(code).strip() == "False"


@pytest.mark.jax
def test_the_jax_adapter_loads_no_torch_and_starts_no_backend():
    pytest.importorskip("jax", reason="install it with: pip install 'reshard[jax]'")
    code = """
import sys, reshard_jax
from jax._src import xla_bridge
print("torch" in sys.modules, bool(xla_bridge._backends))
"""
    assert run_alone(code).strip() == "False False"


def test_the_module_map_of_the_design_page_names_every_module():
    page = (ROOT / "DESIGN.md").read_text()
    for layer, modules in LAYERS.items():
        missing = {m for m in modules - {"reshard", "_native_bindings"} if f"`{m}`" not in page}
        assert not missing, f"DESIGN.md, layer {layer}: {missing}"

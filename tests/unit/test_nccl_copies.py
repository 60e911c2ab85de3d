"""Which copy of NCCL is taken, and what is said of each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers.library_doubles import cuda_double, nccl_double

from reshard import UnsupportedError
from reshard._native_libraries import CudaDriver, NcclFile, open_cuda, open_nccl
from reshard.nccl_copies import NcclCopy, find_nccl, loaded_files, nccl_version_text


@pytest.fixture
def _nothing_is_there(monkeypatch):
    """Hides what the machine itself may have."""
    monkeypatch.delenv("RESHARD_NCCL_LIBRARY", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [])


def wheel(folder, name="nvidia_nccl_cu12"):
    """Makes a folder look as if a wheel with NCCL was installed there."""
    library = nccl_double(folder / "nvidia/nccl/lib")
    info = folder / f"{name}-2.32.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: 2.32.3\n")
    (info / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,,\nnvidia/nccl/include/nccl.h,,\n")
    return library


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_copy_is_opened_by_its_path(tmp_path):
    path = nccl_double(tmp_path, "NCCL_DOUBLE_VERSION=22705")
    assert open_nccl(str(path)) == NcclFile(str(path), 22705)
    assert nccl_version_text(22705) == "2.27.5"


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ("NCCL_DOUBLE_VERSION=21705", r"is NCCL 2\.17\.5, but 2\.18\.0 or newer is needed"),
        ("NCCL_DOUBLE_HAS_NO_SPLIT", r"has no function ncclCommSplit, which NCCL has since 2\.18"),
        ("NCCL_DOUBLE_IS_BROKEN", "does not say its version"),
    ],
)
def test_a_copy_that_cannot_be_used_says_why(tmp_path, definition, text):
    path = nccl_double(tmp_path, definition)
    with pytest.raises(UnsupportedError, match=text) as caught:
        open_nccl(str(path))
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(UnsupportedError, match=r"/nowhere/libnccl\.so\.2 cannot be loaded"):
        open_nccl("/nowhere/libnccl.so.2")


def test_the_driver_says_its_version_and_devices(tmp_path):
    path = cuda_double(tmp_path)
    assert open_cuda(str(path)) == CudaDriver(str(path), 12080, 2)


def test_a_driver_without_devices_says_so(tmp_path):
    path = cuda_double(tmp_path, "CUDA_DOUBLE_RESULT=100")
    with pytest.raises(UnsupportedError, match="cuInit says 100, no CUDA-capable device"):
        open_cuda(str(path))


@pytest.mark.usefixtures("_nothing_is_there")
def test_nothing_is_found_where_nothing_is():
    assert find_nccl() == []


@pytest.mark.usefixtures("_nothing_is_there")
def test_what_is_loaded_comes_before_what_is_installed(tmp_path, monkeypatch):
    loaded, system = nccl_double(tmp_path / "a"), nccl_double(tmp_path / "c")
    installed = wheel(tmp_path / "b")
    monkeypatch.syspath_prepend(tmp_path / "b")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{system.parent}")
    assert [copy.origin for copy in find_nccl()] == ["wheel", "system"]
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [str(loaded)])
    assert find_nccl() == [
        NcclCopy(str(loaded), "loaded"),
        NcclCopy(str(installed), "wheel"),
        NcclCopy(str(system), "system"),
    ]


@pytest.mark.usefixtures("_nothing_is_there")
def test_the_named_copy_comes_first(tmp_path, monkeypatch):
    wheel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RESHARD_NCCL_LIBRARY", "/opt/nccl/libnccl.so.2")
    assert find_nccl()[0] == NcclCopy("/opt/nccl/libnccl.so.2", "named")


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_file_with_two_names_is_one_copy(tmp_path, monkeypatch):
    library = wheel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    link = tmp_path / "link.so"
    link.symlink_to(library)
    monkeypatch.setenv("RESHARD_NCCL_LIBRARY", str(link))
    assert find_nccl() == [NcclCopy(str(link), "named")]


@pytest.mark.usefixtures("_nothing_is_there")
def test_only_the_loader_may_know_where_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", {"nccl": "libnccl.so.2"}.get)
    assert find_nccl() == [NcclCopy("libnccl.so.2", "system")]


def test_files_of_this_process_are_told_by_their_names():
    assert [path.rsplit("/", 1)[-1] for path in loaded_files("libreshard")] == ["libreshard.so"]
    assert loaded_files("libnonesuch") == []


@pytest.mark.processes
def test_two_copies_in_one_process_are_named(tmp_path):
    """As where torch and JAX bring one each."""
    first = nccl_double(tmp_path / "torch", "NCCL_DOUBLE_VERSION=22705")
    second = nccl_double(tmp_path / "jax", "NCCL_DOUBLE_VERSION=22807")
    code = "import ctypes, reshard\n"
    for path in (first, second):
        code += f"ctypes.CDLL({str(path)!r})\n"
    lines = run(code + "reshard.show_versions()").splitlines()
    assert f"nccl 2.27.5: {first}, loaded" in lines
    assert f"nccl 2.28.7: {second}, loaded" in lines
    assert "2 copies of NCCL are loaded in this process" in lines


@pytest.mark.processes
def test_showing_versions_opens_nothing(tmp_path):
    library = nccl_double(tmp_path)
    maps = "'libnccl' in open('/proc/self/maps').read()"
    out = run(
        f"import reshard; reshard.show_versions(); print({maps})",
        RESHARD_NCCL_LIBRARY=str(library),
    )
    assert f"nccl: {library}, not loaded" in out
    assert out.endswith("False\n")


@pytest.mark.processes
def test_an_open_copy_is_the_one_that_its_name_means(tmp_path):
    path = nccl_double(tmp_path)
    code = (
        f"import ctypes; ctypes.CDLL({str(path)!r})\n"
        "from reshard._native_libraries import open_nccl\n"
        "print(open_nccl('libnccl.so.2').path)"
    )
    assert run(code).strip() == str(path)

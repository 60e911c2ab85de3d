"""The device kernels compile, keep within their registers, and are kept between processes."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from reshard import UnsupportedError, device_kernels, kernel_cache
from reshard.library_files import LibraryFile

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "kernel-report.txt"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
KERNELS = {"reshard_pack", "reshard_unpack", "reshard_fingerprint_regions"}
# Three blocks of 256 threads on a multiprocessor, which has 65,536.
MAX_REGISTERS = 80
IMAGE = b"\x7fELF machine code"


@pytest.fixture(scope="module")
def nvrtc() -> str:
    copies = [c for c in device_kernels.find_nvrtc() if c.origin != "system"]
    if not copies:
        pytest.skip("no NVRTC; install it with: pip install nvidia-cuda-nvrtc-cu12")
    return copies[0].path


@pytest.fixture
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device_kernels, "_images", {})


@pytest.fixture
def compilations(monkeypatch):
    """The architectures that a compiler was asked for, which always answers alike."""
    asked = []

    def compile_kernels(path, arch):
        from reshard._native_libraries import CompiledKernels

        asked.append(arch)
        return CompiledKernels(IMAGE, "")

    monkeypatch.setattr("reshard._native_libraries.compile_kernels", compile_kernels)
    monkeypatch.setattr("reshard._native_libraries.nvrtc_version", lambda path: 12090)
    copies = [LibraryFile("/somewhere/libnvrtc.so.12", "wheel")]
    monkeypatch.setattr(device_kernels, "find_nvrtc", lambda: copies)
    return asked


def forget(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(device_kernels, "_images", {})


def cached_file() -> Path:
    (path,) = Path(os.environ["RESHARD_CACHE_DIR"]).glob("*.bin")
    return path


@pytest.mark.nvrtc
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernels_compile_and_nothing_spills(nvrtc, arch):
    from reshard._native_libraries import compile_kernels

    made = compile_kernels(nvrtc, arch)
    assert made.image.startswith(b"\x7fELF")
    REPORT.parent.mkdir(exist_ok=True)
    before = REPORT.read_text() if REPORT.exists() else ""
    parts = [part for part in before.split("== ") if part and not part.startswith(f"{arch} ")]
    parts.append(f"{arch} cubin of {len(made.image)} bytes\n{made.log.strip()}\n")
    REPORT.write_text("".join(f"== {part}" for part in sorted(parts)))
    found = dict(
        re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", made.log, re.DOTALL)
    )
    assert set(found) == KERNELS
    assert max(map(int, found.values())) <= MAX_REGISTERS
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", made.log)
    assert len(spills) >= len(KERNELS)
    assert set(spills) == {("0", "0")}


@pytest.mark.nvrtc
def test_an_architecture_that_does_not_exist_is_refused(nvrtc):
    from reshard._native_libraries import compile_kernels

    with pytest.raises(UnsupportedError, match="does not compile for sm_1") as caught:
        compile_kernels(nvrtc, "sm_1")
    assert nvrtc in str(caught.value)


@pytest.mark.nvrtc
def test_an_architecture_without_machine_code_is_refused(nvrtc):
    from reshard._native_libraries import compile_kernels

    with pytest.raises(UnsupportedError, match="compute_90 names no real architecture"):
        compile_kernels(nvrtc, "compute_90")


def test_a_file_that_is_no_nvrtc_says_so():
    from reshard._native_bindings import __file__ as bindings
    from reshard._native_libraries import compile_kernels

    other = str(Path(bindings).with_name("libreshard.so"))
    with pytest.raises(UnsupportedError, match="has no function nvrtcVersion"):
        compile_kernels(other, "sm_90")
    with pytest.raises(UnsupportedError, match="cannot be loaded"):
        compile_kernels("/nowhere/libnvrtc.so.12", "sm_90")


def test_the_text_of_the_kernels_is_whole():
    from reshard._native_libraries import kernel_source

    text = kernel_source()
    assert "#include" not in text
    assert set(re.findall(r"\b(reshard_\w+)\(", text)) >= KERNELS
    for line in ("f32_to_bf16(float value) {", "class Units {"):
        assert text.count(line) == 1


@pytest.mark.usefixtures("_empty_cache")
def test_they_are_compiled_once(compilations, monkeypatch):
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert device_kernels.kernel_image("sm_90") == IMAGE
    forget(monkeypatch)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert compilations == ["sm_90"]
    assert device_kernels.kernel_image("sm_80") == IMAGE
    assert compilations == ["sm_90", "sm_80"]


@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("change", ["source", "version"])
def test_another_source_or_compiler_is_compiled_anew(compilations, monkeypatch, change):
    device_kernels.kernel_image("sm_90")
    forget(monkeypatch)
    if change == "source":
        monkeypatch.setattr("reshard._native_libraries.kernel_source", lambda: "other")
    else:
        monkeypatch.setattr("reshard._native_libraries.nvrtc_version", lambda path: 12080)
    device_kernels.kernel_image("sm_90")
    assert compilations == ["sm_90", "sm_90"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def of_another_key(path):
    image = kernel_cache.read_cached(kernel_cache.cache_key("other"))
    assert image is None
    kernel_cache.write_cached(kernel_cache.cache_key("other"), IMAGE)
    (other,) = (p for p in path.parent.glob("*.bin") if p != path)
    other.replace(path)


def open_to_others(path):
    path.chmod(0o666)


@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("damage", [cut, empty, flip, of_another_key, open_to_others])
def test_a_file_that_is_not_what_was_stored_is_replaced(compilations, monkeypatch, caplog, damage):
    device_kernels.kernel_image("sm_90")
    damage(cached_file())
    forget(monkeypatch)
    with caplog.at_level(logging.WARNING, "reshard"):
        assert device_kernels.kernel_image("sm_90") == IMAGE
    assert "the kernels are compiled anew" in caplog.text
    assert len(compilations) == 2
    forget(monkeypatch)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert len(compilations) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.usefixtures("_empty_cache")
def test_a_file_of_another_user_is_not_believed(compilations, monkeypatch):
    device_kernels.kernel_image("sm_90")
    os.chown(cached_file(), 12345, 12345)
    forget(monkeypatch)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert len(compilations) == 2


def test_a_folder_that_cannot_be_written_does_no_harm(compilations, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "file"))
    forget(monkeypatch)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert "compiled kernels cannot be kept, so each process compiles them anew" in caplog.text
    assert "Have RESHARD_CACHE_DIR name a folder that can be written." in caplog.text


@pytest.mark.usefixtures("_empty_cache")
def test_whoever_waited_for_another_process_takes_what_it_made(compilations, monkeypatch):
    @contextmanager
    def made_meanwhile(key):
        kernel_cache.write_cached(key, IMAGE)
        yield

    monkeypatch.setattr(device_kernels, "one_at_a_time", made_meanwhile)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert compilations == []


@pytest.mark.usefixtures("_empty_cache")
def test_a_process_that_compiles_for_ever_is_not_waited_for(compilations, monkeypatch, caplog):
    monkeypatch.setattr(kernel_cache, "_WAIT_S", 0.1)
    with kernel_cache.one_at_a_time(kernel_cache.cache_key("x")):
        with kernel_cache.one_at_a_time(kernel_cache.cache_key("y")):
            assert caplog.messages == []  # another key is nothing to wait for
        with kernel_cache.one_at_a_time(kernel_cache.cache_key("x")):
            assert "another process has compiled kernels for 0 s; not waited for." in caplog.text


@pytest.mark.usefixtures("_empty_cache")
def test_a_file_system_without_locks_does_no_harm(compilations, monkeypatch):
    def refuse(*given):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert device_kernels.kernel_image("sm_90") == IMAGE
    assert compilations == ["sm_90"]


@pytest.mark.usefixtures("_empty_cache")
def test_without_a_compiler_the_log_says_what_to_do(monkeypatch, caplog):
    monkeypatch.setattr(device_kernels, "find_nvrtc", list)
    assert device_kernels.kernel_image("sm_90") is None
    assert "NVRTC, CUDA's run-time compiler, was not found" in caplog.text
    assert "Install nvidia-cuda-nvrtc-cu12" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert device_kernels.kernel_image("sm_90") is None
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("_empty_cache")
def test_a_named_compiler_that_cannot_be_used_is_an_error(monkeypatch):
    monkeypatch.setenv("RESHARD_NVRTC_LIBRARY", "/nowhere/libnvrtc.so.12")
    with pytest.raises(UnsupportedError, match=r"RESHARD_NVRTC_LIBRARY: /nowhere/libnvrtc\.so\.12"):
        device_kernels.kernel_image("sm_90")


@pytest.mark.usefixtures("_empty_cache")
def test_a_compiler_of_a_later_cuda_than_the_driver_is_not_used(compilations, caplog):
    assert device_kernels.kernel_image("sm_90", driver_version=11080) is None
    assert "later major version than the driver, which supports CUDA 11.8" in caplog.text
    assert device_kernels.kernel_image("sm_90", driver_version=12020) == IMAGE
    assert compilations == ["sm_90"]


@pytest.mark.nvrtc
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_processes_at_once_one_compiles(nvrtc, tmp_path):
    code = (
        "import hashlib\n"
        "from reshard.device_kernels import kernel_image\n"
        "from reshard.environment import configure_logging\n"
        "configure_logging()\n"
        "print(hashlib.sha256(kernel_image('sm_90')).hexdigest())"
    )
    environment = {
        **os.environ,
        "RESHARD_CACHE_DIR": str(tmp_path),
        "RESHARD_NVRTC_LIBRARY": nvrtc,
        "RESHARD_LOG": "info",
    }
    start = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", code], **start) for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert len({out for out, _ in ends}) == 1
    assert len(list(tmp_path.glob("*.bin"))) == 1
    assert sum(err.count("compiling the kernels") for _, err in ends) == 1
    third = subprocess.run([sys.executable, "-c", code], **start, timeout=300, check=True)
    assert third.stdout == ends[0][0]
    assert "compiling the kernels" not in third.stderr

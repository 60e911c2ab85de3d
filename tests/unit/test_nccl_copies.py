"""Which copy of NCCL is taken, and what is said of each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers.library_doubles import cuda_double, nccl_double
from helpers.source_text import ROOT

from reshard import UnsupportedError, nccl_copies
from reshard._native_libraries import CudaLibrary, NcclLibrary
from reshard.library_files import files_in_wheels
from reshard.nccl_choice import NcclOffer, nccl_version_text
from reshard.nccl_copies import NcclCopy, find_nccl, loaded_files, nccl_offers, open_offer


@pytest.fixture
def _nothing_is_there(monkeypatch):
    """Hides what the machine itself may have."""
    monkeypatch.delenv("RESHARD_NCCL_LIBRARY", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [])
    installed = set(files_in_wheels(["nvidia-nccl-cu12", "nvidia-nccl-cu13"], ["libnccl.so.2"]))
    monkeypatch.setattr(
        "reshard.nccl_copies.files_in_wheels",
        lambda *wanted: [found for found in files_in_wheels(*wanted) if found not in installed],
    )


def wheel(folder, name="nvidia_nccl_cu12", version="2.32.3"):
    """Makes a folder look as if a wheel with NCCL was installed there."""
    library = nccl_double(folder / "nvidia/nccl/lib")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,,\nnvidia/nccl/include/nccl.h,,\n")
    return library


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
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
    opened = NcclLibrary(str(path))
    assert (opened.path, opened.version) == (str(path), 22705)
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
        NcclLibrary(str(path))
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(UnsupportedError, match=r"/nowhere/libnccl\.so\.2 cannot be loaded"):
        NcclLibrary("/nowhere/libnccl.so.2")


def test_the_driver_says_its_version_and_devices(tmp_path):
    path = cuda_double(tmp_path)
    opened = CudaLibrary(str(path))
    assert (opened.path, opened.version, opened.num_devices) == (str(path), 12080, 2)


def test_a_driver_without_devices_says_so(tmp_path):
    path = cuda_double(tmp_path, "CUDA_DOUBLE_RESULT=100")
    with pytest.raises(UnsupportedError, match="cuInit says 100, no CUDA-capable device"):
        CudaLibrary(str(path))


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
        NcclCopy(str(installed), "wheel", 23203, 12),
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


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.27.5", 22705),
        ("2.30.7.post1", 23007),
        ("2.18.3+cuda12.2", 21803),
        ("2", None),
        ("2.27", None),
        ("2.27.100", None),
        ("", None),
    ],
)
def test_versions_of_packages(text, version):
    assert nccl_copies._version_in(text) == version


def test_the_oldest_version_is_that_of_the_native_library():
    header = (ROOT / "native/src/transport/nccl/nccl_api.h").read_text()
    assert f"kMinNcclVersion = {nccl_copies.MIN_NCCL_VERSION};" in header


@pytest.mark.usefixtures("_nothing_is_there")
def test_an_installed_copy_is_offered_by_what_its_package_says(tmp_path, monkeypatch):
    library = wheel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("reshard._native_libraries.NcclLibrary", None)  # nothing is opened
    assert nccl_offers() == (NcclOffer(str(library), 23203, "wheel", False),)


@pytest.mark.usefixtures("_nothing_is_there")
def test_an_installed_copy_that_is_too_old_is_not_offered(tmp_path, monkeypatch):
    wheel(tmp_path, version="2.17.1")
    monkeypatch.syspath_prepend(tmp_path)
    assert nccl_offers() == ()


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_copy_for_a_later_cuda_than_the_drivers_is_not_offered(tmp_path, monkeypatch):
    library = wheel(tmp_path)  # for CUDA 12
    monkeypatch.syspath_prepend(tmp_path)
    assert [offer.path for offer in nccl_offers(12000)] == [str(library)]
    assert [offer.path for offer in nccl_offers(13010)] == [str(library)]
    assert nccl_offers(11080) == ()
    # Whoever loaded it knows that it works.
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [str(library)])
    assert [offer.origin for offer in nccl_offers(11080)] == ["loaded"]


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_copy_of_the_system_says_its_version_by_its_file(tmp_path, monkeypatch):
    nccl_double(tmp_path).rename(tmp_path / "libnccl.so.2.27.5")
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.27.5")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    path = str(tmp_path / "libnccl.so.2")
    assert nccl_offers() == (NcclOffer(path, 22705, "system", False),)


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_copy_of_unknown_version_is_opened_only_where_there_is_no_other(tmp_path, monkeypatch):
    system = nccl_double(tmp_path / "system", "NCCL_DOUBLE_VERSION=22807")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(system.parent))
    assert nccl_offers() == (NcclOffer(str(system), 22807, "system", False),)
    installed = wheel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert [offer.path for offer in nccl_offers()] == [str(installed)]


@pytest.mark.usefixtures("_nothing_is_there")
def test_the_named_copy_is_the_only_offer_and_tells_its_version_itself(tmp_path, monkeypatch):
    wheel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = nccl_double(tmp_path / "named", "NCCL_DOUBLE_VERSION=22807")
    monkeypatch.setenv("RESHARD_NCCL_LIBRARY", str(path))
    assert nccl_offers() == (NcclOffer(str(path), 22807, "named", False),)
    monkeypatch.setenv("RESHARD_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    with pytest.raises(UnsupportedError, match=r"/nowhere/libnccl\.so\.2 cannot be loaded"):
        nccl_offers()


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_loaded_copy_that_cannot_be_used_is_left_out_and_told_once(tmp_path, monkeypatch, caplog):
    old = nccl_double(tmp_path, "NCCL_DOUBLE_VERSION=21705")
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [str(old)])
    assert nccl_offers() == nccl_offers() == ()
    (line,) = caplog.messages
    assert line.startswith("a copy of NCCL is left out: ")
    assert "is NCCL 2.17.5, but 2.18.0 or newer is needed" in line


@pytest.mark.usefixtures("_nothing_is_there")
def test_a_path_that_no_message_can_hold_is_not_offered(tmp_path, monkeypatch):
    odd = "/opt/n\udcff/libnccl.so.2"
    copies = [NcclCopy(odd, "wheel", 22705), NcclCopy(str(nccl_double(tmp_path)), "system", 22807)]
    monkeypatch.setattr("reshard.nccl_copies.find_nccl", lambda: copies)
    assert [offer.version for offer in nccl_offers()] == [22807]
    monkeypatch.setattr("reshard.nccl_copies.find_nccl", lambda: [NcclCopy(odd, "named")])
    with pytest.raises(UnsupportedError, match="is not UTF-8"):
        nccl_offers()


def test_the_copy_that_is_taken_has_the_version_that_was_offered(tmp_path):
    path = str(nccl_double(tmp_path, "NCCL_DOUBLE_VERSION=22705"))
    opened = open_offer(NcclOffer(path, 22705, "wheel", False))
    assert (opened.path, opened.version) == (path, 22705)
    with pytest.raises(UnsupportedError, match=r"is NCCL 2\.27\.5, but .* says 2\.30\.7, which"):
        open_offer(NcclOffer(path, 23007, "wheel", False))


@pytest.mark.processes
def test_offers_of_a_process_that_has_two_copies(tmp_path):
    """The second one is told of at WARNING, once; a copy that reshard opened itself is not."""
    first = nccl_double(tmp_path / "torch", "NCCL_DOUBLE_VERSION=22705")
    second = nccl_double(tmp_path / "jax", "NCCL_DOUBLE_VERSION=22807")
    own = nccl_double(tmp_path / "own", "NCCL_DOUBLE_VERSION=23007")
    code = f"""
import ctypes, logging
import reshard.nccl_copies
from reshard.nccl_choice import NcclOffer
from reshard.nccl_copies import nccl_offers, open_offer
logging.basicConfig(format="%(levelname)s %(message)s", force=True)
reshard.nccl_copies.files_in_wheels = lambda *wanted: []  # hides what is installed
ctypes.CDLL({str(first)!r})
before = nccl_offers()
assert [offer.version for offer in before] == [22705], before
assert before[0].is_loaded and before[0].origin == "loaded"
open_offer(NcclOffer({str(own)!r}, 23007, "wheel", False))
assert [(o.version, o.is_loaded) for o in nccl_offers()] == [(22705, True), (23007, True)]
logging.getLogger("reshard").warning("until here nothing")
ctypes.CDLL({str(second)!r})
nccl_offers()
offers = nccl_offers()
assert sorted(o.version for o in offers[:2]) == [22705, 22807] and offers[2].version == 23007
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RESHARD_NCCL_LIBRARY": "", "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    untold, told = done.stderr.splitlines()
    assert untold == "WARNING until here nothing"
    assert told.startswith("WARNING 2 copies of NCCL are loaded in this process: ")
    assert str(first) in told and str(second) in told and str(own) not in told


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
    assert any(line.startswith("2 copies of NCCL are loaded in this process: ") for line in lines)


BESIDE = """
import ctypes, sys
from reshard import UnsupportedError
from reshard._native_libraries import NcclLibrary

first, second = sys.argv[1:]
ctypes.CDLL(first, mode=ctypes.RTLD_GLOBAL)  # as torch does
try:
    print(NcclLibrary(second).version)
except UnsupportedError as error:
    print(error)
version = ctypes.c_int()
ctypes.CDLL(second).ncclGetVersion(ctypes.byref(version))
print(version.value)
"""


@pytest.mark.processes
def test_a_copy_beside_one_that_all_see_calls_functions_of_its_own(tmp_path):
    first = nccl_double(tmp_path / "a", "NCCL_DOUBLE_VERSION=22705")
    second = nccl_double(tmp_path / "b", "NCCL_DOUBLE_VERSION=22807")
    plainly = BESIDE.replace("print(NcclLibrary(second).version)", "pass")
    assert run(plainly, str(first), str(second)) == "22705\n"  # it called the first one's
    assert run(BESIDE, str(first), str(second)).startswith("22807\n")
    assert run(BESIDE, str(second), str(second)).startswith("22807\n")


@pytest.mark.processes
def test_a_program_that_names_malloc_by_a_stub_of_its_own_is_no_allocator(tmp_path):
    """As Python does where it is linked to a fixed address."""
    first, second = nccl_double(tmp_path / "a"), nccl_double(tmp_path / "b")
    source, program = tmp_path / "p.c", tmp_path / "program"
    (library,) = loaded_files("libreshard.so")
    source.write_text(
        f"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
void* (*volatile allocate)(size_t) = malloc;
int main(void) {{
  void* out = NULL;
  dlopen("{first}", RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen("{library}", RTLD_NOW);
  int (*open_nccl)(const char*, void**) = dlsym(library, "reshard_nccl_open");
  const char* (*error)(void) = dlsym(library, "reshard_last_error");
  if (open_nccl("{second}", &out) != 0) puts(error());
  free(allocate(1));
  return 0;
}}
"""
    )
    flags = ["-no-pie", "-fno-pie", "-o", program, source, "-ldl"]
    subprocess.run(["cc", *flags], check=True, timeout=60)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


@pytest.mark.processes
def test_a_copy_beside_another_is_refused_where_an_allocator_is_preloaded(tmp_path):
    first, second = nccl_double(tmp_path / "a"), nccl_double(tmp_path / "b")
    source, allocator = tmp_path / "a.c", tmp_path / "liballocator.so"
    source.write_text(
        "#include <stddef.h>\nvoid* __libc_malloc(size_t);\n"
        "void* malloc(size_t n) { return __libc_malloc(n); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", allocator, source], check=True, timeout=60)
    said = run(BESIDE, str(first), str(second), LD_PRELOAD=str(allocator))
    assert said.startswith(
        f"{second} cannot be opened beside {first} while {allocator} is the alloc"
    )
    # Alone, and where all see the same file, nothing has to be kept apart.
    alone = BESIDE.replace("ctypes.CDLL(first, ", "(lambda *_, **__: None)(first, ")
    assert run(alone, str(first), str(second), LD_PRELOAD=str(allocator)).startswith("23203\n")
    assert run(BESIDE, str(first), str(first), LD_PRELOAD=str(allocator)).startswith("23203\n")


@pytest.mark.processes
def test_showing_versions_opens_what_is_named_alone(tmp_path):
    library = nccl_double(tmp_path, "NCCL_DOUBLE_VERSION=22705")
    maps = "'libnccl' in open('/proc/self/maps').read()"
    code = f"import reshard; reshard.show_versions(); print({maps})"
    out = run(code, LD_LIBRARY_PATH=str(library.parent))
    assert out.endswith("False\n")
    out = run(code, RESHARD_NCCL_LIBRARY=str(library), RESHARD_NVRTC_LIBRARY="/nowhere")
    assert f"nccl 2.27.5: {library}, named by RESHARD_NCCL_LIBRARY" in out
    assert "nvrtc unusable (/nowhere cannot be loaded: " in out
    out = run(code, RESHARD_NCCL_LIBRARY="/nowhere")
    assert "nccl unusable (/nowhere cannot be loaded: " in out


@pytest.mark.processes
def test_an_open_copy_is_the_one_that_its_name_means(tmp_path):
    path = nccl_double(tmp_path)
    code = (
        f"import ctypes; ctypes.CDLL({str(path)!r})\n"
        "from reshard._native_libraries import NcclLibrary\n"
        "print(NcclLibrary('libnccl.so.2').path)"
    )
    assert run(code).strip() == str(path)

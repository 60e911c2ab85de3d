"""All processes of a communicator take one version of NCCL, or are told why not."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import UnsupportedError
from reshard.nccl_choice import NcclOffer, choose_nccl, nccl_version_text

TORCH, NEW, OLD = 22705, 23007, 22105


def loaded(version, path=""):
    return NcclOffer(path or f"/loaded/{version}", version, "loaded", True)


def wheel(version, path=""):
    return NcclOffer(path or f"/wheel/{version}", version, "wheel", False)


def named(version, is_loaded=False):
    return NcclOffer(f"/named/{version}", version, "named", is_loaded)


def choose(*offers):
    return choose_nccl([f"program {i}" for i in range(len(offers))], offers)


def test_equal_copies_that_are_loaded_are_taken_though_newer_ones_are_there():
    first, second = [loaded(TORCH), wheel(NEW)], [loaded(TORCH, "/other"), wheel(NEW)]
    assert choose(first, second) == (first[0], second[0])


def test_else_the_highest_version_that_all_have():
    first = [loaded(TORCH), wheel(NEW), wheel(OLD)]
    second = [loaded(OLD), wheel(TORCH), wheel(NEW)]
    assert choose(first, second) == (first[1], second[2])


def test_a_process_that_has_loaded_none_takes_the_others_version_if_it_can():
    first, second = [loaded(TORCH)], [wheel(NEW), wheel(TORCH)]
    assert choose(first, second) == (first[0], second[1])


def test_of_copies_of_one_version_the_loaded_one_is_taken():
    first = [loaded(NEW), wheel(TORCH), loaded(TORCH)]
    assert choose(first, [loaded(TORCH)]) == (first[2], loaded(TORCH))


def test_a_named_copy_is_the_only_one_of_its_process():
    first = [named(OLD), loaded(TORCH)]
    assert choose(first, [loaded(TORCH), wheel(OLD)]) == (named(OLD), wheel(OLD))
    with pytest.raises(UnsupportedError, match="the copy that its RESHARD_NCCL_LIBRARY names"):
        choose(first, [loaded(TORCH)])


def test_one_process_alone_takes_what_it_has():
    assert choose([loaded(TORCH), wheel(NEW)]) == (loaded(TORCH),)
    assert choose() == ()


def test_none_in_common_names_programs_versions_and_the_command():
    with pytest.raises(UnsupportedError) as caught:
        choose([loaded(TORCH)], [loaded(NEW)], [loaded(NEW)])
    assert str(caught.value) == (
        "the processes have no version of NCCL in common, and NCCL refuses a communicator of "
        "unequal versions:\n"
        "  program 0: 2.27.5 (/loaded/22705, loaded)\n"
        "  program 1 and 1 more: 2.30.7 (/loaded/23007, loaded)\n"
        "For program 0, beside the copy that its framework needs: pip install --no-deps --target "
        "nccl-2.30.7 nvidia-nccl-cu12==2.30.7 (with CUDA 13: "
        "nvidia-nccl-cu13==2.30.7), then start it with "
        "RESHARD_NCCL_LIBRARY=$PWD/nccl-2.30.7/nvidia/nccl/lib/libnccl.so.2."
    )


def test_a_process_without_any_copy_is_named():
    with pytest.raises(UnsupportedError, match=r"(?s)program 1: none.*environment of program 1: "):
        choose([wheel(TORCH)], [])
    with pytest.raises(
        UnsupportedError, match=r"program 0: none\nInstall one everywhere: pip install nv"
    ):
        choose([])


def test_versions_are_written_as_people_do():
    assert [nccl_version_text(v) for v in (21800, 22705, 23203)] == ["2.18.0", "2.27.5", "2.32.3"]


OFFERS = st.builds(
    lambda version, origin, is_loaded, place: NcclOffer(
        f"/{place}/{version}", version, origin, is_loaded or origin == "loaded"
    ),
    st.sampled_from([OLD, TORCH, 22900, NEW]),
    st.sampled_from(["named", "loaded", "wheel", "system"]),
    st.booleans(),
    st.sampled_from("abc"),
)
PROCESSES = st.lists(st.lists(OFFERS, max_size=4), min_size=1, max_size=6)


def usable(own):
    """The oracle's reading of what a process offers."""
    return [offer for offer in own if offer.origin == "named"][:1] or own


@given(PROCESSES)
def test_a_choice_is_one_version_of_what_each_offers_and_fails_only_without_one(processes):
    common = set.intersection(*({o.version for o in usable(own)} for own in processes))
    try:
        chosen = choose(*processes)
    except UnsupportedError as error:
        assert not common
        assert re.search("pip install|name one of", str(error))
        return
    assert all(copy in usable(own) for copy, own in zip(chosen, processes, strict=True))
    (version,) = {copy.version for copy in chosen}
    first = [next((o.version for o in usable(own) if o.is_loaded), None) for own in processes]
    expected = first[0] if len(set(first)) == 1 and None not in first else max(common)
    assert version == expected


@given(PROCESSES)
def test_what_travelled_gives_the_same_answer(processes):
    sent = [msgspec.msgpack.encode(own) for own in processes]
    got = [msgspec.msgpack.decode(each, type=tuple[NcclOffer, ...]) for each in sent]

    def answer(offers):
        try:
            return choose(*offers)
        except UnsupportedError as error:
            return str(error)

    assert answer(processes) == answer(got)


@pytest.mark.parametrize(
    "row",
    [
        ["/p", -1, "loaded", True],
        ["/p", 1 << 31, "loaded", True],
        ["/p", 22705, "elsewhere", True],
        ["/p", 22705, "loaded"],
        ["/p", 22705, "loaded", True, 1],
    ],
)
def test_what_is_no_offer_does_not_decode(row):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=NcclOffer)

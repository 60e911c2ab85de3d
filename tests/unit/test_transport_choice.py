"""Which transport an epoch takes, and what is said where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import LayoutError, UnsupportedError
from reshard.transport_choice import Wish, check_transport, choose_transport

HOST, CUDA, NOTHING = (True, False), (False, True), (False, False)


def wishes(*kinds, asked="auto"):
    return [Wish(asked, *kind) for kind in kinds]


def choose(given):
    return choose_transport([f"program {i}" for i in range(len(given))], given)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((HOST,), "local"),
        ((NOTHING,), "local"),
        ((HOST, HOST), "shm"),
        ((HOST, NOTHING), "shm"),
        ((NOTHING, NOTHING), "shm"),
        ((CUDA,), "nccl"),
        ((CUDA, CUDA), "nccl"),
        ((CUDA, NOTHING, CUDA), "nccl"),
    ],
)
def test_auto_goes_by_the_memory(kinds, expected):
    assert choose(wishes(*kinds)) == expected


@pytest.mark.parametrize(
    ("asked", "kinds", "expected"),
    [
        ("shm", (HOST,), "local"),
        ("shm", (HOST, HOST), "shm"),
        ("nccl", (CUDA, CUDA), "nccl"),
        ("nccl", (NOTHING, CUDA), "nccl"),
        ("nccl", (NOTHING, NOTHING), "shm"),
        ("nccl", (NOTHING,), "local"),
    ],
)
def test_what_is_asked_for_is_taken_where_it_fits(asked, kinds, expected):
    assert choose(wishes(*kinds, asked=asked)) == expected
    one_asks = wishes(*kinds)
    one_asks[0] = one_asks[0]._replace(transport=asked)
    assert choose(one_asks) == expected


def test_memories_of_both_kinds_name_the_programs_of_each():
    with pytest.raises(
        UnsupportedError,
        match=r"weights of program 0 are in host memory and those of program 1 and program 2 on "
        r"GPUs.*module\.cuda\(\).*module\.cpu\(\).*pinned_host",
    ):
        choose(wishes(HOST, CUDA, CUDA))


def test_one_process_can_hold_both_kinds():
    with pytest.raises(UnsupportedError, match="weights of program 0 are in host memory and those"):
        choose([Wish("auto", True, True)])


def test_many_programs_are_not_all_listed():
    with pytest.raises(UnsupportedError) as caught:
        choose(wishes(HOST, *[CUDA] * 9))
    listed = "program 1, program 2, program 3, program 4 and 5 more on GPUs"
    assert listed in str(caught.value)


def test_programs_that_ask_for_different_transports_are_named():
    given = [Wish("shm", *HOST), Wish("auto", *HOST), Wish("nccl", *CUDA)]
    with pytest.raises(
        UnsupportedError,
        match="program 0 asked for transport='shm' and program 2 for transport='nccl'",
    ):
        choose(given)


def test_shared_memory_does_not_move_gpu_memory():
    with pytest.raises(
        UnsupportedError, match="program 0 and program 1 asked for transport='shm', which moves"
    ):
        choose(wishes(CUDA, CUDA, asked="shm"))


def test_nccl_does_not_move_host_memory():
    given = [Wish("nccl", *HOST), Wish("auto", *HOST)]
    with pytest.raises(
        UnsupportedError,
        match="program 0 asked for transport='nccl', which moves GPU memory, but the weights of "
        "program 0 and program 1 are in host memory",
    ):
        choose(given)


def test_what_a_process_lacks_is_told_in_its_name():
    given = [Wish("nccl", *HOST), Wish("auto", *CUDA, "cannot use NCCL: no driver.")]
    with pytest.raises(UnsupportedError, match="weights of program 0 are in host"):
        choose(given)
    given = [Wish("auto", *CUDA), Wish("auto", *CUDA, "cannot use NCCL: no driver.")]
    with pytest.raises(UnsupportedError, match=r"^program 1: cannot use NCCL: no driver\.$"):
        choose(given)
    given = [Wish("nccl", *HOST, "cannot use NCCL: no driver.")]
    with pytest.raises(UnsupportedError, match="program 0: cannot use NCCL: no driver"):
        choose(given)


WISHES = st.builds(
    Wish,
    st.sampled_from(["auto", "shm", "nccl"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "", "cannot use NCCL."]),
)


def answer(given):
    try:
        return choose(given)
    except UnsupportedError:
        return "none"


@given(st.lists(WISHES, min_size=1, max_size=5), st.randoms())
def test_a_choice_fits_all_and_does_not_depend_on_their_order(processes, random):
    chosen = answer(processes)
    shuffled = random.sample(processes, len(processes))
    assert answer(shuffled) == chosen
    holds_host = any(wish.holds_host for wish in processes)
    holds_cuda = any(wish.holds_cuda for wish in processes)
    asked = {wish.transport for wish in processes} - {"auto"}
    if chosen == "nccl":
        assert holds_cuda and not holds_host and asked <= {"nccl"}
        assert not any(wish.problem for wish in processes)
    elif chosen == "none":
        assert asked or holds_cuda
    else:
        assert not holds_cuda and (asked <= {"shm"} or not holds_host)
        assert (chosen == "local") == (len(processes) == 1)


@pytest.mark.parametrize("name", ["auto", "shm", "nccl"])
def test_names_of_transports(name):
    assert check_transport(name) == name


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("ncll", r"transport='ncll' is none of 'auto', 'shm', 'nccl'\. Did you mean 'nccl'\?"),
        ("ucx", r"transport='ucx' is none of 'auto', 'shm', 'nccl'\.$"),
        (None, "transport=None is none of"),
        (["nccl"], "is none of"),
    ],
)
def test_other_names_are_refused(given, text):
    with pytest.raises(LayoutError, match=text):
        check_transport(given)

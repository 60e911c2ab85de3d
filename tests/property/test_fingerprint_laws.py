"""Laws of fingerprints over random sides, and negative controls: what must be found is found."""

from __future__ import annotations

import numpy as np
from helpers import oracle
from helpers.patterns import as_bits, as_dtype
from helpers.reports import native_reports, python_sums, verdict_of
from helpers.sides import fill_side, hashed, in_memory, typed
from helpers.strategies import problems, seeded
from hypothesis import assume, given
from hypothesis import strategies as st

from reshard import make_plan
from reshard.fingerprint import mix, seed_of_name
from reshard.loopback import buffer_of_array
from reshard.verification import Verifier, make_fingerprint_table


def refitted(problem, random=None):
    """Returns (plan, source arrays, destination arrays) as they are after a refit."""
    values = hashed(problem.shapes, problem.dtype.itemsize)
    sources = fill_side(problem.src, values, "src")
    destinations = fill_side(problem.dst, values, "dst")
    if random is None:
        sources, destinations = typed(problem.src, sources), typed(problem.dst, destinations)
    else:
        sources, _ = in_memory(problem.src, sources, random)
        destinations, _ = in_memory(problem.dst, destinations, random)
    return make_plan(problem.src, problem.dst), sources, destinations


def stored_by_destination(problem, pair):
    """Returns the canonical elements that some destination rank stores."""
    found = [np.empty(0, np.int64)]
    for rank in pair.dst.layout.ranks:
        places = oracle.canonical_places(pair.dst, rank)
        (own,) = (places[part.name] for part in pair.dst.parts if pair.name == part.name)
        found.append(own.reshape(-1))
    elements = np.unique(np.concatenate(found))
    return elements[elements != oracle.HOLE]


def names_at_destination(pair):
    (names,) = (part.names for part in pair.dst.parts if part.name == pair.name)
    return names


@given(problems(), seeded(), st.integers(1, 4))
def test_both_sides_agree_after_a_refit(problem, random, num_processes):
    plan, sources, destinations = refitted(problem, random)
    ranks = list(plan.ranks)
    random.shuffle(ranks)
    processes = [ranks[i::num_processes] for i in range(num_processes)]
    verdict = verdict_of(plan, processes, sources, destinations)
    assert verdict.problems == ()
    assert set(verdict.fingerprints) == {pair.name for pair in plan.pairs}


@given(problems(max_bundles=1))
def test_the_fingerprint_is_the_sum_over_the_elements_that_moved(problem):
    plan, sources, destinations = refitted(problem)
    verdict = verdict_of(plan, [plan.ranks], sources, destinations)
    canonicals = hashed(problem.shapes, problem.dtype.itemsize)
    for pair in plan.pairs:
        words = np.ascontiguousarray(canonicals[pair.name]).reshape(-1)
        per_element = 2 if words.dtype == np.complex128 else 1
        words = words.view(np.uint64) if per_element == 2 else words
        seed = seed_of_name(pair.name)
        expected = 0
        for element in stored_by_destination(problem, pair).tolist():
            for word in range(per_element * element, per_element * (element + 1)):
                expected += mix(seed, word, int(words[word]))
        assert verdict.fingerprints[pair.name] == expected % 2**64


@given(problems(max_bundles=1))
def test_native_sums_follow_the_definition(problem):
    plan, sources, destinations = refitted(problem)
    sides = [
        {
            (rank, name): buffer_of_array(values)
            for rank, by_name in arrays.items()
            for name, values in by_name.items()
        }
        for arrays in (sources, destinations)
    ]
    table = make_fingerprint_table(plan, plan.ranks, *sides)
    (sums,) = native_reports(plan, [plan.ranks], sources, destinations)
    assert list(sums) == python_sums(plan, table, [sources, destinations])


@given(problems(), seeded())
def test_one_flipped_bit_is_found_and_named(problem, random):
    plan, sources, destinations = refitted(problem)
    side, arrays = random.choice(((0, sources), (-1, destinations)))
    spec = random.choice(problem.sides[side])
    rank = random.choice(spec.layout.ranks)
    part = random.choice(spec.parts)
    places = oracle.canonical_places(spec, rank)[part.name].reshape(-1)
    covered = np.flatnonzero(places != oracle.HOLE)
    assume(len(covered) > 0)
    at = int(random.choice(covered))
    related = [
        pair
        for pair in plan.pairs
        if spec is (pair.src, pair.dst)[side] and set(part.names) & set(names_at_destination(pair))
    ]
    moved = {p.name for p in related if places[at] in stored_by_destination(problem, p)}
    assume(moved)
    local = arrays[rank][spec.name]
    place = at * local.itemsize + random.randrange(local.itemsize)
    local.reshape(-1).view(np.uint8)[place] ^= 1 << random.randrange(8)
    problems_found = verdict_of(plan, [plan.ranks], sources, destinations).problems
    told = {text.split(":")[0] for text in problems_found}
    # Copies of the source that differ are told also of elements that no destination stores.
    assert moved <= told <= {pair.name for pair in related}


@given(problems(), seeded())
def test_two_swapped_elements_are_found(problem, random):
    plan, sources, destinations = refitted(problem)
    pair = random.choice(plan.pairs)
    rank = random.choice(pair.dst.layout.ranks)
    places = oracle.canonical_places(pair.dst, rank)[pair.name].reshape(-1)
    covered = np.flatnonzero(places != oracle.HOLE).tolist()
    assume(len(covered) >= 2)
    first, second = random.sample(covered, 2)
    bits = as_bits(destinations[rank][pair.dst.name]).reshape(-1)
    assume(bits[[first]].tobytes() != bits[[second]].tobytes())
    bits[[first, second]] = bits[[second, first]]
    verdict = verdict_of(plan, [plan.ranks], sources, destinations)
    assert pair.name in {text.split(":")[0] for text in verdict.problems}


@given(problems(), seeded())
def test_a_stale_rank_is_found(problem, random):
    plan, sources, destinations = refitted(problem)
    older = hashed(problem.shapes, problem.dtype.itemsize, version=1)
    pair = random.choice(plan.pairs)
    rank = random.choice(pair.dst.layout.ranks)
    places = oracle.canonical_places(pair.dst, rank)[pair.name]
    now = as_bits(destinations[rank][pair.dst.name])
    stale = oracle.local_array(pair.dst, rank, older, now)
    assume((places != oracle.HOLE).sum() > 8)  # fewer may be equal by chance in one-byte types
    destinations[rank][pair.dst.name] = as_dtype(stale, problem.dtype)
    verdict = verdict_of(plan, [plan.ranks], sources, destinations)
    assert pair.name in {text.split(":")[0] for text in verdict.problems}


@given(problems())
def test_every_process_comes_to_the_same_verdict(problem):
    plan, sources, destinations = refitted(problem)
    processes = [[rank] for rank in plan.ranks]
    reports = native_reports(plan, processes, sources, destinations)
    again = make_plan(problem.src, problem.dst)
    verdicts = [Verifier(each, processes).verdict(reports) for each in (plan, again)]
    assert verdicts[0] == verdicts[1]

"""Sets of boxes, against their elements."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from reshard.box_sets import common_box, disjoint_parts, disjoint_volume, some_meet, volume_of


def elements(box):
    return list(product(*[range(a, b) for a, b in zip(*box, strict=True)]))


@st.composite
def distinct_boxes(draw):
    ndim = draw(st.integers(0, 3))
    bounds = st.tuples(st.integers(0, 5), st.integers(1, 4))
    found = set()
    for _ in range(draw(st.integers(1, 6))):
        dims = [draw(bounds) for _ in range(ndim)]
        found.add((tuple(a for a, _ in dims), tuple(a + n for a, n in dims)))
    return sorted(found)


@given(distinct_boxes())
def test_parts_cover_each_box_once_and_know_whose_they_are(boxes):
    parts, are_apart = disjoint_parts(boxes)
    assert are_apart
    assert max(Counter(e for part in parts for e in elements(part)).values()) == 1
    for number, box in enumerate(boxes):
        own = [part for part, numbers in parts.items() if number in numbers]
        assert sorted(e for part in own for e in elements(part)) == elements(box)
    for numbers in parts.values():
        assert numbers == sorted(set(numbers))


@given(distinct_boxes())
def test_boxes_that_do_not_meet_stay_whole(boxes):
    parts, _ = disjoint_parts(boxes)
    counts = Counter(e for box in boxes for e in elements(box))
    for number, box in enumerate(boxes):
        if max(counts[e] for e in elements(box)) == 1:
            assert parts[box] == [number]


@given(distinct_boxes())
def test_what_falls_into_too_many_parts_stays_whole(boxes):
    parts, are_apart = disjoint_parts(boxes, 0)
    assert parts == {box: [number] for number, box in enumerate(boxes)}
    assert are_apart == (not some_meet(boxes))


@given(distinct_boxes())
def test_volumes_and_meetings_are_those_of_the_elements(boxes):
    counts = Counter(e for box in boxes for e in elements(box))
    assert some_meet(boxes) == (max(counts.values()) > 1)
    assert disjoint_volume(boxes) <= len(counts)
    if not some_meet(boxes):
        assert disjoint_volume(boxes) == len(counts) == sum(map(volume_of, boxes))
    first, last = boxes[0], boxes[-1]
    common = common_box(first, last)
    both = sorted(set(elements(first)) & set(elements(last)))
    assert (elements(common) if common else []) == both

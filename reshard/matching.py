"""Pair the tensors of the two sides by canonical name, and say what does not pair up.

Nothing is skipped in silence: a destination tensor without a source, a source tensor that nobody
takes, two sources for one name and a dtype without a rule are errors, all of them listed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from typing import NamedTuple

from reshard.dtypes import DType, DTypeLike
from reshard.elementwise import Change, change_of
from reshard.errors import LayoutError, PlanError, UnsupportedError
from reshard.layout import AnyLayout
from reshard.logical_space import LogicalSpace, Side, make_logical_space
from reshard.patterns import patterns_of
from reshard.remedies import listed, remedies
from reshard.tensor_spec import Part, TensorSpec

__all__ = [
    "Casts",
    "Geometry",
    "Matching",
    "TensorPair",
    "find_pairs",
    "match",
    "read_casts",
]

Casts = Iterable[tuple[DTypeLike, DTypeLike]]
"""Allowed conversions, (source dtype, destination dtype) each; dtypes as `DType.of` takes them."""


def read_casts(casts: Casts) -> tuple[tuple[DType, DType], ...]:
    """Returns cast rules as pairs of types.

    Raises:
        LayoutError: if they are not pairs, such as one pair without a list around it.
        UnsupportedError: for a dtype that is unknown.
    """
    given: object = casts
    rules = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    pairs = []
    for rule in rules:
        if not isinstance(rule, tuple | list) or len(rule) != 2:
            raise LayoutError(
                f"casts={given!r}: {rule!r} is not a pair of dtypes. Give a list of (source, "
                "destination) pairs, such as casts=[('float32', 'bfloat16')]."
            )
        try:
            pairs.append((DType.of(rule[0]), DType.of(rule[1])))
        except UnsupportedError as error:
            raise UnsupportedError(f"casts={given!r}: {error}") from None
    return tuple(pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """All that pairs of equal shapes, layout patterns and forms have in common; told by identity.

    Pairs whose values change in different ways have one each.

    Attributes:
        space: the logical dims.
        src, dst: shape, layout and rows of each side. Pairs whose layouts differ in rank numbers
            only share a geometry, so ranks are named by their position in `layout.ranks`.
        counted_bytes: what an element counts for where it is decided how finely boxes are cut: its
            bytes on the wire, times `times_larger` of `match`.
        is_disjoint: True if no rank is on both sides; else the layouts are exactly those of the
            pair.
    """

    space: LogicalSpace
    src: Side
    dst: Side
    counted_bytes: int
    is_disjoint: bool


class TensorPair(NamedTuple):
    """A canonical tensor that moves.

    Attributes:
        name: canonical name, as the destination calls it.
        src, dst: the stored tensors.
        geometry: shared by all pairs that differ in name only.
        wire_dtype: the narrower of the two element types; what is sent.
        rotation: moves the choice among replicas on from tensor to tensor.
        change: of values, from the source's to the destination's; None if there is none.
    """

    name: str
    src: TensorSpec
    dst: TensorSpec
    geometry: Geometry
    wire_dtype: DType
    rotation: int
    change: Change | None = None

    @property
    def num_elements(self) -> int:
        """Number of elements of the canonical tensor."""
        return self.geometry.space.num_elements

    @property
    def src_side(self) -> Side:
        """The source as `geometry.src` has it, with the pair's own ranks."""
        return Side(self.src.shape, self.src.layout, self.geometry.src.rows)

    @property
    def dst_side(self) -> Side:
        """The destination as `geometry.dst` has it, with the pair's own ranks."""
        return Side(self.dst.shape, self.dst.layout, self.geometry.dst.rows)

    def dtype_at(self, hop: int) -> DType:
        """Returns what is sent at a hop; what was received goes on bit by bit as it is stored."""
        return self.dst.dtype if hop else self.wire_dtype

    def changes_at(self, side: int) -> bool:
        """Says whether values change at the source (0) or the destination (1), in hop 0.

        They do where they are cast; where they are not, at the source.
        """
        return self.change is not None and (self.wire_dtype is self.dst.dtype) == (side == 0)


@dataclass(frozen=True, slots=True)
class Matching:
    """What pairs up and what does not.

    Attributes:
        pairs: in the order of the destination's specs and parts.
        problems: what is wrong with single tensors: doubled, of another shape, without a cast rule.
        uncovered: destination names that no source provides.
        unused: source names that no destination takes.
        missing_casts: rules that would let refused pairs through, in order of need.
        idle_casts: rules that no tensor needs.
        idle_patterns: patterns of which no name is without a partner.
    """

    pairs: list[TensorPair]
    problems: list[str]
    uncovered: list[str]
    unused: list[str]
    missing_casts: tuple[tuple[DType, DType], ...]
    idle_casts: tuple[tuple[DType, DType], ...]
    idle_patterns: tuple[str, ...]


def match(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts = (),
    allow_unmatched: Iterable[str] = (),
    allow_unused: Iterable[str] = (),
    times_larger: int = 1,
) -> list[TensorPair]:
    """Returns the pairs in the order of the destination's specs and parts.

    Args:
        src_specs, dst_specs: all tensors of each side.
        casts: conversions that are wanted; without a rule dtypes must be equal.
        allow_unmatched: shell-style patterns of canonical names that may stay without a partner.
        allow_unused: the same for source tensors alone.
        times_larger: as in `make_plan`.

    Raises:
        PlanError: listing every name that does not pair up, is doubly matched, differs in canonical
            shape, or has no cast rule; if a side is not a list of specs.
        LayoutError: if `casts` are not pairs. UnsupportedError: for a dtype of theirs.
    """
    found = find_pairs(
        src_specs,
        dst_specs,
        casts=casts,
        allow_unmatched=allow_unmatched,
        allow_unused=allow_unused,
        times_larger=times_larger,
    )
    problems, uncovered, unused = found.problems, found.uncovered, found.unused
    if not (problems or uncovered or unused or found.pairs):
        problems = ["there is no tensor to move: source or destination gave no specs."]
    if problems or uncovered or unused:
        counts = f"source ({len(src_specs)} tensors) and destination ({len(dst_specs)} tensors)"
        num_problems = len(problems) + len(uncovered) + len(unused)
        kinds = (
            problems,
            [f"{name}: no source holds this destination tensor." for name in uncovered],
            [f"{name}: no destination takes this source tensor." for name in unused],
        )
        raise PlanError(
            f"{counts} do not fit; {len(found.pairs)} pair up by name, shape and type, "
            f"{num_problems} problem{'' if num_problems == 1 else 's'}:"
            + "".join(map(listed, kinds))
            + remedies(num_problems, found.missing_casts, unused, uncovered)
        )
    return found.pairs


def find_pairs(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts = (),
    allow_unmatched: Iterable[str] = (),
    allow_unused: Iterable[str] = (),
    times_larger: int = 1,
) -> Matching:
    """Returns what pairs up and, instead of raising, what does not; arguments as in `match`.

    Raises:
        PlanError: if a side is not a list of specs.
        LayoutError: if `casts` are not pairs. UnsupportedError: for a dtype of theirs.
    """
    _check_specs(src_specs, "source")
    _check_specs(dst_specs, "destination")
    problems: list[str] = []
    sources = _by_name(src_specs, problems)
    _check_unique(dst_specs, "destination", problems)
    rules = read_casts(casts)
    matcher = _Matcher(frozenset(rules), _read_times_larger(times_larger))
    pairs: list[TensorPair] = []
    used: set[str] = set()
    uncovered: list[str] = []
    for spec in dst_specs:
        for part in spec.parts:
            found = sources.get(part.name)
            if found is None or part.aliases:
                found = _find(part, spec, sources, problems)
            if found is None:
                uncovered.append(part.name)
                continue
            used.add(found[1].name)
            try:
                pairs.append(matcher.pair(part.name, *found, spec, part))
            except PlanError as error:
                problems.append(f"{part.name}: {error}")
    allowed = patterns_of("allow_unmatched", allow_unmatched)
    unused = [part.name for spec in src_specs for part in spec.parts if part.name not in used]
    return Matching(
        pairs,
        problems,
        _not_allowed(uncovered, allowed),
        _not_allowed(unused, (*allowed, *patterns_of("allow_unused", allow_unused))),
        tuple(matcher.missing_casts),
        tuple([rule for rule in dict.fromkeys(rules) if rule not in matcher.used_casts]),
        tuple([each for each in allowed if not filter_names((*uncovered, *unused), each)]),
    )


def _read_times_larger(given: object) -> int:
    if type(given) is not int or given < 1:
        raise PlanError(f"times_larger={given!r} is not a whole number from 1 on.")
    return given


def _check_specs(given: object, side: str) -> None:
    """Refuses what is no sequence of specs; for slips, which a type checker sees as well."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        kind = type(given).__name__
        raise PlanError(f"the {side} is of type {kind}, no list of specs. Give [TensorSpec(...)].")
    for spec in given:
        if not isinstance(spec, TensorSpec):
            raise PlanError(f"the {side} holds a {type(spec).__name__}. Give TensorSpecs alone.")


def _by_name(
    specs: Sequence[TensorSpec], problems: list[str]
) -> dict[str, tuple[TensorSpec, Part]]:
    _check_unique(specs, "source", problems)
    sources: dict[str, tuple[TensorSpec, Part]] = {}
    for spec in specs:
        for part in spec.parts:
            for name in part.names:
                other = sources.setdefault(name, (spec, part))
                if other[0] is not spec or other[1] is not part:
                    problems.append(
                        f"{name}: both source tensors {other[0].name!r} and {spec.name!r} provide "
                        "it. Keep one, or declare the other name as an alias of the same storage."
                    )
    return sources


def _check_unique(specs: Sequence[TensorSpec], side: str, problems: list[str]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            problems.append(f"{spec.name}: the {side} gives this stored tensor twice.")
        seen.add(spec.name)


def _find(
    part: Part,
    spec: TensorSpec,
    sources: dict[str, tuple[TensorSpec, Part]],
    problems: list[str],
) -> tuple[TensorSpec, Part] | None:
    found = {id(sources[name][1]): sources[name] for name in part.names if name in sources}
    if len(found) > 1:
        stored = sorted(source.name for source, _ in found.values())
        problems.append(
            f"{part.name}: the destination stores {part.names} once in {spec.name!r} but the "
            f"source holds separate tensors {stored}. Tie them in the source, or drop one name."
        )
    return next(iter(found.values()), None)


def _not_allowed(names: list[str], allowed: tuple[str, ...]) -> list[str]:
    return [n for n in names if not any(fnmatchcase(n, pattern) for pattern in allowed)]


@dataclass(slots=True)
class _Counted:
    """A geometry and the rotation of the next pair that has it."""

    geometry: Geometry
    count: int


class _Matcher:
    """Makes pairs; what they are made of but names and ranks decides which share a `Geometry`.

    Attributes:
        missing_casts: rules that would let refused pairs through, in order of need.
        used_casts: rules that some pair needs.
    """

    def __init__(self, casts: frozenset[tuple[DType, DType]], times_larger: int) -> None:
        self._casts = casts
        self._times_larger = times_larger
        self.missing_casts: dict[tuple[DType, DType], None] = {}
        self.used_casts: set[tuple[DType, DType]] = set()
        self._layout_keys: dict[tuple[int, int], tuple[object, object, bool]] = {}
        self._numbers: dict[object, int] = {}
        self._geometries: dict[tuple[object, ...], _Counted] = {}

    def pair(
        self, name: str, src: TensorSpec, src_part: Part, dst: TensorSpec, dst_part: Part
    ) -> TensorPair:
        wire = src.dtype
        if src.dtype is not dst.dtype:
            wire = self._wire_dtype(src.dtype, dst.dtype)
        keys = self._layout_keys.get((id(src.layout), id(dst.layout)))
        if keys is None:
            keys = self._add_layouts(src.layout, dst.layout)
        change = change_of(src_part.elementwise, dst_part.elementwise)
        key = (*keys, src.shape, src_part.form, dst.shape, dst_part.form, wire, change)
        found = self._geometries.get(key)
        if found is None:
            space = make_logical_space(src_part.resolve(src.shape), dst_part.resolve(dst.shape))
            geometry = Geometry(
                space,
                Side(src.shape, src.layout, space.src_rows),
                Side(dst.shape, dst.layout, space.dst_rows),
                wire.itemsize * self._times_larger,
                keys[2],
            )
            found = self._geometries[key] = _Counted(geometry, len(self._geometries))
        found.count += 1
        return TensorPair(name, src, dst, found.geometry, wire, found.count, change)

    def _add_layouts(self, src: AnyLayout, dst: AnyLayout) -> tuple[object, object, bool]:
        """Returns a key of two layouts: their patterns; themselves if a rank is on both sides."""
        is_disjoint = set(src.ranks).isdisjoint(dst.ranks)
        keys = (src.pattern, dst.pattern) if is_disjoint else (src, dst)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in keys]
        found = self._layout_keys[id(src), id(dst)] = numbers[0], numbers[1], is_disjoint
        return found

    def _wire_dtype(self, src: DType, dst: DType) -> DType:
        if not src.can_cast_to(dst):
            raise PlanError(
                f"{src} cannot be cast to {dst}: casts exist between float16, bfloat16, float32 "
                "and float64, and from them to float8_e4m3fn and float8_e5m2 and back. Store it "
                "alike on both sides."
            )
        if (src, dst) not in self._casts:
            self.missing_casts[src, dst] = None
            raise PlanError(
                f"source is {src}, destination is {dst}, and no cast rule says to convert. "
                f"Store both alike, or pass casts=[({str(src)!r}, {str(dst)!r})]."
            )
        self.used_casts.add((src, dst))
        return dst if dst.itemsize < src.itemsize else src

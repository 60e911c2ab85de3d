"""What is wrong with a plan, or odd enough to look at before a cluster is used for it.

Pure: findings follow from specs, layouts and the plan alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from reshard.box_sets import some_meet
from reshard.errors import PlanError
from reshard.finding import Finding, Severity
from reshard.imbalance import imbalances
from reshard.lint_time import far_from_floor, staging
from reshard.logical_space import Side, pieces_of_rank
from reshard.matching import Casts, Matching, find_pairs
from reshard.plan_summary import kind_of_name
from reshard.plan_text import counted, format_bytes
from reshard.tensor_spec import TensorSpec
from reshard.unevenness import uneven_dims

if TYPE_CHECKING:
    from reshard.plan import Plan

__all__ = ["SMALL_MESSAGE_BYTES", "lint", "lint_names", "lint_specs"]

SMALL_MESSAGE_BYTES: Final = 64 << 10
"""Below this, a message costs as much as its latency."""

_WORST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "note")


def lint_specs(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts = (),
    allow_unmatched: Iterable[str] = (),
) -> list[Finding]:
    """Returns everything that keeps two sides from pairing up, and rules that have no use.

    Names without a partner come one by one, tensors that are refused for one reason together.

    Args:
        src_specs, dst_specs, casts, allow_unmatched: as `make_plan` takes them.

    Raises:
        PlanError: if a side is not a list of specs. LayoutError: if `casts` are not pairs.
    """
    found = find_pairs(src_specs, dst_specs, casts=casts, allow_unmatched=allow_unmatched)
    findings = [Finding("error", "mismatch", *each) for each in _grouped(found.problems)]
    findings += [
        Finding(
            "error",
            "uncovered",
            name,
            "no source holds this destination tensor. Check the forms and names of the source, or "
            "allow the name to stay as it is.",
        )
        for name in found.uncovered
    ]
    findings += [
        Finding(
            "error",
            "unused",
            name,
            "no destination takes this source tensor. Check the forms and names of the "
            "destination, or allow the name to stay behind.",
        )
        for name in found.unused
    ]
    if not (findings or found.pairs):
        findings = [Finding("error", "mismatch", "", "there is no tensor to move.")]
    return [*findings, *_idle(found)]


def _idle(found: Matching) -> Iterator[Finding]:
    """Rules that were given and apply to nothing."""
    for src, dst in found.idle_casts:
        message = (
            "no tensor is stored so on the two sides, so this cast rule has no use. Check the "
            "types, or leave it out."
        )
        yield Finding("warning", "idle-rule", f"{src} to {dst}", message)
    for pattern in found.idle_patterns:
        message = (
            "no name without a partner matches this pattern, so it allows nothing. Check how it "
            "is written, or leave it out."
        )
        yield Finding("warning", "idle-rule", pattern, message)


def _grouped(problems: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each message once, with the first name that it is about and how many there are."""
    names: dict[str, list[str]] = {}
    for problem in problems:
        name, _, message = problem.partition(": ")
        names.setdefault(message, []).append(name)
    for message, group in names.items():
        more = counted(len(group) - 1, "tensor")
        also = f" The same holds for {more} like it." if len(group) > 1 else ""
        yield group[0], message + also


def lint_names(names: Iterable[str]) -> list[Finding]:
    """Returns findings on parameters that are replicated because no sharding rule knows them.

    Args:
        names: as `Model.unknown_names` has them.
    """
    return [
        Finding(
            "warning",
            "unknown-rule",
            kind,
            f"no sharding rule knows this name, so both sides replicate it "
            f"({counted(number, 'tensor')}). Name its rule in a model file (Model.to_json), or "
            "give layouts of your own.",
        )
        for kind, number in Counter(map(kind_of_name, names)).items()
    ]


def lint(plan: Plan) -> list[Finding]:
    """Returns what is wrong or odd in a plan, the worst first; plans every rank."""
    findings = [
        *_not_held(plan),
        *_repeated(plan),
        *_casts(plan),
        *_changed(plan),
        *_mixed(plan),
        *_padded(plan),
    ]
    if not any(finding.code == "not-held" for finding in findings):
        findings += [
            *_uneven(plan),
            *staging(plan),
            *_unbalanced(plan),
            *far_from_floor(plan),
            *_small(plan),
            *_relays(plan),
        ]
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def _not_held(plan: Plan) -> Iterator[Finding]:
    """Every kind whose source layout lacks elements that a destination stores."""
    problems: list[str] = []
    for kind in plan.planner.kinds:
        try:
            plan.planner.plan_of(kind)
        except PlanError as error:
            _, _, message = str(error).partition(": ")
            problems += [f"{plan.pairs[number].name}: {message}" for number in kind.numbers]
    for name, message in _grouped(problems):
        yield Finding("error", "not-held", name, message)


def _repeated(plan: Plan) -> Iterator[Finding]:
    """Elements that one rank stores several times, and names that are one storage."""
    texts = (
        "a source rank holds elements more than once (position {} of its layout is the first); "
        "they have to be equal, one of them is sent. Tensors like it: {}.",
        "a destination rank stores elements more than once (position {} of its layout is the "
        "first), and every copy is written. Tensors like it: {}.",
    )
    for is_dst, text in enumerate(texts):
        seen: dict[int, int | None] = {}
        kinds: dict[str, tuple[int, int]] = {}
        for pair in plan.pairs:
            geometry = pair.geometry
            if id(geometry) not in seen:
                side = geometry.dst if is_dst else geometry.src
                seen[id(geometry)] = _first_repeat(side, len(geometry.space.shape))
            position = seen[id(geometry)]
            if position is not None:
                kind = kind_of_name(pair.name)
                kinds[kind] = position, kinds.get(kind, (0, 0))[1] + 1
        for kind, (position, number) in kinds.items():
            yield Finding("note", "aliasing", kind, text.format(position, number))
    for spec in {id(pair.dst): pair.dst for pair in plan.pairs}.values():
        for part in spec.parts:
            if part.aliases:
                names = ", ".join(part.aliases)
                message = f"{names} is the same storage as this; it moves once."
                yield Finding("note", "aliasing", part.name, message)


def _first_repeat(side: Side, ndim: int) -> int | None:
    """Returns the position of the first rank that stores an element twice, or None."""
    for position, rank in enumerate(side.layout.ranks):
        pieces = pieces_of_rank(side, ndim, rank)
        if some_meet([(piece.start, piece.stop) for piece in pieces]):
            return position
    return None


def _casts(plan: Plan) -> Iterator[Finding]:
    numbers = Counter((pair.src.dtype, pair.dst.dtype) for pair in plan.pairs)
    for (src, dst), number in numbers.items():
        if src is dst:
            continue
        is_narrowing = dst.itemsize < src.itemsize or src.itemsize == dst.itemsize
        yield Finding(
            "warning" if is_narrowing else "note",
            "narrowing" if is_narrowing else "widening",
            f"{src} to {dst}",
            f"a cast rule has {counted(number, 'tensor')} lose precision or range before the wire. "
            "Store both sides alike if that is not wanted."
            if is_narrowing
            else f"the destination widens {counted(number, 'tensor')} that it receives as {src}.",
        )


def _changed(plan: Plan) -> Iterator[Finding]:
    """Changes of values, by kind of tensor."""
    changed = [(kind_of_name(pair.name), pair.change) for pair in plan.pairs if pair.change]
    for (kind, change), number in Counter(changed).items():
        has_one_rule = change.src.is_identity or change.dst.is_identity
        yield Finding(
            "note" if has_one_rule else "warning",
            "elementwise",
            kind,
            f"a value x that the source stores becomes {change} at the destination. Tensors like "
            f"it: {number}."
            if has_one_rule
            else f"both sides have a rule for values, and they differ: a value x that the source "
            f"stores becomes {change} at the destination. Equal rules cancel; check that both "
            f"have their constants rounded alike. Tensors like it: {number}.",
        )


def _mixed(plan: Plan) -> Iterator[Finding]:
    """Kinds of tensors that differ in type from layer to layer."""
    dtypes: dict[str, Counter[str]] = {}
    for pair in plan.pairs:
        dtypes.setdefault(kind_of_name(pair.name), Counter())[str(pair.src.dtype)] += 1
    for name, counts in dtypes.items():
        if len(counts) > 1:
            listed = " and ".join(f"{dtype} in {n}" for dtype, n in counts.most_common())
            yield Finding(
                "warning",
                "mixed-dtypes",
                name,
                f"the source stores {listed}. Check that this is what the model wants.",
            )


def _padded(plan: Plan) -> Iterator[Finding]:
    for side in ("source", "destination"):
        specs = {id(s): s for s in (p.src if side == "source" else p.dst for p in plan.pairs)}
        for spec in specs.values():
            gaps = spec.uncovered()
            if gaps:
                nbytes = sum(gap.num_elements for gap in gaps) * spec.dtype.itemsize
                done = {"keep": "left alone", "zero": "set to zero", "refuse": "refused"}
                yield Finding(
                    "note",
                    "padding",
                    spec.name,
                    f"{format_bytes(nbytes)} of the {side}'s {list(spec.shape)} are padding, such "
                    f"as {gaps[0]}"
                    + (f"; a refit has them {done[spec.padding]}." if side[0] == "d" else "."),
                )


def _uneven(plan: Plan) -> Iterator[Finding]:
    """Dims that do not divide evenly, by kind of tensor."""
    sides = (
        ("source", [pair.src for pair in plan.pairs]),
        ("destination", [pair.dst for pair in plan.pairs]),
    )
    for side, specs in sides:
        distinct = {id(spec): spec for spec in specs}.values()
        found = [(kind_of_name(spec.name), each) for spec, each in uneven_dims(distinct)]
        for (kind, each), number in Counter(found).items():
            empty = f"; {each.num_empty} are empty" if each.num_empty else ""
            yield Finding(
                "note",
                "uneven",
                kind,
                f"the {side} cuts the {each.length} indices of dim {each.dim} into "
                f"{each.num_parts} parts, which does not divide: the largest share is "
                f"{each.largest}, the smallest {each.smallest} ({each.division}){empty}. Tensors "
                f"like it: {number}.",
            )


def _unbalanced(plan: Plan) -> Iterator[Finding]:
    for found in imbalances(plan):
        is_source = found.side == "source"
        verb = "sends" if is_source else "receives"
        reason = (
            "It also stores that much more, so the layouts are uneven."
            if found.is_of_layout
            else "It stores no more than they do, but more is wanted of what it alone holds."
            if is_source
            else "It stores no more than they do, but held less of it before."
        )
        yield Finding(
            "note" if found.is_of_layout else "warning",
            "imbalance",
            f"rank {found.rank}",
            f"{found.side} rank {found.rank} {verb} {format_bytes(found.nbytes)}, "
            f"{found.ratio:.2f} times the mean of the {found.num_ranks} ranks that hold the same "
            f"tensors. {reason}",
        )


def _small(plan: Plan) -> Iterator[Finding]:
    streams = plan.stream_bytes()
    small = [nbytes for nbytes in streams.values() if nbytes < SMALL_MESSAGE_BYTES]
    if small:
        yield Finding(
            "warning" if 2 * len(small) > len(streams) else "note",
            "small-messages",
            "",
            f"{len(small)} of {len(streams)} streams between two ranks are below "
            f"{format_bytes(SMALL_MESSAGE_BYTES)} (the least is {format_bytes(min(small))}); they "
            "cost as much as their latency. Fewer destination replicas or coarser cuts make larger "
            "ones."
            + (
                ""
                if plan.topology is not None
                else " This is without a topology; with one, domains take in each byte once, so "
                "that others send to others."
            ),
        )


def _relays(plan: Plan) -> Iterator[Finding]:
    if plan.num_hops > 1:
        yield Finding(
            "note",
            "relays",
            "",
            f"destination ranks pass on what they received, in {plan.num_hops} hops, as refits "
            "between GPUs do; those of host memory serve everybody from holders.",
        )

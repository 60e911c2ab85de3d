"""Which boxes of a tensor each rank holds, and where they lie in the rank's local array.

Two kinds: `Layout` states a mesh with one placement per axis; `BoxLayout` lists boxes per rank.
`SegmentedLayout` (in `segmented_layout`) joins layouts along one dim. All answer the same
questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol, overload

from reshard.box import Box
from reshard.division import Cut, Division, Run, check_division, cut_dim
from reshard.errors import LayoutError
from reshard.local_boxes import BoxesLike, LocalBox, check_places, read_boxes, read_rank
from reshard.mesh import Mesh
from reshard.placement import Placement, Replicate, Shard, check_placement, is_foreign

__all__ = ["AnyLayout", "BoxLayout", "Layout", "LocalBox"]


class AnyLayout(Protocol):
    """What every layout answers; `shape` is always the global shape of the stored tensor."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that may hold elements, in the order of the layout."""

    @property
    def pattern(self) -> object:
        """What the layout is apart from rank numbers; equal patterns differ in `ranks` only."""

    def position(self, rank: int) -> int | None:
        """Returns the index of a rank in `ranks`, or None."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises LayoutError if the layout does not fit a tensor of this shape."""

    def local_boxes(self, rank: int, shape: tuple[int, ...]) -> tuple[LocalBox, ...]:
        """Returns the non-empty boxes of a rank; none for a rank outside the layout."""

    def local_shape(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of the rank's local array; None for a rank outside the layout."""

    def shifted(self, offset: int) -> AnyLayout:
        """Returns the same layout with `offset` added to every rank."""


@dataclass(frozen=True, slots=True, init=False)
class Layout:
    """A mesh and, for each of its axes, what the axis does to the tensor.

    Args:
        mesh: axes over ranks.
        placements: one per mesh axis, `Replicate()` or `Shard(dim)`; several axes may cut one dim.
            A mesh of one axis may give its placement alone.
        order: names of all axes in the order in which they cut; it matters where two axes cut one
            dim, the earlier one then being the major one. Empty means the order of the mesh.
        division: how a dim that does not divide is cut: `chunk` (as torch), `balanced`, `even`.

    Raises:
        LayoutError: if the numbers do not fit. UnsupportedError: for partial sums.

    Example:
        >>> layout = Layout(Mesh.of(fsdp=2, tp=2), (Shard(0), Replicate()))
        >>> [str(layout.local_boxes(rank, (3, 8))[0].box) for rank in range(4)]
        ['[0:2, 0:8]', '[0:2, 0:8]', '[2:3, 0:8]', '[2:3, 0:8]']

    | rank | fsdp, tp | box of a (3, 8) tensor |
    |------|----------|------------------------|
    | 0    | 0, 0     | [0:2, 0:8]             |
    | 1    | 0, 1     | [0:2, 0:8]             |
    | 2    | 1, 0     | [2:3, 0:8]             |
    | 3    | 1, 1     | [2:3, 0:8]             |

    Source: torch 2.13 DTensor placements; JAX 0.10 PartitionSpec for `order` (`from_spec`).
    """

    mesh: Mesh
    placements: tuple[Placement, ...]
    order: tuple[str, ...]
    division: Division
    _axes: dict[int, tuple[int, ...]] = field(init=False, repr=False, compare=False, hash=False)
    _cuts: dict[int, tuple[Cut, ...]] = field(init=False, repr=False, compare=False, hash=False)

    def __init__(
        self,
        mesh: Mesh,
        placements: Placement | Iterable[Placement],
        order: Iterable[str] = (),
        division: Division = "chunk",
    ) -> None:
        object.__setattr__(self, "placements", _read_placements(mesh, placements))
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "order", _read_order(mesh, order))
        check_division(division)
        object.__setattr__(self, "division", str.__str__(division))
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Checks placements and order against the mesh, and keeps what cuts each dim."""
        for placement in self.placements:
            check_placement(placement)
        if len(self.placements) != len(self.mesh.shape):
            raise LayoutError(
                f"mesh {self.mesh} has {len(self.mesh.shape)} axes but {len(self.placements)} "
                f"placements were given: {self.placements}. Give one per axis."
            )
        if sorted(self.order) != sorted(self.mesh.axis_names):
            raise LayoutError(
                f"order {self.order} must name every axis of mesh {self.mesh} exactly once."
            )
        axes: dict[int, tuple[int, ...]] = {}
        cuts: dict[int, tuple[Cut, ...]] = {}
        for axis in map(self.mesh.axis_names.index, self.order):
            placement = self.placements[axis]
            if isinstance(placement, Shard):
                dim = placement.dim
                axes[dim] = (*axes.get(dim, ()), axis)
                cuts[dim] = (*cuts.get(dim, ()), (self.mesh.shape[axis], placement.blocks))
        object.__setattr__(self, "_axes", axes)
        object.__setattr__(self, "_cuts", cuts)

    @classmethod
    def replicated(cls, mesh: Mesh) -> Layout:
        """Returns the layout in which every rank of `mesh` holds the whole tensor."""
        return cls(mesh, (Replicate(),) * len(mesh.shape))

    @classmethod
    def from_spec(
        cls,
        mesh: Mesh,
        spec: Sequence[str | tuple[str, ...] | None],
        division: Division = "chunk",
    ) -> Layout:
        """Returns the layout of a JAX-style spec: per dim None, an axis name, or several names.

        Args:
            mesh: axes over ranks.
            spec: one entry per dim; missing trailing entries mean None. In a tuple of names the
                first is major: `("fsdp", "tp")` cuts by fsdp, then each part by tp.
            division: how a dim that does not divide is cut. JAX itself only has `even`.

        Raises:
            LayoutError: if a name is not an axis of the mesh or is used twice.
        """
        cutting = [
            (name, dim)
            for dim, entry in enumerate(spec)
            for name in ((entry,) if isinstance(entry, str) else entry or ())
        ]
        names = [name for name, _ in cutting]
        if len(set(names)) != len(names) or not set(names) <= set(mesh.axis_names):
            raise LayoutError(
                f"spec {tuple(spec)} must name axes of mesh {mesh}, each at most once."
            )
        dims = dict(cutting)
        placements = tuple(
            Shard(dims[name]) if name in dims else Replicate() for name in mesh.axis_names
        )
        rest = [name for name in mesh.axis_names if name not in dims]
        return cls(mesh, placements, tuple(names + rest), division)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the mesh, in mesh order."""
        return self.mesh.ranks

    @property
    def pattern(self) -> object:
        """Mesh shape, placements, order of axes and division."""
        order = tuple(self.mesh.axis_names.index(name) for name in self.order)
        return self.mesh.shape, self.placements, order, self.division

    def position(self, rank: int) -> int | None:
        """Returns the row-major position of a rank in the mesh, or None."""
        return self.mesh.position(rank)

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        return Layout, (self.mesh, self.placements, self.order, self.division)

    def axes_of_dim(self, dim: int) -> tuple[int, ...]:
        """Returns the mesh axes that cut a tensor dim, major first."""
        return self._axes.get(dim, ())

    def cuts_of_dim(self, dim: int) -> tuple[Cut, ...]:
        """Returns (parts, blocks) of each axis that cuts a tensor dim, major first."""
        return self._cuts.get(dim, ())

    def runs_of_dim(self, dim: int, length: int) -> tuple[tuple[Run, ...], ...]:
        """Returns the runs of a dim for each part; parts count as in `division.cut_dim`."""
        return cut_dim(length, self.cuts_of_dim(dim), self.division)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises LayoutError if a placement cuts a dim that the tensor has not, or unevenly."""
        for placement in self.placements:
            if isinstance(placement, Shard) and placement.dim >= len(shape):
                raise LayoutError(
                    f"{placement} cuts dim {placement.dim} of a tensor of shape {shape}, which has "
                    f"{len(shape)} dims."
                )
        for dim in self._cuts:
            self.runs_of_dim(dim, shape[dim])

    def part_of_dim(self, dim: int, coordinate: tuple[int, ...]) -> int:
        """Returns which part of a dim the rank at a mesh coordinate holds."""
        part = 0
        for axis in self.axes_of_dim(dim):
            part = part * self.mesh.shape[axis] + coordinate[axis]
        return part

    def _local_runs(self, rank: int, shape: tuple[int, ...]) -> list[tuple[Run, ...]] | None:
        coordinate = self.mesh.coordinate(rank)
        if coordinate is None:
            return None
        return [
            self.runs_of_dim(dim, length)[self.part_of_dim(dim, coordinate)]
            for dim, length in enumerate(shape)
        ]

    def local_boxes(self, rank: int, shape: tuple[int, ...]) -> tuple[LocalBox, ...]:
        """Returns the non-empty boxes of a rank, in local memory order."""
        runs = self._local_runs(rank, shape)
        if runs is None:
            return ()
        placed = []
        for dim_runs in runs:
            position, entries = 0, []
            for start, stop in dim_runs:
                entries.append((start, stop - start, position))
                position += stop - start
            placed.append(entries)
        return tuple(
            LocalBox(
                Box(tuple(e[0] for e in entries), tuple(e[1] for e in entries)),
                tuple(e[2] for e in entries),
            )
            for entries in product(*placed)
        )

    def local_shape(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of the rank's local array; None for a rank outside the mesh."""
        runs = self._local_runs(rank, shape)
        if runs is None:
            return None
        return tuple(sum(stop - start for start, stop in dim_runs) for dim_runs in runs)

    def shifted(self, offset: int) -> Layout:
        """Returns the same layout with `offset` added to every rank."""
        return Layout(self.mesh.shifted(offset), self.placements, self.order, self.division)

    def __str__(self) -> str:
        text = ", ".join(
            f"{name}:{placement}"
            for name, placement in zip(self.mesh.axis_names, self.placements, strict=True)
        )
        return f"({text})@{self.mesh}"


def _read_placements(mesh: object, given: object) -> tuple[Placement, ...]:
    is_one = isinstance(given, Placement) or is_foreign(given)
    placements = (given,) if is_one else given
    if not isinstance(mesh, Mesh) or not isinstance(placements, Iterable):
        raise LayoutError(
            f"Layout({mesh!r}, {given!r}): give a Mesh and one placement per axis of it, as "
            "in Layout(Mesh.of(tp=2), (Shard(0),))."
        )
    return tuple(placements)


def _read_order(mesh: Mesh, given: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(map(str.__str__, given)) or mesh.axis_names
    except TypeError:
        raise LayoutError(
            f"order {given!r} must name every axis of mesh {mesh} exactly once."
        ) from None


@dataclass(frozen=True, slots=True, init=False)
class BoxLayout:
    """Explicit boxes per rank: uneven, ragged, duplicated or sparse ownership.

    Args:
        entries: (rank, its boxes with their places in its local array), in any order of ranks; a
            mapping is accepted. A rank with one box may give the `Box` alone: its local array is
            then exactly that box. Several boxes need `LocalBox`es, or `concatenated`.

    Raises:
        LayoutError: if a rank is no whole number from 0 or comes twice, or boxes of a rank have no
            places or share elements.
    """

    entries: tuple[tuple[int, tuple[LocalBox, ...]], ...]

    @overload
    def __init__(self, entries: Mapping[int, BoxesLike]) -> None: ...
    @overload
    def __init__(self, entries: Iterable[tuple[int, BoxesLike]]) -> None: ...
    def __init__(self, entries: Mapping[int, BoxesLike] | Iterable[tuple[int, BoxesLike]]) -> None:
        given = entries.items() if isinstance(entries, Mapping) else entries
        try:
            listed = [(read_rank(rank), boxes) for rank, boxes in given]
        except (TypeError, ValueError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError(
                f"BoxLayout({entries!r}): give the boxes of each rank, as in "
                "BoxLayout({0: Box((0, 0), (2, 4)), 1: Box((2, 0), (3, 4))})."
            ) from None
        normal = [(rank, read_boxes(rank, boxes)) for rank, boxes in listed]
        object.__setattr__(self, "entries", tuple(sorted(normal, key=lambda entry: entry[0])))
        if len(dict(self.entries)) != len(self.entries):
            raise LayoutError(f"boxes for one rank are given twice: {[r for r, _ in normal]}.")
        for rank, local_boxes in self.entries:
            check_places(rank, local_boxes)

    @classmethod
    def concatenated(cls, boxes: Mapping[int, Sequence[Box]], dim: int) -> BoxLayout:
        """Returns a layout whose ranks store their boxes one after the other along `dim`.

        Raises:
            LayoutError: if a box has no such dim.
        """
        entries = []
        for rank, rank_boxes in boxes.items():
            position, places = 0, []
            for box in rank_boxes:
                if not hasattr(dim, "__index__") or dim not in range(box.ndim):
                    raise LayoutError(
                        f"rank {rank}: box {box} has {box.ndim} dims, counted from 0; boxes cannot "
                        f"lie one after the other along dim {dim!r}."
                    )
                offset = tuple(position if d == dim else 0 for d in range(box.ndim))
                places.append(LocalBox(box, offset))
                position += box.shape[dim]
            entries.append((rank, tuple(places)))
        return cls(tuple(entries))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The listed ranks, ascending."""
        return tuple(rank for rank, _ in self.entries)

    @property
    def pattern(self) -> object:
        """The layout itself: boxes are told apart by rank."""
        return self

    def position(self, rank: int) -> int | None:
        """Returns the index of a rank among the listed ones, or None."""
        ranks = self.ranks
        return ranks.index(rank) if rank in ranks else None

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises LayoutError if a box reaches outside the tensor."""
        whole = Box((0,) * len(shape), shape)
        for rank, local_boxes in self.entries:
            for box, _ in local_boxes:
                if box.ndim != len(shape) or not whole.contains(box):
                    raise LayoutError(
                        f"rank {rank}: box {box} is not inside the tensor of shape {shape}."
                    )

    def local_boxes(self, rank: int, shape: tuple[int, ...]) -> tuple[LocalBox, ...]:
        """Returns the non-empty boxes of a rank, in the given order."""
        local_boxes = dict(self.entries).get(rank, ())
        return tuple(local_box for local_box in local_boxes if not local_box.box.is_empty)

    def local_shape(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the smallest local array that has room for the rank's boxes."""
        local_boxes = dict(self.entries).get(rank)
        if local_boxes is None:
            return None
        return tuple(
            max((at[dim] + box.shape[dim] for box, at in local_boxes), default=0)
            for dim in range(len(shape))
        )

    def shifted(self, offset: int) -> BoxLayout:
        """Returns the same layout with `offset` added to every rank."""
        return BoxLayout(tuple((rank + offset, boxes) for rank, boxes in self.entries))

    def __str__(self) -> str:
        count = sum(len(boxes) for _, boxes in self.entries)
        return f"{count} boxes on {len(self.entries)} ranks"

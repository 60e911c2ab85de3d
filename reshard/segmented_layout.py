"""A tensor fused from segments, each of which is laid out by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reshard.box import Box, whole_numbers
from reshard.errors import LayoutError
from reshard.layout import AnyLayout, LocalBox

__all__ = ["SegmentedLayout"]


@dataclass(frozen=True, slots=True, init=False)
class SegmentedLayout:
    """Segments joined along one dim; every rank joins its local parts of them in the same order.

    The stored tensor is the join of the whole segments, `[q; k; v]`; rank r's local array is the
    join of its parts, `[q_r; k_r; v_r]`, so the place of a part follows from the sizes before it.

    Args:
        dim: the dim along which segments are joined.
        lengths: length of each segment along `dim`, in stored elements.
        layouts: layout of each segment, over the same ranks in the same order.

    Raises:
        LayoutError: if a number is negative or not whole, counts differ, or the layouts are over
            different ranks.

    Example:
        >>> from reshard.layout import Layout
        >>> from reshard.mesh import Mesh
        >>> from reshard.placement import Shard
        >>> tp = Layout(Mesh.of(tp=2), (Shard(0),))
        >>> gate_up = SegmentedLayout(0, (4, 4), (tp, tp))
        >>> [(str(box), at) for box, at in gate_up.local_boxes(1, (8, 3))]
        [('[2:4, 0:3]', (0, 0)), ('[6:8, 0:3]', (2, 0))]

    Source: fused parameters of vLLM (`qkv_proj`, `gate_up_proj`) and Megatron (`linear_fc1`).
    """

    dim: int
    lengths: tuple[int, ...]
    layouts: tuple[AnyLayout, ...]

    def __init__(self, dim: int, lengths: Iterable[int], layouts: Iterable[AnyLayout]) -> None:
        try:
            object.__setattr__(self, "dim", whole_numbers((dim,))[0])
            object.__setattr__(self, "lengths", whole_numbers(lengths))
            object.__setattr__(self, "layouts", tuple(layouts))
        except TypeError:
            raise LayoutError(
                f"SegmentedLayout({dim!r}, {lengths!r}, {layouts!r}): give a dim, the length of "
                "each segment along it, and as many layouts."
            ) from None
        if min(self.dim, *self.lengths, 0) < 0:
            raise LayoutError(
                f"segments of lengths {self.lengths} along dim {self.dim}: negative number. Count "
                "dims from 0, and give the length of each segment in stored elements."
            )
        if len(self.lengths) != len(self.layouts) or not self.layouts:
            raise LayoutError(
                f"{len(self.lengths)} segment lengths and {len(self.layouts)} layouts; "
                "give one layout per segment, at least one."
            )
        for layout in self.layouts:
            if not hasattr(layout, "local_boxes"):
                raise LayoutError(f"segment layout {layout!r} is not a Layout or BoxLayout.")
        ranks = {layout.ranks for layout in self.layouts}
        if len(ranks) != 1:
            raise LayoutError(
                f"segments are laid out over different ranks, or in another order: {sorted(ranks)}."
            )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the first segment's layout."""
        return self.layouts[0].ranks

    @property
    def pattern(self) -> object:
        """The patterns of the segments."""
        return self.dim, self.lengths, tuple(layout.pattern for layout in self.layouts)

    def position(self, rank: int) -> int | None:
        """Returns the index of a rank in `ranks`, or None."""
        return self.layouts[0].position(rank)

    @property
    def starts(self) -> tuple[int, ...]:
        """First index of each segment along `dim` in the stored tensor."""
        return tuple(sum(self.lengths[:i]) for i in range(len(self.lengths)))

    def segment_shape(self, index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of one whole segment."""
        return (*shape[: self.dim], self.lengths[index], *shape[self.dim + 1 :])

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises LayoutError if segments do not add up to the tensor, fit it, or join on a rank."""
        if self.dim >= len(shape) or sum(self.lengths) != shape[self.dim]:
            raise LayoutError(
                f"segments of lengths {self.lengths} along dim {self.dim} do not add up to the "
                f"tensor of shape {shape}."
            )
        for index, layout in enumerate(self.layouts):
            layout.check(self.segment_shape(index, shape))
        if any(layout != self.layouts[0] for layout in self.layouts):
            self._check_widths(shape)

    def _check_widths(self, shape: tuple[int, ...]) -> None:
        """Raises LayoutError if the parts of a rank differ in the dims that are not joined."""
        for rank in self.ranks:
            widths: dict[tuple[int, ...], int] = {}
            for index, layout in enumerate(self.layouts):
                local = layout.local_shape(rank, self.segment_shape(index, shape)) or (0,)
                if 0 not in local:
                    widths.setdefault((*local[: self.dim], *local[self.dim + 1 :]), index)
            if len(widths) > 1:
                (one, first), (other, second) = list(widths.items())[:2]
                raise LayoutError(
                    f"rank {rank}: its parts of segments {first} and {second} are {list(one)} and "
                    f"{list(other)} wide in the dims other than {self.dim}, so they cannot be "
                    "joined. Cut all segments alike in these dims."
                )

    def local_start(self, index: int, rank: int, shape: tuple[int, ...]) -> int:
        """Returns where a segment's part begins in the local array of a rank, along `dim`."""
        start = 0
        for earlier in range(index):
            local = self.layouts[earlier].local_shape(rank, self.segment_shape(earlier, shape))
            start += local[self.dim] if local else 0
        return start

    def local_boxes(self, rank: int, shape: tuple[int, ...]) -> tuple[LocalBox, ...]:
        """Returns the non-empty boxes of a rank, segment by segment."""
        boxes = []
        for index, layout in enumerate(self.layouts):
            start = self.starts[index]
            local_start = self.local_start(index, rank, shape)
            for box, at in layout.local_boxes(rank, self.segment_shape(index, shape)):
                boxes.append(
                    LocalBox(
                        Box(self._moved(box.offset, start), box.shape), self._moved(at, local_start)
                    )
                )
        return tuple(boxes)

    def local_shape(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of the rank's local array; None for a rank outside the layouts."""
        last = len(self.layouts) - 1
        local = self.layouts[last].local_shape(rank, self.segment_shape(last, shape))
        if local is None:
            return None
        length = self.local_start(last, rank, shape) + local[self.dim]
        return (*local[: self.dim], length, *local[self.dim + 1 :])

    def shifted(self, offset: int) -> SegmentedLayout:
        """Returns the same layout with `offset` added to every rank."""
        layouts = tuple(layout.shifted(offset) for layout in self.layouts)
        return SegmentedLayout(self.dim, self.lengths, layouts)

    def _moved(self, index: tuple[int, ...], by: int) -> tuple[int, ...]:
        return tuple(n + by if dim == self.dim else n for dim, n in enumerate(index))

    def __str__(self) -> str:
        return " + ".join(str(layout) for layout in self.layouts)

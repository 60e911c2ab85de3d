"""Which elements of a rank's local array no canonical tensor covers."""

from __future__ import annotations

from reshard.box import Box
from reshard.tensor_spec import TensorSpec

__all__ = ["padding_regions"]


def padding_regions(spec: TensorSpec, rank: int) -> list[Box]:
    """Returns disjoint boxes, in local indices, of a rank's elements that no part covers."""
    uncovered = spec.uncovered()
    regions = []
    for box, at in spec.layout.local_boxes(rank, spec.shape):
        for gap in uncovered:
            common = box.intersect(gap)
            if common is not None:
                offset = tuple(
                    place + first - low
                    for place, first, low in zip(at, common.offset, box.offset, strict=True)
                )
                regions.append(Box(offset, common.shape))
    return regions

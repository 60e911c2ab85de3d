"""What a page's data says moves, added up transfer by transfer; the browser adds up likewise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reshard.page.page_data import PageData

__all__ = ["expand_runs", "names_in", "streams_of_tensors", "sums_of"]


def expand_runs(flat: list[int]) -> list[int]:
    """Returns ranks of flat (first, count) runs."""
    return [flat[i] + j for i in range(0, len(flat), 2) for j in range(flat[i + 1])]


def names_in(data: PageData) -> Iterator[tuple[str, dict, dict, int]]:
    """Yields (name, kind, group, index in the group) of every tensor."""
    for kind in data["kinds"]:
        for group in kind["groups"]:
            pieces = data["templates"][group["template"]].split("*")
            width = len(group["numbers"]) // len(group["turns"])
            for index in range(len(group["turns"])):
                if not width:
                    yield data["templates"][group["template"]], kind, group, index
                    continue
                numbers = group["numbers"][index * width : (index + 1) * width]
                name = pieces[0] + "".join(
                    f"{number}{piece}" for number, piece in zip(numbers, pieces[1:], strict=True)
                )
                yield name, kind, group, index


def streams_of_tensors(data: PageData) -> Iterator[tuple[str, int, int, int, int]]:
    """Yields (tensor, hop, sending rank, receiving rank, bytes), one tensor at a time."""
    ranks = [expand_runs(flat) for flat in data["rankLists"]]
    for name, kind, group, index in names_in(data):
        flow = data["flows"][kind["flow"]]
        turns = ["always"]
        if flow["period"] > 1:
            turns.append(str(group["turns"][index]))
        for turn in turns:
            streams = flow["turns"][turn]
            for hop, flat in streams["hops"].items():
                senders = ranks[kind["src"] if hop == "0" else kind["dst"]]
                itemsize = group["first" if hop == "0" else "later"]
                for i in range(0, len(flat), 3):
                    nbytes = streams["volumes"][flat[i + 2]] * itemsize
                    yield (
                        name,
                        int(hop),
                        senders[flat[i]],
                        ranks[kind["dst"]][flat[i + 1]],
                        nbytes,
                    )


def sums_of(data: PageData) -> Counter[tuple[int, int, int]]:
    """Returns bytes per (hop, sending rank, receiving rank), copies in place included."""
    sums: Counter[tuple[int, int, int]] = Counter()
    for _, hop, src, dst, nbytes in streams_of_tensors(data):
        sums[hop, src, dst] += nbytes
    return sums

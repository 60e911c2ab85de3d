"""Fields of a plan's document in the words that `reshard plan` has for them."""

from __future__ import annotations

from typing import Final

__all__ = ["words_of"]

_WORDS: Final = {
    "num_tensors": "tensors",
    "tensor_bytes": "bytes of the tensors",
    "src_ranks": "source ranks",
    "dst_ranks": "destination ranks",
    "num_hops": "hops",
    "num_geometries": "geometries",
    "wire_dtype": "type on the wire",
    "dtypes": "types",
    "elementwise": "changes of values",
    "moved_bytes": "moved between ranks",
    "crossing_bytes": "moved between domains",
    "forwarded_bytes": "forwarded by destinations",
    "copied_bytes": "copied in place",
    "topology.name": "topology",
    "topology.num_ranks": "ranks of the topology",
    "topology.num_domains": "domains",
    "planned.model": "model",
    "planned.to_model": "destination's model",
    "planned.from": "from",
    "planned.to": "to",
    "planned.is_colocated": "colocated",
    "planned.topology": "topology",
    "planned.casts": "casts",
    "planned.idle_casts": "casts without use",
    "planned.allow_unmatched": "allowed without a partner",
    "schedule.num_rounds": "rounds",
    "schedule.budget_bytes": "staging of each rank",
    "schedule.chunk_bytes": "bytes of a round",
    "schedule.staging_bytes": "staging on the busiest rank",
    "floor.seconds": "floor",
    "floor.reason": "what sets the floor",
    "floor.crossing_bytes": "at least between domains",
    "prediction.seconds": "predicted time",
    "prediction.share_of_floor": "floor by predicted time",
    "prediction.busiest": "what is busiest",
    "prediction.busy_seconds": "time that it is busy",
    "prediction.num_rounds": "rounds of the prediction",
    "prediction.num_slots": "slots of the prediction",
    "prediction.direct_seconds": "predicted time, holders alone",
    "prediction.gather_and_broadcast_seconds": "predicted time, gather and broadcast",
}
_ENDS: Final = {
    "total_bytes": "in all",
    "min_bytes": "least",
    "mean_bytes": "mean",
    "max_bytes": "most",
    "max_over_mean": "most / mean",
    "busiest_rank": "busiest rank",
    "busiest": "busiest",
    "busiest_bytes": "bytes of the busiest",
    "bytes_per_second": "rate of the busiest",
    "busy_seconds": "time of the busiest",
    "time_over_floor": "time / floor",
}


def words_of(field: str) -> str:
    """Returns a field, by its dotted name, in words; a field that is not known, by its name.

    Example:
        >>> words_of("sums.sent_by_sources.max_bytes")
        'sent by sources, most'
    """
    if field in _WORDS:
        return _WORDS[field]
    section, _, rest = field.partition(".")
    name, _, end = rest.partition(".")
    if section in ("sums", "links") and end in _ENDS:
        return f"{name.replace('_', ' ')}, {_ENDS[end]}"
    return field

"""What a parameter may be, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from reshard import DType, LayoutError
from reshard.parameter import Parameter


def test_values():
    parameter = Parameter("w", [4, 6], "bfloat16", "row", 3)
    assert parameter.shape == (4, 6)
    assert (parameter.num_elements, parameter.nbytes, parameter.is_expert) == (24, 48, False)
    assert eval(repr(parameter), {"Parameter": Parameter, "DType": DType}) == parameter
    assert pickle.loads(pickle.dumps(parameter)) == parameter


def test_an_expert_of_its_own_has_one_dim_less():
    stack = Parameter("e.experts.w", (8, 4, 6), "bfloat16", "expert_row", 0)
    one = Parameter("e.experts.1.w", (4, 6), "bfloat16", "expert_row", 0, expert=1, num_experts=8)
    assert stack.is_expert
    assert one.is_expert


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "is no text"),
        ({"name": ""}, "is no text"),
        ({"shape": 4}, "its shape is 4"),
        ({"shape": (4, -1)}, r"its shape is \(4, -1\)"),
        ({"shape": (4, 1.5)}, "its shape is"),
        ({"rule": "diagonal"}, "rule 'diagonal' is unknown"),
        ({"rule": "expert_row"}, "needs 3 dims or more"),
        ({"shape": (4,)}, "needs 2 dims or more"),
        ({"layer": -1}, "layer -1 is no layer"),
        ({"layer": "middle"}, "layer 'middle' is no layer"),
        ({"layer": True}, "layer True is no layer"),
        ({"num_kv_heads": 2}, "do not fit rule 'row'"),
        ({"rule": "kv", "num_kv_heads": 3}, "3 kv heads do not fit"),
        ({"rule": "kv", "num_kv_heads": 0}, "0 kv heads do not fit"),
        ({"expert": 1}, "expert 1 of None"),
        ({"expert": 1, "num_experts": 8}, "with rule 'row'"),
        ({"rule": "expert_row", "expert": 8, "num_experts": 8}, "index below the number"),
    ],
)
def test_refused(changes, message):
    given = {"name": "w", "shape": (4, 6), "dtype": "float32", "rule": "row", "layer": 0}
    Parameter(**given)
    with pytest.raises(LayoutError, match=message):
        Parameter(**{**given, **changes})

"""PyTorch adapter of reshard: DTensors, modules and plain tensors as source or destination.

Imports torch and nothing else than reshard's public names. Importing it initialises no process
group and no device.
"""

from __future__ import annotations

from reshard import Forms
from reshard_torch import models
from reshard_torch.buffers import buffer_of
from reshard_torch.destination import Destination
from reshard_torch.dtypes import dtype_of, torch_dtype_of
from reshard_torch.layout import layout_of
from reshard_torch.placed import Placed
from reshard_torch.redistribution import Redistribution, redistribute
from reshard_torch.source import Source
from reshard_torch.tensors import Tensors

__all__ = [
    "Destination",
    "Forms",
    "Placed",
    "Redistribution",
    "Source",
    "Tensors",
    "buffer_of",
    "dtype_of",
    "layout_of",
    "models",
    "redistribute",
    "torch_dtype_of",
]

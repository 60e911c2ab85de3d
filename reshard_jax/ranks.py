"""How devices are numbered.

The rank of a device is its position in `jax.devices(platform)`, the list of the devices of all
processes, which JAX gives in the same order to each of them. Device ids would not do: the two
devices of process 1 have ids 2048 and 2049 on CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax

from reshard import LayoutError
from reshard_jax.compat import devices_of, is_array, platform_of
from reshard_jax.tree import Leaves, NamedTree

__all__ = ["Ranks"]


class Ranks:
    """The devices of one platform, in all processes, and their ranks.

    Args:
        platform: such as "cpu"; asking for its devices initialises the backend.

    Attributes:
        devices: by rank.
        process, num_processes: this process among those of the JAX job.
    """

    def __init__(self, platform: str) -> None:
        self.devices = tuple(jax.devices(platform))
        self.process = jax.process_index(platform)
        self.num_processes = jax.process_count(platform)
        self._numbers = {device: rank for rank, device in enumerate(self.devices)}

    @classmethod
    def of_leaves(cls, leaves: Iterable[object]) -> Ranks:
        """Returns the ranks of the platform on which the largest leaf is, JAX's default if none is.

        Args:
            leaves: of any kind; only arrays and `jax.ShapeDtypeStruct`s on devices count.
        """
        platform, most = jax.default_backend(), -1
        for leaf in leaves:
            if is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
                devices = devices_of(leaf.sharding)
                if devices and leaf.size > most:
                    platform, most = platform_of(next(iter(devices))), leaf.size
        return cls(platform)

    @classmethod
    def of_tree(cls, tree: object, leaves: Leaves | None) -> Ranks:
        """Returns the ranks of the platform of the weights of a tree.

        A tree that cannot be read counts as one without weights: what is wrong with it is said when
        it is described.
        """
        try:
            values = NamedTree(tree, leaves).values
        except LayoutError:
            values = ()
        return cls.of_leaves(values)

    @property
    def size(self) -> int:
        """Number of devices of all processes."""
        return len(self.devices)

    @property
    def of_processes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each process."""
        own = [device.process_index for device in self.devices]
        return tuple(
            tuple(rank for rank, owner in enumerate(own) if owner == process)
            for process in range(self.num_processes)
        )

    @property
    def local(self) -> tuple[int, ...]:
        """The ranks whose memory this process has."""
        return self.of_processes[self.process]

    def of(self, device: jax.Device) -> int:
        """Returns the rank of a device.

        Raises:
            LayoutError: if it is not one of the running job, such as a device of a topology
                description.
        """
        rank = self._numbers.get(device)
        if rank is None:
            raise LayoutError(
                f"device {device} is not one of the {self.size} devices of this job. All weights "
                "must lie on devices of one platform; pass those of other platforms separately."
            )
        return rank

    def __repr__(self) -> str:
        return (
            f"<{self.size} ranks, of which {len(self.local)} in process {self.process} of "
            f"{self.num_processes}>"
        )

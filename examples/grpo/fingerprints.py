"""Whether trainer and engine hold the same values, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping

from messages import Refitted


class FingerprintError(RuntimeError):
    """Trainer and engine hold different values after a refit."""


def compare_fingerprints(
    version: int, trainer_side: Mapping[str, int], engine_side: Refitted
) -> None:
    """Compares the fingerprint of every tensor on both sides.

    Raises:
        FingerprintError: They differ, or the versions or the names do.
    """
    if engine_side.version != version:
        message = f"the trainer published version {version}, the engine has {engine_side.version}"
        raise FingerprintError(message)
    names = trainer_side.keys() | engine_side.fingerprints.keys()
    different = sorted(
        name for name in names if trainer_side.get(name) != engine_side.fingerprints.get(name)
    )
    if different or not names:
        message = (
            f"version {version}: {len(different)} of {len(names)} tensors differ between trainer "
            f"and engine after the refit, the first: {', '.join(different[:5])}"
        )
        raise FingerprintError(message)

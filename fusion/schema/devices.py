"""Where fused ops can run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Devices:
    """Types of devices, such as "CPU".

    Attributes:
        types: those for which ops that stand for whole lookups have kernels.
        home: the one that such an op is put on where no node says otherwise.
    """

    types: frozenset[str] = frozenset({"CPU"})
    home: str = "CPU"


CPU_ALONE = Devices()

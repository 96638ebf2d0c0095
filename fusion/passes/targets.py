"""What lookups are rewritten to, and the pass for it."""

from __future__ import annotations

from enum import Enum

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lookup_pass import LookupPass
from fusion.passes.lower_lookups import LowerLookups


class Target(Enum):
    """What lookups are rewritten to."""

    FUSED = "fused"
    """Ops of this package."""
    STOCK = "stock"
    """Stock ops alone: any TensorFlow runs them."""


def checked_target(function: str, target: str) -> Target:
    """Returns the target of a name.

    Raises:
        ValueError: there is none of it, naming the public `function`.
    """
    names = [known.value for known in Target]
    if target not in names:
        raise ValueError(f"{function}: target must be one of {', '.join(names)}, got {target!r}")
    return Target(target)


PASSES: dict[Target, type[LookupPass]] = {Target.FUSED: FuseLookups, Target.STOCK: LowerLookups}

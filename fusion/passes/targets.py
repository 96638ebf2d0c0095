"""What lookups are rewritten to, and the pass for it."""

from __future__ import annotations

from enum import Enum

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.runtime_ops import running_release
from fusion.passes.lookup_pass import LookupPass
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.op_history import OLDEST, Release


class Target(Enum):
    """What lookups are rewritten to."""

    FUSED = "fused"
    """Ops of this package."""
    STOCK = "stock"
    """Stock ops alone, of those that a TensorFlow release has."""


def checked_target(function: str, target: str) -> Target:
    """Returns the target of a name.

    Raises:
        ValueError: there is none of it, naming the public `function`.
    """
    names = [known.value for known in Target]
    if target not in names:
        raise ValueError(f"{function}: target must be one of {', '.join(names)}, got {target!r}")
    return Target(target)


def checked_runtime(function: str, runtime: str | None, target: Target) -> Release | None:
    """Returns the TensorFlow release that an argument `runtime` names; None if there is none.

    Raises:
        ValueError: it is no version of TensorFlow, one older than all that is known or newer than
            the one that is installed, or the target is not "stock"; naming the public `function`.
    """
    if runtime is None:
        return None
    if target is not Target.STOCK:
        raise ValueError(
            f"{function}: runtime is for target 'stock', got {runtime!r} with target "
            f"{target.value!r}"
        )
    try:
        release = Release.parse(runtime)
    except ValueError:
        release = None
    newest = running_release()
    if release is None or not OLDEST <= release <= newest:
        raise ValueError(
            f"{function}: runtime must be a version of TensorFlow such as 2.4 or 2.15.1, from "
            f"{OLDEST} to the {newest} that is installed, got {runtime!r}"
        )
    return release


PASSES: dict[Target, type[LookupPass]] = {Target.FUSED: FuseLookups, Target.STOCK: LowerLookups}

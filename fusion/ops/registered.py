"""All fused ops: importing this module registers them with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusion.ops.bags.specs import (
    partition,
    post_lookup,
    post_lookup_v1,
    pre_lookup,
    prune,
    prune_dense,
    unique,
)
from fusion.ops.base import probe
from fusion.ops.columns.specs import gathers, keyed, lookup, training
from fusion.ops.examples import specs as examples
from fusion.ops.ids import specs as ids
from fusion.ops.stores import specs as stores
from fusion.ops.tables import specs as tables
from fusion.ops.updates import specs as updates
from fusion.runtime.cuda.launcher import Gpus
from fusion.runtime.registration.registration import register
from fusion.runtime.registration.wrapper import make_wrappers
from fusion.runtime.tensorflow.cluster import Workers
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.devices import CPU_ALONE, Devices
from fusion.schema.names import OP_NAMES

_MODULES = (
    *(pre_lookup, post_lookup_v1, prune, prune_dense, unique, partition, post_lookup),
    *(lookup, training, keyed, gathers),
    *(updates, tables, stores, examples, ids),
)
_BY_NAME = {
    spec.name: spec
    for module in _MODULES
    for spec in vars(module).values()
    if isinstance(spec, OpSpec)
}

#: Every op of this package.
SPECS: tuple[OpSpec, ...] = tuple(_BY_NAME[name] for name in OP_NAMES)

_has_gpus = not probe.why_not()

#: Where the ops can run in this process.
DEVICES = Devices(frozenset({"CPU", "GPU"}), "GPU") if _has_gpus else CPU_ALONE


def _find_gpus() -> Gpus:
    from fusion.gpu_ops.host.cuda_driver import Cuda

    return Cuda()


register(SPECS, _find_gpus if _has_gpus else None)

#: The Python function of each op, by its name in snake case.
FUNCTIONS: dict[str, Callable[..., Any]] = make_wrappers(SPECS, Workers().check)

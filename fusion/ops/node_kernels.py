"""The kernels that nodes ask for when they are first run, found without running anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from tensorflow.core.framework import node_def_pb2

from fusion.cpu_ops.row_tiles import most_elements
from fusion.ops import SPECS
from fusion.ops.update import block_kernel_address
from fusion.runtime.native import objects
from fusion.runtime.native.objects import Recipe
from fusion.runtime.optimizer import plugin
from fusion.runtime.registration import kernel_objects, op_functions, registration
from fusion.runtime.registration.creation import attr_value
from fusion.runtime.tensorflow.spec import Attr, OpSpec
from fusion.runtime.threads import pool
from fusion.schema.attributes import ROW_UPDATE_DTYPES
from fusion.schema.columns import LATER_LISTS

_SPECS = {spec.name: spec for spec in SPECS}

#: The dtype of tables for which the kernels of all dimensions are made, where no model is known.
_COMMON = "float32"


def of_nodes(nodes: Iterable[node_def_pb2.NodeDef]) -> dict[str, Recipe]:
    """How each kernel is made that nodes ask for on a CPU, and all that every process does.

    Nodes of other ops ask for none.

    Raises:
      ValueError: a node that could not run, by its attrs; the message names it.
    """
    with objects.asked_for() as wanted:
        _ask_for_common()
        for node in nodes:
            spec = _SPECS.get(node.op)
            if spec is None:
                continue
            try:
                values = {attr.name: attr_value(node, attr) for attr in spec.attrs}
                registration.node_state(spec, "CPU", values)
            except (ValueError, NotImplementedError) as error:
                raise ValueError(f"node {node.name!r} ({node.op}): {error}") from error
    return wanted


def of_all_ops() -> dict[str, Recipe]:
    """How each kernel on a CPU is made that does not depend on a model.

    These are those of all ops and dtypes, and of what depends on the dimension of tables, those
    of float32 tables without max_norm, whose rows are added as segment reductions do.
    """
    with objects.asked_for() as wanted:
        _ask_for_common()
        for spec in SPECS:
            for types in itertools.product(*spec.kernel_types.values()):
                chosen = {} if spec.custom else dict(zip(spec.kernel_types, types, strict=True))
                kernel_objects.kernel_address(spec, "CPU", chosen)
            if spec.custom is not None and "dims" in {attr.name for attr in spec.attrs}:
                for weighted in (False, True):
                    registration.node_state(spec, "CPU", _columns(spec, weighted))
        for dtype in ROW_UPDATE_DTYPES:
            block_kernel_address(dtype)
    return wanted


def _ask_for_common() -> None:
    op_functions.native_functions()
    plugin.native_optimizer()
    pool.serve_address()


def _columns(spec: OpSpec, weighted: bool) -> dict[str, Any]:
    """The attrs of a node with a column of each dimension for which kernels differ, and of any."""
    dims = [-1, *range(1, most_elements(_COMMON) + 2)]
    special = {"dims": dims, "use_sparse_weights": [weighted] * len(dims), "boundaries": []}
    return {
        "num_columns": len(dims),
        **{attr.name: _plain(attr, len(dims)) for attr in spec.attrs if attr.is_list},
        **{attr.name: [] for attr in spec.attrs if attr.name in LATER_LISTS},
        "T": _COMMON,
        **special,
    }


def _plain(attr: Attr, count: int) -> list[Any]:
    """A value of an attr that is a list, of so many items."""
    if attr.element == "type":
        return ["int64"] * count
    if attr.allowed:
        return [attr.allowed[0]] * count
    return [{"int": 0, "float": -1.0, "bool": False, "string": ""}[attr.element]] * count

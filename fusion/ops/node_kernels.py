"""The kernels that nodes ask for when they are first run, found without running anything."""

from __future__ import annotations

from collections.abc import Iterable

from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.cpu_ops.row_tiles import most_elements
from fusion.ops import SPECS
from fusion.ops.update import BLOCK_KERNELS
from fusion.runtime.native import objects
from fusion.runtime.native.objects import Recipe
from fusion.runtime.optimizer import plugin
from fusion.runtime.registration import creation, op_functions, op_kernels
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import Attr, OpSpec
from fusion.runtime.threads import pool
from fusion.schema.columns import LATER_LISTS

#: The dtype of tables for which the kernels of all dimensions are made, where no model is known.
_COMMON = "float32"


def of_nodes(nodes: Iterable[node_def_pb2.NodeDef]) -> dict[str, Recipe]:
    """How each kernel is made that nodes ask for on a CPU, and all that every process does.

    Nodes of other ops ask for none.

    Raises:
      ValueError: a node that could not run, by its attrs; the message names it.
    """
    wanted = _common()
    for node in nodes:
        kernels_of = op_kernels.kernels_of(node.op)
        if kernels_of is None:
            continue
        try:
            needed = [creation.BUILDER, *kernels_of.needs(node)]
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"node {node.name!r}: {error}") from error
        wanted |= map(kernels_of.recipe, needed)
    return wanted


def of_all_ops() -> dict[str, Recipe]:
    """How each kernel on a CPU is made that does not depend on a model.

    These are those of all ops and dtypes, and of what depends on the dimension of tables, those
    of float32 tables without max_norm, whose rows are added as segment reductions do.
    """
    wanted = _common()
    for spec in SPECS:
        kernels_of = op_kernels.kernels_of(spec.name)
        assert kernels_of is not None
        wanted |= map(kernels_of.recipe, [creation.BUILDER, *range(len(kernels_of.bodies))])
        if "dims" in {attr.name for attr in spec.attrs}:
            for weighted in (False, True):
                needed = kernels_of.needs(_node_of_columns(spec, weighted))
                wanted |= map(kernels_of.recipe, needed)
    for index in range(BLOCK_KERNELS.count):
        name, compile_it = BLOCK_KERNELS.at(index)
        wanted[name] = Recipe(compile_it)
    return wanted


def _common() -> dict[str, Recipe]:
    """How that is made which every process loads."""
    with objects.asked_for() as wanted:
        op_functions.native_functions()
        plugin.native_optimizer()
        pool.serve_address()
    return wanted


def _node_of_columns(spec: OpSpec, weighted: bool) -> node_def_pb2.NodeDef:
    """A node with a column of each dimension for which kernels differ, and of any."""
    node = node_def_pb2.NodeDef(name=spec.name, op=spec.name)
    dims = [-1, *range(1, most_elements(_COMMON) + 2)]
    for attr in spec.attrs:
        if attr.is_list and attr.name not in (*LATER_LISTS, "boundaries"):
            _put_plain(node.attr[attr.name].list, attr, len(dims))
        elif attr.is_list:
            node.attr[attr.name].list.SetInParent()
    node.attr["num_columns"].i = len(dims)
    node.attr["T"].type = DTYPES[_COMMON].enum
    node.attr["dims"].list.i[:] = dims
    node.attr["use_sparse_weights"].list.b[:] = [weighted] * len(dims)
    return node


def _put_plain(values: attr_value_pb2.AttrValue.ListValue, attr: Attr, count: int) -> None:
    """Lets an attr that is a list have so many items."""
    if attr.element == "type":
        values.type.extend([DTYPES["int64"].enum] * count)
    elif attr.element == "string":
        values.s.extend([(attr.allowed or ("",))[0].encode()] * count)
    else:
        field = {"int": values.i, "float": values.f, "bool": values.b}[attr.element]
        field.extend([-1.0 if attr.element == "float" else 0] * count)

"""The kernels that nodes need when they first run, without running them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.cpu_ops.row_tiles import max_elements
from fusion.ops.base.row_kernels import (
    GATHERS,
    SCATTERS,
    any_gathers,
    any_scatters,
    common_gathers,
    common_scatters,
)
from fusion.ops.registered import SPECS
from fusion.ops.updates.specs import BLOCK_KERNELS
from fusion.runtime.native import objects
from fusion.runtime.native.objects import Recipe
from fusion.runtime.optimizer import plugin
from fusion.runtime.registration import creation, op_functions, op_kernels
from fusion.runtime.registration.creation import FIRST_ROW_KERNEL
from fusion.runtime.registration.library.chosen import LIBRARY_VARIABLE
from fusion.runtime.registration.op_kernels import Kernels
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.spec import Attr, OpSpec, RowKernels
from fusion.runtime.threads import pool
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.schema.columns import COLUMN_ATTRS

#: The dtype of tables for which the kernels of all dimensions are made, where no model is known.
_COMMON = "float32"

#: The dtypes of most tables and ids.
_COMMON_TYPES = frozenset({_COMMON, "int64"})


#: The kernels of an op, and what of them, as `Kernels.recipe` takes it.
Place = tuple[Kernels, int]


def of_nodes(nodes: Iterable[node_def_pb2.NodeDef]) -> dict[str, Recipe]:
    """Recipes of the kernels that nodes need on a CPU, and of all that every process loads.

    Nodes of other ops ask for none.

    Raises:
      ValueError: a node that could not run, by its attrs; the message names it.
    """
    return _common() | dict(kernels_of.recipe(what) for kernels_of, what in places_of_nodes(nodes))


def of_all_ops() -> dict[str, Recipe]:
    """Recipes of the kernels on a CPU that do not depend on a model, see `places_of_all_ops`."""
    return _common() | dict(kernels_of.recipe(what) for kernels_of, what in places_of_all_ops())


def of_common_types() -> dict[str, Recipe]:
    """Recipes of the kernels on a CPU that most models need, see `places_of_common_types`."""
    places = places_of_common_types()
    return _common() | dict(kernels_of.recipe(what) for kernels_of, what in places)


def places_of_nodes(nodes: Iterable[node_def_pb2.NodeDef]) -> Iterator[Place]:
    """Yields the kernels that nodes need on a CPU.

    Raises:
      ValueError: a node that could not run, by its attrs; the message names it.
    """
    _require_compiler()
    for node in nodes:
        kernels_of = op_kernels.kernels_of(node.op)
        if kernels_of is None:
            continue
        try:
            needed = kernels_of.needs(node)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"node {node.name!r}: {error}") from error
        yield from ((kernels_of, what) for what in (creation.BUILDER, *needed))


def _require_compiler() -> None:
    """Refuses to look for kernels that are compiled where those of a library are taken.

    Raises:
      ValueError: this process takes them from a library.
    """
    if op_kernels.kernels_of(SPECS[0].name) is None:
        raise ValueError(
            "this process takes its kernels from a library of ops and compiles none; where "
            f"{LIBRARY_VARIABLE} is empty it compiles them"
        )


def places_of_all_ops() -> Iterator[Place]:
    """Yields the kernels on a CPU that do not depend on a model.

    These are those of all ops and dtypes, and of what depends on the dimension of tables, those
    of float32 tables without max_norm, whose rows are added as segment reductions do.
    """
    _require_compiler()
    for spec in SPECS:
        kernels_of = op_kernels.kernels_of(spec.name)
        assert kernels_of is not None
        needed = [creation.BUILDER, *range(len(kernels_of.bodies))]
        if {"dims", "use_sparse_weights"} <= {attr.name for attr in spec.attrs}:
            for weighted in (False, True):
                needed += kernels_of.needs(_node_of_columns(spec, weighted))
        if spec.builder is not None and spec.builder.is_per_dtype:
            for dtype, weighted in itertools.product(COMPUTED, (False, True)):
                needed += kernels_of.needs(node_of_bags(spec, dtype, weighted))
        if spec.builder is not None and spec.builder.row_kernels is BLOCK_KERNELS:
            needed += range(FIRST_ROW_KERNEL, FIRST_ROW_KERNEL + BLOCK_KERNELS.count)
        yield from ((kernels_of, what) for what in needed)


def places_of_common_types() -> Iterator[Place]:
    """Yields the kernels on a CPU that models of int64 ids and float32 tables need, whatever else.

    Of those for one dimension these are the ones for rows that are combined as stock lookups and
    layers do without limited norms.
    """
    _require_compiler()
    for spec in SPECS:
        kernels_of = op_kernels.kernels_of(spec.name)
        assert kernels_of is not None
        bodies = [k for k, types in enumerate(kernels_of.bodies) if _are_common(spec, types)]
        rows = [] if spec.builder is None else _common_rows(spec.builder.row_kernels)
        needed = [creation.BUILDER, *bodies, *(FIRST_ROW_KERNEL + index for index in rows)]
        yield from ((kernels_of, what) for what in needed)


def _are_common(spec: OpSpec, types: Mapping[str, str]) -> bool:
    """Whether dtypes are the most common ones of those that an op has."""
    return all(
        dtype in _COMMON_TYPES or _COMMON_TYPES.isdisjoint(spec.kernel_types[attr])
        for attr, dtype in types.items()
    )


def _common_rows(family: RowKernels | None) -> Iterable[int]:
    """The indices of row kernels for the most common rows."""
    if family is BLOCK_KERNELS:
        return [UPDATE_DTYPES.index(_COMMON)]
    makers = {GATHERS.name: common_gathers, SCATTERS.name: common_scatters}
    return [] if family is None else makers[family.name](_COMMON)


def places_of_any_dimension() -> Iterator[Place]:
    """Yields the row kernels for any dimension, which do where there is none for a node's own."""
    for spec in SPECS:
        kernels_of = op_kernels.kernels_of(spec.name)
        assert kernels_of is not None
        family = None if spec.builder is None else spec.builder.row_kernels
        indices = (
            any_gathers() if family is GATHERS else any_scatters() if family is SCATTERS else []
        )
        yield from ((kernels_of, FIRST_ROW_KERNEL + index) for index in indices)


def _common() -> dict[str, Recipe]:
    """Recipes of the objects that every process loads."""
    with objects.requested_recipes() as recipes:
        op_functions.native_functions()
        op_functions.registrar()
        op_functions.provider()
        plugin.native_optimizer()
        pool.counter_address()
        pool.serve_address()
    return recipes


def _node_of_columns(spec: OpSpec, weighted: bool) -> node_def_pb2.NodeDef:
    """A node with a column of each dimension for which kernels differ, and of any."""
    node = node_def_pb2.NodeDef(name=spec.name, op=spec.name)
    dims = [-1, *range(1, max_elements(_COMMON) + 2)]
    for attr in spec.attrs:
        if attr.is_list and attr.default is None and attr.name != "boundaries":
            _put_plain(node.attr[attr.name].list, attr, len(dims))
        elif attr.is_list:
            node.attr[attr.name].list.SetInParent()
    node.attr["num_columns"].i = len(dims)
    node.attr["T"].type = DTYPES[_COMMON].enum
    node.attr["dims"].list.i[:] = dims
    node.attr["use_sparse_weights"].list.b[:] = [weighted] * len(dims)
    if "num_keyed" in {attr.name for attr in spec.attrs}:  # which such an op has at least one of
        node.attr["num_keyed"].i = 1
        node.attr["keyed"].list.b[-1] = True
    return node


def node_of_bags(spec: OpSpec, dtype: str, weighted: bool) -> node_def_pb2.NodeDef:
    """A node that combines gathered rows of a dtype."""
    node = node_def_pb2.NodeDef(name=spec.name, op=spec.name)
    for name, attr in spec.types.items():
        node.attr[name].type = DTYPES[dtype if dtype in attr.allowed else attr.allowed[0]].enum
    node.attr["num_partitions"].i = 1
    node.attr["use_sparse_weights"].b = weighted
    return node


def _put_plain(values: attr_value_pb2.AttrValue.ListValue, attr: Attr, count: int) -> None:
    """Sets a list attr to plain values for so many items."""
    if attr.element == "type":
        values.type.extend([DTYPES["int64"].enum] * count)
    elif attr.element == "string":
        values.s.extend([(attr.allowed or ("",))[0].encode()] * count)
    else:
        field = {"int": values.i, "float": values.f, "bool": values.b}[attr.element]
        field.extend([COLUMN_ATTRS[attr.name].default if attr.name in COLUMN_ATTRS else 0] * count)

"""Lookups in packed tables in place of those in plain ones.

What a packed row is, `schema.row_formats` says. A table can be packed if all its consumers support
that: ops for whole lookups get its format as an attr, and a plain gather becomes such an op:

    ResourceGather  becomes  ReadEmbeddingTables -> FusedEmbeddingLookup(form="each") -> Reshape
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fusion.passes.analysis.handles import VARIABLE_OPS, Handles, Place
from fusion.passes.emit.arguments import set_column_attrs, unused, unused_number
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.calls import CALLS, callees
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.fused_columns import grouped_columns, only_column
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.reach import reached
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, Tensor, Use
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.schema.attributes import ID_TYPES, PACKED_ATTR
from fusion.schema.columns import Column
from fusion.schema.names import GROUPED, READ_TABLE_FILE, READ_TABLES, SINGLE
from fusion.schema.row_formats import PLAIN, packed_words

#: What says nothing of rows.
_PLAIN_USES = frozenset(
    {"DestroyResourceOp", "DisableCopyOnRead", "SaveV2", "VarIsInitializedOp", "VarHandleOp"}
)
#: Where a variable gets its value from when a model is loaded.
_SOURCES = frozenset({"RestoreV2", READ_TABLE_FILE})
_GATHERS = frozenset({"ResourceGather", "GatherV2", "Gather"})
_SHAPES, _HANDLE_SHAPES = "_output_shapes", "_handle_shapes"


@dataclass(frozen=True)
class Packing:
    """How a table is packed.

    Attributes:
        row_format: one of `row_formats.PACKED_FORMATS`.
        rows, dimension: the shape of the table.
    """

    row_format: str
    rows: int
    dimension: int

    @property
    def width(self) -> int:
        """The words of a row."""
        return packed_words(self.row_format, self.dimension)


@dataclass(frozen=True)
class _Read:
    """A node that reads rows of a table, and the input that it has the table or its handle at."""

    view: GraphView
    node: str
    position: int


class TablePacker:
    """Finds the tables of a graph that can be packed, and has the graph read packed ones.

    Args:
        graph_def: the graph.
        bound: the shared names of the variables behind arguments of functions, by (function,
            argument), as far as they are known from elsewhere.
        outputs: the nodes of the main graph that are run.
    """

    def __init__(
        self, graph_def: graph_pb2.GraphDef, bound: Mapping[Place, str], outputs: Collection[str]
    ) -> None:
        signatures = OpSignatures(graph_def.library.function)
        functions = graph_def.library.function
        main = GraphView(graph_def.node, signatures)
        self._graph_def = graph_def
        self._views = [main, *(GraphView.of_function(f, signatures) for f in functions)]
        self._handles = Handles(self._views, bound)
        self._outputs = frozenset(outputs)
        self._run = reached((n for n in outputs if n in main.nodes), main.before)
        self._sources: dict[Place, list[tuple[GraphView, str]]] = {}
        self._variables: dict[Place, set[str]] = {}
        for name in (*bound.values(), *shared_names(graph_def).values()):
            self._variables.setdefault(self.place(name), set()).add(name)
        for view in self._views:
            for name, node in view.nodes.items():
                if node.op in VARIABLE_OPS or (
                    node.op == ARG_OP and node.attr["T"].type == types_pb2.DT_RESOURCE
                ):
                    place = self._handles.first(view, Tensor(name))
                    self._sources.setdefault(place, []).append((view, name))

    def place(self, variable: str) -> Place:
        """Returns what variables have in common that some function reads in turn."""
        return self._handles.of_variable(variable)

    def variables(self, place: Place) -> set[str]:
        """Returns the shared names of the variables of a place."""
        return self._variables.get(place, set())

    def refusal(self, place: Place) -> str | None:
        """Returns why the variables of a place cannot be packed; None if they can."""
        for view, use in self._uses(place):
            if (why := self._refusal(view, use)) is not None:
                where = f" in function {view.function}" if view.function else ""
                return f"{why}{where}"
        return None

    def pack(self, packings: Mapping[Place, Packing]) -> None:
        """Has the graph read tables that are packed; nothing refuses it."""
        edits: dict[str, GraphEdit] = {}
        for place, packing in packings.items():
            reads = list(self._reads(place))
            self._set_shapes(place, packing)
            for read in reads:
                if read.view.op(read.node) in _GATHERS:
                    edit = edits.setdefault(read.view.function, GraphEdit(read.view))
                    _replace_gather(edit, read.node, packing)
                else:
                    _set_format(read.view.nodes[read.node], read.position, packing)
        if edits:
            self._graph_def.CopyFrom(apply_edits(self._graph_def, edits))

    # What has a handle, and what has a value

    def _uses(self, place: Place) -> Iterator[tuple[GraphView, Use]]:
        """Yields what is given the handle of a variable, but for what hands it on."""
        for view, source in self._sources.get(place, ()):
            stack, seen = [source], {source}
            while stack:
                for use in view.uses(stack.pop()):
                    if view.origin(use.tensor) != Tensor(source):
                        continue  # it has another output of an IdentityN
                    handed_on = view.origin(Tensor(use.node, use.position)) == Tensor(source)
                    if use.position < 0 or not handed_on:
                        yield view, use
                    elif use.node not in seen:
                        seen.add(use.node)
                        stack.append(use.node)

    def _refusal(self, view: GraphView, use: Use) -> str | None:
        """Why a use of a handle does not allow that its variable is packed."""
        op, name = view.op(use.node), use.node
        if use.position < 0:
            return "it is returned"
        functions = {v.function for v in self._views} - {""}
        if op in (*functions, *CALLS) and (called := callees(view.nodes[name], functions)):
            hands_on = any(
                view.dtype(other.tensor) == types_pb2.DT_RESOURCE for other in view.uses(name)
            )
            return f"{called[0]!r} hands it on" if hands_on else None
        if op in _PLAIN_USES or op == "ResourceGather":
            return _gather_refusal(view, name) if op == "ResourceGather" else None
        if op in ("ReadVariableOp", READ_TABLES):
            value = Tensor(name, use.position)
            if not view.function and not self._outputs.isdisjoint((name, *_aliases(view, value))):
                return "its value is an output"
            others = (self._value_refusal(view, other) for other in _value_uses(view, value))
            return next((why for why in others if why is not None), None)
        if op == "AssignVariableOp" and use.position == 0:
            # What initializes a variable is not run when it is restored.
            source = view.op(view.resolve(view.inputs(name)[1]).node)
            if source in _SOURCES or not self._is_run(view, name):
                return None
        return f"{op} {name!r} uses it"

    def _is_run(self, view: GraphView, name: str) -> bool:
        return bool(view.function) or name in self._run

    def _value_refusal(self, view: GraphView, use: Use) -> str | None:
        """Why a use of a table's value does not allow that it is packed."""
        op, name, position = view.op(use.node), use.node, use.position
        if position < 0:
            return "its value is returned"
        if op in _PLAIN_USES or (op == "AssignVariableOp" and not self._is_run(view, name)):
            return None
        if op in ("GatherV2", "Gather") and position == 0 and is_row_gather(Node(view, name)):
            return _gather_refusal(view, name)
        if op == SINGLE and position == 0:
            return _column_refusal(view, name, 0)
        if op == GROUPED and position < view.int_attr(name, "num_columns"):
            return _column_refusal(view, name, position)
        return f"{op} {name!r} reads it as it is"

    def _reads(self, place: Place) -> Iterator[_Read]:
        """Yields the nodes that read rows."""
        for view, use in self._uses(place):
            op = view.op(use.node)
            if op == "ResourceGather":
                yield _Read(view, use.node, 0)
            elif op in ("ReadVariableOp", READ_TABLES):
                for other in _value_uses(view, Tensor(use.node, use.position)):
                    if view.op(other.node) in (*_GATHERS, SINGLE, GROUPED):
                        yield _Read(view, other.node, other.position)

    # Shapes

    def _set_shapes(self, place: Place, packing: Packing) -> None:
        """Notes the shape of a packed table wherever that of the plain one is."""
        functions = {f.signature.name: f for f in self._graph_def.library.function}
        uses = list(self._uses(place))
        is_set_anew = any(view.op(use.node) == "AssignVariableOp" for view, use in uses)
        for view, source in self._sources[place]:
            node = view.nodes[source]
            if node.op == ARG_OP:
                arguments = functions[view.function].signature.input_arg
                number = next(i for i, a in enumerate(arguments) if a.name == source)
                functions[view.function].arg_attr[number].attr.pop(_HANDLE_SHAPES, None)
            else:
                shape = node.attr["shape"].shape
                shape.Clear()
                # What initializes it before it is restored may still be plain.
                shape.unknown_rank = is_set_anew
                if not is_set_anew:
                    for size in (packing.rows, packing.width):
                        shape.dim.add(size=size)
        for view, use in uses:
            view.nodes[use.node].attr.pop(_SHAPES, None)
            if view.op(use.node) in ("ReadVariableOp", READ_TABLES):
                for alias in _aliases(view, Tensor(use.node, use.position)):
                    view.nodes[alias].attr.pop(_SHAPES, None)


def shared_names(graph_def: graph_pb2.GraphDef) -> dict[str, str]:
    """Returns the shared names of the variables of a main graph, by the nodes of their handles."""
    return {
        node.name: node.attr["shared_name"].s.decode() or node.name
        for node in graph_def.node
        if node.op == "VarHandleOp"
    }


def _value_uses(view: GraphView, value: Tensor) -> Iterator[Use]:
    """Yields what reads a value, but for what hands it on."""
    stack = [value]
    while stack:
        for use in view.tensor_uses(stack.pop()):
            if use.position >= 0 and view.resolve(Tensor(use.node, use.position)) == value:
                stack.append(Tensor(use.node, use.position))
            else:
                yield use


def _aliases(view: GraphView, value: Tensor) -> Iterator[str]:
    """Yields the nodes that hand on a value."""
    stack = [value]
    while stack:
        for use in view.tensor_uses(stack.pop()):
            if use.position >= 0 and view.resolve(Tensor(use.node, use.position)) == value:
                stack.append(Tensor(use.node, use.position))
                yield use.node


def _gather_refusal(view: GraphView, name: str) -> str | None:
    """Why a gather cannot read packed rows."""
    if view.int_attr(name, "batch_dims"):
        return f"{view.op(name)} {name!r} has batch_dims"
    if view.type_attr(name, "Tindices") not in ID_TYPES:
        return f"{view.op(name)} {name!r} has ids of a dtype that no lookup takes"
    return None


def _column_refusal(view: GraphView, name: str, position: int) -> str | None:
    """Why a column of an op for whole lookups cannot read packed rows."""
    op, is_single = view.op(name), view.op(name) == SINGLE
    columns = [only_column(view, name)] if is_single else [*grouped_columns(view, name)]
    if columns[position].column.is_packed:
        return f"{op} {name!r} reads it packed already"
    if columns[position].is_copy:
        return f"{op} {name!r} copies it"
    if columns[position].column.max_norm >= 0:
        return f"{op} {name!r} limits the norms of its rows"
    return None


def _set_format(node: node_def_pb2.NodeDef, position: int, packing: Packing) -> None:
    """Sets the attrs of an op for whole lookups for one table with packed rows."""
    set_types(node, **{PACKED_ATTR.name: types_pb2.DT_UINT8})
    if node.op == SINGLE:
        set_attrs(node, row_format=packing.row_format, dim=packing.dimension)
        return
    node.attr["dims"].list.i[position] = packing.dimension
    formats = node.attr["row_formats"].list.s
    if not formats:
        formats.extend([PLAIN.encode()] * node.attr["num_columns"].i)
    formats[position] = packing.row_format.encode()


def _replace_gather(edit: GraphEdit, gather: str, packing: Packing) -> None:
    """Puts a lookup of packed rows in the place of a gather."""
    view = edit.view
    stock, (table, ids) = view.nodes[gather], view.inputs(gather)[:2]
    build = NodeBuilder(edit, gather, stock.device, ids.node)
    if stock.op == "ResourceGather":
        # ReadVariableOp would copy a table that others look up rows of.
        read = build.node("read", READ_TABLES)
        build.inputs(read, table)
        set_types(read, T=types_pb2.DT_FLOAT)
        set_attrs(read, num_tables=1)
        table = Tensor(build.add(read))
        edit.wait(table.node, view.controls(gather))
    shape = view.shape(ids)
    is_matrix = shape is not None and len(shape) == 1
    node = build.replacement(SINGLE) if is_matrix else build.node("lookup", SINGLE)
    number = unused_number(build)
    build.inputs(node, table, ids, number, number, unused(build, "weights", types_pb2.DT_FLOAT))
    id_type = view.type_attr(gather, "Tindices")
    set_types(node, T=types_pb2.DT_FLOAT, Tids=id_type, Trows=types_pb2.DT_INT64)
    column = Column(form="each", dim=packing.dimension, row_format=packing.row_format)
    set_column_attrs(node, column, gather)
    set_lists(node, boundaries=())
    rows = Tensor(build.add(node))
    edit.remove([gather], node.name)
    if not is_matrix:
        _reshape(build, rows, ids, id_type, packing.dimension)
    edit.replace(Tensor(gather), Tensor(gather))


def _reshape(build: NodeBuilder, rows: Tensor, ids: Tensor, id_type: int, dimension: int) -> None:
    """Gives rows the shape of their ids, under the name of the gather."""
    types = {"T": id_type, "out_type": types_pb2.DT_INT32}
    sizes = build.shared("shape", "Shape", (ids,), types)
    width = build.constant("width", np.array([dimension], np.int32))
    axis = build.constant("axis", np.array(0, np.int32))
    node = build.node("sizes", "ConcatV2")
    build.inputs(node, sizes, width, axis)
    set_types(node, T=types_pb2.DT_INT32, Tidx=types_pb2.DT_INT32)
    set_attrs(node, N=2)
    types = {"T": types_pb2.DT_FLOAT, "Tshape": types_pb2.DT_INT32}
    build.result("Reshape", (rows, Tensor(build.add(node))), types)

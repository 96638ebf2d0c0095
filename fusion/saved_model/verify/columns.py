"""Which tensors of two models are the result of the same embedding column.

Rewriting a model keeps names: an op that takes the place of a lookup, or of the concat that joins
many, is called as the node whose result it gives. So a column of one model is the tensor of the
same name in the other, or else the matrix at the same index of the same concat, where nested
concats count as one and an op for many columns as a concat of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.variables import VariableSearch
from fusion.passes.graph.fused_columns import list_attr, output_columns
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.saved_model.model.meta_graph import preserved_names, variable_search
from fusion.schema.names import GROUPED, GROUPED_GATHER, GROUPED_POST, POST_V1, SINGLE
from fusion.schema.row_formats import PLAIN

_GROUPS = frozenset([GROUPED, GROUPED_POST])
_JOINS = frozenset(["ConcatV2", "Pack"])
#: What may replace a join, after an op for many columns.
_SHAPED = frozenset(["Identity", "Reshape"])
_MAX_PARTS = 1 << 16
_MAX_DEPTH = 64


class Location(NamedTuple):
    """Where the result of a column is.

    Attributes:
        function: the library function; "" is the main graph.
        tensor: the tensor that holds it.
        part: which of the matrices side by side in `tensor` it is; None: all of it.
    """

    function: str
    tensor: Tensor
    part: int | None = None

    def __str__(self) -> str:
        part = "" if self.part is None else f" (column {self.part} of its op)"
        function = f" of function {self.function}" if self.function else ""
        return f"node {self.tensor}{part}{function}"


class ColumnPair(NamedTuple):
    """A column of two models.

    Attributes:
        name: the table's, or else that of a node.
        a: its location in the first model.
        b: its location in the second.
    """

    name: str
    a: Location
    b: Location


class Pairing(NamedTuple):
    """The columns of two models.

    Attributes:
        pairs: those that both have, in the file order of the first.
        alone_a: those of the first without one in the second, but for what paired columns alone
            are computed from: the gather in a column of stock ops is found as a lookup, too.
        alone_b: the reverse.
    """

    pairs: tuple[ColumnPair, ...]
    alone_a: tuple[Location, ...]
    alone_b: tuple[Location, ...]


def paired_columns(a: meta_graph_pb2.MetaGraphDef, b: meta_graph_pb2.MetaGraphDef) -> Pairing:
    """Returns the columns of two meta graphs, of whatever form: of stock ops or of fused ones."""
    bodies_a, bodies_b = _bodies(a), _bodies(b)
    same = _same_functions(bodies_a, bodies_b)
    pairs: list[ColumnPair] = []
    for name, body in bodies_a.items():
        if name in same:
            pairs += _pairs(body, bodies_b[same[name]])
    return Pairing(
        tuple(pairs),
        tuple(_alone(bodies_a, {pair.a for pair in pairs}, preserved_names(a))),
        tuple(_alone(bodies_b, {pair.b for pair in pairs}, preserved_names(b))),
    )


def _alone(
    bodies: Mapping[str, _Body], paired: set[Location], preserved: frozenset[str]
) -> Iterator[Location]:
    """Yields the columns that are not paired and reach outputs other than through paired ones."""
    for name, body in bodies.items():
        if left := [at for at in body.columns if at not in paired]:
            here = {at.tensor for at in paired if at.function == name}
            # Of an output with many columns, some of them alone, nothing is known as a whole.
            here -= {at.tensor for at in left}
            reaching = _reaching_outputs(body.view, here, preserved if not name else frozenset())
            yield from (at for at in left if at.tensor.node in reaching)


def _reaching_outputs(
    view: GraphView, barriers: set[Tensor], preserved: frozenset[str]
) -> set[str]:
    """Returns the nodes that outputs are computed from on a way that passes no barrier."""

    def is_output(name: str) -> bool:
        uses = [use for use in view.uses(name) if use.tensor not in barriers]
        if any(use.position < 0 for use in uses):  # returned
            return True
        return name in preserved or not view.uses(name)

    stops = {barrier.node for barrier in barriers}
    reaching: set[str] = set()
    stack = [name for name in view.nodes if name not in stops and is_output(name)]
    while stack:
        name = stack.pop()
        if name not in reaching:
            reaching.add(name)
            stack += [
                tensor.node
                for tensor in view.inputs(name)
                if tensor not in barriers and view.resolve(tensor) not in barriers
            ]
    return reaching


def packed_dim(view: GraphView, tensor: Tensor, part: int) -> int | None:
    """Returns how wide a column in `tensor` is, if its table has packed rows."""
    index = _columns_in(view, tensor)[part]
    row_formats = list_attr(view, tensor.node, "row_formats").s
    if not row_formats or row_formats[index].decode() == PLAIN:
        return None
    return list_attr(view, tensor.node, "dims").i[index]


def widths_of(view: GraphView, tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns the matrices as wide as the columns in `tensor`, () if it is no op for many.

    A table of packed rows is not, see `packed_dim`.
    """
    if view.op(tensor.node) not in _GROUPS:
        return ()
    return tuple(view.inputs(tensor.node)[index] for index in _columns_in(view, tensor))


def _columns_in(view: GraphView, tensor: Tensor) -> range:
    """Returns which columns of an op for many are in one of its outputs."""
    return output_columns(view, tensor.node)[tensor.index]


def _outputs(view: GraphView, node: str) -> list[Tensor]:
    """Returns the outputs of an op for many columns."""
    return [Tensor(node, index) for index in range(len(output_columns(view, node)))]


def _column_at(view: GraphView, tensor: Tensor, part: int) -> Location:
    """Returns the location of a column: an output of its own, of several, is all of it."""
    is_own = len(_columns_in(view, tensor)) == 1 < len(_outputs(view, tensor.node))
    return Location(view.function, tensor, None if is_own else part)


@dataclass
class _Body:
    """A main graph or a function.

    Attributes:
        view: its graph.
        columns: the name of the column at each location, in file order.
        joins: what is side by side in each join, or op for many columns, by node.
    """

    view: GraphView
    columns: dict[Location, str] = field(default_factory=dict)
    joins: dict[str, tuple[Location, ...]] = field(default_factory=dict)


def _bodies(meta: meta_graph_pb2.MetaGraphDef) -> dict[str, _Body]:
    library = meta.graph_def.library.function
    signatures = OpSignatures(library)
    search = variable_search(meta)
    views = [GraphView.of_graph(meta.graph_def)]
    views += [GraphView.of_function(function, signatures) for function in library]
    return {view.function: _body(view, search) for view in views}


def _body(view: GraphView, search: VariableSearch) -> _Body:
    order = {name: index for index, name in enumerate(view.nodes)}
    columns = [*_lookups(view, search), *_ops(view, search)]
    columns.sort(
        key=lambda column: (
            order.get(column[1].tensor.node, 0),
            column[1].tensor.index,
            column[1].part or 0,
        )
    )
    body = _Body(view)
    for name, at in columns:
        body.columns.setdefault(at, name)
    flat: dict[Tensor, tuple[Location, ...]] = {}
    for name, node in view.nodes.items():
        is_shaped = node.op in _SHAPED and len(view.inputs(name)) > 0
        joined = view.resolve(view.inputs(name)[0]) if is_shaped else Tensor(name)
        op = view.op(joined.node)
        if op in _JOINS or (op in _GROUPS and len(_outputs(view, joined.node)) == 1):
            body.joins[name] = _flat(view, joined, flat)
    return body


def _lookups(view: GraphView, search: VariableSearch) -> Iterator[tuple[str, Location]]:
    """Yields the lookups that end with a segment reduction, or a fused op in its place."""
    for lookup in outermost(recognise_all(view)):
        uses, spec = view.uses(lookup.anchor), lookup.spec
        if spec is None and any(view.op(use.node) == POST_V1 for use in uses):
            # The first of the two ops that lookups of the v1 family end with.
            continue
        tables = lookup.tables
        name = _table_name(view, tables[0], search) if tables else ""
        name = name.removesuffix("/part_0") if len(tables) > 1 else name
        tensor = spec.output if spec is not None else Tensor(lookup.anchor)
        yield name or lookup.name, Location(view.function, tensor)


def _ops(view: GraphView, search: VariableSearch) -> Iterator[tuple[str, Location]]:
    """Yields the columns of ops that read the table themselves, and of ops for many columns."""
    for node, described in view.nodes.items():
        if described.op == SINGLE:
            name = _table_name(view, view.inputs(node)[0], search)
            yield name or node, Location(view.function, Tensor(node))
        elif described.op in _GROUPS:
            for tensor in _outputs(view, node):
                for part, matrix in enumerate(widths_of(view, tensor)):
                    if not _is_copied(view, tensor, part):
                        name = _table_name(view, matrix, search)
                        yield name or node, _column_at(view, tensor, part)


def _table_name(view: GraphView, table: Tensor, search: VariableSearch) -> str:
    """Returns the name of the variable that a matrix or a handle comes from, "" if unknown."""
    if (variable := search.behind(view.function, table)) is not None:
        return variable.name
    rows = view.resolve(view.read_handle(table) or table)
    source = rows.node
    if view.op(source) == GROUPED_GATHER:
        source = view.resolve(view.inputs(source)[rows.index]).node
    elif view.op(source) in ("ResourceGather", "Gather", "GatherV2"):
        source = view.resolve(view.inputs(source)[0]).node
    if view.op(source) == "VarHandleOp":
        shared = view.attr(source, "shared_name")
        return shared.s.decode() if shared is not None and shared.s else source
    return source if view.op(source) in ("VariableV2", "Variable", "Const") else ""


def _is_copied(view: GraphView, tensor: Tensor, part: int) -> bool:
    """Whether a column in an output of an op for many is no lookup, but a matrix that is copied."""
    forms, copied = view.attr(tensor.node, "forms"), view.attr(tensor.node, "copied")
    index = _columns_in(view, tensor)[part]
    if forms is not None:
        return bool(forms.list.s[index : index + 1] == [b"copy"])
    return copied is not None and list(copied.list.b[index : index + 1]) == [True]


def _flat(
    view: GraphView, tensor: Tensor, known: dict[Tensor, tuple[Location, ...]], depth: int = 0
) -> tuple[Location, ...]:
    """Returns the matrices side by side in a tensor, those of nested joins in their place."""
    tensor = view.resolve(tensor)
    name, op = tensor.node, view.op(tensor.node)
    if tensor in known:
        return known[tensor]
    whole = (Location(view.function, tensor),)
    if depth > _MAX_DEPTH or (op not in _JOINS and op not in _GROUPS):
        return whole
    locations: list[Location] = []
    inputs = view.inputs(name)[: -1 if op == "ConcatV2" else None]
    for part, matrix in enumerate(inputs if op in _JOINS else widths_of(view, tensor)):
        if op in _JOINS or _is_copied(view, tensor, part):
            locations += _flat(view, matrix, known, depth + 1)
        else:
            locations.append(_column_at(view, tensor, part))
        if len(locations) > _MAX_PARTS:
            return whole
    known[tensor] = tuple(locations)
    return known[tensor]


def _same_functions(a: Mapping[str, object], b: Mapping[str, object]) -> dict[str, str]:
    """Returns for functions of `a` those of `b`: of the same name, but for a number after it."""
    stems = [_unique_stems(names) for names in (a, b)]
    same = {stems[0][stem]: stems[1][stem] for stem in stems[0].keys() & stems[1].keys()}
    return same | {name: name for name in a.keys() & b.keys()}


def _unique_stems(names: Mapping[str, object]) -> dict[str, str]:
    stems: dict[str, list[str]] = {}
    for name in names:
        stems.setdefault(re.sub(r"_\d+$", "", name), []).append(name)
    return {stem: alike[0] for stem, alike in stems.items() if len(alike) == 1}


def _pairs(a: _Body, b: _Body) -> Iterator[ColumnPair]:
    """Yields the columns that both bodies have, those of `a` first."""
    counterparts = _counterparts(a, b)
    done: set[Location] = set()
    for at, name in a.columns.items():
        other = counterparts.get(at) or _same_name(at, b)
        if other is not None and other not in done:
            done.add(other)
            yield ColumnPair(name, at, other)
    back = {other: at for at, other in counterparts.items()}
    for at, name in b.columns.items():
        if at not in done and (other := back.get(at) or _same_name(at, a)) is not None:
            yield ColumnPair(name, other, at)


def _counterparts(a: _Body, b: _Body) -> dict[Location, Location]:
    """Returns what is at the same index of joins that both bodies have."""
    counterparts: dict[Location, Location] = {}
    for name in a.joins.keys() & b.joins.keys():
        of_a, of_b = a.joins[name], b.joins[name]
        if len(of_a) == len(of_b):
            for at, other in zip(of_a, of_b, strict=True):
                counterparts.setdefault(at, other)
    return counterparts


def _same_name(at: Location, body: _Body) -> Location | None:
    node = body.view.nodes.get(at.tensor.node)
    if at.part is not None or node is None or node.op == ARG_OP:
        return None
    for tensor in (body.view.resolve(at.tensor), at.tensor):
        location = Location(body.view.function, tensor)
        if location in body.columns:
            return location
    return None if node.op in _GROUPS else location

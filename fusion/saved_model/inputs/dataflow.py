"""The meaning of a signature's inputs, inferred from the graph.

A signature says no more than dtype and shape. To run a model on inputs that it accepts, one must
know which integers are row numbers of which table, which three tensors form one sparse tensor, and
which strings are serialized Examples of which features. All of that follows from where an input's
values arrive unchanged: this module follows them from the inputs, through library functions, to the
ops that give them a meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.calls import callees, first_argument
from fusion.passes.graph.reach import reached
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import tensor_util
from fusion.saved_model.inputs.atoms import (
    KEYED_LOOKUPS,
    NOTHING,
    Along,
    Answer,
    Atom,
    Atoms,
    KeyTable,
    Number,
    Source,
    Table,
    Text,
    answers,
    in_part,
    of_kind,
)
from fusion.saved_model.inputs.composites import Composite, composite_arguments, flattened_arguments
from fusion.saved_model.inputs.constraints import Constraints, Extent, Key, Role
from fusion.saved_model.inputs.conversions import (
    ALL,
    CARRIED,
    COMPUTED,
    EACH,
    SPLITS,
    WHOLE,
    converted,
)
from fusion.saved_model.inputs.extents import ExtentFlow
from fusion.saved_model.inputs.key_tables import table_of_keys
from fusion.saved_model.inputs.records import OPAQUE, PARSERS, RecordSpec, parsed_records
from fusion.saved_model.inputs.vocabularies import Lookup
from fusion.schema.names import GROUPED, SINGLE

if TYPE_CHECKING:  # which asks what inputs mean
    from fusion.saved_model.inputs.signature import Signature

_MAX_SWEEPS = 20
_MAX_DEPTH = 40

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
"""Of the ops that run functions, those that run theirs once and always."""

# op -> its inputs (indices, values, dense_shape).
_SPARSE: dict[str, tuple[int, int, int]] = {
    "SparseFillEmptyRows": (0, 1, 2),
    "SparseReorder": (0, 1, 2),
    "SparseToDense": (0, 2, 1),
    "SparseTensorDenseMatMul": (0, 1, 2),
    "PruneInvalidAndFillEmptyRows": (1, 0, 2),
}

# ops whose input 1 holds row numbers of their input 0.
_LOOKUPS = frozenset(
    ["Gather", "GatherV2", "ResourceGather"]
    + [f"SparseSegment{c}{n}" for c in ("Sum", "Mean", "SqrtN") for n in ("", "WithNumSegments")]
)
_VALUES = Source | Table | KeyTable | Text | Number
_Call = tuple[str, tuple[Atoms, ...]]
"""A function and what is known of its arguments."""

_FEW = 16
"""Of constants of more elements the values say nothing."""


@dataclass
class Meaning:
    """Facts about a signature's inputs.

    Attributes:
        rows: the rows of the smallest table that values of this source index.
        lookups: the tables of words, or of integers, that values of this source are looked up in.
        asserted: sources of which the model asserts something that their tables have for them.
        sparse: triples (indices, values, dense_shape) of inputs that form a sparse tensor.
        records: inputs, and fields of records, that hold records, with what is in them.
        opaque: inputs that hold what cannot be made up, with the op that reads it.
        constraints: what inputs have to do with each other.
    """

    rows: dict[Key, int] = field(default_factory=dict)
    lookups: dict[Key, set[Lookup]] = field(default_factory=dict)
    asserted: set[Key] = field(default_factory=set)
    sparse: set[tuple[str, str, str]] = field(default_factory=set)
    records: dict[Key, RecordSpec] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)


def signature_meanings(
    meta: meta_graph_pb2.MetaGraphDef, known: Iterable[Signature]
) -> dict[str, Meaning]:
    """Returns what a model says about the inputs of signatures of one meta graph, by title."""
    graph, composites = meta.graph_def, composite_arguments(meta)
    library = _Library(graph.library.function)
    meanings: dict[str, Meaning] = {}
    for signature in known:
        names = {spec.key: spec.tensor for spec in signature.inputs}
        parts = {key for keys in (*signature.sparse, *signature.ragged) for key in keys}
        meaning = input_meaning(graph, names, composites, signature.ragged, library, parts)
        meanings[signature.title] = meaning
    return meanings


def input_meaning(
    graph: graph_pb2.GraphDef,
    inputs: Mapping[str, str],
    functions: Mapping[str, Sequence[Composite]] | None = None,
    ragged: Iterable[Sequence[str]] = (),
    library: _Library | None = None,
    known: Collection[str] = (),
) -> Meaning:
    """Returns what the graph says about the tensors of a signature.

    Args:
        graph: the main graph with its library.
        inputs: tensor names of the signature's inputs (`node:0`), by input name.
        functions: which arguments of its functions are parts of a ragged or sparse tensor.
        ragged: names of inputs that are the flat values and the row splits of a ragged tensor.
        library: the functions, if more than one signature is looked at.
        known: inputs of which is known whether they are parts of a ragged or sparse tensor.
    """
    view = GraphView.of_graph(graph)
    seeds: dict[Tensor, Atoms] = {}
    by_name: dict[str, Atoms] = {}
    for name, text in inputs.items():
        tensor = view.tensor(text)
        atoms: set[Atom] = {Source(name)}
        if _is_of_any_length(_shape(view, tensor)):
            atoms.add(Along(Extent(Key(name))))
        by_name[name] = seeds[tensor] = seeds.get(tensor, NOTHING) | atoms
    analysis = _Analysis(library or _Library(graph.library.function), functions or {})
    analysis.meaning.constraints.scalars |= {
        Key(name) for name, text in inputs.items() if _shape(view, view.tensor(text)) == ()
    }
    for values, *splits in ragged:
        analysis.extents.declared_ragged(by_name[values], [by_name[name] for name in splits])
    analysis.run(view, seeds, 0, _concerned(view, seeds))
    roles = analysis.meaning.constraints.roles
    for values, *splits in flattened_arguments(inputs):
        # Of a function that the object graph does not describe the names of its arguments are left.
        is_known = not {values, *splits}.isdisjoint(known)
        if not is_known and any(roles.get(Key(name)) is Role.SPLITS for name in splits):
            analysis.extents.declared_ragged(by_name[values], [by_name[name] for name in splits])
    return analysis.meaning


def _concerned(view: GraphView, inputs: Iterable[Tensor]) -> list[node_def_pb2.NodeDef]:
    """Returns the consumers of inputs, direct and indirect, and what those read.

    The rest of a graph, other signatures above all, says nothing about them.
    """
    consumers = reached(
        (tensor.node for tensor in inputs), lambda name: (use.node for use in view.uses(name))
    )
    names = reached(consumers, lambda name: (tensor.node for tensor in view.inputs(name)))
    return [node for name, node in view.nodes.items() if name in names]


def _shape(view: GraphView, tensor: Tensor) -> tuple[int | None, ...] | None:
    """Returns what a placeholder is said to have, None if that is not known."""
    shape = view.shape_attr(tensor.node) if view.op(tensor.node) == "Placeholder" else None
    return None if shape is None else tuple(shape)


def _is_of_any_length(shape: tuple[int | None, ...] | None) -> bool:
    """Whether a tensor is not said to be a scalar, or of a certain length."""
    return shape is None or (len(shape) > 0 and shape[0] is None)


class _Library:
    """The functions of a model, and what calls of them return that no input reaches."""

    def __init__(self, functions: Iterable[function_pb2.FunctionDef]) -> None:
        self.functions = {f.signature.name: f for f in functions}
        self.constant_calls: dict[_Call, dict[int, Atoms]] = {}
        self._signatures = OpSignatures(self.functions.values())
        self._views: dict[str, GraphView] = {}

    def view(self, name: str) -> GraphView:
        """Returns the body of a function."""
        if name not in self._views:
            self._views[name] = GraphView.of_function(self.functions[name], self._signatures)
        return self._views[name]


class _Analysis:
    """Follows atoms through a graph and, at call nodes, through the functions called."""

    def __init__(self, library: _Library, composites: Mapping[str, Sequence[Composite]]) -> None:
        self.meaning = Meaning()
        self.extents = ExtentFlow(self.meaning.constraints)
        self._library = library
        self._composites = composites
        self._calls: dict[_Call, dict[int, Atoms]] = {}

    def run(
        self,
        view: GraphView,
        seeds: Mapping[Tensor, Atoms],
        depth: int,
        nodes: Iterable[node_def_pb2.NodeDef],
    ) -> dict[Tensor, Atoms]:
        """Returns the atoms of tensors; nodes are mostly sorted, so few sweeps suffice."""
        known = dict(seeds)
        for _ in range(_MAX_SWEEPS):
            changed = False
            for node in nodes:
                data = [known.get(tensor, NOTHING) for tensor in view.inputs(node.name)]
                for index, atoms in self._outputs(view, node, data, depth).items():
                    tensor = Tensor(node.name, index)
                    before = known.get(tensor, NOTHING)
                    if not atoms <= before:
                        known[tensor] = before | atoms
                        changed = True
            if not changed:
                break
        return known

    def _outputs(
        self, view: GraphView, node: node_def_pb2.NodeDef, data: Sequence[Atoms], depth: int
    ) -> dict[int, Atoms]:
        """Notes what `node` says about its inputs; returns the atoms of its outputs."""
        if (name := table_of_keys(view.function, node)) is not None:
            return {0: frozenset({KeyTable(name)})}
        if not data:
            return {0: atoms} if (atoms := self._constant(node)) else {}
        self._note(node, data)
        if node.op in PARSERS:
            return self._parsed(node, data)
        if called := callees(node, self._library.functions):
            arguments = data[first_argument(node) :]
            if node.op not in _CALLS and node.op not in self._library.functions:
                arguments = [in_part(atoms) for atoms in arguments]
            return _union(self._call(name, arguments, depth) for name in called)
        if node.op in EACH:
            return dict(enumerate(data))
        along = dict(enumerate(self.extents.outputs(view, node, data)))
        return _union((self._values(node, data), along, answers(node, data)))

    def _values(self, node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> dict[int, Atoms]:
        """Returns where the values of the outputs come from."""
        outputs: dict[int, Atoms] = {}
        for source, output in CARRIED.get(node.op, ()):
            carried = NOTHING.union(*data) if source == ALL else data[source]
            selected = carried if node.op in WHOLE else in_part(carried)
            values = frozenset(atom for atom in selected if isinstance(atom, _VALUES))
            outputs[output] = outputs.get(output, NOTHING) | values
        if node.op in COMPUTED:
            source, output = COMPUTED[node.op]
            outputs[output] = _converted(node, data, of_kind(data[source], Source))
        if node.op in _LOOKUPS and 0 in outputs:
            # A gathered value is an id when ids were gathered; rows of a table are no table.
            outputs[0] = of_kind(outputs[0], Source)
        return outputs

    def _note(self, node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> None:
        if node.op in KEYED_LOOKUPS:
            self._note_keys(data[0], data[1])
        if node.op == "Assert":
            self.meaning.asserted |= {answer.key for answer in of_kind(data[0], Answer)}
        if node.op in _LOOKUPS and len(data) > 1:
            self._note_rows(data[0], data[1])
        if (triple := _SPARSE.get(node.op)) and len(data) > max(triple):
            self._note_sparse(*(data[index] for index in triple))
        if node.op in OPAQUE:
            for source in of_kind(data[0], Source):
                self.meaning.opaque[source.input] = node.op
        for form, is_id, (table, ids, rows, shape, *weights) in _columns(node, data):
            if is_id:
                self._note_rows(table, ids)
                self._note_sparse(rows, ids, shape)
            self.extents.fused(form, ids, rows, weights)

    def _note_rows(self, table: Atoms, ids: Atoms) -> None:
        tables = [atom.rows for atom in of_kind(table, Table)]
        for source in of_kind(ids, Source):
            if tables and source.exact:
                bound = min(tables)
                self.meaning.rows[source.key] = min(self.meaning.rows.get(source.key, bound), bound)

    def _note_keys(self, table: Atoms, keys: Atoms) -> None:
        names = [atom.name for atom in of_kind(table, KeyTable)]
        for source in of_kind(keys, Source):
            if names and source.conversions is not None:
                lookups = self.meaning.lookups.setdefault(source.key, set())
                lookups.update(Lookup(name, source.conversions) for name in names)

    def _note_sparse(self, indices: Atoms, values: Atoms, shape: Atoms) -> None:
        triple = [_only_input(atoms) for atoms in (indices, values, shape)]
        names = [name for name in triple if name is not None]
        if len({*names}) == 3:
            self.meaning.sparse.add((names[0], names[1], names[2]))

    def _constant(self, node: node_def_pb2.NodeDef) -> Atoms:
        if node.op in ("VarHandleOp", "VariableV2", "Variable"):
            dims = node.attr["shape"].shape.dim
            return self._table(dims[0].size) if len(dims) >= 2 else NOTHING
        if node.op != "Const":
            return NOTHING
        tensor = node.attr["value"].tensor
        dims = tensor.tensor_shape.dim
        atoms: Atoms = self._table(dims[0].size) if len(dims) == 2 else NOTHING
        if tensor.string_val or 0 < np.prod([dim.size for dim in dims]) <= _FEW:
            values = tensor_util.MakeNdarray(tensor).ravel().tolist()
            if tensor.string_val:
                atoms |= {Text(tuple(values))}
            is_one = len(set(values)) == 1 and not isinstance(values[0], complex)
            # A NaN differs from itself: each sweep would take it for a new one.
            if is_one and values[0] == values[0]:
                atoms |= {Number(values[0])}
        return atoms

    @staticmethod
    def _table(rows: int) -> Atoms:
        return frozenset({Table(rows)}) if rows > 0 else NOTHING

    def _parsed(self, node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> dict[int, Atoms]:
        texts = [next((a.values for a in of_kind(atoms, Text)), ()) for atoms in data]
        parsed = parsed_records(node, texts)
        outputs: dict[int, Atoms] = {}
        for source in of_kind(data[0], Source):
            if parsed is None:
                self.meaning.opaque[source.input] = node.op
                continue
            spec, keys = parsed
            before = self.meaning.records.get(source.key)
            self.meaning.records[source.key] = spec if before is None else before.merged(spec)
            for index, name in keys.items():
                key = Key(source.input, (*source.path, name))
                atoms: Atoms = frozenset({Source(*key), Along(Extent(key))})
                outputs[index] = outputs.get(index, NOTHING) | atoms
        return outputs

    def _note_composite(self, composite: Composite, parts: Sequence[Atoms]) -> None:
        if composite.is_sparse:
            self._note_sparse(parts[0], parts[1], parts[2])
            self.extents.declared_sparse(parts[0], parts[1])
        else:
            self.extents.declared_ragged(parts[0], parts[1:])

    def _call(self, name: str, data: Sequence[Atoms], depth: int) -> dict[int, Atoms]:
        """Returns the atoms of a function's results; what is noted once need not be again."""
        is_reached = any(isinstance(atom, Source | Answer) for atoms in data for atom in atoms)
        calls = self._calls if is_reached else self._library.constant_calls
        call = name, tuple(data)
        if call not in calls:
            calls[call] = self._results(name, data, depth)
        return calls[call]

    def _results(self, name: str, data: Sequence[Atoms], depth: int) -> dict[int, Atoms]:
        if depth >= _MAX_DEPTH:
            return {}
        for composite in self._composites.get(name, ()):
            parts = [data[index] for index in composite.arguments if index < len(data)]
            if len(parts) == len(composite.arguments):
                self._note_composite(composite, parts)
        function, view = self._library.functions[name], self._library.view(name)
        arguments = (Tensor(arg.name) for arg in function.signature.input_arg)
        seeds = dict(zip(arguments, data, strict=False))
        known = self.run(view, seeds, depth + 1, view.nodes.values())
        results = (function.ret[arg.name] for arg in function.signature.output_arg)
        return {i: known.get(view.tensor(text), NOTHING) for i, text in enumerate(results)}


def _columns(
    node: node_def_pb2.NodeDef, data: Sequence[Atoms]
) -> Iterator[tuple[str, bool, Sequence[Atoms]]]:
    """Yields what is known of each column of an inference op that reads the table.

    That is its form, whether it reads ids and not values that boundaries make ids of, and its
    table, ids, rows, shape and weights.
    """
    if node.op not in (SINGLE, GROUPED):
        return
    count = node.attr["num_columns"].i if node.op == GROUPED else 1
    boundaries = node.attr["boundary_counts"].list.i or [len(node.attr["boundaries"].list.f)]
    forms = node.attr["forms"].list.s or [node.attr["form"].s]
    for index in range(count):
        yield forms[index].decode(), not boundaries[index], data[index : 5 * count : count]


def _converted(
    node: node_def_pb2.NodeDef, data: Sequence[Atoms], sources: Iterable[Source]
) -> Atoms:
    """Returns values that an op computes from others."""
    separators: Sequence[bytes] = ()
    if node.op in SPLITS and len(data) > 1:
        separators = [text for atom in of_kind(data[1], Text) for text in atom.values]
    return frozenset(
        replace(source, conversions=converted(source.conversions, node.op, separators), whole=False)
        for source in sources
    )


def _union(parts: Iterable[Mapping[int, Atoms]]) -> dict[int, Atoms]:
    merged: dict[int, Atoms] = {}
    for part in parts:
        for index, atoms in part.items():
            merged[index] = merged.get(index, NOTHING) | atoms
    return merged


def _only_input(atoms: Atoms) -> str | None:
    """Returns the input that `atoms` stand for, if it is exactly one and no field of it."""
    keys = {source.key for source in of_kind(atoms, Source)}
    name, path = keys.pop() if len(keys) == 1 else (None, ())
    return None if path else name

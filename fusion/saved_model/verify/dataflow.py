"""What the inputs of a signature mean, learned from the graph.

A signature says no more than dtype and shape. To run a model on inputs that it accepts, one must
know which integers are row numbers of which table, which three tensors form one sparse tensor, and
which strings are serialized Examples of which features. All of that follows from where an input's
values arrive unchanged: this module follows them from the inputs, through library functions, to the
ops that give them a meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2
from tensorflow.python.framework import tensor_util

from fusion.ops.lookup import GROUPED, SINGLE
from fusion.passes.calls import callees, first_argument
from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.signatures import OpSignatures
from fusion.saved_model.verify.examples import ExampleSpec, example_outputs, example_spec

_MAX_SWEEPS = 20
_MAX_DEPTH = 40

ALL = -1
"""As an input index below: every input."""

# op -> pairs (input, output) along which values travel unchanged.
_CARRIED: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(
        (
            "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Snapshot",
            "PreventGradient", "PlaceholderWithDefault", "EnsureShape", "GatherNd", "StridedSlice",
            "Slice", "Unique", "UniqueV2", "UniqueWithCountsV3", "Tile", "Transpose", "Enter",
            "Exit", "NextIteration", "ReadVariableOp", "ReadEmbeddingTables", "Gather", "GatherV2",
            "DynamicPartition", "BroadcastTo",
        ),
        ((0, 0),),
    ),
    **dict.fromkeys(("ConcatV2", "Pack", "Merge"), ((ALL, 0),)),
    **dict.fromkeys(("Select", "SelectV2"), ((1, 0), (2, 0))),
    **dict.fromkeys(("Maximum", "Minimum"), ((0, 0), (1, 0))),
    "Switch": ((0, 0), (0, 1)),
    "SparseFillEmptyRows": ((0, 0), (1, 1)),
    "SparseReshape": ((0, 0), (1, 1)),
    "SparseReorder": ((0, 0), (1, 1)),
    "SparseToDense": ((2, 0),),
    "PruneInvalidAndFillEmptyRows": ((0, 0), (1, 1)),
}  # fmt: skip

# op -> the input from which each element of its output 0 is computed: a hash, a table of words.
_COMPUTED: dict[str, int] = {
    **dict.fromkeys(
        (
            "StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket", "AsString",
            "StringToNumber", "StringLower", "StringUpper", "StringStrip", "StaticRegexReplace",
            "Bucketize", "FloorMod", "FloorDiv", "Mod", "AddV2", "Add", "Sub", "Mul", "Neg", "Abs",
            "Log", "Log1p", "RealDiv",
        ),
        0,
    ),
    "LookupTableFind": 1,
    "LookupTableFindV2": 1,
}  # fmt: skip

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
_PARSERS = frozenset(["ParseExample", "ParseExampleV2"])


@dataclass(frozen=True)
class Source:
    """Where values come from.

    Attributes:
        input: an input of the signature.
        feature: the feature parsed out of it, or None.
        exact: whether these are its very values, not others computed one by one from them.
    """

    input: str
    feature: str | None = None
    exact: bool = True


@dataclass(frozen=True)
class Table:
    """A variable or constant with this many rows."""

    rows: int


@dataclass(frozen=True)
class Text:
    """A constant string tensor, as the keys of parse_example are."""

    values: tuple[bytes, ...]


Atoms = frozenset[Source | Table | Text]
_NOTHING: Atoms = frozenset()


@dataclass
class Meaning:
    """What is known of a signature's inputs.

    Attributes:
        rows: the rows of the smallest table that values of this source index.
        sparse: triples (indices, values, dense_shape) of inputs that form a sparse tensor.
        examples: inputs that hold serialized Examples, with their features.
    """

    rows: dict[Source, int] = field(default_factory=dict)
    sparse: set[tuple[str, str, str]] = field(default_factory=set)
    examples: dict[str, ExampleSpec] = field(default_factory=dict)


def input_meaning(graph: graph_pb2.GraphDef, inputs: Mapping[str, str]) -> Meaning:
    """Returns what the graph says about the tensors of a signature.

    Args:
        graph: the main graph with its library.
        inputs: tensor names of the signature's inputs (`node:0`), by input name.
    """
    view = GraphView.of_graph(graph)
    seeds: dict[Tensor, Atoms] = {}
    for name, text in inputs.items():
        tensor = view.tensor(text)
        seeds[tensor] = seeds.get(tensor, _NOTHING) | {Source(name)}
    analysis = _Analysis(graph.library.function)
    analysis.run(view, seeds, 0)
    return analysis.meaning


class _Analysis:
    """Follows atoms through a graph and, at call nodes, through the functions called."""

    def __init__(self, functions: Iterable[function_pb2.FunctionDef]) -> None:
        self.meaning = Meaning()
        self._functions = {f.signature.name: f for f in functions}
        self._signatures = OpSignatures(self._functions.values())
        self._views: dict[str, GraphView] = {}

    def run(
        self, view: GraphView, seeds: Mapping[Tensor, Atoms], depth: int
    ) -> dict[Tensor, Atoms]:
        """Returns the atoms of every tensor; graphs are mostly sorted, so few sweeps suffice."""
        known = dict(seeds)
        for _ in range(_MAX_SWEEPS):
            changed = False
            for node in view.nodes.values():
                data = [known.get(tensor, _NOTHING) for tensor in view.inputs(node.name)]
                for index, atoms in self._outputs(node, data, depth).items():
                    tensor = Tensor(node.name, index)
                    before = known.get(tensor, _NOTHING)
                    if not atoms <= before:
                        known[tensor] = before | atoms
                        changed = True
            if not changed:
                break
        return known

    def _outputs(
        self, node: node_def_pb2.NodeDef, data: Sequence[Atoms], depth: int
    ) -> dict[int, Atoms]:
        """Notes what `node` says about its inputs; returns the atoms of its outputs."""
        if not data:
            return {0: atoms} if (atoms := self._constant(node)) else {}
        self._note(node, data)
        if node.op in _PARSERS:
            return self._parsed(node, data)
        if called := callees(node, self._functions):
            arguments = data[first_argument(node) :]
            return _union(self._call(name, arguments, depth) for name in called)
        if node.op == "IdentityN":
            return dict(enumerate(data))
        outputs: dict[int, Atoms] = {}
        for source, output in _CARRIED.get(node.op, ()):
            carried = _NOTHING.union(*data) if source == ALL else data[source]
            outputs[output] = outputs.get(output, _NOTHING) | carried
        if node.op in _COMPUTED:
            sources = (a for a in data[_COMPUTED[node.op]] if isinstance(a, Source))
            outputs[0] = frozenset(replace(source, exact=False) for source in sources)
        if node.op in _LOOKUPS and 0 in outputs:
            # A gathered value is an id when ids were gathered; rows of a table are no table.
            outputs[0] = frozenset(a for a in outputs[0] if isinstance(a, Source))
        return outputs

    def _note(self, node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> None:
        if node.op in _LOOKUPS and len(data) > 1:
            self._note_rows(data[0], data[1])
        if (places := _SPARSE.get(node.op)) and len(data) > max(places):
            self._note_sparse(*(data[place] for place in places))
        for column in _columns(node, data):
            self._note_rows(column[0], column[1])
            self._note_sparse(column[2], column[1], column[3])

    def _note_rows(self, table: Atoms, ids: Atoms) -> None:
        tables = [atom.rows for atom in table if isinstance(atom, Table)]
        for source in ids:
            if tables and isinstance(source, Source) and source.exact:
                bound = min(tables)
                self.meaning.rows[source] = min(self.meaning.rows.get(source, bound), bound)

    def _note_sparse(self, indices: Atoms, values: Atoms, shape: Atoms) -> None:
        triple = [_only_input(atoms) for atoms in (indices, values, shape)]
        names = [name for name in triple if name is not None]
        if len({*names}) == 3:
            self.meaning.sparse.add((names[0], names[1], names[2]))

    def _constant(self, node: node_def_pb2.NodeDef) -> Atoms:
        if node.op in ("VarHandleOp", "VariableV2", "Variable"):
            dims = node.attr["shape"].shape.dim
            return self._table(dims[0].size) if len(dims) >= 2 else _NOTHING
        if node.op != "Const":
            return _NOTHING
        tensor = node.attr["value"].tensor
        dims = tensor.tensor_shape.dim
        if tensor.string_val:
            return frozenset({Text(tuple(tensor_util.MakeNdarray(tensor).ravel().tolist()))})
        return self._table(dims[0].size) if len(dims) == 2 else _NOTHING

    @staticmethod
    def _table(rows: int) -> Atoms:
        return frozenset({Table(rows)}) if rows > 0 else _NOTHING

    def _parsed(self, node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> dict[int, Atoms]:
        keys = [next((a.values for a in atoms if isinstance(a, Text)), ()) for atoms in data]
        spec = example_spec(node, keys)
        outputs: dict[int, Atoms] = {}
        for source in data[0]:
            if spec is not None and isinstance(source, Source) and source.feature is None:
                before = self.meaning.examples.get(source.input, ExampleSpec(()))
                self.meaning.examples[source.input] = before.merged(spec)
                for index, key in example_outputs(spec).items():
                    outputs[index] = frozenset({Source(source.input, key)})
        return outputs

    def _call(self, name: str, data: Sequence[Atoms], depth: int) -> dict[int, Atoms]:
        if depth >= _MAX_DEPTH:
            return {}
        function = self._functions[name]
        if name not in self._views:
            self._views[name] = GraphView.of_function(function, self._signatures)
        view = self._views[name]
        arguments = (Tensor(arg.name) for arg in function.signature.input_arg)
        known = self.run(view, dict(zip(arguments, data, strict=False)), depth + 1)
        results = (function.ret[arg.name] for arg in function.signature.output_arg)
        return {i: known.get(view.tensor(text), _NOTHING) for i, text in enumerate(results)}


def _columns(node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> Iterator[Sequence[Atoms]]:
    """Yields table, ids, rows and shape of each column of an inference op that reads ids."""
    if node.op not in (SINGLE.name, GROUPED.name):
        return
    count = node.attr["num_columns"].i if node.op == GROUPED.name else 1
    boundaries = node.attr["boundary_counts"].list.i or [len(node.attr["boundaries"].list.f)]
    for place in range(count):
        if not boundaries[place]:
            yield data[place : 4 * count : count]


def _union(parts: Iterable[Mapping[int, Atoms]]) -> dict[int, Atoms]:
    merged: dict[int, Atoms] = {}
    for part in parts:
        for index, atoms in part.items():
            merged[index] = merged.get(index, _NOTHING) | atoms
    return merged


def _only_input(atoms: Atoms) -> str | None:
    """Returns the input that `atoms` stand for, if it is exactly one and no feature of it."""
    sources = {(a.input, a.feature) for a in atoms if isinstance(a, Source)}
    name, feature = sources.pop() if len(sources) == 1 else (None, None)
    return name if feature is None else None

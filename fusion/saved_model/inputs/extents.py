"""What ops say about how long their inputs are: which elements stand beside which.

Each rule takes the atoms of an op's inputs and returns those of its outputs that describe extents.
An extent is kept where elements are dropped or filled in, as pruning and `fill_empty_rows` do: what
goes through the same sieve belonged together before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tensorflow.core.framework import node_def_pb2

from fusion.passes.graph.view import GraphView
from fusion.saved_model.inputs.atoms import (
    NOTHING,
    Along,
    Atoms,
    Claim,
    Count,
    Number,
    Positions,
    Rows,
    Source,
    Steps,
    extents,
    in_part,
    of_kind,
)
from fusion.saved_model.inputs.constraints import Bounds, Constraints, Extent, Key, Role

_MAX_CLAIMED = 4
"""Of more atoms than this nothing is claimed: then the values come from all over the model."""

_ZIPPED = frozenset(
    [
        "Add", "AddN", "AddV2", "And", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div",
        "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual",
        "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "NotEqual",
        "Pow", "RealDiv", "Select", "SelectV2", "SquaredDifference", "StringJoin", "Sub",
        "TruncateDiv", "TruncateMod", "Xdivy", "Xlogy",
    ]
)  # fmt: skip
"""Ops that take an element of each input for an element of the output."""

_REDUCED = frozenset(["All", "Any", "Max", "Mean", "Min", "Prod", "Sum", "ArgMax", "ArgMin"])
_OTHERWISE = frozenset(
    [
        "Assert", "DenseToDenseSetOperation", "Diag", "InTopKV2", "OneHot", "Pack", "Rank", "Size",
        "Transpose", "Unpack", "VarHandleOp", "VarIsInitializedOp", "ParseTensor", "TopKV2",
        "Unstage", "NoOp", "L2Loss", "RaggedTensorFromVariant", "SparseSplit", "Split", "SplitV",
    ]
)  # fmt: skip
"""Ops of one input, or more, whose outputs are not as long as their first input."""

_COMPARED = {"Less", "LessEqual", "Greater", "GreaterEqual", "Equal"}
_VALUES_PASS = frozenset(
    [
        "Add", "AddV2", "All", "BroadcastTo", "Cast", "ConcatV2", "EnsureShape", "ExpandDims",
        "GatherV2", "Identity", "LogicalAnd", "Max", "Maximum", "Merge", "Min", "Minimum", "Pack",
        "Pad", "Prod", "Reshape", "SelectV2", "Slice", "Squeeze", "StopGradient", "StridedSlice",
        "Sub", "Switch", "Tile",
    ]
)  # fmt: skip
"""Ops whose output may hold the counts, splits, lengths and claims of their inputs."""

_SHIFTED = frozenset(["Add", "AddV2", "Sub"])
"""Of these, counts alone: one more or one less than all is still about all."""

_RESHAPED = frozenset(["Cast", "ExpandDims", "Identity", "Merge", "Reshape", "Squeeze", "Switch"])
"""Of these, positions as well."""

Data = Sequence[Atoms]


class ExtentFlow:
    """Follows extents through ops and notes what these say about them."""

    def __init__(self, constraints: Constraints) -> None:
        """Takes the object to note it in."""
        self._constraints = constraints
        self._rules: dict[str, Callable[[GraphView, node_def_pb2.NodeDef, Data], list[Atoms]]] = {
            **dict.fromkeys(_ZIPPED, self._zipped),
            **dict.fromkeys(_REDUCED, self._reduced),
            **dict.fromkeys(("Gather", "GatherV2", "GatherNd", "ResourceGather"), self._gathered),
            **dict.fromkeys(("Shape", "Size"), self._counted),
            **dict.fromkeys(("Fill", "BroadcastTo", "Reshape"), self._shaped),
            **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCountsV3"), self._unique),
            **dict.fromkeys(
                ("SparseReorder", "SparseFillEmptyRows", "SparseTensorDenseMatMul"), self._sparse
            ),
            **dict.fromkeys(("RaggedTensorToSparse", "RaggedTensorToVariant"), self._ragged),
            **dict.fromkeys(("DenseBincount", "Bincount"), self._bincount),
            "ConcatV2": self._joined,
            "Pack": self._packed,
            "Where": self._where,
            "Range": self._range,
            "ExpandDims": self._expanded,
            "StridedSlice": self._sliced,
            "SparseToDense": self._sparse_to_dense,
            "PruneInvalidAndFillEmptyRows": self._pruned,
            "RaggedFillEmptyRows": self._ragged_fill,
            "RaggedTensorToTensor": self._ragged_to_tensor,
            "Cumsum": self._cumsum,
            "Assert": self._asserted,
            "LookupTableFindV2": lambda view, node, data: [_along(data[1])],
            "LookupTableFind": lambda view, node, data: [_along(data[1])],
        }

    def outputs(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        """Returns the atoms of a node's outputs that describe extents, as far as they are known."""
        if node.op in self._rules:
            outputs = self._rules[node.op](view, node, data)
        elif "Segment" in node.op and not node.op.endswith("Grad"):
            outputs = self._segments(node, data)
        elif node.op in _OTHERWISE:
            outputs = []
        else:
            outputs = [_along(data[0])]
        if node.op in _VALUES_PASS:
            first = outputs[0] if outputs else NOTHING
            kinds = Count if node.op in _SHIFTED else Count | Rows | Claim | Steps
            passed = frozenset(a for atoms in data for a in atoms if isinstance(a, kinds))
            if node.op in _RESHAPED:
                passed |= of_kind(data[0], Positions)
            outputs = [first | passed, *outputs[1:]]
        return outputs

    def fused(self, form: str, ids: Atoms, rows: Atoms, weights: Data) -> None:
        """Notes what a fused op says about the rows and the weights of its ids."""
        self._linked((ids, *weights))
        if form == "row_splits":
            self.declared_ragged(ids, [rows])
        elif form in ("row_ids", "indices"):
            self._row_ids(rows, ids)

    def declared_ragged(self, values: Atoms, splits: Sequence[Atoms]) -> None:
        """Notes that inputs are the parts of a RaggedTensor, row splits from the outermost on."""
        for outer, inner in zip(splits, (*splits[1:], values), strict=True):
            self._divide(outer, "splits", extents(inner))
            self._demand(outer, Role.SPLITS, inner)

    def declared_sparse(self, indices: Atoms, values: Atoms) -> None:
        """Notes that inputs are the parts of a SparseTensor."""
        self._constraints.link(extents(indices) | extents(values))

    def _zipped(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        along = self._linked(data)
        out: set[object] = set(along)
        left, right = data[0], data[1] if len(data) > 1 else NOTHING
        if node.op in _COMPARED:
            claim = Claim(node.op, _claimed(left), _claimed(right))
            out |= {claim} if claim.left and claim.right else set()
        if node.op in ("Less", "LessEqual") and Steps() in left:
            out |= {Rows(key, role, "inside") for key, role in _rows(right, "lengths")}
        if node.op == "NotEqual":
            out |= _present(left, right) | _present(right, left)
        if node.op == "Sub":
            both = _rows(left, "splits") & _rows(right, "splits")
            out |= {Rows(key, role, "lengths") for key, role in both}
        return [frozenset(out)]  # type: ignore[arg-type]

    def _linked(self, data: Iterable[Atoms]) -> Atoms:
        """Links the extents of tensors of one length and returns them."""
        several = [own for atoms in data if (own := extents(atoms))]
        if not several:
            return NOTHING
        union = frozenset[Extent]().union(*several)
        if any(own != union for own in several):
            self._constraints.link(union)
        return frozenset(Along(extent) for extent in union)

    def _reduced(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        axes = view.constant(view.inputs(node.name)[1]) if len(data) > 1 else None
        is_inner = axes is not None and axes.size > 0 and 0 not in axes.ravel().tolist()
        totals: Atoms = NOTHING
        if node.op == "Sum":
            totals = frozenset(Rows(k, r, "total") for k, r in _rows(data[0], "lengths"))
        return [(_along(data[0]) if is_inner else NOTHING) | totals]

    def _gathered(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        params, indices = data[0], data[1]
        positions = frozenset(atom.extent for atom in of_kind(indices, Positions))
        if positions and (rows := extents(params)):
            self._constraints.link(rows | positions)
        axis = view.constant(view.inputs(node.name)[2]) if len(data) > 2 else None
        if axis is not None and int(axis) != 0:
            return [_along(params)]
        return [_along(indices)]

    def _counted(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        return [frozenset(Count(extent) for extent in extents(data[0]))]

    def _shaped(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        source, shape = (data[1], data[0]) if node.op == "Fill" else (data[0], data[1])
        counts = frozenset(Along(atom.extent) for atom in of_kind(shape, Count))
        return [_along(source) or (NOTHING if node.op == "Reshape" else counts)]

    def _unique(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        return [NOTHING, _along(data[0])]

    def _sparse(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        both = self._linked(data[:2])
        self._row_ids(data[0], data[1])
        self._count_rows(data[2])
        return [] if node.op == "SparseTensorDenseMatMul" else [both, both]

    def _sparse_to_dense(
        self, view: GraphView, node: node_def_pb2.NodeDef, data: Data
    ) -> list[Atoms]:
        self._linked((data[0], data[2]))
        self._row_ids(data[0], data[2])
        self._count_rows(data[1])
        return []

    def _pruned(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        both = self._linked(data[:2])
        return [both, both]

    def _ragged(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        self.declared_ragged(data[-1], data[:-1])
        return [_along(data[-1])] * 2 if node.op == "RaggedTensorToSparse" else []

    def _ragged_fill(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        both = self._linked(data[:2])
        self._row_ids(data[0], data[1])
        self._count_rows(data[2])
        return [both, both]

    def _ragged_to_tensor(
        self, view: GraphView, node: node_def_pb2.NodeDef, data: Data
    ) -> list[Atoms]:
        types = list(node.attr["row_partition_types"].list.s)
        partitions = [a for kind, a in zip(types, data[3:], strict=False) if kind == b"ROW_SPLITS"]
        if partitions and len(partitions) == len(types):
            self.declared_ragged(data[1], partitions)
        if types[-1:] == [b"VALUE_ROWIDS"]:
            self._row_ids(data[3:][len(types) - 1], data[1])
        return []

    def _segments(self, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        """Reductions of a tensor's rows, or of the rows at indices, by the segment of each."""
        if len(data) < 2:
            return []
        segments = data[2] if node.op.startswith("Sparse") and len(data) > 2 else data[1]
        entries = data[1] if node.op.startswith("Sparse") else data[0]
        self._linked((entries, segments))
        self._row_ids(segments, entries)
        if not node.op.startswith("Unsorted"):
            self._demand(segments, Role.ROW_IDS, entries)
        if node.op.startswith("Unsorted") or node.op.endswith("WithNumSegments"):
            self._count_rows(data[-1])
        return []

    def _count_rows(self, counts: Atoms) -> None:
        self._constraints.row_counts |= {s.key for s in of_kind(counts, Source) if s.exact}

    def _row_ids(self, rows: Atoms, entries: Atoms) -> None:
        for source in of_kind(rows, Source):
            if source.exact:
                self._constraints.divides(source.key, Role.ROW_IDS)
                inside = Extent(source.key, is_inside=True)
                self._constraints.link({inside, *extents(rows), *extents(entries)})

    def _divide(self, rows: Atoms, form: str, entries: frozenset[Extent]) -> None:
        """Notes that what `rows` come from divides entries."""
        for key, role in _rows(rows, form):
            if key not in self._constraints.scalars:
                self._constraints.divides(key, role)
                self._constraints.link({Extent(key, is_inside=True), *entries})

    def _demand(self, rows: Atoms, role: Role, entries: Atoms) -> None:
        """Notes that an op, or a spec, does not take any other rows, if these are inputs."""
        key, divided = _whole(rows), _whole(entries)
        if key is not None and divided is not None:
            self._constraints.demand(key, role, divided)

    def _count(self, number: Atoms, counted: frozenset[Extent]) -> None:
        """Notes that a scalar input holds how many elements there are."""
        for source in of_kind(number, Source):
            if source.exact and source.key in self._constraints.scalars:
                self._constraints.counts.add(source.key)
                self._constraints.link({Extent(source.key), *counted})

    def _bincount(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        ids = (s.key for s in of_kind(data[0], Source) if s.exact)
        self._count_rows(data[1])
        return [frozenset(Rows(key, Role.ROW_IDS, "lengths") for key in ids)]

    def _cumsum(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        splits = frozenset(Rows(k, r, "splits") for k, r in _rows(data[0], "lengths"))
        return [_along(data[0]) | splits]

    def _joined(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        axis = view.constant(view.inputs(node.name)[-1])
        if axis is None:
            return []
        if int(axis) != 0:
            return [self._linked(data[:-1])]
        # Row splits, a zero and the ends of rows, still are about the rows.
        ends = [atoms for atoms in data[:-1] if not of_kind(atoms, Number)]
        rows = [a for a in of_kind(ends[0], Rows) if a.form == "splits"] if len(ends) == 1 else []
        return [_along(ends[0])] if rows else []

    def _packed(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        return [] if node.attr["axis"].i == 0 else [self._linked(data)]

    def _where(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        inside = [a for a in of_kind(data[0], Rows) if a.form == "inside"]
        present = [a for a in of_kind(data[0], Rows) if a.form == "present"]
        if inside:
            for rows in inside:
                if rows.role is not None:
                    self._constraints.divides(rows.key, rows.role)
            return [frozenset(Along(Extent(rows.key, is_inside=True)) for rows in inside)]
        if present:
            return [frozenset(Along(Extent(a.key, missing=a.missing)) for a in present)]
        sizes = extents(data[0])
        return [frozenset(Along(e) for e in sizes) | frozenset(Positions(e) for e in sizes)]

    def _range(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        counts = of_kind(data[1], Count)
        return [frozenset(Along(atom.extent) for atom in counts) | {Steps()}]

    def _expanded(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        axis = view.constant(view.inputs(node.name)[1])
        return [_along(data[0]) if axis is not None and int(axis.ravel()[0]) != 0 else NOTHING]

    def _sliced(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        is_whole = not node.attr["shrink_axis_mask"].i & 1
        return [_along(data[0]) | of_kind(data[0], Positions) if is_whole else NOTHING]

    def _asserted(self, view: GraphView, node: node_def_pb2.NodeDef, data: Data) -> list[Atoms]:
        for claim in of_kind(data[0], Claim):
            self._believe(claim)
        return []

    def _believe(self, claim: Claim) -> None:
        """Notes what has to hold of inputs because the model asserts it."""
        op, left, right = claim.op, claim.left, claim.right
        if op.startswith("Greater"):
            op, left, right = op.replace("Greater", "Less"), right, left
        if op == "Equal":
            for counted, other in ((left, right), (right, left)):
                same = frozenset(atom.extent for atom in of_kind(counted, Count))
                if same:
                    self._constraints.link(same | {atom.extent for atom in of_kind(other, Count)})
                    self._count(other, same)
                    self._divide(other, "splits", same)
                    self._divide(other, "total", same)
            return
        strict = op == "Less"
        left_keys, right_keys = ({s.key for s in of_kind(a, Source)} for a in (left, right))
        numbers = [
            [n.value for n in of_kind(atoms, Number) if not isinstance(n.value, bytes)]
            for atoms in (left, right)
        ]
        for key in left_keys if numbers[1] else ():
            self._constraints.bound(key, Bounds(high=min(numbers[1]), without_high=strict))
        for key in right_keys if numbers[0] else ():
            self._constraints.bound(key, Bounds(low=max(numbers[0]), without_low=strict))
        if len(left_keys) == len(right_keys) == 1 and left_keys != right_keys:
            self._constraints.orders[(*left_keys, *right_keys)] = strict  # type: ignore[index]


def _along(atoms: Atoms) -> Atoms:
    return of_kind(atoms, Along)


def _whole(atoms: Atoms) -> Key | None:
    """Returns the input that a tensor is."""
    sources = of_kind(atoms, Source)
    is_input = len(sources) == 1 and all(source.exact and source.whole for source in sources)
    return next(iter(sources)).key if is_input else None


def _claimed(atoms: Atoms) -> frozenset[Source | Number | Count | Rows]:
    claimed = frozenset(
        atom
        for atom in in_part(atoms)
        if isinstance(atom, Number | Count | Rows) or (isinstance(atom, Source) and atom.exact)
    )
    return claimed if len(claimed) <= _MAX_CLAIMED else frozenset()


def _rows(atoms: Atoms, form: str) -> frozenset[tuple[Key, Role]]:
    """Returns the inputs that `atoms` hold the splits, lengths or total of, with their roles.

    An input itself may be splits or lengths.
    """
    rows = {(a.key, a.role) for a in of_kind(atoms, Rows) if a.form == form and a.role is not None}
    own = {"splits": Role.SPLITS, "lengths": Role.LENGTHS}.get(form)
    if own is not None and not rows:
        rows = {(source.key, own) for source in of_kind(atoms, Source) if source.exact}
    return frozenset(rows)


def _present(values: Atoms, missing: Atoms) -> frozenset[Rows]:
    """Returns the mask of what is not equal to a number."""
    numbers = of_kind(missing, Number)
    sources = {s.key for s in of_kind(values, Source) if s.exact}
    if len(numbers) != 1 or len(sources) != 1:
        return frozenset()
    ((key,), (number,)) = sources, numbers
    return frozenset({Rows(key, None, "present", number.value)})

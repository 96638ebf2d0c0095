"""The id side of a lookup: filling of empty rows, and pruning of invalid entries."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.idioms import INTEGERS, compares_with, is_row_gather
from fusion.passes.match import Match, NoMatch, Stage
from fusion.passes.recognise_reduction import Reduction
from fusion.passes.recognise_table import Table
from fusion.passes.shapes import pass_flat

_FILL_OPS = frozenset({"SparseFillEmptyRows", "RaggedFillEmptyRows"})


@dataclass(frozen=True, kw_only=True)
class Entries(Match):
    """The entries of a batch: (row, id, weight) each.

    Attributes:
        ids: [m].
        indices: int64 [m, 2] with the row in column 0, None if only `rows` is known.
        rows: [m], None if they are column 0 of `indices`.
        weights: [m], or None.
        weight_place: `indices` or `rows` once more, if the weights have their own.
        count: the number of rows: a number, or a dense shape [2] beside `indices`; None where the
            last row with an entry is the last one.
        dtype: DataType of the ids.
        rows_dtype: DataType of `rows`.
    """

    ids: Tensor
    indices: Tensor | None
    rows: Tensor | None
    weights: Tensor | None
    count: Tensor | None
    dtype: int
    rows_dtype: int
    weight_place: Tensor | None = None

    @property
    def place(self) -> Tensor:
        """What holds the entries' rows."""
        place = self.indices if self.indices is not None else self.rows
        assert place is not None
        return place


@dataclass(frozen=True, kw_only=True)
class Fill(Match):
    """SparseFillEmptyRows or RaggedFillEmptyRows: every empty row gets an entry.

    Attributes:
        entries: those before.
        default: the id of the new entries, >= 0.
        default_weight: their weight.
        is_row_empty: which rows were empty.
    """

    entries: Entries
    default: int
    default_weight: float
    is_row_empty: Tensor


@dataclass(frozen=True, kw_only=True)
class Prune(Match):
    """Only valid entries are kept.

    Attributes:
        entries: those before.
        by_id: whether entries with id < 0 are dropped.
        by_weight: whether entries whose weight is not > 0 are dropped.
    """

    entries: Entries
    by_id: bool
    by_weight: bool


def match_entries(view: GraphView, reduction: Reduction, table: Table) -> Entries | NoMatch:
    """Explains the reduction's segment ids as the rows of the entries that are looked up."""
    ids, segments = table.ids, reduction.segments
    dtype = _id_dtype(view, ids)
    if dtype not in INTEGERS:
        return NoMatch("the ids are neither int32 nor int64", ids.node)
    column = _match_first_column(view, segments)
    is_ragged = segments.node == ids.node and view.op(ids.node) == "RaggedFillEmptyRows"
    is_table_read = not table.shards[0].gather
    if column is None and not is_ragged and is_table_read:
        return NoMatch("the segment ids are not the row numbers of a SparseTensor", segments.node)
    if column is not None and not _is_matrix(view, column[0]):
        # The column itself is read then.
        column = None
    indices, nodes = column if column is not None else (None, ())
    return Entries(
        stage=Stage.OUTPUT,
        nodes=nodes,
        ids=ids,
        indices=indices,
        rows=segments if column is None else None,
        weights=reduction.weights,
        count=None,
        dtype=dtype,
        rows_dtype=reduction.segments_dtype,
    )


def match_fill(view: GraphView, entries: Entries) -> Fill | NoMatch | None:
    """Explains the entries as filled ones; None where nothing is filled."""
    name = entries.ids.node
    if view.op(name) not in _FILL_OPS or entries.ids.index != 1:
        if view.op(entries.place.node) in _FILL_OPS:
            return NoMatch("empty rows are filled, but the ids are others", entries.ids.node)
        return None
    if entries.place != Tensor(name, 0):
        return NoMatch("the segment ids are not the rows of the filled ids", entries.place.node)
    places, values, count, default = view.inputs(name)
    number = view.constant(default)
    if number is None or number.ndim != 0:
        return NoMatch("the id for empty rows is not a constant", default.node)
    if int(number) < 0:
        return NoMatch("the id for empty rows is negative", default.node)
    nodes: tuple[str, ...] = (name,)
    weights, default_weight, weight_place = entries.weights, 1.0, None
    if weights is not None:
        filled = _match_filled_weights(view, name, weights)
        if isinstance(filled, NoMatch):
            return filled
        nodes += (weights.node,)
        weight_place, weights = view.inputs(weights.node)[:2]
        default_weight = filled
    is_sparse = view.op(name) == "SparseFillEmptyRows"
    before = Entries(
        stage=Stage.IDS,
        nodes=(),
        ids=values,
        indices=places if is_sparse else None,
        rows=None if is_sparse else places,
        weights=weights,
        count=count,
        dtype=entries.dtype,
        rows_dtype=types_pb2.DT_INT64,
        weight_place=weight_place,
    )
    return Fill(
        stage=Stage.IDS,
        nodes=nodes,
        entries=before,
        default=int(number),
        default_weight=default_weight,
        is_row_empty=Tensor(name, 2),
    )


def match_prune(view: GraphView, entries: Entries) -> Prune:
    """Explains the entries as the valid ones of others, as far as they are."""
    tensors = {"ids": entries.ids, "place": entries.place}
    if entries.weights is not None:
        tensors["weights"] = entries.weights
    if entries.weight_place is not None:
        tensors["weight_place"] = entries.weight_place
    levels = {key: _peel(view, tensor) for key, tensor in tensors.items()}
    by_id = by_weight = False
    nodes: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    depth = 0
    while (step := _match_step(view, levels, depth)) is not None:
        by_id |= step.by_id
        by_weight |= step.by_weight
        # The last condition is one of the entries that are kept in the graph, those before are not.
        nodes += (*front, *step.nodes)
        front = step.front
        depth += 1
    if by_weight and not by_id:
        # No op drops entries by weight alone: they are taken as they are given.
        depth, by_weight, nodes, front = 0, False, (), ()
    source = {key: found.tensors[depth] for key, found in levels.items()}
    passed = tuple(name for found in levels.values() for name in found.aliases[depth])
    before = Entries(
        stage=Stage.IDS,
        nodes=(),
        front=tuple(dict.fromkeys(passed)),
        ids=source["ids"],
        indices=source["place"] if entries.indices is not None else None,
        rows=source["place"] if entries.indices is None else None,
        weights=source.get("weights"),
        count=entries.count,
        dtype=entries.dtype,
        rows_dtype=entries.rows_dtype,
    )
    return Prune(
        stage=Stage.IDS,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        entries=before,
        by_id=by_id,
        by_weight=by_weight,
    )


def _id_dtype(view: GraphView, ids: Tensor) -> int:
    """Returns the DataType of the ids, as the op that reads them says."""
    for use in view.tensor_uses(ids):
        key = {"Unique": "T", "GatherV2": "Tindices", "ResourceGather": "Tindices"}
        known = key.get(view.op(use.node), "Tidx")
        if (dtype := view.type_attr(use.node, known)) != 0:
            return dtype
    return 0


def _match_first_column(view: GraphView, segments: Tensor) -> tuple[Tensor, tuple[str, ...]] | None:
    """Explains row numbers as column 0 of [m, 2] indices."""
    name = segments.node
    if view.op(name) != "StridedSlice" or not _takes_first_column(view, name):
        return None
    indices = view.inputs(name)[0]
    return view.resolve(indices), (name, *view.aliases(indices))


def _is_matrix(view: GraphView, indices: Tensor) -> bool:
    """Whether indices are those of a matrix: filled rows are always given as such."""
    shape = view.shape(indices)
    is_filled = view.op(indices.node) in _FILL_OPS
    return is_filled or (shape is not None and len(shape) == 2 and shape[1] == 2)


def _takes_first_column(view: GraphView, name: str) -> bool:
    """Whether a StridedSlice of a matrix means `[:, 0]`."""
    bounds = [view.constant(bound) for bound in view.inputs(name)[1:]]
    if any(bound is None or bound.shape != (2,) for bound in bounds):
        return False
    begin, _, strides = (bound for bound in bounds if bound is not None)
    masks = {
        key: view.int_attr(name, f"{key}_mask")
        for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    all_rows = bool(masks["begin"] & 1 and masks["end"] & 1) and strides[0] == 1
    one_column = masks["shrink_axis"] == 2 and not masks["begin"] & 2 and begin[1] == 0
    return (
        all_rows
        and one_column
        and strides[1] == 1
        and not masks["ellipsis"]
        and not masks["new_axis"]
    )


def _match_filled_weights(view: GraphView, ids_fill: str, weights: Tensor) -> float | NoMatch:
    """Explains the weights as filled in the same rows as the ids, and returns the filler."""
    if view.op(weights.node) != view.op(ids_fill) or weights.index != 1:
        return NoMatch("the weights of empty rows are not filled in", weights.node)
    mine, theirs = view.inputs(ids_fill), view.inputs(weights.node)
    if view.resolve(mine[2]) != view.resolve(theirs[2]):
        return NoMatch("ids and weights are filled in different rows", weights.node)
    if not _same_entries(view, mine[0], theirs[0]):
        return NoMatch("ids and weights are filled in different rows", weights.node)
    value = view.constant(theirs[3])
    if value is None or value.ndim != 0:
        return NoMatch("the weight of empty rows is not a constant", theirs[3].node)
    number = float(value)
    if float(np.float32(number)) != number:
        return NoMatch("the weight of empty rows is not a float32 number", theirs[3].node)
    return number


def _same_entries(view: GraphView, a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same one with the same entries dropped."""
    mine, theirs = _peel(view, a), _peel(view, b)
    return mine.tensors[-1] == theirs.tensors[-1] and mine.conditions == theirs.conditions


@dataclass
class _Levels:
    """A tensor behind gathers of the entries that a condition keeps, outermost first.

    `tensors[k]` is the tensor before the k outermost gathers; `conditions[k]` what the k-th keeps,
    with the nodes of that gather in `nodes[k]`. `aliases[k]` stand in front of `tensors[k]`.
    """

    tensors: list[Tensor] = field(default_factory=list)
    aliases: list[tuple[str, ...]] = field(default_factory=list)
    conditions: list[Tensor] = field(default_factory=list)
    nodes: list[tuple[str, ...]] = field(default_factory=list)


def _peel(view: GraphView, tensor: Tensor) -> _Levels:
    levels = _Levels()
    while True:
        tensor, passed = pass_flat(view, tensor)
        levels.tensors.append(tensor)
        levels.aliases.append(passed)
        if not is_row_gather(view, tensor.node) or view.controls(tensor.node):
            return levels
        source, kept = view.inputs(tensor.node)[:2]
        condition = _match_kept(view, kept)
        if condition is None:
            return levels
        levels.conditions.append(condition[0])
        levels.nodes.append((tensor.node, *condition[1]))
        tensor = source


def _match_kept(view: GraphView, kept: Tensor) -> tuple[Tensor, tuple[str, ...]] | None:
    """Explains positions as those where a condition [n] holds, and the nodes between."""
    flat = view.resolve(kept)
    if not _flattens(view, flat.node):
        return None
    inner = view.inputs(flat.node)[0]
    where = view.resolve(inner)
    if view.op(where.node) != "Where":
        return None
    condition, passed = pass_flat(view, view.inputs(where.node)[0])
    nodes = (*view.aliases(kept), flat.node, *view.aliases(inner), where.node, *passed)
    return condition, nodes


def _flattens(view: GraphView, name: str) -> bool:
    """Whether the node turns an [n, 1] matrix into an [n] vector."""
    if view.op(name) == "Reshape":
        target = view.constant(view.inputs(name)[1])
        return target is not None and np.array_equal(target, [-1])
    if view.op(name) == "Squeeze":
        dims = view.attr(name, "squeeze_dims")
        return dims is not None and list(dims.list.i) in ([1], [-1])
    return False


@dataclass(frozen=True)
class _Step:
    by_id: bool
    by_weight: bool
    nodes: tuple[str, ...]
    front: tuple[str, ...]


def _match_step(view: GraphView, levels: dict[str, _Levels], depth: int) -> _Step | None:
    """Explains the gather `depth` of all tensors as the valid ones of the entries behind it."""
    if any(len(found.conditions) <= depth for found in levels.values()):
        return None
    condition = levels["ids"].conditions[depth]
    if any(found.conditions[depth] != condition for found in levels.values()):
        return None
    by_id = by_weight = False
    front: tuple[str, ...] = ()
    pending = [condition]
    while pending:
        test = pending.pop()
        passed = view.aliases(test)
        test = view.resolve(test)
        op = view.op(test.node)
        front += (*passed, test.node)
        if op == "LogicalAnd":
            pending += view.inputs(test.node)
        elif op == "Fill" and (measured := _match_all_true(view, test, levels, depth)) is not None:
            front += measured
        elif op == "GreaterEqual" and _compares(view, test, levels["ids"], depth):
            by_id = True
            front += view.aliases(view.inputs(test.node)[0])
        elif (
            op == "Greater"
            and "weights" in levels
            and _compares(view, test, levels["weights"], depth)
        ):
            by_weight = True
            front += view.aliases(view.inputs(test.node)[0])
        else:
            return None
    if not by_id and not by_weight:
        return None
    nodes = (n for found in levels.values() for n in (*found.aliases[depth], *found.nodes[depth]))
    return _Step(by_id, by_weight, tuple(nodes), front)


def _compares(view: GraphView, test: Tensor, levels: _Levels, depth: int) -> bool:
    """Whether the comparison is that of the entries behind gather `depth` with 0."""
    if not compares_with(view, test, 0):
        return False
    return _is_behind(view, view.inputs(test.node)[0], levels, depth)


def _is_behind(view: GraphView, tensor: Tensor, levels: _Levels, depth: int) -> bool:
    """Whether the tensor is what gather `depth` reads."""
    mine = _peel(view, tensor)
    rest = levels.conditions[depth + 1 :]
    return mine.tensors[-1] == levels.tensors[-1] and mine.conditions == rest


def _match_all_true(
    view: GraphView, test: Tensor, levels: dict[str, _Levels], depth: int
) -> tuple[str, ...] | None:
    """Explains a Fill as a condition that holds for each entry behind gather `depth`."""
    shape, number = view.inputs(test.node)
    value, measured = view.constant(number), view.resolve(shape)
    if value is None or value.ndim or not value or view.op(measured.node) != "Shape":
        return None
    of = view.inputs(measured.node)[0]
    if not any(
        _is_behind(view, of, levels[key], depth) for key in levels if key in ("ids", "weights")
    ):
        return None
    return (*view.aliases(shape), measured.node)

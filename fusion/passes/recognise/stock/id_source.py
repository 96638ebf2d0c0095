"""Where ids come from before they are pruned: a sparse matrix, a dense one, or bare rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from fusion.passes.analysis.index_grids import Grid, columns, grid
from fusion.passes.analysis.symbolic_shapes import Element, Item, ShapeMath, has_measured_columns
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Value
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds, Hashing
from fusion.passes.recognise.stock.entries import Entries
from fusion.passes.recognise.stock.ragged import RowSplits, match_row_splits

#: Ops that make a number >= 0 of each element, and one that makes a text of each.
_HASHES = frozenset(
    {"StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong"}
    | {"_TensorToHashBucketFast"}
)
_TEXT_OPS = frozenset({"AsString"})


@dataclass(frozen=True, kw_only=True)
class IdSource(Match):
    """What the fused ops read.

    Attributes:
        entries: ids, rows and weights. With `dense`, ids and rows are not needed.
        flattened: whether the indices come out of a SparseReshape that merges dimensions.
        checked: whether stock asks about all sizes of the dense shape, see `SparseIds`.
        buckets: their number, and the id of what is in none; 0 without.
        dense: the matrix that the entries are made of, or None.
        row_splits: what the rows of the entries are counted from, or None.
        batch: the number of rows, symbolically; None if it follows from the entries alone.
    """

    entries: Entries
    flattened: bool
    checked: bool
    buckets: tuple[int, int]
    dense: DenseIds | None
    row_splits: RowSplits | None
    batch: Element | None


def match_source(entries: Entries) -> IdSource | NoMatch:
    """Finds what ids, rows and weights are made of.

    A SparseReshape whose target is provably the shape that it is given changes nothing and is
    passed. Any other one stays, and the fused op reads its outputs.
    """
    math, view = ShapeMath(), entries.ids.view
    front = [*entries.ids.aliases]
    if entries.weights is not None:
        front += entries.weights.aliases
    entries = replace(entries, ids=entries.ids.resolved)
    batch: Element | None = None
    flattened, checked = False, True
    if entries.indices is not None:
        indices, passed = _pass_reshape(math, entries.indices)
        checked = any(view.op(name) == "SparseReshape" for name in passed)
        front += passed
        count = entries.count
        if count is not None:
            count, passed = _pass_reshape(math, count)
            front += passed
        if not _is_matrix(math, indices, count):
            return NoMatch("the ids are not known to form a matrix", indices.node)
        flattened = indices.producer.op == "SparseReshape"
        entries = replace(entries, indices=indices, count=count)
        if count is not None:
            elements = math.vector(count)
            batch = elements[0] if elements else Item(count.tensor, 0)
            checked |= flattened or has_measured_columns(elements)
    row_splits = None
    if entries.rows is not None and entries.count is not None:
        batch = math.scalar(entries.count)
        row_splits = match_row_splits(entries.rows, entries.count)
    ids, buckets = entries.ids, (0, 0)
    if entries.count is not None:
        ids, buckets, passed = _match_buckets(ids)
        front += passed
    dense = None if entries.weights is not None else _match_dense(math, ids, entries)
    if dense is not None:
        front += dense[1]
    return IdSource(
        stage=Stage.IDS,
        nodes=(),
        front=tuple(dict.fromkeys(front)),
        entries=replace(entries, ids=ids),
        flattened=flattened,
        checked=checked,
        buckets=buckets,
        dense=None if dense is None else dense[0],
        row_splits=row_splits,
        batch=batch,
    )


def _pass_reshape(math: ShapeMath, value: Value) -> tuple[Value, tuple[str, ...]]:
    """Returns where the tensor comes from behind reshapes to the same shape, and what it passed."""
    passed, value = value.aliases, value.resolved
    while (reshape := value.producer).op == "SparseReshape" and not reshape.controls:
        _, shape, target = inputs = reshape.inputs
        before, after = math.vector(shape), math.vector(target)
        if before is None or len(before) != 2 or before != after:
            break
        inner = inputs[value.index]
        passed += (reshape.name, *inner.aliases)
        value = inner.resolved
    return value, passed


def _is_matrix(math: ShapeMath, indices: Value, dense_shape: Value | None) -> bool:
    index_shape = indices.shape
    width = index_shape[1] if index_shape is not None and len(index_shape) == 2 else None
    if dense_shape is None:
        return width == 2
    sizes = math.vector(dense_shape)
    if sizes is None and dense_shape.producer.op == "Pack":
        # The stock op takes a vector only, so these are its elements.
        return dense_shape.producer.input_count == 2
    return 2 in (width, None if sizes is None else len(sizes))


def _match_buckets(ids: Value) -> tuple[Value, tuple[int, int], tuple[str, ...]]:
    """Passes `select(ids < 0 or ids >= count, default, ids)`."""
    nothing, select = (ids, (0, 0), ()), ids.producer
    if select.op not in ("Select", "SelectV2") or select.controls:
        return nothing
    condition, replacement, values = select.inputs
    source, outside = values.resolved, condition.producer
    if outside.op != "LogicalOr":
        return nothing
    tests = {test.producer.op: test.producer for test in outside.inputs}
    if tests.keys() != {"Less", "GreaterEqual"}:
        return nothing
    if any(test.input(0).resolved != source for test in tests.values()):
        return nothing
    min_id, count = _number(tests["Less"].input(1)), _number(tests["GreaterEqual"].input(1))
    default, filled = _filled(replacement, source)
    if count is None or default is None or min_id != 0:
        return nothing
    # As op attrs, such a count means "none", and such a default would be pruned or replaced.
    if count <= 0 or not 0 <= default < count:
        return nothing
    names = (select.name, outside.name, *(test.name for test in tests.values()), *filled)
    aliases = (name for one in (condition, replacement, values) for name in one.aliases)
    return source, (count, default), (*names, *aliases)


def _number(value: Value) -> int | None:
    cast = value.producer
    number = (cast.input(0) if is_integer_cast(cast) else value).scalar
    return None if number is None else int(number)


def _filled(value: Value, ids: Value) -> tuple[int | None, tuple[str, ...]]:
    """Explains a tensor as one number for each id: the number."""
    fill = value.producer
    if fill.op != "Fill":
        return _number(value), ()
    shape, number = fill.inputs
    measured = shape.producer
    if measured.op != "Shape":
        # The ids' static shape, which Grappler made a constant.
        size = shape.constant
        is_vector = size is not None and size.ndim == 1
        return (_number(number) if is_vector else None), (fill.name,)
    if measured.input(0).resolved != ids:
        return None, ()
    return _number(number), (fill.name, measured.name)


def _match_dense(
    math: ShapeMath, ids: Value, entries: Entries
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains ids and rows as those of a dense matrix, if they are."""
    if entries.indices is None or entries.count is None:
        return None
    passed: tuple[str, ...] = ()
    dtype, cast = entries.dtype, ids.producer
    if is_integer_cast(cast) and not cast.controls:
        passed = (cast.name,)
        dtype = cast.type_attr("SrcT")
        ids = cast.input(0).resolved
    match = _match_to_sparse(math, ids, dtype, entries.indices, entries.count)
    if match is None:
        match = _match_hashed(math, ids, dtype, entries.indices, entries.count)
    if match is None:
        match = match_grid(math, ids, dtype, entries.indices, entries.count)
    # Ids that are cast after something was added could have overflowed before.
    if match is None or (match[0].stride and dtype != entries.dtype):
        return None
    return match[0], (*passed, *match[1])


def _match_to_sparse(
    math: ShapeMath, ids: Value, dtype: int, indices: Value, dense_shape: Value
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains `gather_nd(matrix, indices)` with `indices = where(matrix != ignored)`."""
    mask = match_boolean_mask(math, ids, indices, dense_shape)
    number = None if mask is None else _number(mask.ignored)
    if mask is None or number is None:
        return None
    return DenseIds(mask.matrix.tensor, dtype, number, 0), (*mask.nodes, mask.test.node)


def _match_hashed(
    math: ShapeMath, ids: Value, dtype: int, indices: Value, dense_shape: Value
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains the hashes of elements that `_match_to_sparse` would take for ids."""
    by: list[str] = []
    passed: list[str] = []
    while (node := ids.producer).op in (_TEXT_OPS if by else _HASHES) and not node.controls:
        by.append(node.name)
        passed += node.input(0).aliases
        ids = node.input(0).resolved
    mask = match_boolean_mask(math, ids, indices, dense_shape) if by else None
    if mask is None or mask.ignored.shape != ():
        return None
    hashed = Hashing(tuple(reversed(by)), mask.test.tensor)
    return DenseIds(mask.matrix.tensor, dtype, None, 0, hashed), (*by, *passed, *mask.nodes)


class BooleanMask(NamedTuple):
    """Elements of a matrix that are not equal to `ignored`, in order; `test` is the mask."""

    matrix: Value
    ignored: Value
    test: Value
    nodes: tuple[str, ...]


def match_boolean_mask(
    math: ShapeMath, values: Value, indices: Value, dense_shape: Value
) -> BooleanMask | None:
    """Explains `gather_nd(matrix, indices)` with `indices = where(matrix != scalar)`."""
    gather, where = values.producer, indices.producer
    if gather.op != "GatherNd" or where.op != "Where":
        return None
    matrix, positions = gather.inputs
    if positions.resolved != indices:
        return None
    test = where.input(0)
    if test.producer.op != "NotEqual":
        return None
    source = matrix.resolved
    # Grappler moves constants to the front.
    compared, ignored = test.producer.inputs
    if compared.resolved != source:
        compared, ignored = ignored, compared
    if compared.resolved != source:
        return None
    shape = math.shape_of(source)
    if shape is None or len(shape) != 2 or math.vector(dense_shape) != shape:
        return None
    nodes = (gather.name, where.name, *matrix.aliases, *compared.aliases)
    return BooleanMask(source, ignored, test.resolved, nodes)


def match_grid(
    math: ShapeMath, ids: Value, dtype: int, indices: Value, dense_shape: Value
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains all elements of a matrix, with the row and the column of each; see `grids`."""
    axes, values = columns(indices), grid(ids)
    shape = math.vector(dense_shape)
    if axes is None or len(axes) != 2 or values is None or shape is None or len(shape) != 2:
        return None
    if values.base is None or len(values.axes) != 1:
        return None
    loops = tuple(extent for extent in shape if extent != 1)
    by_row = tuple(int(extent != 1 and index == 0) for index, extent in enumerate(shape))
    of_rows = tuple(flag for flag, extent in zip(by_row, shape, strict=True) if extent != 1)
    of_columns = tuple(1 - flag for flag in of_rows)
    rows, cols = axes
    if rows != Grid((loops,), (of_rows,)) or cols != Grid((loops,), (of_columns,)):
        return None
    # A number for each column alone; with one column there is none, and nothing is added.
    stride = values.factors[0][-1] if shape[1] != 1 and loops else 0
    if values.axes != (loops,) or values.factors[0] != tuple(stride * flag for flag in of_columns):
        return None
    if math.shape_of(Value(ids.view, values.base)) != shape:
        return None
    return DenseIds(values.base, dtype, None, stride), (
        *rows.nodes,
        *cols.nodes,
        *values.nodes,
    )

"""Where ids come from before they are pruned: a sparse matrix, a dense one, or bare rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from fusion.passes.analysis.index_grids import Grid, columns, grid
from fusion.passes.analysis.symbolic_shapes import Element, Item, ShapeMath, has_measured_columns
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import BucketsSpec, DenseIds, Hashing
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
        buckets: what is done with the ids first.
        dense: the matrix that the entries are made of, or None.
        row_splits: what the rows of the entries are counted from, or None.
        batch: the number of rows, symbolically; None if it follows from the entries alone.
    """

    entries: Entries
    flattened: bool
    checked: bool
    buckets: BucketsSpec | None
    dense: DenseIds | None
    row_splits: RowSplits | None
    batch: Element | None


def match_source(view: GraphView, entries: Entries) -> IdSource | NoMatch:
    """Finds what ids, rows and weights are made of.

    A SparseReshape whose target is provably the shape that it is given changes nothing and is
    passed. Any other one stays, and the fused op reads its outputs.
    """
    math = ShapeMath(view)
    front = [*view.aliases(entries.ids)]
    if entries.weights is not None:
        front += view.aliases(entries.weights)
    entries = replace(entries, ids=view.resolve(entries.ids))
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
        flattened = view.op(indices.node) == "SparseReshape"
        entries = replace(entries, indices=indices, count=count)
        if count is not None:
            elements = math.vector(count)
            batch = elements[0] if elements else Item(count, 0)
            checked |= flattened or has_measured_columns(elements)
    row_splits = None
    if entries.rows is not None and entries.count is not None:
        batch = math.scalar(entries.count)
        row_splits = match_row_splits(view, entries.rows, entries.count)
    ids, buckets = entries.ids, None
    if entries.count is not None:
        ids, buckets, passed = _match_buckets(view, ids)
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


def _pass_reshape(math: ShapeMath, tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Returns where the tensor comes from behind reshapes to the same shape, and what it passed."""
    view = math.view
    passed: tuple[str, ...] = view.aliases(tensor)
    tensor = view.resolve(tensor)
    while view.op(tensor.node) == "SparseReshape" and not view.controls(tensor.node):
        _, shape, target = inputs = view.inputs(tensor.node)
        before, after = math.vector(shape), math.vector(target)
        if before is None or len(before) != 2 or before != after:
            break
        passed += (tensor.node, *view.aliases(inputs[tensor.index]))
        tensor = view.resolve(inputs[tensor.index])
    return tensor, passed


def _is_matrix(math: ShapeMath, indices: Tensor, dense_shape: Tensor | None) -> bool:
    index_shape = math.view.shape(indices)
    width = index_shape[1] if index_shape is not None and len(index_shape) == 2 else None
    if dense_shape is None:
        return width == 2
    sizes = math.vector(dense_shape)
    if sizes is None and math.view.op(dense_shape.node) == "Pack":
        # The stock op takes a vector only, so these are its elements.
        return len(math.view.inputs(dense_shape.node)) == 2
    return 2 in (width, None if sizes is None else len(sizes))


def _match_buckets(
    view: GraphView, ids: Tensor
) -> tuple[Tensor, BucketsSpec | None, tuple[str, ...]]:
    """Passes `select(ids < 0 or ids >= count, default, ids)`."""
    nothing = (ids, None, ())
    if view.op(ids.node) not in ("Select", "SelectV2") or view.controls(ids.node):
        return nothing
    condition, replacement, values = view.inputs(ids.node)
    source = view.resolve(values)
    outside = view.resolve(condition)
    if view.op(outside.node) != "LogicalOr":
        return nothing
    tests = {view.op(test.node): test for test in map(view.resolve, view.inputs(outside.node))}
    if tests.keys() != {"Less", "GreaterEqual"}:
        return nothing
    if any(view.resolve(view.inputs(test.node)[0]) != source for test in tests.values()):
        return nothing
    least = _number(view, view.inputs(tests["Less"].node)[1])
    count = _number(view, view.inputs(tests["GreaterEqual"].node)[1])
    default, filled = _filled(view, replacement, source)
    if count is None or default is None or least != 0:
        return nothing
    # As op attrs, such a count means "none", and such a default would be pruned or replaced.
    if count <= 0 or not 0 <= default < count:
        return nothing
    names = (ids.node, outside.node, *(test.node for test in tests.values()), *filled)
    aliases = (name for tensor in (condition, replacement, values) for name in view.aliases(tensor))
    return source, BucketsSpec(count, default), (*names, *aliases)


def _number(view: GraphView, tensor: Tensor) -> int | None:
    value = view.constant(_behind_cast(view, tensor))
    return int(value) if value is not None and value.ndim == 0 else None


def _behind_cast(view: GraphView, tensor: Tensor) -> Tensor:
    source = view.resolve(tensor)
    return view.inputs(source.node)[0] if is_integer_cast(view, source.node) else source


def _filled(view: GraphView, tensor: Tensor, ids: Tensor) -> tuple[int | None, tuple[str, ...]]:
    """Explains a tensor as one number for each id: the number."""
    source = view.resolve(tensor)
    if view.op(source.node) != "Fill":
        return _number(view, source), ()
    shape, value = view.inputs(source.node)
    measured = view.resolve(shape)
    number = _number(view, value)
    if view.op(measured.node) != "Shape":
        # The ids' static shape, which Grappler made a constant.
        size = view.constant(measured)
        return (number if size is not None and size.ndim == 1 else None), (source.node,)
    if view.resolve(view.inputs(measured.node)[0]) != ids:
        return None, ()
    return number, (source.node, measured.node)


def _match_dense(
    math: ShapeMath, ids: Tensor, entries: Entries
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains ids and rows as those of a dense matrix, if they are."""
    view = math.view
    if entries.indices is None or entries.count is None:
        return None
    passed: tuple[str, ...] = ()
    dtype = entries.dtype
    if is_integer_cast(view, ids.node) and not view.controls(ids.node):
        passed = (ids.node,)
        dtype = view.type_attr(ids.node, "SrcT")
        ids = view.resolve(view.inputs(ids.node)[0])
    match = _match_to_sparse(math, ids, dtype, entries.indices, entries.count)
    if match is None:
        match = _match_hashed(math, ids, dtype, entries.indices, entries.count)
    if match is None:
        match = _match_grid(math, ids, dtype, entries.indices, entries.count)
    # Ids that are cast after something was added could have overflowed before.
    if match is None or (match[0].stride and dtype != entries.dtype):
        return None
    return match[0], (*passed, *match[1])


def _match_to_sparse(
    math: ShapeMath, ids: Tensor, dtype: int, indices: Tensor, dense_shape: Tensor
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains `gather_nd(matrix, indices)` with `indices = where(matrix != ignored)`."""
    view, mask = math.view, _match_boolean_mask(math, ids, indices, dense_shape)
    number = None if mask is None else _number(view, mask.ignored)
    if mask is None or number is None:
        return None
    return DenseIds(mask.matrix, dtype, number, 0), (*mask.nodes, mask.test.node)


def _match_hashed(
    math: ShapeMath, ids: Tensor, dtype: int, indices: Tensor, dense_shape: Tensor
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains the hashes of elements that `_match_to_sparse` would take for ids."""
    view, tensor = math.view, ids
    by: list[str] = []
    passed: list[str] = []
    while view.op(tensor.node) in (_TEXT_OPS if by else _HASHES) and not view.controls(tensor.node):
        by.append(tensor.node)
        values = view.inputs(tensor.node)[0]
        passed += view.aliases(values)
        tensor = view.resolve(values)
    mask = _match_boolean_mask(math, tensor, indices, dense_shape) if by else None
    if mask is None or view.shape(mask.ignored) != ():
        return None
    hashed = Hashing(tuple(reversed(by)), mask.test)
    return DenseIds(mask.matrix, dtype, None, 0, hashed), (*by, *passed, *mask.nodes)


class _BooleanMask(NamedTuple):
    """Elements of a matrix that are not equal to `ignored`, in order; `test` is the mask."""

    matrix: Tensor
    ignored: Tensor
    test: Tensor
    nodes: tuple[str, ...]


def _match_boolean_mask(
    math: ShapeMath, values: Tensor, indices: Tensor, dense_shape: Tensor
) -> _BooleanMask | None:
    """Explains `gather_nd(matrix, indices)` with `indices = where(matrix != scalar)`."""
    view = math.view
    if view.op(values.node) != "GatherNd" or view.op(indices.node) != "Where":
        return None
    matrix, positions = view.inputs(values.node)
    if view.resolve(positions) != indices:
        return None
    test = view.resolve(view.inputs(indices.node)[0])
    if view.op(test.node) != "NotEqual":
        return None
    source = view.resolve(matrix)
    # Grappler moves constants to the front.
    compared, ignored = view.inputs(test.node)
    if view.resolve(compared) != source:
        compared, ignored = ignored, compared
    if view.resolve(compared) != source:
        return None
    shape = math.shape_of(source)
    if shape is None or len(shape) != 2 or math.vector(dense_shape) != shape:
        return None
    nodes = (values.node, indices.node, *view.aliases(matrix), *view.aliases(compared))
    return _BooleanMask(source, ignored, test, nodes)


def _match_grid(
    math: ShapeMath, ids: Tensor, dtype: int, indices: Tensor, dense_shape: Tensor
) -> tuple[DenseIds, tuple[str, ...]] | None:
    """Explains all elements of a matrix, with the row and the column of each; see `grids`."""
    view = math.view
    axes, values = columns(view, indices), grid(view, ids)
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
    if math.shape_of(values.base) != shape:
        return None
    return DenseIds(values.base, dtype, None, stride), (*rows.nodes, *cols.nodes, *values.nodes)

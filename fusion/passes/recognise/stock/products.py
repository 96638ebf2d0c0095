"""Products of encoded ids and a matrix: bags over the rows of the matrix.

    MatMul(x, kernel)    x: one-hot, multi-hot or counted ids, or a concat of such and of others
    SparseTensorDenseMatMul(a, kernel)

What others there are in a concat are multiplied by their rows of the kernel, and added; so are
encoded ids that are not understood, beside enough that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, reshaped
from fusion.passes.analysis.value_ranges import range_of
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.fused.fused_op import Whole
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import (
    EncodedIds,
    IdsSpec,
    JoinedIds,
    LookupSpec,
    SparseIds,
    WeightsSpec,
)
from fusion.passes.recognise.stock.table import Shard, Table, table_name, table_spec
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES

ENCODINGS = frozenset({"DenseBincount", "OneHot", "RaggedBincount", "SparseBincount"})
"""What spreads ids over columns."""

PRODUCTS = frozenset({"MatMul", "_FusedMatMul"})
OTHER_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"})
"""Products that are no bags, or are not known to be."""

SPARSE_PRODUCT = "SparseTensorDenseMatMul"

MOST_CLASSES = 64
"""Products of no more columns of encoded ids cost about as little as a bag, and are left alone."""

_FEWEST_COLUMNS = 32
"""Of a sparse product: TensorFlow goes through narrower matrices element by element, which is fast
(18 us for 512 rows of 5 ids and 24 columns, 19 us as a bag), and row by row from here on (123 us
for 32 columns, 21 us)."""

_ACTIVATIONS = frozenset({"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"})
_BETWEEN = frozenset(
    {"Cast", "EnsureShape", "ExpandDims", "Max", "Reshape", "Squeeze", "Sum", "Transpose"}
)
_CODE_TYPES = ID_TYPES.union({types_pb2.DT_UINT8, types_pb2.DT_INT8})
_LONGEST, _DEEPEST = 1 << 10, 6
"""Inputs of a product that are looked at, and ops behind each."""


@dataclass(frozen=True)
class NoProduct(NoMatch):
    """Why a product of encoded ids is no lookup.

    Attributes:
        classes: over how many columns the ids are spread, as far as that is known.
    """

    classes: int


@dataclass(frozen=True)
class Dense:
    """Columns of a product that are no encoded ids.

    Attributes:
        values: [B, width].
        start: the row of the table that the first of them is multiplied by.
        width: how many.
    """

    values: Tensor
    start: int
    width: int


@dataclass(frozen=True)
class Sizes:
    """A Shape of one-hots that others read, too.

    Attributes:
        node: its name.
        ids: what is encoded.
        classes: the last size, behind those of the ids.
    """

    node: str
    ids: EncodedIds
    classes: int


@dataclass(frozen=True, kw_only=True)
class Product(Whole):
    """A product of ids and a matrix.

    Attributes:
        dense: what is multiplied by other rows of the matrix.
        kernel: the matrix.
        then: the ops that follow in one node, and what each of them reads besides.
        sizes: what is known without the one-hots.
        refused: encoded ids that are among `dense`, since they are not understood.
    """

    dense: tuple[Dense, ...] = ()
    kernel: Tensor
    then: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()
    sizes: tuple[Sizes, ...] = ()
    refused: tuple[NoProduct, ...] = ()

    @property
    def is_bag(self) -> bool:
        """Whether it is a bag, and nothing else."""
        return not self.dense and not self.then


@dataclass(frozen=True)
class _Encoded:
    """Encoded ids, or what is none of them.

    Attributes:
        ids: the ids, not placed among rows yet; None if there are none.
        nodes: what encodes them, and is read by nobody else then.
        failure: why they are no ids of a lookup.
    """

    ids: EncodedIds | None
    nodes: tuple[str, ...]
    failure: NoMatch | None = None


def products(view: GraphView) -> Iterator[str]:
    """Yields the products of encoded ids, in file order."""
    if view.ops.isdisjoint(ENCODINGS):
        return
    for name in view.named(*PRODUCTS, *OTHER_PRODUCTS):
        if not view.flag_attr(name, "transpose_a"):
            leaves, _ = _leaves(view, view.inputs(name)[0])
            if any(_steps(view, leaf) for leaf in (*leaves, *_right(view, name))):
                yield name


def _right(view: GraphView, product: str) -> tuple[Tensor, ...]:
    """Returns what a product multiplies from the right."""
    return view.inputs(product)[1:2]


def match_product(view: GraphView, product: str) -> Product | NoMatch:
    """Says what a product of encoded ids looks up."""
    leaves, between = _leaves(view, view.inputs(product)[0])
    if view.op(product) in OTHER_PRODUCTS:
        leaves += _right(view, product)
        classes = sum(_classes(view, steps[-1]) for leaf in leaves if (steps := _steps(view, leaf)))
        return NoProduct("the product is not known to be one of two matrices", product, classes)
    (kernel,) = _right(view, product)
    if steps := _steps(view, kernel):
        classes = _classes(view, steps[-1])
        return NoProduct("ids are encoded on the right of the product", product, classes)
    parts = [_match_encoded(view, leaf) for leaf in leaves]
    classes = sum(part.ids.columns for part in parts if part.ids is not None)
    refused = _refused(view, leaves, parts)

    def stop(reason: str, node: str) -> NoProduct:
        # Where it is not known how many classes there are, there may be many.
        return NoProduct(reason, node, MOST_CLASSES + 1 if refused else classes)

    if classes <= MOST_CLASSES:
        few = NoMatch(f"nothing to gain: of {classes} classes the product is as cheap", product)
        why = refused[0] if refused else few
        return stop(why.reason, why.node)
    dtype, then = view.type_attr(product, "T"), _then(view, product)
    if isinstance(then, NoMatch):
        return stop(then.reason, then.node)
    if dtype not in TABLE_TYPES or view.flag_attr(product, "transpose_b"):
        return stop("the matrix is transposed, or of no dtype of tables", product)
    shape = view.shape(kernel)
    if shape is None or len(shape) != 2 or shape[0] is None:
        return stop("the rows of the matrix are not known", product)
    placed = _placed(view, leaves, parts, shape[0])
    if placed is None:
        unknown = NoMatch("which rows of the matrix are whose is not known", product)
        why = refused[0] if refused else unknown
        return stop(why.reason, why.node)
    nodes = (*between, *(name for part in parts for name in part.nodes))
    sizes = tuple(size for part in parts for size in _sizes(view, part))
    reader = _other_reader(view, nodes, {size.node for size in sizes})
    if reader is not None:
        return stop(f"the encoded ids are also used by {reader} ({view.op(reader)})", reader)
    ids, dense = placed
    return Product(
        stage=Stage.OUTPUT,
        nodes=(product,),
        front=tuple(dict.fromkeys(nodes)),
        spec=_spec(view, product, kernel, shape, JoinedIds(tuple(ids)), None),
        reads=(*(one.values for one in dense), *(tensor for _, read in then for tensor in read)),
        dense=tuple(dense),
        kernel=kernel,
        then=then,
        sizes=sizes,
        refused=refused,
    )


def _refused(
    view: GraphView, leaves: Iterable[Tensor], parts: Iterable[_Encoded]
) -> tuple[NoProduct, ...]:
    """Returns why parts of a product that encode ids are not understood."""
    return tuple(
        NoProduct(part.failure.reason, part.failure.node, _classes(view, _steps(view, leaf)[-1]))
        for leaf, part in zip(leaves, parts, strict=True)
        if part.failure is not None
    )


def match_sparse_product(view: GraphView, product: str) -> Product | NoMatch:
    """Says what the product of a sparse and a dense matrix looks up."""
    indices, values, shape, kernel = view.inputs(product)

    def stop(reason: str) -> NoProduct:
        return NoProduct(reason, product, MOST_CLASSES + 1)

    if view.type_attr(product, "T") not in TABLE_TYPES:
        return stop("the matrix is of no dtype of tables")
    if view.flag_attr(product, "adjoint_a") or view.flag_attr(product, "adjoint_b"):
        return stop("one of the matrices is transposed")
    if view.type_attr(product, "Tindices") != types_pb2.DT_INT64:
        return stop("the indices are no int64")
    of_table = view.shape(kernel)
    if of_table is None or len(of_table) != 2:
        return stop("the matrix is not known to be one")
    if of_table[1] is None or of_table[1] < _FEWEST_COLUMNS:
        few = f"with fewer than {_FEWEST_COLUMNS} columns stock's op is as fast"
        return stop(f"nothing to gain: {few} (18 us for 512 rows of 5 ids, 19 us as a bag)")
    ids = SparseIds(
        view.resolve(indices), view.resolve(indices), shape, flattened=False, columns=True
    )
    weights = WeightsSpec(view.resolve(values), False, 1.0)
    return Product(
        stage=Stage.OUTPUT,
        nodes=(product,),
        spec=_spec(view, product, kernel, of_table, ids, weights),
        kernel=kernel,
    )


def _spec(
    view: GraphView,
    product: str,
    kernel: Tensor,
    shape: Shape,
    ids: IdsSpec,
    weights: WeightsSpec | None,
) -> LookupSpec:
    table = Table(
        stage=Stage.ROWS,
        nodes=(),
        ids=ids.values,
        unique="",
        shards=(Shard(kernel, False, "", shape),),
        strategy="",
        split=(),
        clip=None,
        name=table_name(view, kernel, product),
    )
    return LookupSpec(
        anchor=product,
        ids=ids,
        dtype=types_pb2.DT_INT64,
        buckets=None,
        weights=weights,
        table=table_spec(view, table, view.type_attr(product, "T")),
        prune=isinstance(ids, JoinedIds),
        fill=True,
        default_id=None,
        combiner="sum",
        divide_no_nan=True,
        output=Tensor(product),
    )


def _then(view: GraphView, product: str) -> tuple[tuple[str, tuple[Tensor, ...]], ...] | NoMatch:
    """Returns the ops that Grappler has put into a product's node."""
    attr = view.attr(product, "fused_ops") if view.op(product) == "_FusedMatMul" else None
    ops = [] if attr is None else [op.decode() for op in attr.list.s]
    others = view.inputs(product)[2:]
    if not ops and not others:
        return ()
    if ops[0] != "BiasAdd" or len(others) != 1 or not {*ops[1:]} <= _ACTIVATIONS:
        return NoMatch(f"the product is one with {' and '.join(ops)}", product)
    return (("BiasAdd", others), *((op, ()) for op in ops[1:]))


def _leaves(view: GraphView, x: Tensor) -> tuple[list[Tensor], tuple[str, ...]]:
    """Returns what concats put side by side in the rows of a matrix, and the nodes between."""
    stack, leaves, nodes = [x], list[Tensor](), list[str]()
    while stack and len(leaves) < _LONGEST:
        tensor = stack.pop()
        source = view.resolve(tensor)
        nodes += view.aliases(tensor)
        if view.op(source.node) == "ConcatV2":
            *inputs, axis = view.inputs(source.node)
            number = view.constant(axis)
            if number is not None and number.size == 1 and number.reshape(()) in (1, -1):
                nodes.append(source.node)
                stack += reversed(inputs)
                continue
        leaves.append(tensor)
    return leaves, tuple(nodes)


def _steps(view: GraphView, leaf: Tensor, *, joined: bool = True) -> tuple[str, ...]:
    """Returns the nodes from a tensor down to the op that encodes ids; () if there is none.

    Args:
        view: the graph.
        leaf: the tensor.
        joined: whether the first of a concat that is encoded counts.
    """
    source, steps = view.resolve(leaf), list[str]()
    for _ in range(_DEEPEST):
        op = view.op(source.node)
        steps.append(source.node)
        if op in ENCODINGS:
            return tuple(steps)
        if op == "ConcatV2" and joined:
            parts = view.inputs(source.node)[:-1][:_LONGEST]
            found = (_steps(view, part, joined=False) for part in parts)
            further = next(filter(None, found), ())
            return (*steps, *further) if further else ()
        if op not in _BETWEEN:
            break
        source = view.resolve(view.inputs(source.node)[0])
    return ()


def _match_encoded(view: GraphView, leaf: Tensor) -> _Encoded:
    """Explains a tensor as encoded ids, [B, columns]; without ids or failure it is something else.

    From the ids on these are added up over a row, or the largest is taken, and reshaped.
    """
    steps = _steps(view, leaf)
    if not steps:
        return _Encoded(None, ())
    encoding = steps[-1]
    passed = [leaf, *(view.inputs(step)[0] for step in steps[:-1])]
    nodes = (*steps, *(alias for tensor in passed for alias in view.aliases(tensor)))

    def refused(reason: str, node: str = encoding) -> _Encoded:
        return _Encoded(None, (), NoMatch(reason, node))

    changing = [step for step in steps[:-1] if not _is_plain(view, step)]
    kinds = [view.op(step) for step in changing]
    reduction = changing.pop() if kinds and kinds[-1] in ("Max", "Sum") else ""
    if reduction and not _is_over_ids(view, reduction):
        return refused("encoded ids are not added up over those of a row", reduction)
    if len(changing) > 1 or any(view.op(step) not in ("Reshape", "Squeeze") for step in changing):
        return refused("it is not understood what becomes of encoded ids", changing[0])
    is_flat = bool(changing) and not reduction and _has_row_of_each(view, changing[0], encoding)
    ids = _match_ids(view, encoding, view.op(reduction), is_flat=is_flat)
    if isinstance(ids, NoMatch):
        return refused(ids.reason, ids.node)
    if is_flat:
        return _Encoded(ids, nodes)
    is_cube = view.op(encoding) == "OneHot" and not reduction and not ids.is_vector
    if is_cube and ids.width is not None and ids.width > 1:
        # [B, K, classes] become [B, K * classes].
        ids = replace(ids, stride=ids.classes)
    is_matrix = _has_columns(view, changing[0], ids) if changing else not is_cube
    if not is_matrix or (is_cube and ids.width is None):
        return refused("encoded ids are not known to be side by side")
    return _Encoded(ids, nodes)


def _is_plain(view: GraphView, name: str) -> bool:
    """Whether a node casts to a type that has all the numbers of an encoding, or moves nothing."""
    if view.op(name) == "Transpose":
        order = ShapeMath(view).vector(view.inputs(name)[1])
        return order is not None and order == (*range(len(order)),)
    return view.op(name) == "Cast" and view.type_attr(name, "DstT") in TABLE_TYPES | ID_TYPES


def _has_row_of_each(view: GraphView, reshape: str, encoding: str) -> bool:
    """Whether a Reshape makes a matrix with a row for each one-hot, whatever shape ids have."""
    if view.op(reshape) != "Reshape" or view.op(encoding) != "OneHot":
        return False
    math, given = ShapeMath(view), view.resolve(view.inputs(reshape)[0])
    hot = math.shape_of(Tensor(encoding))
    if hot is None or len(hot) < 3:
        return False
    math.known[given] = hot
    target = math.vector(view.inputs(reshape)[1])
    shape = None if target is None else reshaped(hot, target)
    return shape is not None and len(shape) == 2 and shape[1] == hot[-1]


def _sizes(view: GraphView, part: _Encoded) -> Iterator[Sizes]:
    """Yields what measures one-hots of which each is a row of a product."""
    ids = part.ids
    if ids is not None and ids.is_flat:
        hot = next(name for name in part.nodes if view.op(name) == "OneHot")
        names = [name for name in part.nodes if view.resolve(Tensor(name)).node == hot]
        for name in names:
            for use in view.uses(name):
                if view.op(use.node) == "Shape":
                    yield Sizes(use.node, ids, ids.classes)


def _classes(view: GraphView, encoding: str) -> int:
    """Returns how many classes ids are encoded by; where that is not known there may be many."""
    place = {"RaggedBincount": 2, "SparseBincount": 3}.get(view.op(encoding), 1)
    most = range_of(view, view.inputs(encoding)[place]).high
    return MOST_CLASSES + 1 if most is None else most


def _match_ids(
    view: GraphView, encoding: str, reduction: str, *, is_flat: bool = False
) -> EncodedIds | NoMatch:
    """Explains the ids of an encoding, and of the op that reduces it."""
    if view.op(encoding) in ("RaggedBincount", "SparseBincount"):
        return NoMatch("the ids that are counted are ragged or sparse", encoding)
    inputs, is_hot = view.inputs(encoding), view.op(encoding) == "OneHot"
    values = view.resolve(inputs[0])
    shape, dtype = view.shape(inputs[0]), view.type_attr(encoding, "TI" if is_hot else "Tidx")
    if shape is None or dtype not in _CODE_TYPES:
        return NoMatch("the shape of encoded ids is not known", encoding)
    classes = range_of(view, inputs[1])
    is_number = view.shape(inputs[1]) in (None, ())
    if not is_number or classes.low is None or classes.low != classes.high or classes.low < 1:
        return NoMatch("how many classes ids have is not known", encoding)
    if not is_flat and len(shape) not in ((2,) if reduction or not is_hot else (1, 2)):
        return NoMatch("the encoded ids are no matrix", encoding)
    width = 1 if is_flat or len(shape) == 1 else shape[-1] or None
    ids = EncodedIds(values, dtype, width, len(shape) == 1, classes.low, is_flat=is_flat)
    if is_hot:
        if not _is_number(view, inputs[2], 1) or not _is_number(view, inputs[3], 0):
            return NoMatch("ids are not encoded as ones and zeros", encoding)
        if reduction == "Max" and width is None:
            return NoMatch("there may be rows without ids, whose largest is no number", encoding)
        axis = view.int_attr(encoding, "axis")
        if axis not in (-1, len(shape)):
            return NoMatch("ids are not one-hot along the last axis", encoding)
        return replace(ids, is_distinct=reduction == "Max" and width != 1)
    weights = view.shape(inputs[2])
    if reduction or weights is None or 0 not in weights:
        return NoMatch("the counted ids have weights, or are not counted by rows", encoding)
    is_distinct = view.flag_attr(encoding, "binary_output") and width != 1
    return replace(ids, is_distinct=is_distinct, refuses=encoding)


def _is_number(view: GraphView, tensor: Tensor, number: int) -> bool:
    value = view.constant(tensor)
    return value is not None and value.ndim == 0 and bool(value == number)


def _has_columns(view: GraphView, reshape: str, ids: EncodedIds) -> bool:
    """Whether a Reshape or Squeeze makes as many columns as ids are encoded by, for each row."""
    given = view.resolve(view.inputs(reshape)[0])
    if view.op(reshape) == "Squeeze":
        return view.shape(Tensor(reshape)) in ((None, ids.columns), (1, ids.columns))
    math = ShapeMath(view)
    target, shape = math.vector(view.inputs(reshape)[1]), math.shape_of(given)
    if target is None or len(target) != 2:
        return False
    rows, columns = target
    measured = (Dim(given, 0), Dim(ids.values, 0), *(() if shape is None else shape[:1]))
    is_same = rows in measured and rows != -1
    return (columns == ids.columns and (rows == -1 or is_same)) or (columns == -1 and is_same)


def _is_over_ids(view: GraphView, reduction: str) -> bool:
    """Whether a Sum or Max is over the ids of a row, of [B, K, classes]."""
    axis = view.constant(view.inputs(reduction)[1])
    is_middle = axis is not None and axis.size == 1 and axis.reshape(()) in (1, -2)
    return is_middle and not view.flag_attr(reduction, "keep_dims")


def _placed(
    view: GraphView, leaves: Iterable[Tensor], parts: Iterable[_Encoded], rows: int
) -> tuple[list[EncodedIds], list[Dense]] | None:
    """Returns the encoded ids and the other columns, each with its first row of the matrix."""
    widths: list[int | None] = []
    pairs = [*zip(leaves, parts, strict=True)]
    for leaf, part in pairs:
        shape = view.shape(leaf)
        known = None if shape is None or len(shape) != 2 else shape[1]
        widths.append(known if part.ids is None else part.ids.columns)
    if widths.count(None) == 1:
        widths[widths.index(None)] = rows - sum(width or 0 for width in widths)
    ids, dense, start = list[EncodedIds](), list[Dense](), 0
    for (leaf, part), width in zip(pairs, widths, strict=True):
        if width is None or width < 1:
            return None
        if part.ids is None:
            dense.append(Dense(leaf, start, width))
        else:
            ids.append(replace(part.ids, start=start))
        start += width
    return (ids, dense) if start == rows else None


def _other_reader(view: GraphView, nodes: Iterable[str], measured: set[str]) -> str | None:
    """Returns who else than a product reads what encodes ids; measuring it does not count.

    Args:
        view: the graph.
        nodes: what encodes ids.
        measured: nodes that do not count.
    """
    inside = {*nodes}
    stack = [(name, use) for name in inside for use in view.uses(name)]
    while stack:
        name, use = stack.pop()
        if use.node in inside or use.node in measured:
            continue
        if use.position < 0:
            return name
        op = view.op(use.node)
        if op in PRODUCTS and use.position == 0 and not view.flag_attr(use.node, "transpose_a"):
            continue
        if not view.is_live(use.node):
            continue
        is_size = op == "Shape" if name in inside else op in ("Cast", "Pack", "StridedSlice")
        if not is_size:
            return use.node
        measured.add(use.node)
        stack += [(use.node, further) for further in view.uses(use.node)]
    return next((name for name in nodes if name in view.preserved), None)

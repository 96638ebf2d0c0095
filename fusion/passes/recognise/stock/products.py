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

from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import (
    EncodedIds,
    IdsSpec,
    JoinedIds,
    LookupSpec,
    SparseIds,
)
from fusion.passes.recognise.stock.encodings import (
    ENCODINGS,
    LONGEST,
    MAX_CLASSES,
    Encoded,
    Sizes,
    classes_of,
    match_encoded,
    sizes_of,
    steps_to,
)
from fusion.passes.recognise.stock.table import Shard, Table, table_name, table_spec
from fusion.schema.attributes import TABLE_TYPES
from fusion.schema.columns import Column

PRODUCTS = frozenset({"MatMul", "_FusedMatMul"})
OTHER_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"})
"""Products that are no bags, or are not known to be."""

SPARSE_PRODUCT = "SparseTensorDenseMatMul"

_MIN_COLUMNS = 32
"""Of a sparse product: TensorFlow goes through narrower matrices element by element, which is fast
(18 us for 512 rows of 5 ids and 24 columns, 19 us as a bag), and row by row from here on (123 us
for 32 columns, 21 us)."""

_ACTIVATIONS = frozenset({"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"})


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


@dataclass(frozen=True, kw_only=True)
class Product(Whole):
    """A product of ids and a matrix.

    Attributes:
        dense: what is multiplied by other rows of the matrix.
        kernel: the matrix.
        then: the ops that follow in one node, and the other inputs of each.
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


def products(view: GraphView) -> Iterator[Node]:
    """Yields the products of encoded ids, in file order."""
    if view.ops.isdisjoint(ENCODINGS):
        return
    for node in named(view, *PRODUCTS, *OTHER_PRODUCTS):
        if not node.flag_attr("transpose_a"):
            left, *right = node.inputs[:2]
            if any(steps_to(leaf) for leaf in (*_leaves(left)[0], *right)):
                yield node


def match_product(product: Node) -> Product | NoMatch:
    """Says what a product of encoded ids looks up."""
    left, *right = product.inputs[:2]
    leaves, between = _leaves(left)
    if product.op in OTHER_PRODUCTS:
        classes = sum(classes_of(leaf) for leaf in (*leaves, *right))
        why = "the product is not known to be one of two matrices"
        return NoProduct(why, product.name, classes)
    (kernel,) = right
    if classes := classes_of(kernel):
        return NoProduct("ids are encoded on the right of the product", product.name, classes)
    parts = [match_encoded(leaf) for leaf in leaves]
    classes = sum(part.ids.columns for part in parts if part.ids is not None)
    refused = _refused(leaves, parts)

    def stop(reason: str, node: str = product.name) -> NoProduct:
        # Where it is not known how many classes there are, there may be many.
        return NoProduct(reason, node, MAX_CLASSES + 1 if refused else classes)

    def unclear(reason: str) -> NoProduct:
        # What is refused may be why.
        return stop(refused[0].reason, refused[0].node) if refused else stop(reason)

    if classes <= MAX_CLASSES:
        return unclear(f"nothing to gain: of {classes} classes the product is as cheap")
    dtype, then = product.type_attr("T"), _then(product)
    if isinstance(then, NoMatch):
        return stop(then.reason, then.node)
    if dtype not in TABLE_TYPES or product.flag_attr("transpose_b"):
        return stop("the matrix is transposed, or of no dtype of tables")
    shape = kernel.shape
    if shape is None or len(shape) != 2 or shape[0] is None:
        return stop("the rows of the matrix are not known")
    placed = _placed(leaves, parts, shape[0])
    if placed is None:
        return unclear("which rows of the matrix are whose is not known")
    nodes = (*between, *(name for part in parts for name in part.nodes))
    sizes = tuple(size for part in parts for size in sizes_of(product.view, part))
    reader = _other_reader(product.view, nodes, {size.node for size in sizes})
    if reader is not None:
        op = product.view.op(reader)
        return stop(f"the encoded ids are also used by {reader} ({op})", reader)
    ids, dense = placed
    return Product(
        stage=Stage.OUTPUT,
        nodes=(product.name,),
        front=tuple(dict.fromkeys(nodes)),
        spec=_spec(product, kernel, shape, JoinedIds(tuple(ids)), None),
        reads=(*(one.values for one in dense), *(tensor for _, read in then for tensor in read)),
        dense=tuple(dense),
        kernel=kernel.tensor,
        then=then,
        sizes=sizes,
        refused=refused,
    )


def _refused(leaves: Iterable[Value], parts: Iterable[Encoded]) -> tuple[NoProduct, ...]:
    """Returns why parts of a product that encode ids are not understood."""
    return tuple(
        NoProduct(part.failure.reason, part.failure.node, classes_of(leaf))
        for leaf, part in zip(leaves, parts, strict=True)
        if part.failure is not None
    )


def sparse_products(view: GraphView) -> Iterator[Node]:
    """Yields the products of sparse matrices, without the checks of fused ones: these are empty."""
    for node in named(view, SPARSE_PRODUCT):
        indices = node.input(0).constant
        if indices is None or indices.size > 0:
            yield node


def match_sparse_product(product: Node) -> Product | NoMatch:
    """Says what the product of a sparse and a dense matrix looks up."""
    indices, values, shape, kernel = product.inputs

    def stop(reason: str) -> NoProduct:
        return NoProduct(reason, product.name, MAX_CLASSES + 1)

    if product.type_attr("T") not in TABLE_TYPES:
        return stop("the matrix is of no dtype of tables")
    if product.flag_attr("adjoint_a") or product.flag_attr("adjoint_b"):
        return stop("one of the matrices is transposed")
    if product.type_attr("Tindices") != types_pb2.DT_INT64:
        return stop("the indices are no int64")
    of_table = kernel.shape
    if of_table is None or len(of_table) != 2:
        return stop("the matrix is not known to be one")
    if of_table[1] is None or of_table[1] < _MIN_COLUMNS:
        few = f"with fewer than {_MIN_COLUMNS} columns stock's op is as fast"
        return stop(f"nothing to gain: {few} (18 us for 512 rows of 5 ids, 19 us as a bag)")
    places = indices.resolved.tensor
    ids = SparseIds(places, places, shape.tensor, flattened=False, columns=True)
    return Product(
        stage=Stage.OUTPUT,
        nodes=(product.name,),
        spec=_spec(product, kernel, of_table, ids, values.resolved.tensor),
        kernel=kernel.tensor,
    )


def _spec(
    product: Node, kernel: Value, shape: Shape, ids: IdsSpec, weights: Tensor | None
) -> LookupSpec:
    table = Table(
        stage=Stage.ROWS,
        nodes=(),
        ids=Value(kernel.view, ids.values),
        unique=None,
        shards=(Shard(kernel, False, None, shape),),
        strategy="",
        split=(),
        clip=None,
        name=table_name(kernel, product.name),
    )
    return LookupSpec(
        anchor=product.name,
        ids=ids,
        dtype=types_pb2.DT_INT64,
        table=table_spec(table, product.type_attr("T")),
        column=Column(
            combiner="sum",
            prune=isinstance(ids, JoinedIds),
            fill_empty_row=True,
            use_sparse_weights=weights is not None,
        ),
        output=product.output().tensor,
        weights=weights,
    )


def _then(product: Node) -> tuple[tuple[str, tuple[Tensor, ...]], ...] | NoMatch:
    """Returns the ops that Grappler has put into a product's node."""
    attr = product.attr("fused_ops") if product.op == "_FusedMatMul" else None
    ops = [] if attr is None else [op.decode() for op in attr.list.s]
    others = tuple(other.tensor for other in product.inputs[2:])
    if not ops and not others:
        return ()
    if ops[0] != "BiasAdd" or len(others) != 1 or not {*ops[1:]} <= _ACTIVATIONS:
        return NoMatch(f"the product is one with {' and '.join(ops)}", product.name)
    return (("BiasAdd", others), *((op, ()) for op in ops[1:]))


def _leaves(x: Value) -> tuple[list[Value], tuple[str, ...]]:
    """Returns what concats put side by side in the rows of a matrix, and the nodes between."""
    stack, leaves, nodes = [x], list[Value](), list[str]()
    while stack and len(leaves) < LONGEST:
        value = stack.pop()
        nodes += value.aliases
        concat = value.producer
        if concat.op == "ConcatV2" and concat.input(-1).item in (1, -1):
            nodes.append(concat.name)
            stack += concat.inputs[-2::-1]
        else:
            leaves.append(value)
    return leaves, tuple(nodes)


def _placed(
    leaves: Iterable[Value], parts: Iterable[Encoded], rows: int
) -> tuple[list[EncodedIds], list[Dense]] | None:
    """Returns the encoded ids and the other columns, each with its first row of the matrix."""
    widths: list[int | None] = []
    pairs = [*zip(leaves, parts, strict=True)]
    for leaf, part in pairs:
        shape = leaf.shape
        known = None if shape is None or len(shape) != 2 else shape[1]
        widths.append(known if part.ids is None else part.ids.columns)
    if widths.count(None) == 1:
        widths[widths.index(None)] = rows - sum(width or 0 for width in widths)
    ids, dense, start = list[EncodedIds](), list[Dense](), 0
    for (leaf, part), width in zip(pairs, widths, strict=True):
        if width is None or width < 1:
            return None
        if part.ids is None:
            dense.append(Dense(leaf.tensor, start, width))
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

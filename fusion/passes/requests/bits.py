"""Ops whose numbers depend on how many rows there are, in their last bits."""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView

#: TensorFlow computes most elements of a tensor in vectors and its last ones one by one, of these
#: ops by other code: the bits of an element depend on its position.
POSITIONAL = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cos", "Cosh", "Digamma", "Elu"}
    | {"Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Inv", "Lgamma", "Log", "Log1p", "LogSoftmax"}
    | {"Ndtri", "Pow", "Reciprocal", "Rsqrt", "Selu", "Sigmoid", "Sin", "Sinh", "Softmax"}
    | {"Softplus", "Tan", "Xlog1py", "Xlogy", "BatchMatMulV3"}
    | {"Conv2DBackpropInput"}
)
#: Of float64 alone.
_POSITIONAL_DOUBLE = frozenset({"Tanh"})
_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"})
_FLOATS = frozenset(
    {types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16}
    | {types_pb2.DT_COMPLEX64, types_pb2.DT_COMPLEX128}
)

#: Activations of other code where TensorFlow's optimizer has made them a part of a product.
_ACTIVATIONS = frozenset({"Elu", "Erf", "Erfc", "Pow", "Sigmoid", "Tanh"})
#: What may be between a product and its activation.
_BETWEEN = frozenset({"Add", "AddV2", "BiasAdd", "Div", "Identity", "Mul", "Neg", "RealDiv"})
_MOST_BETWEEN = 4

#: TensorFlow multiplies up to so many columns in one block, and one row as any.
_MAX_UNBLOCKED = 384


def depends_on_position(node: Node) -> bool:
    """Whether the bits of a row depend on where it is in a batch, and how large that is."""
    dtype = node.view.dtype(node.output().tensor)
    if dtype not in _FLOATS:
        return False
    if dtype != types_pb2.DT_FLOAT and node.op in _PRODUCTS | _POSITIONAL_DOUBLE:
        return True
    # Of a product with transposed weights, which code multiplies depends on the number of rows.
    return node.op in POSITIONAL or (node.op == "MatMul" and node.flag_attr("transpose_b"))


def depends_on_one_row(node: Node) -> bool:
    """Whether the bits of a row may be others where it is alone than where there are several."""
    if node.op != "MatMul":
        return False
    columns, result = node.input(0).shape, node.output().shape
    count = None if columns is None else columns[-1 - int(node.flag_attr("transpose_a"))]
    width = None if result is None else result[-1]
    return count is None or count > _MAX_UNBLOCKED or width is None or width == 1


def fused_with_position(view: GraphView) -> set[str]:
    """Returns products, and what is between them and what depends on the position behind them.

    TensorFlow's optimizer makes one op of a product and its activation, or of a product and what is
    added to it, if they follow each other. Its bits are others, and depend on the number of rows.
    """
    found = set[str]()
    for name in view.nodes:
        node = Node(view, name)
        if node.op in _ACTIVATIONS and depends_on_position(node):
            found |= _up_to_product(node.input(0).producer)
        elif node.op in ("Add", "AddV2") and all(map(_is_matrix, node.inputs)):
            found = found.union(*(_up_to_product(value.producer) for value in node.inputs))
    return found


def _is_matrix(value: Value) -> bool:
    """Whether it may have more than one axis, as a bias has not."""
    return value.shape is None or len(value.shape) > 1


def _up_to_product(node: Node, most: int = _MOST_BETWEEN) -> set[str]:
    """Returns the product that a node ends, or is, with what follows it."""
    if node.op in _PRODUCTS:
        return {node.name}
    if node.op not in _BETWEEN or not most:
        return set()
    found = set[str]().union(*(_up_to_product(one.producer, most - 1) for one in node.inputs))
    return found | {node.name} if found else found

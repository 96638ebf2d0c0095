"""TensorFlow's own op that parses tf.Examples, for some of the features of another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tensorflow.core.framework import tensor_shape_pb2

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.parsing import PARSE_V2, Feature, ListFeature, ParseSpec

_SPARSE, _DENSE, _RAGGED = range(3)
#: The inputs in front are Examples, their names, and keys of each kind.
_FIRST_DEFAULT = 5
#: How many outputs each kind of feature has.
_OUTPUTS = (3, 1, 2)


class Asked(NamedTuple):
    """A feature that is asked for.

    Attributes:
        kind: whether it is sparse, dense or ragged.
        feature: the feature.
        default: of a dense one.
        shape: likewise.
    """

    kind: int
    feature: Feature
    default: Value | None = None
    shape: tensor_shape_pb2.TensorShapeProto | None = None

    @property
    def split_dtype(self) -> int:
        """That of row splits; 0 where there are none."""
        return self.feature.split_dtype if isinstance(self.feature, ListFeature) else 0

    def agrees(self, other: Asked) -> bool:
        """Whether a parser may be asked for both: they are the same, if they have one key."""
        one, two = self.default, other.default
        return (
            self.kind == other.kind
            and self.feature.dtype == other.feature.dtype
            and self.split_dtype == other.split_dtype
            and self.shape == other.shape
            and (one is None or two is None or are_equal(one, two))
        )


def asked_features(node: Node, spec: ParseSpec) -> Iterator[Asked]:
    """Yields what a ParseExampleV2 is asked for, in the order of its outputs."""
    yield from (Asked(_SPARSE, one) for one in spec.sparse)
    shapes = node.attr("dense_shapes")
    for index, one in enumerate(spec.dense):
        shape = None if shapes is None else shapes.list.shape[index]
        yield Asked(_DENSE, one, node.input(_FIRST_DEFAULT + index), shape)
    yield from (Asked(_RAGGED, one) for one in spec.ragged)


def outputs_by_key(features: Sequence[Asked]) -> dict[bytes, list[int]]:
    """Returns the numbers of the outputs of each feature, by its key, of features by kind."""
    numbers, start = defaultdict[bytes, list[int]](list), 0
    for kind, outputs in enumerate(_OUTPUTS):
        keys = [one.feature.key for one in features if one.kind == kind]
        for _ in range(outputs):
            for number, key in enumerate(keys, start):
                numbers[key].append(number)
            start += len(keys)
    return numbers


def emit_stock_parser(
    edit: GraphEdit, stock: Node, name: str, serialized: Tensor, features: Sequence[Asked]
) -> None:
    """Adds a ParseExampleV2 for features, which come by kind: sparse, dense, ragged.

    Args:
        edit: of the graph.
        stock: a parser of the graph, before which the new one stands.
        name: of the new one.
        serialized: its Examples.
        features: what it is asked for.
    """
    kinds = [[one for one in features if one.kind == kind] for kind in range(3)]
    sparse, dense, ragged = kinds
    before = edit.view.nodes[stock.name]
    build = NodeBuilder(edit, stock.name, before.device, stock.input(0).node)
    node = build.node("", PARSE_V2)
    node.name = name
    for key, value in before.attr.items():
        if key.startswith("_") and key != "_output_shapes":
            node.attr[key].CopyFrom(value)
    build.inputs(node, serialized, stock.input(1).tensor)
    for some, role in zip(kinds, ("sparse_keys", "dense_keys", "ragged_keys"), strict=True):
        build.inputs(node, build.texts(role, [one.feature.key for one in some]))
    build.inputs(node, *(one.default.tensor for one in dense if one.default is not None))
    set_attrs(node, num_sparse=len(sparse))
    set_types(
        node,
        sparse_types=[one.feature.dtype for one in sparse],
        Tdense=[one.feature.dtype for one in dense],
        ragged_value_types=[one.feature.dtype for one in ragged],
        ragged_split_types=[one.split_dtype for one in ragged],
    )
    node.attr["dense_shapes"].list.shape.extend(one.shape for one in dense if one.shape is not None)
    edit.add(node, at=stock.name)

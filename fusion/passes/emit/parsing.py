"""Ops that parse Examples or SequenceExamples: fused ones, and stock's for some of the features."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import node_def_pb2, tensor_shape_pb2, types_pb2

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.parsing import (
    PARSE_V2,
    DenseFeature,
    Feature,
    ListFeature,
    ParseSpec,
    SequenceSpec,
)
from fusion.schema.names import PARSE_EXAMPLE, PARSE_SEQUENCE

#: Of Examples without names.
_NO_NAMES = np.array([], np.bytes_)

_SPARSE, _DENSE, _RAGGED = range(3)
#: How many outputs each kind of feature has.
_OUTPUTS = (3, 1, 2)


def emit_parser(
    edit: GraphEdit, name: str, spec: ParseSpec, *, is_renumbered: bool = False
) -> None:
    """Puts the fused op in the place of a stock one, under its name.

    Args:
        edit: of the graph.
        name: of the stock op.
        spec: what the fused op is asked for.
        is_renumbered: whether it has other outputs than the stock one.
    """
    node = _begun(edit, name, PARSE_EXAMPLE, spec.serialized, spec.names, spec.dense)
    set_attrs(node, num_sparse=len(spec.sparse))
    types = _value_types(spec.dense)
    places = spec.outputs or [(number, 0) for number in range(len(spec.dense))]
    outputs = [number for number, _ in places]
    set_types(
        node,
        sparse_types=_value_types(spec.sparse),
        Tdense=types,
        Tvalues=[types[outputs.index(number)] for number in sorted({*outputs})],
        Tdefaults=_dtypes(_with_default(spec.dense)),
        ragged_value_types=_value_types(spec.ragged),
        ragged_split_types=[feature.split_dtype for feature in spec.ragged],
    )
    set_lists(
        node,
        sparse_keys=_keys(spec.sparse),
        dense_keys=_keys(spec.dense),
        ragged_keys=_keys(spec.ragged),
        dense_ranks=[len(feature.shape) for feature in spec.dense],
        dense_dims=_sizes(*(feature.shape for feature in spec.dense)),
        required=[feature.default is None for feature in spec.dense],
        sparse_buckets=[feature.buckets for feature in spec.sparse],
        dense_buckets=[feature.buckets for feature in spec.dense],
        dense_outputs=outputs,
        dense_columns=[column for _, column in places],
        ragged_buckets=[feature.buckets for feature in spec.ragged],
    )
    _put(edit, node, is_renumbered)


def emit_sequence_parser(edit: GraphEdit, name: str, spec: SequenceSpec) -> None:
    """As `emit_parser`, for SequenceExamples."""
    context, lists = spec.context, spec.lists
    node = _begun(edit, name, PARSE_SEQUENCE, spec.serialized, spec.names, context.dense)
    set_attrs(
        node,
        num_context_sparse=len(context.sparse),
        num_feature_list_sparse=len(lists.sparse),
        num_feature_list_dense=len(lists.dense),
    )
    set_types(
        node,
        context_sparse_types=_dtypes(context.sparse),
        Tcontext_dense=_dtypes(context.dense),
        Tcontext_defaults=_dtypes(_with_default(context.dense)),
        context_ragged_value_types=_dtypes(context.ragged),
        context_ragged_split_types=[feature.split_dtype for feature in context.ragged],
        feature_list_sparse_types=_dtypes(lists.sparse),
        Tfeature_list_dense=_dtypes(lists.dense),
        feature_list_ragged_value_types=_dtypes(lists.ragged),
        feature_list_ragged_split_types=[feature.split_dtype for feature in lists.ragged],
    )
    set_lists(
        node,
        context_sparse_keys=_keys(context.sparse),
        context_dense_keys=_keys(context.dense),
        context_ragged_keys=_keys(context.ragged),
        context_dense_ranks=[len(feature.shape) for feature in context.dense],
        context_dense_dims=_sizes(*(feature.shape for feature in context.dense)),
        context_required=[feature.default is None for feature in context.dense],
        feature_list_sparse_keys=_keys(lists.sparse),
        feature_list_dense_keys=_keys(lists.dense),
        feature_list_ragged_keys=_keys(lists.ragged),
        feature_list_dense_ranks=[1 + len(feature.shape) for feature in lists.dense],
        feature_list_dense_dims=_sizes(*((None, *feature.shape) for feature in lists.dense)),
        feature_list_required=[feature.is_required for feature in lists.dense],
    )
    _put(edit, node, is_renumbered=False)


def _keys(features: Sequence[Feature]) -> list[bytes]:
    return [feature.key for feature in features]


def _dtypes(features: Sequence[Feature]) -> list[int]:
    return [feature.dtype for feature in features]


def _value_types(features: Sequence[Feature]) -> list[int]:
    """The dtypes of what is given of features: buckets are int64."""
    return [types_pb2.DT_INT64 if one.buckets else one.dtype for one in features]


def _sizes(*shapes: Shape) -> list[int]:
    return [-1 if size is None else size for shape in shapes for size in shape]


def _with_default(features: Sequence[DenseFeature]) -> list[DenseFeature]:
    return [feature for feature in features if feature.default is not None]


def _begun(
    edit: GraphEdit,
    name: str,
    op: str,
    serialized: Value,
    names: Value | None,
    dense: Sequence[DenseFeature],
) -> node_def_pb2.NodeDef:
    """Returns a new node with its inputs: Examples, their names, and defaults."""
    device = edit.view.nodes[name].device
    node = node_def_pb2.NodeDef(name=name, op=op, device=device)
    build = NodeBuilder(edit, name, device, serialized.node)
    known = build.constant("names", _NO_NAMES) if names is None else names.tensor
    build.inputs(node, serialized.tensor, known)
    defaults = [feature.default for feature in dense if feature.default is not None]
    build.inputs(node, *(default.tensor for default in defaults))
    return node


def _put(edit: GraphEdit, node: node_def_pb2.NodeDef, is_renumbered: bool) -> None:
    """Puts a node in the place of the stock op of its name."""
    stock = edit.view.nodes[node.name]
    for key, value in stock.attr.items():
        # What TensorFlow notes, such as shapes of outputs.
        if key.startswith("_") and not (is_renumbered and key == "_output_shapes"):
            node.attr[key].CopyFrom(value)
    if stock.HasField("experimental_debug_info"):
        node.experimental_debug_info.CopyFrom(stock.experimental_debug_info)
    edit.add(node, at=node.name)
    edit.remove([node.name], node.name)


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
    """Yields what a ParseExample or ParseExampleV2 is asked for, in the order of its outputs."""
    yield from (Asked(_SPARSE, one) for one in spec.sparse)
    shapes, first = node.attr("dense_shapes"), node.input_count - len(spec.dense)
    for index, one in enumerate(spec.dense):
        shape = None if shapes is None else shapes.list.shape[index]
        yield Asked(_DENSE, one, node.input(first + index), shape)
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
    """Adds a parser of some features, which come by kind: sparse, dense, ragged.

    Args:
        edit: of the graph.
        stock: a parser of the graph, a ParseExample or ParseExampleV2, before which the new one,
            of the same op, stands.
        name: of the new one.
        serialized: its Examples.
        features: what it is asked for.
    """
    kinds = [[one for one in features if one.kind == kind] for kind in range(3)]
    sparse, dense, ragged = kinds
    before, is_v2 = edit.view.nodes[stock.name], stock.op == PARSE_V2
    build = NodeBuilder(edit, stock.name, before.device, stock.input(0).node)
    node = build.node("", stock.op)
    node.name = name
    for key, value in before.attr.items():
        if key.startswith("_") and key != "_output_shapes":
            node.attr[key].CopyFrom(value)
    build.inputs(node, serialized, stock.input(1).tensor)
    for some, role in zip(kinds, ("sparse_keys", "dense_keys", "ragged_keys"), strict=True):
        keys = [one.feature.key for one in some]
        if is_v2:
            build.inputs(node, build.texts(role, keys))
        else:
            build.inputs(node, *(build.text(role, key) for key in keys))
    build.inputs(node, *(one.default.tensor for one in dense if one.default is not None))
    set_types(
        node,
        sparse_types=[one.feature.dtype for one in sparse],
        Tdense=[one.feature.dtype for one in dense],
    )
    if is_v2:
        set_attrs(node, num_sparse=len(sparse))
        set_types(
            node,
            ragged_value_types=[one.feature.dtype for one in ragged],
            ragged_split_types=[one.split_dtype for one in ragged],
        )
    else:
        set_attrs(node, Nsparse=len(sparse), Ndense=len(dense))
    node.attr["dense_shapes"].list.shape.extend(one.shape for one in dense if one.shape is not None)
    edit.add(node, at=stock.name)

"""Stock ops that cross features into hashed ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import ShapeMath
from fusion.passes.analysis.value_ranges import range_of
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.id_source import BooleanMask, match_boolean_mask, match_grid
from fusion.schema.attributes import MAX_CROSSED, STOCK_CROSSES, TEXT_CROSS

#: Ops that cross.
CROSSES = STOCK_CROSSES.keys() | {TEXT_CROSS}

_INT32, _INT64, _STRING = types_pb2.DT_INT32, types_pb2.DT_INT64, types_pb2.DT_STRING
#: What a matrix without negative numbers has not.
_NONE = -1
#: Inputs of SparseCrossHashed behind the features: buckets, whether the hash is strong, the salt.
_HASHED_OPTIONS = 3


@dataclass(frozen=True)
class FeatureSpec:
    """A feature of a cross.

    Attributes:
        form: as of the fused op, one of FEATURE_FORMS.
        values: of a SparseTensor, or a matrix or vector.
        indices, shape: of a SparseTensor.
        ignored: the integer in a masked matrix that is no value.
    """

    form: str
    values: Value
    indices: Value | None = None
    shape: Value | None = None
    ignored: int = 0

    @property
    def inputs(self) -> Iterator[Value]:
        """The tensors that it is given by."""
        return (one for one in (self.values, self.indices, self.shape) if one is not None)


@dataclass(frozen=True)
class CrossSpec:
    """A node that crosses features into hashed ids.

    Attributes:
        node: the node.
        features: in the order in which they are hashed.
        hash: as of the fused op.
        buckets: how many there are; 0 for none.
        key: two words; of "seeded", the first is the seed.
    """

    node: Node
    features: tuple[FeatureSpec, ...]
    hash: str
    buckets: int
    key: tuple[int, int]

    @property
    def is_regular(self) -> bool:
        """Whether all rows have the same number of ids, whatever the features are."""
        return all(feature.form in ("dense", "vector") for feature in self.features)


def match_cross(node: Node) -> CrossSpec | NoMatch:
    """Returns how a node crosses features, one of STOCK_CROSSES or TEXT_CROSS."""
    if node.op == TEXT_CROSS or (node.op == "SparseCross" and node.type_attr("out_type") != _INT64):
        return NoMatch("makes texts, not hashed ids", node.name)
    hashing = _hashed(node) if node.op == "SparseCrossHashed" else _seeded(node)
    if isinstance(hashing, NoMatch):
        return hashing
    features = tuple(_features(node))
    dtypes = {feature.values.dtype for feature in features}
    if not 0 < len(features) <= MAX_CROSSED:
        return NoMatch(f"crosses {len(features)} features, not 1 to {MAX_CROSSED}", node.name)
    if not dtypes <= {_INT32, _INT64, _STRING}:
        return NoMatch("the dtype of a feature is not known", node.name)
    is_of_texts = node.op == "SparseCross" and node.type_attr("internal_type") == _STRING
    if is_of_texts and dtypes != {_STRING}:
        return NoMatch("fails, since internal_type is string and a feature is not", node.name)
    kind, buckets, key = hashing
    if kind == "strong" and any(
        feature.indices is None and feature.form != "masked" and feature.values.dtype != _STRING
        for feature in features
    ):
        return NoMatch("integers of dense features have no strong hash", node.name)
    return CrossSpec(node, features, kind, buckets, key)


def _seeded(node: Node) -> tuple[str, int, tuple[int, int]]:
    """Hash, buckets and key of a SparseCross."""
    return "seeded", node.int_attr("num_buckets"), (node.int_attr("hash_key"), 0)


def _hashed(node: Node) -> tuple[str, int, tuple[int, int]] | NoMatch:
    """Hash, buckets and key of a SparseCrossHashed."""
    buckets, is_strong, salt = node.inputs[-_HASHED_OPTIONS:]
    options = buckets.item, is_strong.item
    words = salt.constant
    if None in options or words is None:
        return NoMatch("buckets or hash are computed", node.name)
    if words.shape != (2,):
        return NoMatch("fails, since the salt is not two numbers", node.name)
    first, second = (int(word) for word in words)
    return STOCK_CROSSES[node.op][int(options[1])], max(int(options[0]), 0), (first, second)


def _features(node: Node) -> Iterator[FeatureSpec]:
    """Yields the features of a cross: the SparseTensors, then the matrices."""
    inputs, math = iter(node.inputs), ShapeMath()
    count, dense = node.int_attr("N"), node.attr("dense_types")
    indices, values, shapes = (tuple(islice(inputs, count)) for _ in range(3))
    for entries in zip(indices, values, shapes, strict=True):
        yield _sparse_feature(math, *entries)
    for matrix in islice(inputs, 0 if dense is None else len(dense.list.type)):
        yield _dense_feature(_without_widening(matrix))


def _sparse_feature(math: ShapeMath, indices: Value, values: Value, shape: Value) -> FeatureSpec:
    """Returns a SparseTensor, or the matrix whose elements it has."""
    narrow = _without_widening(values)
    mask = match_boolean_mask(math, narrow.resolved, indices.resolved, shape)
    ignored = None if mask is None else _ignored(mask)
    if mask is not None and ignored is not None:
        return FeatureSpec("masked", mask.matrix, ignored=ignored)
    grid = match_grid(math, narrow.resolved, narrow.dtype, indices.resolved, shape)
    if grid is not None and not grid[0].stride:
        matrix = Value(values.view, grid[0].values)
        low = range_of(matrix).low
        if low is not None and low >= 0 and matrix.dtype == narrow.dtype:
            return FeatureSpec("masked", matrix, ignored=_NONE)
    return FeatureSpec("sparse", narrow, indices, shape)


def _dense_feature(matrix: Value) -> FeatureSpec:
    """Returns a matrix, or the vector of which it is the column."""
    expanded = matrix.producer
    if expanded.op == "ExpandDims" and not expanded.controls:
        vector, axis = expanded.inputs
        vector = _without_widening(vector)
        if vector.shape is not None and len(vector.shape) == 1 and axis.item in (1, -1):
            return FeatureSpec("vector", vector)
    return FeatureSpec("dense", matrix)


def _ignored(mask: BooleanMask) -> int | None:
    """Returns the integer that a mask leaves out; 0 for empty strings; None for anything else."""
    cast = mask.ignored.producer
    number = (cast.input(0) if is_integer_cast(cast) else mask.ignored).scalar
    if mask.matrix.dtype == _STRING:
        return 0 if number == b"" else None
    is_integer = isinstance(number, int) and mask.matrix.dtype in (_INT32, _INT64)
    return number if is_integer else None


def _without_widening(values: Value) -> Value:
    """Returns int32 values in front of a cast to int64."""
    cast = values.producer
    if cast.op != "Cast" or cast.controls or cast.type_attr("DstT") != _INT64:
        return values
    return cast.input(0) if cast.type_attr("SrcT") == _INT32 else values

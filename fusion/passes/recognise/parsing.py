"""Stock ops that parse tf.Examples, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Shape, dims
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.schema.attributes import MAX_FEATURES

#: The dtypes of values, and of row splits.
_DTYPES = frozenset({types_pb2.DT_FLOAT, types_pb2.DT_INT64, types_pb2.DT_STRING})

_V1, _V2, _SINGLE = "ParseExample", "ParseExampleV2", "ParseSingleExample"
PARSERS = frozenset({_V1, _V2, _SINGLE})


@dataclass(frozen=True)
class Feature:
    """A feature that is asked for.

    Attributes:
        key: its name in Examples.
        dtype: a DataType.
    """

    key: bytes
    dtype: int


@dataclass(frozen=True)
class DenseFeature(Feature):
    """A feature whose rows are of one length, or filled up to one.

    Attributes:
        shape: without the batch; the first size is None where rows are filled up.
        default: what stands for an Example without it, or fills rows; None where it is required.
    """

    shape: Shape
    default: Value | None


@dataclass(frozen=True)
class ListFeature(Feature):
    """A feature of any number of values.

    Attributes:
        split_dtype: that of its row splits; 0 where it has indices.
    """

    split_dtype: int = 0


@dataclass(frozen=True)
class ParseSpec:
    """What an op that parses Examples is asked for.

    Attributes:
        serialized: the Examples.
        names: of Examples, for messages; None where the op takes none.
        sparse, dense, ragged: the features.
    """

    serialized: Value
    names: Value | None
    sparse: tuple[ListFeature, ...]
    dense: tuple[DenseFeature, ...]
    ragged: tuple[ListFeature, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features."""
        return *self.sparse, *self.dense, *self.ragged


class _Refused(Exception):
    """Why a node stays as it is."""


def match_parsers(view: GraphView) -> Iterator[tuple[Node, ParseSpec | NoMatch]]:
    """Yields the nodes that parse Examples, with what they are asked for or why they stay."""
    for node in named(view, *PARSERS):
        try:
            yield node, _spec(node)
        except _Refused as refused:
            yield node, NoMatch(str(refused), node.name)


def _spec(node: Node) -> ParseSpec:
    """Raises _Refused."""
    spec = _FORMS[node.op](node)
    features = spec.features
    if len({feature.key for feature in features}) < len(features):
        raise _Refused("two features have one key")
    if len(features) > MAX_FEATURES:
        raise _Refused(f"more than {MAX_FEATURES} features are asked for")
    if any(feature.dtype not in _DTYPES for feature in features):
        raise _Refused("values of Examples have another dtype")
    return spec


def _of_v2(node: Node) -> ParseSpec:
    serialized, names, *keys = node.inputs[:5]
    sparse, dense, ragged = (_vector(value) for value in keys)
    return _made(node, serialized, names, sparse, dense, ragged, node.inputs[5:])


def _of_v1(node: Node) -> ParseSpec:
    counts = node.int_attr("Nsparse"), node.int_attr("Ndense")
    serialized, names, *rest = node.inputs
    sparse = [_scalar(value) for value in rest[: counts[0]]]
    dense = [_scalar(value) for value in rest[counts[0] : sum(counts)]]
    return _made(node, serialized, names, sparse, dense, [], tuple(rest[sum(counts) :]))


def _of_single(node: Node) -> ParseSpec:
    serialized, *defaults = node.inputs
    sparse, dense = (_keys_attr(node, key) for key in ("sparse_keys", "dense_keys"))
    return _made(node, serialized, None, sparse, dense, [], tuple(defaults))


_FORMS: dict[str, Callable[[Node], ParseSpec]] = {_V1: _of_v1, _V2: _of_v2, _SINGLE: _of_single}


def _made(
    node: Node,
    serialized: Value,
    names: Value | None,
    sparse: list[bytes],
    dense: list[bytes],
    ragged: list[bytes],
    defaults: tuple[Value, ...],
) -> ParseSpec:
    shapes = node.attr("dense_shapes")
    protos = () if shapes is None else shapes.list.shape
    dense_shapes = [None if one.unknown_rank else dims(one) for one in protos]
    dense_types, sparse_types = _types(node, "Tdense"), _types(node, "sparse_types")
    ragged_types = _types(node, "ragged_value_types") if ragged else []
    split_types = _types(node, "ragged_split_types") if ragged else []
    pairs = (
        (dense, dense_types),
        (dense, dense_shapes),
        (dense, defaults),
        (sparse, sparse_types),
        (ragged, ragged_types),
        (ragged, split_types),
    )
    if any(len(one) != len(other) for one, other in pairs):
        raise _Refused("keys, dtypes and shapes are not of one number")
    dense_parts = zip(dense, dense_types, dense_shapes, defaults, strict=True)
    return ParseSpec(
        serialized,
        names,
        tuple(map(ListFeature, sparse, sparse_types)),
        tuple(_dense(*parts) for parts in dense_parts),
        tuple(map(ListFeature, ragged, ragged_types, split_types)),
    )


def _dense(key: bytes, dtype: int, shape: Shape | None, default: Value) -> DenseFeature:
    text = key.decode(errors="backslashreplace")
    if shape is None or None in shape[1:]:
        raise _Refused(f"the shape of {text} is not known")
    of_default = default.shape
    if of_default is None or None in of_default:
        raise _Refused(f"the shape of the default of {text} is not known")
    elements = 1
    for size in of_default:
        elements *= size or 0
    if shape and shape[0] is None:
        if 0 in shape[1:] or elements != 1:
            raise _Refused(f"rows of {text} are not filled up with one value")
        return DenseFeature(key, dtype, shape, default)
    if elements and tuple(of_default) != tuple(shape):
        raise _Refused(f"the default of {text} has another shape")
    return DenseFeature(key, dtype, shape, default if elements else None)


def _types(node: Node, key: str) -> list[int]:
    attr = node.attr(key)
    return [] if attr is None else [*attr.list.type]


def _keys_attr(node: Node, key: str) -> list[bytes]:
    attr = node.attr(key)
    return [] if attr is None else [*attr.list.s]


def _vector(value: Value) -> list[bytes]:
    """Raises _Refused: keys are not constants."""
    constant = value.constant
    if constant is None or constant.ndim != 1:
        raise _Refused("the keys are no constants")
    return [*map(bytes, constant)]


def _scalar(value: Value) -> bytes:
    constant = value.constant
    if constant is None or constant.size != 1:
        raise _Refused("the keys are no constants")
    return bytes(constant.reshape(-1)[0])

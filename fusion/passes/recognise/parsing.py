"""Stock ops that parse tf.Examples and SequenceExamples, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Shape, dims
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.schema.attributes import MAX_FEATURES

#: The dtypes of values, and of row splits.
_DTYPES = frozenset({types_pb2.DT_FLOAT, types_pb2.DT_INT64, types_pb2.DT_STRING})

D = TypeVar("D", bound="Feature")

PARSE_V1, PARSE_V2, _SINGLE = "ParseExample", "ParseExampleV2", "ParseSingleExample"
_SEQUENCE_V1, _SEQUENCE_V2 = "ParseSequenceExample", "ParseSequenceExampleV2"
SEQUENCE_PARSERS = frozenset({_SEQUENCE_V1, _SEQUENCE_V2})
PARSERS = SEQUENCE_PARSERS | {PARSE_V1, PARSE_V2, _SINGLE}


@dataclass(frozen=True)
class Feature:
    """A feature that is asked for.

    Attributes:
        key: its name in Examples.
        dtype: a DataType.
        buckets: how many its strings are hashed to; 0 if they are not.
    """

    key: bytes
    dtype: int
    buckets: int = field(default=0, kw_only=True)


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
class Rows(Feature):
    """A feature list whose rows are of one shape.

    Attributes:
        shape: of a row.
        is_required: whether one that is missing is an error; else it has no rows.
    """

    shape: Shape
    is_required: bool


@dataclass(frozen=True)
class FeatureSpec(Generic[D]):
    """The features that are asked for of one map.

    Attributes:
        sparse, dense, ragged: the features.
    """

    sparse: tuple[ListFeature, ...]
    dense: tuple[D, ...]
    ragged: tuple[ListFeature, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features."""
        return *self.sparse, *self.dense, *self.ragged


@dataclass(frozen=True)
class ParseSpec(FeatureSpec[DenseFeature]):
    """What an op that parses Examples is asked for.

    Attributes:
        serialized: the Examples.
        names: of Examples, for messages; None where the op takes none.
        outputs: of the fused op: the number of the output of each dense feature, and how many
            values are in front of it in a row; if there are none, each has its own.
    """

    serialized: Value
    names: Value | None
    outputs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SequenceSpec:
    """What an op that parses SequenceExamples is asked for.

    Attributes:
        serialized: the SequenceExamples.
        names: of these, for messages.
        context: the features of the context.
        lists: the feature lists.
    """

    serialized: Value
    names: Value
    context: FeatureSpec[DenseFeature]
    lists: FeatureSpec[Rows]

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features."""
        return *self.context.features, *self.lists.features


class _Refused(Exception):
    """Why a node stays as it is."""


def match_parsers(view: GraphView) -> Iterator[tuple[Node, ParseSpec | SequenceSpec | NoMatch]]:
    """Yields the nodes that parse Examples, with what they are asked for or why they stay."""
    for node in named(view, *PARSERS):
        try:
            yield node, _spec(node)
        except _Refused as refused:
            yield node, NoMatch(str(refused), node.name)


def _spec(node: Node) -> ParseSpec | SequenceSpec:
    """Raises _Refused."""
    if node.op in SEQUENCE_PARSERS:
        return _of_sequences(node)
    spec = _FORMS[node.op](node)
    _check(spec)
    return spec


def _check(spec: FeatureSpec[Any]) -> None:
    """Raises _Refused: the fused op does not take such features."""
    features = spec.features
    if len({feature.key for feature in features}) < len(features):
        raise _Refused("two features have one key")
    if len(features) > MAX_FEATURES:
        raise _Refused(f"more than {MAX_FEATURES} features are asked for")
    if any(feature.dtype not in _DTYPES for feature in features):
        raise _Refused("values of Examples have another dtype")


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


_FORMS: dict[str, Callable[[Node], ParseSpec]] = {
    PARSE_V1: _of_v1,
    PARSE_V2: _of_v2,
    _SINGLE: _of_single,
}


def _made(
    node: Node,
    serialized: Value,
    names: Value | None,
    sparse: list[bytes],
    dense: list[bytes],
    ragged: list[bytes],
    defaults: tuple[Value, ...],
) -> ParseSpec:
    parts = _zipped(dense, _types(node, "Tdense"), _shapes(node, "dense_shapes"), defaults)
    return ParseSpec(
        _lists(node, "", sparse),
        tuple(_dense(*each) for each in parts),
        _ragged(node, "", ragged),
        serialized,
        names,
    )


#: What keys and attrs of SequenceExamples begin with.
_CONTEXT, _LISTS = "context", "feature_list"
_KINDS = "sparse", "dense", "ragged"


def _of_sequences(node: Node) -> SequenceSpec:
    """Raises _Refused."""
    serialized, names, *rest = node.inputs
    if node.op == _SEQUENCE_V2:
        keys, defaults = [_vector(value) for value in rest[:6]], rest[7:]
        may_miss = _flags(rest[6])
    else:
        parts = (_CONTEXT, _LISTS)
        keys = [_keys_attr(node, f"{part}_{kind}_keys") for part in parts for kind in _KINDS]
        defaults = rest
        missing = _keys_attr(node, f"{_LISTS}_dense_missing_assumed_empty")
        may_miss = [key in missing for key in keys[4]]
    context = _of_context(node, keys[:3], defaults)
    lists = _of_lists(node, keys[3:], may_miss)
    for spec in (context, lists):
        _check(spec)
    return SequenceSpec(serialized, names, context, lists)


def _of_context(
    node: Node, keys: Sequence[list[bytes]], defaults: Sequence[Value]
) -> FeatureSpec[DenseFeature]:
    """Raises _Refused."""
    sparse, dense, ragged = keys
    shapes = _shapes(node, f"{_CONTEXT}_dense_shapes")
    each = _zipped(dense, _types(node, "Tcontext_dense"), shapes, defaults)
    for key, _, shape, _ in each:
        if shape is not None and None in shape:
            raise _unknown_shape(key)
    return FeatureSpec(
        _lists(node, f"{_CONTEXT}_", sparse),
        tuple(_dense(*one) for one in each),
        _ragged(node, f"{_CONTEXT}_", ragged),
    )


def _of_lists(node: Node, keys: Sequence[list[bytes]], may_miss: list[bool]) -> FeatureSpec[Rows]:
    """Raises _Refused."""
    sparse, dense, ragged = keys
    shapes = _shapes(node, f"{_LISTS}_dense_shapes")
    each = _zipped(dense, _types(node, f"{_LISTS}_dense_types"), shapes, may_miss)
    return FeatureSpec(
        _lists(node, f"{_LISTS}_", sparse),
        tuple(_rows(*one) for one in each),
        _ragged(node, f"{_LISTS}_", ragged),
    )


def _zipped(*parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Raises _Refused: they are not of one number."""
    if len({len(part) for part in parts}) > 1:
        raise _Refused("keys, dtypes and shapes are not of one number")
    return [*zip(*parts, strict=True)]


def _lists(node: Node, part: str, keys: list[bytes]) -> tuple[ListFeature, ...]:
    each = _zipped(keys, _types(node, f"{part}sparse_types"))
    return tuple(ListFeature(*one) for one in each)


def _ragged(node: Node, part: str, keys: list[bytes]) -> tuple[ListFeature, ...]:
    if not keys:
        return ()
    types, splits = (_types(node, f"{part}ragged_{kind}_types") for kind in ("value", "split"))
    return tuple(ListFeature(*one) for one in _zipped(keys, types, splits))


def _shapes(node: Node, key: str) -> list[Shape | None]:
    shapes = node.attr(key)
    protos = () if shapes is None else shapes.list.shape
    return [None if one.unknown_rank else dims(one) for one in protos]


def _unknown_shape(key: bytes) -> _Refused:
    return _Refused(f"the shape of {_text(key)} is not known")


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _rows(key: bytes, dtype: int, shape: Shape | None, may_miss: bool) -> Rows:
    if shape is None or None in shape:
        raise _unknown_shape(key)
    if 0 in shape:  # TensorFlow ends the process: it divides by their number
        raise _Refused(f"rows of {_text(key)} have no values")
    return Rows(key, dtype, shape, not may_miss)


def _dense(key: bytes, dtype: int, shape: Shape | None, default: Value) -> DenseFeature:
    text = _text(key)
    if shape is None or None in shape[1:]:
        raise _unknown_shape(key)
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


def _flags(value: Value) -> list[bool]:
    """Raises _Refused: they are not constants."""
    constant = value.constant
    if constant is None or constant.ndim != 1:
        raise _Refused("which feature lists may be missing is no constant")
    return [*map(bool, constant)]


def _scalar(value: Value) -> bytes:
    constant = value.constant
    if constant is None or constant.size != 1:
        raise _Refused("the keys are no constants")
    return bytes(constant.reshape(-1)[0])

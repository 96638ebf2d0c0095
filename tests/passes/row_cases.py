"""For each op, graphs in which it keeps rows apart, and graphs in which it does not.

A case is a function of two sides, one of them of requests and the other of candidates, that returns
a tensor; `OTHERS` are near misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fusion.passes.analysis.rows.elementwise import BROADCAST, UNARY
from tests.request_splits import Array

v1 = tf.compat.v1
raw = tf.raw_ops

#: What inputs are made of: types, sizes of a row, and whether these are known.
INPUTS: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "x": (tf.float32, (4,), True),
    "y": (tf.float32, (3, 4), True),
    "z": (tf.float32, (5,), False),
    "k": (tf.float32, (), True),
    "image": (tf.float32, (4, 4, 2), True),
    "n": (tf.int64, (), True),
    "m": (tf.int64, (3,), True),
    "text": (tf.string, (), True),
    "example": (tf.string, (), True),
}


class Inputs:
    """Placeholders of one side, made when they are read; see `INPUTS`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._made: dict[str, tf.Tensor] = {}

    def __getattr__(self, key: str) -> tf.Tensor:
        if key not in self._made:
            dtype, inner, is_known = INPUTS[key]
            shape = [None, *(inner if is_known else [None] * len(inner))]
            self._made[key] = v1.placeholder(dtype, shape, f"{self._prefix}_{key}")
        return self._made[key]

    @property
    def parsed(self) -> list[Any]:
        """A parser: indices, values and shape of a sparse tensor, and of another, and so on.

        The order is that of its results: two sparse, a dense and two ragged features.
        """
        found = raw.ParseExampleV2(
            serialized=self.example,
            names=[],
            sparse_keys=["s", "t"],
            dense_keys=["d"],
            ragged_keys=["r", "q"],
            dense_defaults=[np.zeros(2, np.float32)],
            num_sparse=2,
            sparse_types=[tf.int64, tf.int64],
            ragged_value_types=[tf.int64, tf.int64],
            ragged_split_types=[tf.int64, tf.int64],
            dense_shapes=[[2]],
        )
        return [tensor for part in found for tensor in part]


def examples(count: int, generator: np.random.Generator) -> Array:
    """Returns serialized Examples; features that belong together have equal lengths."""
    found = []
    for _ in range(count):
        example = tf.train.Example()
        for keys in ("st", "rq"):
            length = int(generator.integers(0, 4))
            for key in keys:
                values = generator.integers(0, 6, length)
                example.features.feature[key].int64_list.value.extend(map(int, values))
        numbers = generator.normal(size=2)
        example.features.feature["d"].float_list.value.extend(map(float, numbers))
        found.append(example.SerializeToString())
    return np.array(found, object)


def fed(name: str, count: int, generator: np.random.Generator) -> Array:
    """Returns what an input is fed."""
    key = name.partition("_")[2]
    dtype, inner, _ = INPUTS[key]
    if key == "example":
        return examples(count, generator)
    if dtype == tf.string:
        words = np.array(["12", "3.5", "7", "-1"], object)
        return words[generator.integers(0, 4, (count, *inner))]
    if dtype == tf.int64:
        return generator.integers(0, 3, (count, *inner))
    return generator.normal(size=(count, *inner)).astype(np.float32)


Case = Callable[[Inputs, Inputs], tf.Tensor]


def _with(value: Any, build: Callable[[Any, Inputs, Inputs], tf.Tensor]) -> Case:
    """A case that is made by an op, which changes from case to case."""
    return lambda a, b: build(value, a, b)


def numbers(*shape: int) -> Array:
    """Returns constants, all of them other ones."""
    size = int(np.prod(shape))
    return (np.arange(size) / size + 0.25).reshape(shape).astype(np.float32)


def _of(op: str, **attrs: Any) -> Callable[..., tf.Tensor]:
    return partial(getattr(raw, op), **attrs)


def _turned(tensor: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tensor, [1, 0, 2])


CASES: dict[str, list[Case]] = {}
OTHERS: dict[str, list[Case]] = {}


def _keeps(op: str, *cases: Case) -> None:
    CASES.setdefault(op, []).extend(cases)


def _mixes(op: str, *cases: Case) -> None:
    OTHERS.setdefault(op, []).extend(cases)


def _unary(op: str, of: Callable[[Inputs], tf.Tensor], **attrs: Any) -> Case:
    name = op_def_registry.get(op).input_arg[0].name
    return lambda a, b: getattr(raw, op)(**{name: of(a)}, **attrs)


def _text(side: Inputs) -> tf.Tensor:
    return side.text


_ATTRS: dict[str, dict[str, Any]] = {
    "Cast": {"DstT": tf.int32},
    "Bitcast": {"type": tf.int32},
    "EnsureShape": {"shape": [None, 4]},
    "CheckNumerics": {"message": "x"},
    "Bucketize": {"boundaries": [0.0, 0.5]},
    "StringToHashBucketFast": {"num_buckets": 7},
    "StringToHashBucket": {"num_buckets": 7},
    "StringToHashBucketStrong": {"num_buckets": 7, "key": [1, 2]},
    "StaticRegexReplace": {"pattern": "1", "rewrite": "a"},
    "StaticRegexFullMatch": {"pattern": "1.*"},
}
_OPERANDS: dict[str, Callable[[Inputs], tf.Tensor]] = {
    "Invert": lambda side: side.m,
    "LogicalNot": lambda side: side.x > 0,
    "DecodeBase64": lambda side: tf.io.encode_base64(side.text),
    **dict.fromkeys(
        ("Real", "Imag", "ComplexAbs"), lambda side: tf.cast(side.x, tf.complex64) * (1 + 2j)
    ),
}
for _op in sorted(UNARY):
    _read = _OPERANDS.get(_op, _text if "String" in _op or "Regex" in _op else lambda side: side.x)
    _read = (
        _text if _op == "EncodeBase64" else (lambda side: side.x) if _op == "AsString" else _read
    )
    _keeps(_op, _unary(_op, _read, **_ATTRS.get(_op, {})))
_keeps("Cast", lambda a, b: tf.cast(tf.cast(a.x * b.x, tf.float64), tf.float32))
_keeps("Bitcast", lambda a, b: tf.bitcast(tf.reshape(a.x, [-1, 2, 2]), tf.float64))
_mixes("Bitcast", lambda a, b: tf.bitcast(a.k, tf.float64))
_mixes("EnsureShape", lambda a, b: tf.ensure_shape(a.x, [6, 4]))
_mixes("Identity", lambda a, b: a.x * tf.cast(tf.identity(tf.shape(a.x)[0]), tf.float32))

_LOGICAL = ("LogicalAnd", "LogicalOr")
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift")


def _binary(op: str) -> list[Case]:
    compute, names = getattr(raw, op), [arg.name for arg in op_def_registry.get(op).input_arg]

    def of(left: Any, right: Any) -> tf.Tensor:
        if op in _LOGICAL:
            left, right = (
                tf.constant(one) if isinstance(one, np.ndarray) else one for one in (left, right)
            )
            left, right = left > 0, right > 0
        elif op in _BITS or op in ("Mod", "TruncateMod", "TruncateDiv"):
            left, right = (abs(tf.cast(one, tf.int32)) + 2 for one in (left, right))
        return compute(**dict(zip(names, (left, right), strict=True)))

    return [
        lambda a, b: of(a.x, b.x),
        lambda a, b: of(a.x, numbers(4)),
        lambda a, b: of(numbers(1, 4), a.x),
        lambda a, b: of(a.y, b.x[:, tf.newaxis]),
    ]


def _misses(op: str) -> list[Case]:
    of = {"SelectV2": lambda x, y: tf.where(x > 0, x, y), "ClipByValue": tf.add}.get(op)
    compute = of or _binary_of(op)
    return [
        lambda a, b: compute(a.k, b.x[:, :1]),
        lambda a, b: compute(a.x, tf.transpose(b.x)),
        lambda a, b: compute(a.x, numbers(6, 4)),
    ]


def _binary_of(op: str) -> Callable[[Any, Any], tf.Tensor]:
    names = [arg.name for arg in op_def_registry.get(op).input_arg]
    if op in _LOGICAL:
        return lambda x, y: getattr(raw, op)(
            **dict(
                zip(
                    names,
                    (x > 0, tf.constant(y) > 0 if isinstance(y, np.ndarray) else y > 0),
                    strict=True,
                )
            )
        )
    if op in _BITS:
        return lambda x, y: getattr(raw, op)(
            **dict(zip(names, (tf.cast(x, tf.int32), tf.cast(y, tf.int32)), strict=True))
        )
    return lambda x, y: getattr(raw, op)(**dict(zip(names, (x, y), strict=True)))


for _op in sorted(BROADCAST - {"SelectV2", "ClipByValue", "ApproximateEqual"}):
    _keeps(_op, *_binary(_op))
    if _op not in ("Mod", "TruncateMod", "TruncateDiv"):
        _mixes(_op, *_misses(_op))
_keeps(
    "SelectV2",
    lambda a, b: tf.where(a.x > 0, b.x, 0.5),
    lambda a, b: tf.where(a.k[:, tf.newaxis] > 0, b.x, numbers(4)),
)
_mixes("SelectV2", lambda a, b: tf.where(tf.reduce_max(a.x) > 0, b.x, a.x), *_misses("SelectV2"))
_keeps("ClipByValue", lambda a, b: raw.ClipByValue(t=a.x, clip_value_min=-0.5, clip_value_max=0.5))
_keeps("ApproximateEqual", lambda a, b: raw.ApproximateEqual(x=a.x, y=b.x, tolerance=0.5))
_keeps("AddN", lambda a, b: tf.add_n([a.x, b.x, a.x]))
_keeps("AccumulateNV2", lambda a, b: raw.AccumulateNV2(inputs=[a.x, b.x], shape=[None, 4]))
_keeps("StringJoin", lambda a, b: tf.strings.join([a.text, "-", b.text]))
_keeps(
    "IdentityN",
    lambda a, b: raw.IdentityN(input=[a.x, b.x])[1],
    lambda a, b: raw.IdentityN(input=[a.x, b.y, numbers(4)])[0],
)
_keeps(
    "Select",
    lambda a, b: raw.Select(condition=a.k > 0, x=b.x, y=a.x),
    lambda a, b: raw.Select(condition=a.x > 0, x=b.x, y=a.x),
)
_mixes(
    "Select",
    lambda a, b: raw.Select(condition=a.k > 0, x=tf.transpose(b.x), y=tf.transpose(a.x)),
    lambda a, b: raw.Select(condition=tf.constant([True] * 6), x=b.x, y=a.x),
)
_keeps(
    "BiasAdd",
    lambda a, b: tf.nn.bias_add(a.x * b.x, numbers(4)),
    lambda a, b: raw.BiasAdd(value=a.image, bias=numbers(2)),
)
_keeps("BiasAddV1", lambda a, b: raw.BiasAddV1(value=a.x, bias=numbers(4)))
_mixes(
    "BiasAdd",
    lambda a, b: tf.transpose(tf.nn.bias_add(tf.transpose(a.x), numbers(6))),
    lambda a, b: tf.nn.bias_add(a.x, tf.reduce_sum(b.x, 0)),
)
_keeps(
    "MatMul",
    lambda a, b: tf.matmul(a.x, numbers(4, 5)),
    lambda a, b: tf.matmul(tf.transpose(a.x), numbers(4, 5), transpose_a=True),
    lambda a, b: tf.matmul(a.x + b.x, numbers(5, 4), transpose_b=True),
    lambda a, b: tf.matmul(tf.sin(a.x), np.sin(numbers(5, 4)), transpose_b=True) * b.x[:, :1],
    lambda a, b: tf.matmul(tf.tile(a.x, [1, 16]), np.sin(numbers(33, 64)), transpose_b=True),
    lambda a, b: tf.reshape(tf.matmul(tf.reshape(a.y, [-1, 4]), numbers(4, 2)), [-1, 3, 2]),
    lambda a, b: tf.matmul(tf.concat([tf.tile(a.x, [1, 5]), b.x, a.x], 1), numbers(28, 3)),
    lambda a, b: tf.matmul(tf.tile(a.x, [1, 100]), numbers(400, 3)) + b.k[:, tf.newaxis],
)
_mixes(
    "MatMul",
    lambda a, b: tf.matmul(a.x, b.x, transpose_b=True),
    lambda a, b: tf.matmul(a.x, tf.matmul(a.x, b.x, transpose_a=True)),
    lambda a, b: tf.transpose(tf.matmul(numbers(3, 4), a.x, transpose_b=True)),
    lambda a, b: tf.matmul(a.x, numbers(6, 3), transpose_a=True),
)
for _op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
    _of_op = partial(getattr(raw, _op), **({"Tout": tf.float32} if _op == "BatchMatMulV3" else {}))
    _keeps(
        _op,
        _with(_of_op, lambda of, a, b: of(x=a.y, y=b.y, adj_y=True)),
        _with(_of_op, lambda of, a, b: of(x=a.y, y=a.y, adj_x=True)),
    )
    _mixes(
        _op,
        _with(_of_op, lambda of, a, b: of(x=a.x, y=b.x, adj_y=True)),
        _with(_of_op, lambda of, a, b: of(x=a.y, y=numbers(6, 4, 4))),
        _with(_of_op, lambda of, a, b: of(x=_turned(a.y), y=_turned(b.y), adj_y=True)),
    )
_keeps(
    "BatchMatMulV2",
    lambda a, b: tf.matmul(a.y, numbers(4, 2)),
    lambda a, b: tf.transpose(tf.matmul(a.x, numbers(3, 4, 2)), [1, 0, 2]),
)
_keeps(
    "Einsum",
    lambda a, b: tf.einsum("bld,bd->bl", a.y, b.x),
    lambda a, b: tf.einsum("bi,bj->bij", a.x, b.x),
    lambda a, b: tf.einsum("bld,de->ble", a.y, numbers(4, 2)),
    lambda a, b: tf.transpose(tf.einsum("bld->lbd", a.y), [1, 0, 2]),
)
_mixes(
    "Einsum",
    lambda a, b: tf.einsum("bi,cj->bc", a.x, b.x),
    lambda a, b: a.x * tf.einsum("bi,bi->i", a.x, b.x),
    lambda a, b: tf.einsum("bi,ij->bj", a.x, tf.einsum("bi,bj->ij", b.x, b.x)),
    lambda a, b: tf.einsum("bi,b->bi", a.x, numbers(6)),
)
for _op in ("Softmax", "LogSoftmax"):
    _keeps(_op, _unary(_op, lambda side: side.x), _unary(_op, lambda side: side.y))
    _mixes(_op, _unary(_op, lambda side: side.k), _unary(_op, lambda side: tf.transpose(side.x)))
for _op in ("Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm", "All", "Any"):

    def _reduced(side: tf.Tensor, axis: Any, keeps: bool, op: str = _op) -> tf.Tensor:
        value = side > 0 if op in ("All", "Any") else side
        return getattr(raw, op)(input=value, axis=axis, keep_dims=keeps)

    _keeps(
        _op,
        _with(_reduced, lambda of, a, b: of(a.y, [-1], False)),
        _with(_reduced, lambda of, a, b: of(a.y, [1, 2], True)),
        _with(_reduced, lambda of, a, b: of(tf.concat([a.y, b.y], 1), 1, False)),
        _with(_reduced, lambda of, a, b: of(tf.transpose(a.y, [1, 0, 2]), 0, False)),
    )
    _mixes(
        _op,
        _with(_reduced, lambda of, a, b: of(a.y, [0, 1], True)),
        _with(_reduced, lambda of, a, b: of(a.y, [-3], True)),
        _with(_reduced, lambda of, a, b: of(a.x, tf.range(tf.rank(a.x)), True)),
        _with(_reduced, lambda of, a, b: tf.cast(of(b.x, [0], True), tf.float32) * a.x),
    )
_mixes(
    "Sum",
    lambda a, b: a.x / tf.reduce_sum(tf.ones_like(a.k)),
    lambda a, b: tf.reduce_sum(a.parsed[2])[tf.newaxis],
)
_mixes("Mean", lambda a, b: a.x - tf.reduce_sum(a.x, 0) / tf.cast(tf.shape(a.x)[0], tf.float32))
for _op in ("ArgMax", "ArgMin"):
    _keeps(
        _op,
        _with(getattr(raw, _op), lambda of, a, b: of(input=a.y, dimension=-1)),
        _with(getattr(raw, _op), lambda of, a, b: of(input=a.y * b.y, dimension=1)),
    )
    _mixes(_op, _with(getattr(raw, _op), lambda of, a, b: of(input=a.x, dimension=0)))
for _op in ("Cumsum", "Cumprod"):
    _keeps(_op, _with(getattr(raw, _op), lambda of, a, b: of(x=a.x * b.x, axis=-1)))
    _mixes(
        _op,
        _with(getattr(raw, _op), lambda of, a, b: of(x=a.x, axis=0)),
        _with(getattr(raw, _op), lambda of, a, b: of(x=a.x, axis=-2)),
    )
_keeps("ReverseV2", lambda a, b: tf.reverse(a.y, [1, -1]))
_mixes("ReverseV2", lambda a, b: tf.reverse(a.y, [1, -3]), lambda a, b: tf.reverse(a.x, [0]))
_keeps(
    "TopKV2",
    lambda a, b: raw.TopKV2(input=a.x, k=2)[0],
    lambda a, b: raw.TopKV2(input=a.x * b.x, k=2)[1],
)
_mixes(
    "TopKV2",
    lambda a, b: raw.TopKV2(input=a.k, k=2)[0],
    lambda a, b: tf.transpose(raw.TopKV2(input=tf.transpose(a.x), k=1)[0]),
    lambda a, b: tf.sort(a.x, axis=0),
)
_keeps(
    "ConcatV2", lambda a, b: tf.concat([a.x, b.x, a.z], -1), lambda a, b: tf.concat([a.y, b.y], 1)
)
_mixes(
    "ConcatV2",
    lambda a, b: tf.concat([a.x, b.x], 0),
    lambda a, b: tf.concat([a.x, numbers(6, 2)], 1),
    lambda a, b: tf.concat([a.x, tf.transpose(b.x)], 1),
)
_keeps(
    "Pack",
    lambda a, b: tf.stack([a.x, b.x], 1),
    lambda a, b: tf.transpose(tf.stack([a.x, b.x], 0), [1, 0, 2]),
    lambda a, b: tf.stack([a.x, b.x], -1),
)
_mixes(
    "Pack",
    lambda a, b: tf.reshape(tf.stack([a.x, b.x], 0), [-1, 8]),
    lambda a, b: tf.stack([a.x, numbers(6, 4)], 1),
    lambda a, b: tf.stack([a.x, b.x], 0),
)
_keeps(
    "Unpack",
    lambda a, b: tf.unstack(a.y, axis=1)[2],
    lambda a, b: tf.unstack(a.x * b.x, axis=-1)[0],
)
_mixes("Unpack", lambda a, b: tf.unstack(a.x, 2, 0)[0][:, tf.newaxis] * a.x)
_keeps("Split", lambda a, b: tf.split(a.x, 2, 1)[1] * tf.split(b.x, 2, -1)[0])
_mixes(
    "Split",
    lambda a, b: tf.split(a.x, 2, 0)[0],
    lambda a, b: tf.concat(tf.split(a.x, 2, 0)[::-1], 0),
)
_keeps("SplitV", lambda a, b: tf.split(a.x, [1, 3], 1)[1])
_mixes("SplitV", lambda a, b: tf.split(a.x, [1, -1], 0)[1])
_keeps("ExpandDims", lambda a, b: tf.expand_dims(a.x, 1) * tf.expand_dims(b.x, -2))
_mixes(
    "ExpandDims",
    lambda a, b: tf.expand_dims(a.x, 0) * tf.expand_dims(b.x, 1),
    lambda a, b: tf.expand_dims(a.x, 0),
)
_keeps(
    "Squeeze",
    lambda a, b: tf.squeeze(a.y[:, :1], [1]),
    lambda a, b: tf.squeeze(tf.expand_dims(a.x, 0), [-3]),
)
_mixes("Squeeze", lambda a, b: tf.squeeze(a.y[:, :1]), lambda a, b: tf.squeeze(a.x[:, :1], [0]))
_keeps(
    "Transpose",
    lambda a, b: tf.transpose(a.y, [0, 2, 1]),
    lambda a, b: tf.transpose(tf.transpose(a.y) * tf.transpose(b.y)),
)
_mixes(
    "Transpose",
    lambda a, b: tf.reshape(tf.transpose(a.x), [-1, 4]),
    lambda a, b: tf.transpose(a.x),
    lambda a, b: tf.reshape(tf.transpose(a.y, [1, 0, 2]), [-1, 12]),
)
_keeps(
    "Reshape",
    lambda a, b: tf.reshape(a.y, [-1, 12]),
    lambda a, b: tf.reshape(a.y, [-1, 3, 2, 2]),
    lambda a, b: tf.reshape(a.z, tf.stack([tf.shape(a.z)[0], 1, tf.shape(a.z)[1]])),
    lambda a, b: tf.reshape(tf.reshape(a.y, [-1, 4]) * tf.reshape(b.y, [-1, 4]), [-1, 12]),
    lambda a, b: tf.reshape(a.k, [-1, 1]) * b.x,
    lambda a, b: tf.reshape(a.x * b.x, tf.concat([tf.shape(b.x)[:1], [2, 2]], 0)),
    lambda a, b: tf.transpose(tf.reshape(tf.transpose(a.y), [2, 6, -1])),
)
_mixes(
    "Reshape",
    lambda a, b: tf.reshape(a.x, [-1, 8]),
    lambda a, b: tf.reshape(a.x, [2, -1]),
    lambda a, b: tf.reshape(a.x, [-1, 2]),
    lambda a, b: tf.reshape(a.x, [-1]),
    lambda a, b: tf.reshape(a.z, [-1, 5]),
    lambda a, b: tf.reshape(a.x, [4, -1]),
    lambda a, b: tf.reshape(a.x, tf.stack([-1, tf.shape(a.x)[0]])),
    lambda a, b: tf.reshape(a.x, tf.shape(tf.transpose(a.x))),
    lambda a, b: tf.reshape(a.x, tf.stack([tf.shape(a.x)[0], tf.minimum(tf.shape(a.x)[0], 2), -1])),
    lambda a, b: tf.reshape(a.y, [3, -1, 4]),
    lambda a, b: tf.reshape(a.x, tf.stack([tf.cast(tf.reduce_sum(a.n), tf.int32) * 0 - 1, 4])),
)


def _rows(side: Inputs) -> tf.Tensor:
    return tf.shape(side.x)[0]


_keeps(
    "Fill",
    lambda a, b: tf.fill(tf.stack([_rows(a), 2]), 0.5) * b.x[:, :2],
    lambda a, b: tf.concat([tf.ones([_rows(a), 1]), b.x], 1),
)
_mixes(
    "Fill",
    lambda a, b: a.x * tf.reduce_sum(tf.fill([_rows(a)], 1.0)),
    lambda a, b: (
        a.x + tf.reduce_sum(tf.fill([_rows(a), tf.minimum(_rows(a), 3)], 1.0), 1, keepdims=True)
    ),
    lambda a, b: a.x + tf.fill([_rows(a), 4], tf.reduce_sum(b.x)),
    lambda a, b: tf.fill([_rows(a) + 1, 4], 1.0)[1:] * a.x,
)
_keeps(
    "BroadcastTo",
    lambda a, b: tf.broadcast_to(numbers(4), [_rows(a), 4]) * b.x,
    lambda a, b: tf.broadcast_to(a.k[:, tf.newaxis], [_rows(a), 4]),
    lambda a, b: tf.broadcast_to(a.y[:, :1], [_rows(a), 3, 4]),
)
_mixes(
    "BroadcastTo",
    lambda a, b: tf.broadcast_to(a.x[:, tf.newaxis], [_rows(a), _rows(a), 4]),
    lambda a, b: tf.reduce_sum(tf.broadcast_to(a.k[:, tf.newaxis], [_rows(a), _rows(a)]), 1),
    lambda a, b: tf.reduce_sum(tf.broadcast_to(a.k, [_rows(a), _rows(a)]), 1),
    lambda a, b: tf.broadcast_to(a.x, [6, 4]),
    lambda a, b: tf.broadcast_to(a.x[:, tf.newaxis], [_rows(a), tf.minimum(_rows(a), 5), 4]),
)
_keeps(
    "Tile",
    lambda a, b: tf.tile(a.x, [1, 3]),
    lambda a, b: tf.tile(numbers(1, 4), [_rows(a), 1]) + b.x,
    lambda a, b: tf.tile(a.x[:, tf.newaxis], tf.stack([1, tf.shape(b.y)[1], 1])),
)
_mixes(
    "Tile",
    lambda a, b: tf.tile(a.x, [2, 1]),
    lambda a, b: tf.reshape(tf.tile(a.x, [2, 1]), [-1, 8]),
    lambda a, b: tf.reduce_sum(tf.tile(a.x, tf.stack([1, _rows(a)])), 1),
    lambda a, b: tf.reduce_sum(tf.tile(a.z, tf.stack([1, tf.minimum(_rows(a), 3)])), 1),
    lambda a, b: tf.tile(a.x[:1], tf.stack([_rows(a), 1])),
)
_keeps(
    "OneHot",
    lambda a, b: tf.one_hot(a.m, 4),
    lambda a, b: tf.one_hot(a.m, 4, axis=1),
    lambda a, b: tf.transpose(tf.one_hot(a.n, 4, axis=0)),
)
_mixes(
    "OneHot",
    lambda a, b: tf.one_hot(tf.range(_rows(a)), 4) * a.x,
    lambda a, b: tf.one_hot(a.n, _rows(a)),
    lambda a, b: tf.one_hot(a.n, 4, axis=0),
)
_keeps(
    "GatherV2",
    lambda a, b: tf.gather(numbers(5, 4), a.n),
    lambda a, b: tf.gather(numbers(5, 4), a.m, axis=0),
    lambda a, b: tf.gather(a.y, [2, 0], axis=1),
    lambda a, b: tf.gather(a.y, [[2, 0], [1, 1]], axis=-1),
    lambda a, b: tf.gather(a.x, b.m, axis=1, batch_dims=1),
    lambda a, b: tf.transpose(tf.gather(numbers(2, 5), a.n, axis=1)),
    lambda a, b: tf.transpose(tf.gather(tf.transpose(a.x), [1, 3, 0], axis=0)),
)
_mixes(
    "GatherV2",
    lambda a, b: tf.gather(a.x, b.n),
    lambda a, b: tf.gather(a.x, [0, 1]),
    lambda a, b: tf.gather(a.x, tf.zeros([_rows(a)], tf.int32)),
    lambda a, b: tf.gather(tf.transpose(a.x), b.n, axis=1),
    lambda a, b: tf.gather(numbers(6, 4), a.m, axis=1, batch_dims=1),
    lambda a, b: tf.gather(a.x, np.zeros([6, 1], np.int32), axis=1, batch_dims=1),
    lambda a, b: tf.gather(a.x, [_rows(a) - 1], axis=1),
    lambda a, b: tf.gather(a.x, b.m),
)
_keeps("Gather", lambda a, b: raw.Gather(params=numbers(5, 4), indices=a.m))
_mixes("Gather", lambda a, b: raw.Gather(params=a.x, indices=b.n))
_keeps(
    "GatherNd",
    lambda a, b: tf.gather_nd(numbers(3, 3, 2), a.m[:, :2]),
    lambda a, b: tf.transpose(tf.gather_nd(tf.transpose(a.y), [[1, 1], [0, 2]])),
)
_mixes(
    "GatherNd",
    lambda a, b: tf.gather_nd(a.x, [[0], [1]]),
    lambda a, b: tf.gather_nd(a.x, b.n[:, tf.newaxis]),
    lambda a, b: tf.gather_nd(numbers(3, 3), tf.transpose(a.m[:, :2])),
)
_SCALES = (numbers(2), numbers(2), numbers(2), numbers(2))


def _normalised(op: str, training: bool) -> Case:
    names = ("scale", "offset", "mean", "variance")
    empty = np.zeros(0, np.float32)
    moments = (empty, empty) if training else _SCALES[2:]
    values = dict(zip(names, (*_SCALES[:2], *moments), strict=True))
    return lambda a, b: getattr(raw, op)(x=a.image, **values, is_training=training)[0]


for _op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
    _keeps(_op, _normalised(_op, False))
    _mixes(
        _op, _normalised(_op, True), lambda a, b: a.x * tf.math.rsqrt(tf.nn.moments(a.x, [0])[1])
    )
_keeps("MatrixBandPart", lambda a, b: tf.linalg.band_part(a.y, 0, -1))
_mixes(
    "MatrixBandPart",
    lambda a, b: tf.linalg.band_part(a.x, 0, -1),
    lambda a, b: tf.transpose(tf.linalg.band_part(tf.transpose(a.y, [1, 0, 2]), 0, -1), [1, 0, 2]),
)
_keeps("MatrixDiagPart", lambda a, b: raw.MatrixDiagPart(input=a.y))
_mixes("MatrixDiagPart", lambda a, b: raw.MatrixDiagPart(input=a.x))
for _op in ("MatrixDiagPartV2", "MatrixDiagPartV3"):
    _keeps(_op, _with(getattr(raw, _op), lambda of, a, b: of(input=a.y, k=0, padding_value=0.0)))
    _mixes(_op, _with(getattr(raw, _op), lambda of, a, b: of(input=a.x, k=0, padding_value=0.0)))
for _op, _k in (
    ("MatrixSetDiag", {}),
    ("MatrixSetDiagV2", {"k": 0}),
    ("MatrixSetDiagV3", {"k": 0}),
):
    _keeps(
        _op,
        _with(_of(_op, **_k), lambda of, a, b: of(input=a.y, diagonal=b.x[:, :3])),
    )
    _mixes(
        _op,
        _with(_of(_op, **_k), lambda of, a, b: of(input=a.y, diagonal=numbers(6, 3))),
        _with(_of(_op, **_k), lambda of, a, b: of(input=a.x, diagonal=b.k[:4])),
    )
_keeps("Conv2D", lambda a, b: tf.nn.conv2d(a.image * b.image, numbers(2, 2, 2, 3), 1, "SAME"))
_mixes(
    "Conv2D",
    lambda a, b: tf.nn.conv2d(a.image, tf.reshape(b.image[:1], [2, 2, 2, 4]), 1, "SAME"),
    lambda a, b: tf.transpose(
        tf.nn.conv2d(tf.transpose(a.image, [1, 0, 2, 3]), numbers(2, 2, 2, 3), 1, "SAME"),
        [1, 0, 2, 3],
    ),
)
_keeps(
    "DepthwiseConv2dNative",
    lambda a, b: tf.nn.depthwise_conv2d(a.image, numbers(2, 2, 2, 1), [1, 1, 1, 1], "SAME"),
)
_keeps("MaxPool", lambda a, b: tf.nn.max_pool2d(a.image, 2, 1, "SAME"))
_mixes(
    "MaxPool",
    lambda a, b: tf.transpose(
        tf.nn.max_pool2d(tf.transpose(a.image, [1, 0, 2, 3]), 2, 1, "SAME"), [1, 0, 2, 3]
    ),
)
_keeps("AvgPool", lambda a, b: tf.nn.avg_pool2d(a.image, 2, 1, "SAME"))
_keeps("LRN", lambda a, b: tf.nn.local_response_normalization(a.image))
_keeps("Pad", lambda a, b: tf.pad(a.x, [[0, 0], [1, 2]]))
_keeps("PadV2", lambda a, b: tf.pad(a.x * b.x, [[0, 0], [1, 2]], constant_values=1))
_keeps("MirrorPad", lambda a, b: tf.pad(a.x, [[0, 0], [1, 2]], "SYMMETRIC"))
_mixes(
    "Pad",
    lambda a, b: tf.pad(a.x, [[1, 0], [0, 0]])[:-1],
    lambda a, b: tf.pad(a.x, [[0, 1], [0, 0]]),
    lambda a, b: tf.pad(a.x, tf.stack([[0, 0], [0, _rows(a)]])),
)
_mixes("MirrorPad", lambda a, b: tf.pad(a.x, [[1, 0], [0, 0]], "SYMMETRIC")[1:])
_keeps(
    "Slice",
    lambda a, b: tf.slice(a.x, [0, 1], [-1, 2]),
    lambda a, b: tf.slice(a.x, [0, 1], tf.stack([_rows(a), 2])),
)
_mixes(
    "Slice",
    lambda a, b: tf.slice(a.x, [1, 0], [-1, 4]),
    lambda a, b: tf.slice(a.x, [0, 0], [2, 4]),
    lambda a, b: tf.reduce_sum(
        tf.slice(a.z, [0, 0], tf.stack([_rows(a), tf.minimum(_rows(a), 2)])), 1
    ),
    lambda a, b: tf.slice(a.x, [0, 0], tf.stack([_rows(a) - 1, 4])),
)
_keeps(
    "StridedSlice",
    lambda a, b: a.y[:, 1],
    lambda a, b: a.y[..., ::-2],
    lambda a, b: a.y[0:, tf.newaxis, 1:, 2] * b.k[:, tf.newaxis, tf.newaxis],
    lambda a, b: tf.transpose(a.y, [1, 0, 2])[1],
    lambda a, b: a.x[: _rows(a), 1:3],
    lambda a, b: a.x[tf.newaxis, ..., 1:][0],
    lambda a, b: a.y[:, : tf.shape(b.y)[1] - 1],
)
_mixes(
    "StridedSlice",
    lambda a, b: a.x[1:],
    lambda a, b: a.x[:-1],
    lambda a, b: a.x[::2],
    lambda a, b: a.x[::-1],
    lambda a, b: a.x[:100_000],
    lambda a, b: a.x[: tf.minimum(_rows(a), 50_000)],
    lambda a, b: a.x[0],
    lambda a, b: a.x * a.x[-1],
    lambda a, b: a.x[: _rows(a) - 1],
    lambda a, b: a.x[:, _rows(a) - 2],
    lambda a, b: tf.reduce_sum(a.x[:, : _rows(a)], 1),
    lambda a, b: tf.reduce_sum(a.x[:, _rows(a) // 2 :], 1),
    lambda a, b: a.x[..., -1:, :],
    lambda a, b: tf.transpose(a.x)[:, 1:],
    lambda a, b: a.x[b.n[0] :],
)


def _sparse_to_dense(values: Any) -> tf.Tensor:
    indices, numbers_, shape = values
    return raw.SparseToDense(
        sparse_indices=indices,
        output_shape=shape,
        sparse_values=numbers_,
        default_value=np.int64(-1),
    )


def _dense_rows(dense: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(dense, 1)


def _padded(values: tf.Tensor, splits: tf.Tensor, shape: Any = (-1, 5)) -> tf.Tensor:
    return raw.RaggedTensorToTensor(
        shape=[*shape] if isinstance(shape, tuple) else shape,
        values=values,
        default_value=np.int64(0),
        row_partition_tensors=[splits],
        row_partition_types=["ROW_SPLITS"],
    )


def _old_parsed(inputs: Inputs) -> list[Any]:
    """As `Inputs.parsed` without ragged features, by TensorFlow 1's op."""
    found = raw.ParseExample(
        serialized=inputs.example,
        names=[],
        sparse_keys=["s", "t"],
        dense_keys=["d"],
        dense_defaults=[np.zeros(2, np.float32)],
        sparse_types=[tf.int64, tf.int64],
        dense_shapes=[[2]],
    )
    return [tensor for part in found for tensor in part]


_keeps("ParseExample", lambda a, b: _old_parsed(a)[6] * b.x[:, :2])
_keeps("ParseExample", lambda a, b: _dense_rows(_sparse_to_dense(_old_parsed(a)[0:6:2])))
_mixes(
    "ParseExample",
    lambda a, b: _old_parsed(a)[2],
    lambda a, b: _old_parsed(a)[4][:1],
    lambda a, b: _sparse_to_dense([(p := _old_parsed(a))[0], p[3], p[4]]),
)
_keeps("ParseExampleV2", lambda a, b: a.parsed[6] * b.x[:, :2])
_mixes(
    "ParseExampleV2",
    lambda a, b: a.parsed[2],
    lambda a, b: a.parsed[7],
    lambda a, b: a.parsed[4][:1],
)
_keeps("SparseToDense", lambda a, b: _dense_rows(_sparse_to_dense(a.parsed[0:6:2])))
_mixes(
    "SparseToDense",
    lambda a, b: _sparse_to_dense([a.parsed[0], b.parsed[2], a.parsed[4]]),
    lambda a, b: _sparse_to_dense([(p := a.parsed)[0], p[3], p[4]]),
    lambda a, b: _sparse_to_dense([(p := a.parsed)[0], p[2], [6, 4]]),
)
_keeps(
    "RaggedTensorToTensor",
    lambda a, b: _padded(*a.parsed[7:10:2]),
    lambda a, b: _padded(tf.gather(np.arange(8), (p := a.parsed)[7] * 1), p[9]),
)
_mixes(
    "RaggedTensorToTensor",
    lambda a, b: _padded(a.parsed[7], b.parsed[9]),
    lambda a, b: _padded((p := a.parsed)[7], p[10]),
    lambda a, b: _padded((p := a.parsed)[7] * p[8], p[9]),
    lambda a, b: _padded(tf.cumsum((p := a.parsed)[7]), p[9]),
    lambda a, b: _padded((p := a.parsed)[7], p[9][::-1]),
)


def _sparse_of(values: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    parts = raw.RaggedTensorToSparse(rt_nested_splits=[splits], rt_dense_values=values)
    return _dense_rows(tf.sparse.to_dense(tf.SparseTensor(*parts)))


_keeps("RaggedTensorToSparse", lambda a, b: _sparse_of(*a.parsed[7:10:2]))
_mixes(
    "RaggedTensorToSparse",
    lambda a, b: _sparse_of(a.parsed[7], b.parsed[9]),
    lambda a, b: _sparse_of((p := a.parsed)[7], p[9][::-1]),
)


def _crossed(sparse: Sequence[tf.Tensor], dense: tf.Tensor) -> tf.Tensor:
    parts = raw.SparseCrossHashed(
        indices=[sparse[0]],
        values=[sparse[1]],
        shapes=[sparse[2]],
        dense_inputs=[dense],
        num_buckets=np.int64(50),
        strong_hash=False,
        salt=np.zeros(2, np.int64),
    )
    return _dense_rows(tf.sparse.to_dense(tf.SparseTensor(*parts)))


_keeps(
    "SparseCrossHashed",
    lambda a, b: _crossed(a.parsed[0:6:2], tf.cast(a.x[:, :1], tf.int64)),
)
_mixes(
    "SparseCrossHashed",
    lambda a, b: _crossed([a.parsed[0], b.parsed[2], a.parsed[4]], tf.cast(a.x[:, :1], tf.int64)),
    lambda a, b: _crossed(a.parsed[0:6:2], tf.cast(a.x[::-1, :1], tf.int64)),
)


def _table() -> tf.lookup.StaticHashTable:
    keys = tf.constant([0, 1, 2], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 3), -1)


def _variable() -> tf.Tensor:
    return v1.get_variable("table", initializer=numbers(5, 4), use_resource=True)


_keeps("LookupTableFindV2", lambda a, b: _table().lookup(a.m))
_mixes("LookupTableFindV2", lambda a, b: tf.cumsum(_table().lookup(a.n)))
_keeps("ResourceGather", lambda a, b: tf.gather(_variable(), a.m))
_mixes("ResourceGather", lambda a, b: tf.reduce_mean(tf.gather(_variable(), a.n), 0, keepdims=True))

#: Ops without a rule, and other ways in which rows get to each other.
_mixes(
    "ops without a rule",
    lambda a, b: a.x + tf.random.normal(tf.shape(a.x)),
    lambda a, b: tf.nn.dropout(a.x, 0.5),
    lambda a, b: tf.random.shuffle(a.x),
    lambda a, b: tf.gather(a.x, tf.unique(a.n)[1]),
    lambda a, b: tf.gather(a.x, tf.where(a.k > 0)[:, 0]),
    lambda a, b: tf.boolean_mask(a.x, a.k > 0),
    lambda a, b: tf.argsort(a.k),
    lambda a, b: tf.roll(a.x, 1, 0),
    lambda a, b: tf.math.segment_sum(a.x, tf.range(_rows(a))),
    lambda a, b: tf.scatter_nd(a.n[:, tf.newaxis], a.x, [6, 4]),
    lambda a, b: tf.cast(tf.range(_rows(a)), tf.float32)[:, tf.newaxis] * a.x,
    lambda a, b: tf.linspace(0.0, 1.0, _rows(a))[:, tf.newaxis] * a.x,
    lambda a, b: tf.strings.reduce_join(a.text, 0)[tf.newaxis],
    lambda a, b: raw.InTopKV2(predictions=a.x, targets=np.arange(6) % 4, k=1),
    lambda a, b: tf.nn.l2_loss(a.x) * a.x,
    lambda a, b: tf.linalg.matrix_transpose(a.x),
    lambda a, b: tf.map_fn(lambda row: row * 2, a.x),
    lambda a, b: tf.vectorized_map(lambda row: row + tf.reduce_sum(a.x), a.x),
    lambda a, b: tf.cond(tf.reduce_max(a.k) > 0, lambda x=b.x: x, lambda x=b.x: -x),
    lambda a, b: tf.py_function(lambda x: x, [a.x], tf.float32),
)

"""Parsing tf.Examples and SequenceExamples, by stock's ops and by fused ones, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import fusion
from benchmarks.case import Row, Value
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from fusion.schema.names import PARSE_EXAMPLE, PARSE_SEQUENCE

_IDS, _NUMBERS = 26, 13
_MANY, _ASKED = 200, 40
_LISTS, _LENGTH, _CONTEXT = 4, 20, 10
#: Ids are below it; so many Examples are drawn, batches repeat them.
_ROWS, _DRAWN = 1_000_000, 1024

_FIXED_INT = tf.io.FixedLenFeature([1], tf.int64)
_NAMES = [f"c{k}" for k in range(_IDS)]
_DENSE = {f"d{k}": tf.io.FixedLenFeature([1], tf.float32) for k in range(_NUMBERS)}

Features = Mapping[str, "list[int] | list[float] | list[bytes]"]


class _Workload(NamedTuple):
    """Examples, and what is asked for.

    Attributes:
        draw: the features of an Example.
        asked: the argument of `tf.io.parse_example`.
        is_shuffled: whether features come in another order in each Example.
        lists: feature lists of SequenceExamples; none of Examples.
        is_hashed: whether strings are hashed behind the parser.
    """

    draw: Callable[[np.random.Generator], Features]
    asked: Mapping[str, Any]
    is_shuffled: bool = False
    lists: Mapping[str, Any] = {}
    is_hashed: bool = False


def _numbers(generator: np.random.Generator) -> dict[str, list[float]]:
    return {name: [float(generator.random())] for name in _DENSE}


def _one_id(generator: np.random.Generator) -> Features:
    ids = {name: [int(generator.integers(_ROWS))] for name in _NAMES}
    return {**ids, **_numbers(generator)}


def _text(size: int) -> Callable[[np.random.Generator], Features]:
    def draw(generator: np.random.Generator) -> Features:
        ids = {name: [f"{generator.integers(1 << 32):0{size}x}".encode()] for name in _NAMES}
        return {**ids, **_numbers(generator)}

    return draw


def _bags(generator: np.random.Generator) -> Features:
    sizes = generator.integers(0, 6, _IDS)
    ids = {name: _ids(generator, n) for name, n in zip(_NAMES, sizes, strict=True)}
    return {**ids, **_numbers(generator)}


def _many(generator: np.random.Generator) -> Features:
    return {f"feature_{k}": _ids(generator, 1) for k in range(_MANY)}


def _lists(generator: np.random.Generator) -> Features:
    return {f"list{k}": _ids(generator, _LENGTH) for k in range(_LISTS)}


def _ids(generator: np.random.Generator, count: int) -> list[int]:
    return [int(number) for number in generator.integers(0, _ROWS, count)]


def _each(feature: Any) -> dict[str, Any]:
    """The ids as a feature each, and the numbers."""
    return {**dict.fromkeys(_NAMES, feature), **_DENSE}


def _sequences(feature: Any) -> _Workload:
    """Ten numbers in the context, and lists of rows of one id each."""
    numbers = {f"d{k}": _DENSE[f"d{k}"] for k in range(_CONTEXT)}
    lists = {f"list{k}": feature for k in range(_LISTS)}
    return _Workload(
        lambda generator: {**_numbers(generator), **_lists(generator)}, numbers, lists=lists
    )


_SOME = {f"feature_{k}": _FIXED_INT for k in range(0, _MANY, _MANY // _ASKED)}
_STRING, _STRINGS = tf.io.FixedLenFeature([1], tf.string), tf.io.VarLenFeature(tf.string)
WORKLOADS = {
    "fixed": _Workload(_one_id, _each(_FIXED_INT)),
    "varlen": _Workload(_one_id, _each(tf.io.VarLenFeature(tf.int64))),
    "ragged": _Workload(_one_id, _each(tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64))),
    "strings of 8": _Workload(_text(8), _each(_STRING)),
    "strings of 40": _Workload(_text(40), _each(_STRING)),
    "hashed strings of 8": _Workload(_text(8), _each(_STRING), is_hashed=True),
    "hashed strings of 40": _Workload(_text(40), _each(_STRING), is_hashed=True),
    "hashed strings of 8, varlen": _Workload(_text(8), _each(_STRINGS), is_hashed=True),
    "hashed strings of 40, varlen": _Workload(_text(40), _each(_STRINGS), is_hashed=True),
    "bags of 0 to 5": _Workload(_bags, _each(tf.io.VarLenFeature(tf.int64))),
    "lists of 20": _Workload(
        _lists, {f"list{k}": tf.io.VarLenFeature(tf.int64) for k in range(_LISTS)}
    ),
    "40 of 200": _Workload(_many, _SOME),
    "fixed, shuffled": _Workload(_one_id, _each(_FIXED_INT), True),
    "40 of 200, shuffled": _Workload(_many, _SOME, True),
    "sequences": _sequences(tf.io.FixedLenSequenceFeature([1], tf.int64)),
    "varlen sequences": _sequences(tf.io.VarLenFeature(tf.int64)),
    "ragged sequences": _sequences(tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)),
}
"""By name: one value for each of 26 ids unless they are lists, and 13 numbers.

Hashed ones are buckets of strings, by to_hash_bucket_fast, and all of them joined.

SequenceExamples have 10 numbers, and 4 lists of 20 rows of an id each.
"""


def measure(workload: str, batch: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each side, and how many times as fast the fused op is.

    Both are net of a call that parses nothing.

    Args:
        workload: its name.
        batch: Examples in a call.
        seconds: for all.
    """
    chosen, generator = WORKLOADS[workload], np.random.default_rng(1)
    drawn = [_serialized(chosen, generator) for _ in range(min(batch, _DRAWN))]
    texts = tf.constant([drawn[k % len(drawn)] for k in range(batch)])
    stock = _parser(chosen, slice(None))(texts), _parser(chosen, slice(1))
    with fusion.fused():
        fused = _parser(chosen, slice(None))(texts), _parser(chosen, slice(1))
        fused[1](texts)
    _compare(stock[0], fused[0], PARSE_SEQUENCE if chosen.lists else PARSE_EXAMPLE)
    calls = {"stock": stock[1], "fused": fused[1], "empty": _nothing}
    times = calls_in_turns({name: _call(call, texts) for name, call in calls.items()}, seconds)
    idle = float(np.median(times["empty"]))
    stock_net, fused_net = ([max(t - idle, 1e-9) for t in times[s]] for s in ("stock", "fused"))
    values: dict[str, Value] = {
        "stock, ms": milliseconds(stock_net),
        "fused, ms": milliseconds(fused_net),
        "times as fast": ratios(stock_net, fused_net),
        "MB/s": sum(map(len, drawn)) / len(drawn) * batch / float(np.median(fused_net)) / 1e6,
    }
    yield Row({"Examples": workload, "batch": batch}, values, "Parsing, net of the call")


@tf.function
def _nothing(texts: tf.Tensor) -> list[tf.Tensor]:
    """A call that costs what one of a parser does from Python, and parses nothing."""
    return [tf.shape(texts)]


def _call(call: Callable[[Any], Any], texts: tf.Tensor) -> Callable[[], Any]:
    return lambda: call(texts)


def _parser(workload: _Workload, shown: slice) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    """What parses, and returns some of the tensors: each costs a call from Python time."""

    @tf.function
    def parse(texts: tf.Tensor) -> list[tf.Tensor]:
        asked = dict(workload.asked)
        if workload.lists:
            parsed = tf.io.parse_sequence_example(texts, asked, dict(workload.lists))
        else:
            parsed = tf.io.parse_example(texts, asked)
        tensors: list[tf.Tensor] = tf.nest.flatten(parsed, expand_composites=True)
        if workload.is_hashed:  # all of them are needed for the first tensor
            texts = [tensor for tensor in tensors if tensor.dtype == tf.string]
            hashes = [tf.strings.to_hash_bucket_fast(one, _ROWS) for one in texts]
            rest = [tensor for tensor in tensors if tensor.dtype != tf.string]
            tensors = [tf.concat(hashes, 0), *rest]
        return tensors[shown]

    return parse


def _compare(stock: list[tf.Tensor], fused: list[tf.Tensor], name: str) -> None:
    """Raises AssertionError: a tensor differs, or the fused op did not run."""
    for one, other in zip(stock, fused, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert any(op.op == name for op in fusion.stats().ops), "not fused"


def _serialized(workload: _Workload, generator: np.random.Generator) -> bytes:
    features = workload.draw(generator)
    if workload.lists:
        return _sequence(features, workload.lists)
    names = [*features]
    if workload.is_shuffled:
        generator.shuffle(names)
        # Examples one behind the other are one.
        return _merged([_example({name: features[name]}) for name in names])
    return _example(features)


def _sequence(features: Features, lists: Mapping[str, Any]) -> bytes:
    """A SequenceExample, with a row for each value of what is a list."""
    result = tf.train.SequenceExample()
    for name in lists:
        for value in features[name]:
            row = result.feature_lists.feature_list[name].feature.add()
            row.int64_list.value.append(value)
    # An Example is the context of a SequenceExample.
    context = {name: values for name, values in features.items() if name not in lists}
    return _example(context) + result.SerializeToString()


def _example(features: Features) -> bytes:
    result = tf.train.Example()
    for name, values in features.items():
        feature = result.features.feature[name]
        if not values or isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(values)
    return result.SerializeToString()


def _merged(examples: list[bytes]) -> bytes:
    """One Example with the features of several, each of which has less than 128 bytes."""
    body = b"".join(example[2:] for example in examples)
    size, head = len(body), bytearray(b"\n")
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + body

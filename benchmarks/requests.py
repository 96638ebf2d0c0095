"""Models that rank candidates for a request: a row of the request for each of them, or one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from benchmarks.case import Key, Row, Value
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from fusion.saved_model import fuse_saved_model

_DIM, _HISTORY, _ITEM = 16, 50, 32
_USERS, _ITEMS, _USER_NUMBERS, _ITEM_NUMBERS = 20, 6, 10, 3
#: What outputs may differ by, as a share of the largest.
_ROUNDING = 1e-5

Tensors = Mapping[str, tf.Tensor]

_INPUTS: dict[str, tf.TensorSpec] = {
    **{f"user{k}": tf.TensorSpec([None], tf.int64) for k in range(_USERS)},
    **{f"item{k}": tf.TensorSpec([None], tf.int64) for k in range(_ITEMS)},
    "user_numbers": tf.TensorSpec([None, _USER_NUMBERS], tf.float32),
    "item_numbers": tf.TensorSpec([None, _ITEM_NUMBERS], tf.float32),
}
_HISTORY_INPUT = {"user_history": tf.TensorSpec([None, _HISTORY], tf.int64)}


class _Model(tf.Module):
    """Tables and dense layers of a model; a subclass says how they go together."""

    inputs: ClassVar[Mapping[str, tf.TensorSpec]] = _INPUTS

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self._random = np.random.default_rng(0)
        self.tables = [self.matrix(rows, _DIM) for _ in range(_USERS + _ITEMS)]

    def matrix(self, rows: int, columns: int) -> tf.Variable:
        """A matrix of random numbers."""
        drawn = self._random.normal(0, 1 / np.sqrt(min(rows, 1000)), (rows, columns))
        return tf.Variable(drawn.astype(np.float32))

    def layers(self, columns: int, *widths: int) -> list[tuple[tf.Variable, tf.Variable]]:
        """Weights and biases of dense layers."""
        sizes = zip((columns, *widths), widths, strict=False)
        return [(self.matrix(a, b), tf.Variable(tf.zeros(b))) for a, b in sizes]

    def users(self, inputs: Tensors) -> list[tf.Tensor]:
        """The vectors of a user."""
        ids = [inputs[f"user{k}"] for k in range(_USERS)]
        return [tf.gather(table, own) for table, own in zip(self.tables, ids, strict=False)]

    def items(self, inputs: Tensors) -> list[tf.Tensor]:
        """The vectors of a candidate."""
        ids = [inputs[f"item{k}"] for k in range(_ITEMS)]
        tables = self.tables[_USERS:]
        return [tf.gather(table, own) for table, own in zip(tables, ids, strict=True)]

    def joined(self, inputs: Tensors) -> tf.Tensor:
        """All numbers and vectors side by side."""
        numbers = [inputs["user_numbers"], inputs["item_numbers"]]
        return tf.concat([*numbers, *self.users(inputs), *self.items(inputs)], 1)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        """The scores of candidates."""
        raise NotImplementedError


def _dense(x: tf.Tensor, layers: list[tuple[tf.Variable, tf.Variable]]) -> tf.Tensor:
    """Dense layers, all but the last with relu."""
    for number, (weights, bias) in enumerate(layers):
        x = tf.nn.bias_add(tf.matmul(x, weights), bias)
        x = tf.nn.relu(x) if number + 1 < len(layers) else x
    return x


_COLUMNS = (_USERS + _ITEMS) * _DIM + _USER_NUMBERS + _ITEM_NUMBERS


class _WideAndDeep(_Model):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.linear = [self.matrix(rows, 1) for _ in range(_USERS + _ITEMS)]
        self.deep = self.layers(_COLUMNS, 256, 128, 64, 1)

    def first_order(self, inputs: Tensors) -> tf.Tensor:
        names = [f"user{k}" for k in range(_USERS)] + [f"item{k}" for k in range(_ITEMS)]
        weights = [tf.gather(t, inputs[n]) for t, n in zip(self.linear, names, strict=True)]
        return tf.reduce_sum(tf.concat(weights, 1), 1, keepdims=True)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        return _dense(self.joined(inputs), self.deep) + self.first_order(inputs)


class _DeepFM(_WideAndDeep):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.deep = self.layers(_COLUMNS, 256, 256, 256, 1)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        fields = tf.stack([*self.users(inputs), *self.items(inputs)], 1)
        sums = tf.reduce_sum(fields, 1)
        pairs = sums * sums - tf.reduce_sum(fields * fields, 1)
        return super().scores(inputs) + 0.5 * tf.reduce_sum(pairs, 1, keepdims=True)


class _DLRM(_Model):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.bottom = self.layers(_USER_NUMBERS + _ITEM_NUMBERS, 64, _DIM)
        self.fields = 1 + _USERS + _ITEMS
        first, second = np.tril_indices(self.fields, -1)
        self.pairs = (first * self.fields + second).tolist()
        self.top = self.layers(_DIM + len(self.pairs), 256, 128, 1)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        numbers = tf.concat([inputs["user_numbers"], inputs["item_numbers"]], 1)
        dense = tf.nn.relu(_dense(numbers, self.bottom))
        vectors = tf.concat([dense, *self.users(inputs), *self.items(inputs)], 1)
        fields = tf.reshape(vectors, [-1, self.fields, _DIM])
        products = tf.matmul(fields, fields, transpose_b=True)
        flat = tf.reshape(products, [-1, self.fields * self.fields])
        return _dense(tf.concat([dense, tf.gather(flat, self.pairs, axis=1)], 1), self.top)


class _TwoTowers(_Model):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.user = self.layers(_USERS * _DIM + _USER_NUMBERS, 256, 128, 64)
        self.item = self.layers(_ITEMS * _DIM + _ITEM_NUMBERS, 256, 128, 64)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        user = _dense(tf.concat([inputs["user_numbers"], *self.users(inputs)], 1), self.user)
        item = _dense(tf.concat([inputs["item_numbers"], *self.items(inputs)], 1), self.item)
        return tf.reduce_sum(user * item, 1, keepdims=True)


class _DIN(_Model):
    inputs: ClassVar[Mapping[str, tf.TensorSpec]] = {**_INPUTS, **_HISTORY_INPUT}

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.table = self.matrix(rows, _ITEM)
        self.attention = self.layers(4 * _ITEM, 64, 32, 1)
        self.deep = self.layers(_COLUMNS + 2 * _ITEM, 200, 80, 1)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        item = tf.gather(self.table, inputs["item0"])
        history = tf.gather(self.table, inputs["user_history"])
        query = tf.tile(item[:, None], [1, _HISTORY, 1])
        pairs = tf.concat([query, history, query - history, query * history], 2)
        weights = _dense(tf.reshape(pairs, [-1, 4 * _ITEM]), self.attention)
        weights = tf.nn.softmax(tf.reshape(weights, [-1, 1, _HISTORY]))
        interest = tf.reshape(tf.matmul(weights, history), [-1, _ITEM])
        return _dense(tf.concat([self.joined(inputs), item, interest], 1), self.deep)


MODELS: dict[str, Callable[[int], _Model]] = {
    "wide and deep": _WideAndDeep,
    "DeepFM": _DeepFM,
    "DLRM": _DLRM,
    "two towers": _TwoTowers,
    "DIN": _DIN,
}
"""By name: 20 features of a user and 6 of a candidate, 10 and 3 numbers; DIN: a history of 50."""


def measure(model: str, target: str, candidates: int, rows: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each signature, and how many times as fast those of requests are.

    Inputs are variables, so that no call from Python has 29 tensors.

    Args:
        model: its name.
        target: what lookups become.
        candidates: of the one request in a call.
        rows: of each table.
        seconds: for all.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, rewritten = Path(folder) / "source", Path(folder) / "rewritten"
        built = MODELS[model](rows)
        _save(built, source)
        of_request = [name for name in built.inputs if name.startswith("user")]
        fuse_saved_model(source, rewritten, target, request_inputs=of_request)
        before, after = (tf.saved_model.load(str(path)) for path in (source, rewritten))
    once = _draw(built.inputs, of_request, candidates, rows)
    repeated = {
        name: np.repeat(value, candidates, 0) if name in of_request else value
        for name, value in once.items()
    }
    counts = {"candidates_per_request": np.array([candidates])}
    calls = {
        "stock": _call(before.signatures["serving_default"], repeated),
        "request": _call(after.signatures["serving_default_request"], once),
        "requests": _call(after.signatures["serving_default_requests"], {**once, **counts}),
    }
    expected, *others = (call().numpy() for call in calls.values())
    deviation = max(float(np.abs(one - expected).max()) for one in others)
    share = deviation / float(np.abs(expected).max())
    assert share <= _ROUNDING, f"outputs differ by {share:.1e} of the largest"
    times = calls_in_turns(calls, seconds)
    values: dict[str, Value] = {
        "repeated, ms": milliseconds(times["stock"]),
        "one request, ms": milliseconds(times["request"]),
        "times as fast": ratios(times["stock"], times["request"]),
        "several, times as fast": ratios(times["stock"], times["requests"]),
        "deviation": f"{share:.0e}",
    }
    key: Key = {"model": model, "target": target, "candidates": candidates}
    yield Row(key, values, "A request with candidates, in the graph")


def _save(model: _Model, path: Path) -> None:
    @tf.function
    def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": model.scores(inputs)}

    concrete = serve.get_concrete_function(**model.inputs)
    tf.saved_model.save(model, str(path), signatures={"serving_default": concrete})


def _draw(
    inputs: Mapping[str, tf.TensorSpec], of_request: list[str], candidates: int, rows: int
) -> dict[str, np.ndarray[Any, Any]]:
    random, drawn = np.random.default_rng(1), {}
    for name, spec in inputs.items():
        shape = [1 if name in of_request else candidates, *spec.shape[1:]]
        is_id = spec.dtype == tf.int64
        drawn[name] = random.integers(0, rows, shape) if is_id else random.random(shape, np.float32)
    return drawn


def _call(
    signature: Callable[..., Mapping[str, tf.Tensor]], feeds: Mapping[str, np.ndarray[Any, Any]]
) -> Callable[[], tf.Tensor]:
    """A function of no inputs that calls a signature on what variables hold."""
    variables = {
        name: tf.Variable(value, shape=[None, *value.shape[1:]]) for name, value in feeds.items()
    }

    @tf.function
    def call() -> tf.Tensor:
        inputs = {name: tf.convert_to_tensor(value) for name, value in variables.items()}
        return signature(**inputs)["scores"]

    return call

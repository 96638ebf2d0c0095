"""Models that rank candidates for a request: 20 features of a user and 6 of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import tensorflow as tf

_DIM, _HISTORY, _ITEM = 16, 50, 32
_HEADS, _HEAD_SCALE = 4, (_ITEM // 4) ** -0.5
_USERS, _ITEMS, _USER_NUMBERS, _ITEM_NUMBERS = 20, 6, 10, 3
Tensors = Mapping[str, tf.Tensor]

_INPUTS: dict[str, tf.TensorSpec] = {
    **{f"user{k}": tf.TensorSpec([None], tf.int64) for k in range(_USERS)},
    **{f"item{k}": tf.TensorSpec([None], tf.int64) for k in range(_ITEMS)},
    "user_numbers": tf.TensorSpec([None, _USER_NUMBERS], tf.float32),
    "item_numbers": tf.TensorSpec([None, _ITEM_NUMBERS], tf.float32),
}
_HISTORY_INPUT = {"user_history": tf.TensorSpec([None, _HISTORY], tf.int64)}


class Model(tf.Module):
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


class _WideAndDeep(Model):
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


class _DLRM(Model):
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


class _TwoTowers(Model):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.user = self.layers(_USERS * _DIM + _USER_NUMBERS, 256, 128, 64)
        self.item = self.layers(_ITEMS * _DIM + _ITEM_NUMBERS, 256, 128, 64)

    def scores(self, inputs: Tensors) -> tf.Tensor:
        user = _dense(tf.concat([inputs["user_numbers"], *self.users(inputs)], 1), self.user)
        item = _dense(tf.concat([inputs["item_numbers"], *self.items(inputs)], 1), self.item)
        return tf.reduce_sum(user * item, 1, keepdims=True)


class _DIN(Model):
    inputs: ClassVar[Mapping[str, tf.TensorSpec]] = {**_INPUTS, **_HISTORY_INPUT}

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.table = self.matrix(rows, _ITEM)
        self.attention = self.layers(4 * _ITEM, 64, 32, 1)
        self.deep = self.layers(_COLUMNS + 2 * _ITEM, 200, 80, 1)

    def history(self, inputs: Tensors) -> tf.Tensor:
        """The vectors of the items of a history."""
        return tf.gather(self.table, inputs["user_history"])

    def scores(self, inputs: Tensors) -> tf.Tensor:
        item, history = tf.gather(self.table, inputs["item0"]), self.history(inputs)
        query = tf.tile(item[:, None], [1, _HISTORY, 1])
        pairs = tf.concat([query, history, query - history, query * history], 2)
        weights = _dense(tf.reshape(pairs, [-1, 4 * _ITEM]), self.attention)
        weights = tf.nn.softmax(tf.reshape(weights, [-1, 1, _HISTORY]))
        interest = tf.reshape(tf.matmul(weights, history), [-1, _ITEM])
        return _dense(tf.concat([self.joined(inputs), item, interest], 1), self.deep)


class _BST(_DIN):
    """A transformer over a history, whose results the item weighs as DIN does, as in DeepCTR."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.positions = self.matrix(_HISTORY, _ITEM)
        self.heads = [self.matrix(_ITEM, _ITEM) for _ in range(3)]
        self.end = self.matrix(_ITEM, _ITEM)
        self.network = self.layers(_ITEM, _ITEM, _ITEM)
        self.scales = [tf.Variable(tf.ones(_ITEM)) for _ in range(2)]
        self.offsets = [tf.Variable(tf.zeros(_ITEM)) for _ in range(2)]

    def _normalised(self, x: tf.Tensor, number: int) -> tf.Tensor:
        gap = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(gap), -1, keepdims=True)
        return gap * tf.math.rsqrt(variance + 1e-6) * self.scales[number] + self.offsets[number]

    def _by_step(self, x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
        product = tf.matmul(tf.reshape(x, [-1, _ITEM]), weights)
        return tf.reshape(product, [-1, _HISTORY, _ITEM])

    def history(self, inputs: Tensors) -> tf.Tensor:
        x = super().history(inputs) + self.positions
        parts = [tf.concat(tf.split(self._by_step(x, own), _HEADS, 2), 0) for own in self.heads]
        weights = tf.nn.softmax(tf.matmul(parts[0], parts[1], transpose_b=True) * _HEAD_SCALE)
        joined = tf.concat(tf.split(tf.matmul(weights, parts[2]), _HEADS, 0), 2)
        x = self._normalised(x + self._by_step(joined, self.end), 0)
        network = _dense(tf.reshape(x, [-1, _ITEM]), self.network)
        return self._normalised(x + tf.reshape(network, [-1, _HISTORY, _ITEM]), 1)


MODELS: dict[str, Callable[[int], Model]] = {
    "wide and deep": _WideAndDeep,
    "DeepFM": _DeepFM,
    "DLRM": _DLRM,
    "two towers": _TwoTowers,
    "DIN": _DIN,
    "BST": _BST,
}
"""By name. DIN and BST have a history of 50 items."""

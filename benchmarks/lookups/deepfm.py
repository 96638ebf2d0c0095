"""A training step of DeepFM (Guo et al. 2017), as a user of stock TensorFlow writes it.

Each column has an embedding, of which both the factorization machine and the layers are given, and
one weight per id for the linear part.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import fusion
from benchmarks.lookups.batch import Unsupported, table_numbers
from benchmarks.lookups.feed import Parts
from benchmarks.lookups.workloads import Program

NUMBERS = 13
"""Dense features, as in Criteo's logs."""
_LAYERS = (256, 256, 256, 1)


Layers = list[tuple[tf.Variable, tf.Variable]]
"""Kernels and biases."""


def dense_layers(rng: np.random.Generator, widths: Sequence[int]) -> Layers:
    """Layers from each width to the next."""
    return [
        (
            tf.Variable((rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32)),
            tf.Variable(np.zeros(b, np.float32)),
        )
        for a, b in itertools.pairwise(widths)
    ]


def through(layers: Layers, value: tf.Tensor) -> tf.Tensor:
    """What layers with ReLU make of a value."""
    for kernel, bias in layers:
        value = tf.nn.relu(tf.matmul(value, kernel) + bias)
    return value


class DeepFM:
    """The model with its optimizer, which is fusion's own if `fused` and there is one.

    The learning rate is 0: the optimizer does all of its work, and the numbers do not depend on how
    many steps were taken before.
    """

    def __init__(
        self, program: Program, tables: Mapping[int, npt.NDArray[Any]], fused: bool
    ) -> None:
        dims = {column.dim for column in program.columns}
        if len(dims) > 1:
            raise Unsupported("a factorization machine has embeddings of one size")
        (self._dim,) = dims
        self._columns = program.columns
        self._numbers = table_numbers(program)
        widths = (program.width + NUMBERS, *_LAYERS)
        self._embeddings = {number: tf.Variable(table) for number, table in tables.items()}
        self._weights = {number: tf.Variable(table[:, :1]) for number, table in tables.items()}
        self._layers = dense_layers(np.random.default_rng(2), widths)
        self._linear = tf.Variable(np.zeros([NUMBERS, 1], np.float32))
        layers = [variable for layer in self._layers for variable in layer]
        self._variables = [
            *self._embeddings.values(),
            *self._weights.values(),
            *layers,
            self._linear,
        ]
        package = (
            fusion.optimizers if fused and program.optimizer == "adagrad" else keras.optimizers
        )
        kind = {"sgd": "SGD", "adagrad": "Adagrad"}[program.optimizer]
        self._optimizer = getattr(package, kind)(0.0)
        self._optimizer.build(self._variables)

    def step(self, columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        """Takes a step; gives the loss."""
        loss, gradients = self._gradients(columns, numerics)
        self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return loss

    def everything(self, columns: list[Parts], numerics: tf.Tensor) -> list[tf.Tensor]:
        """The loss and all gradients, those of tables as ids and values."""
        loss, gradients = self._gradients(columns, numerics)
        parts = (
            [one.indices, one.values] if isinstance(one, tf.IndexedSlices) else [one]
            for one in gradients
        )
        return [loss, *itertools.chain.from_iterable(parts)]

    def _gradients(self, columns: list[Parts], numerics: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        numbers = numerics[:, :NUMBERS]
        labels = tf.cast(numerics[:, NUMBERS : NUMBERS + 1] > 0.5, tf.float32)
        with tf.GradientTape() as tape:
            logits = self._logits(columns, numbers)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, self._variables)

    def _logits(self, columns: list[Parts], numbers: tf.Tensor) -> tf.Tensor:
        embeddings = tf.concat(self._look_up(self._embeddings, columns), 1)
        linear = tf.concat(self._look_up(self._weights, columns), 1)
        fields = tf.reshape(embeddings, [-1, len(self._columns), self._dim])
        square = tf.square(tf.reduce_sum(fields, 1))
        pairs = 0.5 * tf.reduce_sum(square - tf.reduce_sum(tf.square(fields), 1), 1, keepdims=True)
        value = through(self._layers[:-1], tf.concat([embeddings, numbers], 1))
        kernel, bias = self._layers[-1]
        deep = tf.matmul(value, kernel) + bias
        first = tf.reduce_sum(linear, 1, keepdims=True) + tf.matmul(numbers, self._linear)
        return first + pairs + deep

    def _look_up(self, tables: Mapping[int, Any], columns: list[Parts]) -> list[tf.Tensor]:
        return [
            tf.nn.safe_embedding_lookup_sparse(
                tables[number], tf.SparseTensor(*parts[:3]), combiner=column.combiner
            )
            for column, number, parts in zip(self._columns, self._numbers, columns, strict=True)
        ]

"""Models that are trained step by step, as Keras's `fit` does it and in a compat.v1 Session."""

from __future__ import annotations

import importlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.lookups.draws import Distribution, Draw, draw_bags

v1 = tf.compat.v1

Array = npt.NDArray[Any]


class Optimizer(NamedTuple):
    """One with stock's arguments.

    Attributes:
        keras, graph: the class of both Kerases, and that of compat.v1, "" for none.
        slots: how many variables of a table's size it keeps at most.
        options: its arguments.
    """

    keras: str
    graph: str
    slots: int
    options: dict[str, float]


OPTIMIZERS = {
    "sgd": Optimizer("SGD", "GradientDescentOptimizer", 0, {"learning_rate": 0.01}),
    "momentum": Optimizer("SGD", "MomentumOptimizer", 1, {"learning_rate": 0.01, "momentum": 0.9}),
    "adagrad": Optimizer("Adagrad", "AdagradOptimizer", 1, {"learning_rate": 0.01}),
    "adam": Optimizer("Adam", "AdamOptimizer", 2, {"learning_rate": 0.001}),
    "rmsprop": Optimizer("RMSprop", "RMSPropOptimizer", 2, {"learning_rate": 0.001}),
    "ftrl": Optimizer("Ftrl", "FtrlOptimizer", 2, {"learning_rate": 0.01}),
    "lion": Optimizer("Lion", "", 1, {"learning_rate": 0.0001}),
}


@dataclass(frozen=True)
class Model:
    """Embeddings of one id per row side by side, dense layers, and one logit.

    Attributes:
        framework: "keras" (Keras 3), "tf_keras" or "compat.v1".
        optimizer: one of `OPTIMIZERS`.
        rows: of each table.
        columns: how many tables.
        dim: of each table.
        batch: rows of a batch.
        hidden: units of the dense layers.
        batches: how many different ones there are.
        distribution: of the ids.

    Raises:
        ValueError: the optimizer is not known, or the framework has none of that name.
    """

    framework: str
    optimizer: str
    rows: int
    columns: int = 26
    dim: int = 16
    batch: int = 512
    hidden: tuple[int, ...] = (256, 256, 256)
    batches: int = 200
    distribution: Distribution = "uniform"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"optimizer must be one of {known}, got {self.optimizer!r}")
        if self.framework == "compat.v1" and not OPTIMIZERS[self.optimizer].graph:
            raise ValueError(f"tf.compat.v1.train has no optimizer {self.optimizer}")
        for name in ("rows", "columns", "dim", "batch", "batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def table_bytes(self) -> int:
        """Bytes of one table, float32."""
        return 4 * self.rows * self.dim

    @property
    def bytes_needed(self) -> int:
        """Bytes of tables and slots of both sides, and of what stock's step copies beside them.

        A stock step reads whole tables, each into a copy, and a sweeping optimizer makes tensors
        of a table's size for some of them at once.
        """
        return self.columns * self.table_bytes * (2 * (1 + OPTIMIZERS[self.optimizer].slots) + 2)


class Side(ABC):
    """A model that is trained on the same batches again and again, from the same values on."""

    @abstractmethod
    def start(self) -> list[float]:
        """Traces and optimizes the step's graph; returns the losses of the steps this takes."""

    @abstractmethod
    def step(self) -> float:
        """Takes a step; returns its loss."""

    @abstractmethod
    def run(self, steps: int) -> None:
        """Takes steps one after the other."""

    @abstractmethod
    def variables(self) -> Iterator[tuple[str, Array]]:
        """Yields the name and the value of each variable, the optimizer's included."""


class FitSide(Side):
    """A compiled model of Keras 3 or tf_keras, trained by the function that its `fit` calls."""

    def __init__(self, model: Any, dataset: tf.data.Dataset) -> None:
        """Takes a compiled model, and a dataset of batches that ends."""
        self.model = model
        self._dataset = dataset.repeat()
        self._batches = iter(self._dataset)

    def start(self) -> list[float]:
        """See `Side`."""
        fitted = self.model.fit(
            self._dataset, epochs=1, steps_per_epoch=1, verbose=0, shuffle=False
        )
        return [float(fitted.history["loss"][0]), self.step()]

    def step(self) -> float:
        """See `Side`."""
        # The loss that it gives is a mean since this.
        self.model.reset_metrics()
        return float(self.model.train_function(self._batches)["loss"])

    def run(self, steps: int) -> None:
        """See `Side`."""
        for _ in range(steps):
            self.model.train_function(self._batches)

    def variables(self) -> Iterator[tuple[str, Array]]:
        """See `Side`."""
        for one in (*self.model.variables, *self.model.optimizer.variables):
            if one.dtype != "string":
                yield getattr(one, "path", one.name), np.asarray(one)


class GraphSide(Side):
    """A model as a compat.v1 graph of resource variables, and its Session."""

    def __init__(self, model: Model) -> None:
        graph = tf.Graph()
        with graph.as_default():
            iterator = v1.data.make_initializable_iterator(dataset(model).repeat())
            ids, labels = iterator.get_next()
            logits = _graph_logits(model, ids)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
            chosen = OPTIMIZERS[model.optimizer]
            optimizer = getattr(v1.train, chosen.graph)(**chosen.options)
            self._fetches = [loss, optimizer.minimize(loss)]
            self._values = {one.name: one.read_value() for one in v1.global_variables()}
            self._session = v1.Session(graph=graph)
            self._session.run([v1.global_variables_initializer(), iterator.initializer])

    def start(self) -> list[float]:
        """See `Side`."""
        return [self.step() for _ in range(2)]

    def step(self) -> float:
        """See `Side`."""
        return float(self._session.run(self._fetches)[0])

    def run(self, steps: int) -> None:
        """See `Side`."""
        for _ in range(steps):
            self._session.run(self._fetches)

    def variables(self) -> Iterator[tuple[str, Array]]:
        """See `Side`."""
        for name, value in self._values.items():
            yield name, self._session.run(value)


def side(model: Model) -> Side:
    """A model, with values that depend on its description alone."""
    if model.framework == "compat.v1":
        return GraphSide(model)
    keras = importlib.import_module(model.framework)
    batches = dataset(model).cache()
    # Fills the cache.
    batches.reduce(0, lambda count, _: count + 1)
    return FitSide(_keras_model(keras, model), batches)


def dataset(model: Model) -> tf.data.Dataset:
    """The batches of a model: ids, int32 [batch, 1] of each table, and labels, float32 [batch, 1].

    As users' datasets have it, the size of a batch is not known to the graph.
    """
    rng = np.random.default_rng(model.rows)
    count, draw = model.batches * model.batch, Draw(model.distribution)
    ids = [
        draw_bags(rng, draw, count, model.rows, 1, 1).ids.astype(np.int32)[:, None]
        for _ in range(model.columns)
    ]
    labels = rng.integers(0, 2, (count, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((tuple(ids), labels)).batch(model.batch)


def _keras_model(keras: Any, model: Model) -> Any:
    """A compiled model of stock layers."""
    inputs, parts = [], []
    for number in range(model.columns):
        inputs.append(keras.Input([1], dtype="int32"))
        values = keras.initializers.RandomUniform(seed=number)
        rows = keras.layers.Embedding(model.rows, model.dim, values)(inputs[-1])
        parts.append(keras.layers.Flatten()(rows))
    found = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    for number, units in enumerate((*model.hidden, 1)):
        kernel = keras.initializers.GlorotUniform(seed=number)
        activation = "relu" if number < len(model.hidden) else None
        found = keras.layers.Dense(units, activation, kernel_initializer=kernel)(found)
    made = keras.Model(inputs, found)
    chosen = OPTIMIZERS[model.optimizer]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(getattr(keras.optimizers, chosen.keras)(**chosen.options), loss)
    return made


def _graph_logits(model: Model, ids: tuple[Any, ...]) -> Any:
    parts = []
    for number, one in enumerate(ids):
        table = v1.get_variable(
            f"table_{number}",
            [model.rows, model.dim],
            initializer=v1.random_uniform_initializer(-0.05, 0.05, seed=number),
            use_resource=True,
        )
        parts.append(tf.nn.embedding_lookup(table, one[:, 0]))
    found = tf.concat(parts, 1)
    widths = (model.columns * model.dim, *model.hidden, 1)
    for number, shape in enumerate(itertools.pairwise(widths)):
        with v1.variable_scope(f"dense_{number}", use_resource=True):
            glorot = v1.glorot_uniform_initializer(seed=number)
            kernel = v1.get_variable("kernel", shape, initializer=glorot)
            bias = v1.get_variable("bias", shape[1:], initializer=v1.zeros_initializer())
        found = tf.nn.bias_add(tf.matmul(found, kernel), bias)
        if number < len(model.hidden):
            found = tf.nn.relu(found)
    return found

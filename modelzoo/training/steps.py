"""One step of training, in Keras 3 with any strategy, and in a compat.v1 Session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelzoo.layers import Columns, GraphLayers, KerasLayers
from modelzoo.options import Architecture, Model
from modelzoo.training.optimizers import graph_optimizer, keras_optimizer

v1 = tf.compat.v1

Numbers = npt.NDArray[np.float32]


class Scored(NamedTuple):
    """Samples of a batch, those of all replicas.

    Attributes:
        labels: [n].
        logits: [n].
    """

    labels: Numbers
    logits: Numbers


#: Steps of a worker under way at once: it computes one while the batch of the next one comes.
_AT_ONCE = 2


class Steps(ABC):
    """A model that is trained.

    Attributes:
        at_once: how many steps may be under way at once.
    """

    at_once = 1

    def batches(self, dataset: tf.data.Dataset) -> Any:
        """What gives the batches of a dataset as `start` and `scores` take them."""
        return dataset

    @abstractmethod
    def start(self, features: Mapping[str, Any], labels: Any) -> Callable[[], tuple[float, Scored]]:
        """Starts a step; what it gives waits for the loss of the batch and its scores.

        Both are those before the step.
        """

    def train(self, features: Mapping[str, Any], labels: Any) -> tuple[float, Scored]:
        """Does a step: starts it and waits for it."""
        return self.start(features, labels)()

    @abstractmethod
    def scores(self, features: Mapping[str, Any], labels: Any) -> Scored:
        """The scores of a batch."""

    @abstractmethod
    def save(self, prefix: Path) -> None:
        """Writes all variables, those of the optimizer included, to files that begin so."""

    @abstractmethod
    def restore(self, prefix: Path) -> None:
        """Reads what `save` wrote."""


class KerasSteps(Steps):
    """A functional Keras 3 model.

    Attributes:
        model: features -> logits.
        embeddings: categorical features -> what the embedding columns give, by their layers' names.
    """

    def __init__(
        self,
        model: Model,
        shape: Architecture,
        columns: Columns,
        optimizer: str,
        rate: float,
        strategy: Any = None,
        layers_of: Callable[[Columns], KerasLayers] = KerasLayers,
    ) -> None:
        """Builds the model and the optimizer in a strategy's scope; None is TensorFlow's own.

        Raises:
            ValueError: the optimizer is not known, or the model has no embeddings.
        """
        self._strategy = strategy or tf.distribute.get_strategy()
        self._count = self._strategy.num_replicas_in_sync
        with self._strategy.scope():
            layers = layers_of(columns)
            logits = model.logits(layers, shape)
            if not layers.embedded:
                raise ValueError(
                    f"model {model.name!r} has no tables, which --sharded divides and --do-fusion "
                    "fuses: its logits need layers.embeddings"
                )
            self.model = keras.Model(layers.features, logits, name=model.name)
            ids = {name: layers.features[name] for name in columns.inputs.rows}
            self.embeddings = keras.Model(ids, layers.embedded)
            self._optimizer = keras_optimizer(optimizer, rate)
            self._optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *self._optimizer.variables]
        self._checkpoint = tf.train.Checkpoint(variables=[one.value for one in variables])
        self._step = tf.function(self._train_all, reduce_retracing=True)
        self._scores = tf.function(self._score_all, reduce_retracing=True)

    def _score(self, features: Any, labels: Any) -> Any:
        """A replica's labels and logits, [n, 2]."""
        return tf.concat([labels, self.model(features, training=False)], 1)

    def _train(self, features: Any, labels: Any) -> Any:
        """A replica's step: its part of the loss, and its labels and logits, [n, 2]."""
        size = tf.cast(tf.shape(labels)[0], tf.float32)
        if self._count > 1:
            size = tf.distribute.get_replica_context().all_reduce("SUM", size)
        with tf.GradientTape() as tape:
            logits = self.model(features, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses) / size
        variables = self.model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss, tf.concat([labels, logits], 1)

    def _train_all(self, features: Any, labels: Any) -> Any:
        losses, scored = self._strategy.run(self._train, (features, labels))
        return self._strategy.reduce("SUM", losses, axis=None), self._of_all(scored)

    def _score_all(self, features: Any, labels: Any) -> Any:
        return self._of_all(self._strategy.run(self._score, (features, labels)))

    def _of_all(self, rows: Any) -> Any:
        """The rows of all replicas, in the order of the batch."""
        here = self._strategy.experimental_local_results(rows)
        if len(here) == self._count:
            return tf.concat(here, 0)
        return self._strategy.gather(rows, axis=0)

    def batches(self, dataset: tf.data.Dataset) -> Any:
        """See `Steps`."""
        if self._count == 1:
            return dataset
        return self._strategy.distribute_datasets_from_function(
            lambda context: _divided(dataset, self._count, context)
        )

    def start(self, features: Mapping[str, Any], labels: Any) -> Callable[[], tuple[float, Scored]]:
        """See `Steps`."""
        loss, scored = self._step(dict(features), labels)
        return lambda: (float(loss), Scored(*scored.numpy().T))

    def scores(self, features: Mapping[str, Any], labels: Any) -> Scored:
        """See `Steps`."""
        return Scored(*self._scores(dict(features), labels).numpy().T)

    def save(self, prefix: Path) -> None:
        """See `Steps`."""
        self._checkpoint.write(str(prefix.absolute()))

    def restore(self, prefix: Path) -> None:
        """See `Steps`."""
        self._checkpoint.read(str(prefix.absolute())).assert_consumed()


def _divided(dataset: tf.data.Dataset, count: int, context: Any) -> tf.data.Dataset:
    """The parts of each batch that the replicas of one process get, of so many replicas.

    Each process reads all samples. (TensorFlow would divide files among processes where it can, and
    ends if the last batch has fewer samples than there are processes.)
    """
    here = count // context.num_input_pipelines
    first = context.input_pipeline_id * here

    def divide(features: Any, labels: Any) -> Any:
        size = tf.shape(labels, tf.int64)[0]

        def part(replica: Any) -> Any:
            begin, end = size * replica // count, size * (replica + 1) // count

            def of(tensor: Any) -> Any:
                if not isinstance(tensor, tf.SparseTensor):
                    return tensor[begin:end]
                width = tensor.dense_shape[1]
                return tf.sparse.slice(tensor, [begin, 0], [end - begin, width])

            return {name: of(tensor) for name, tensor in features.items()}, of(labels)

        return tf.data.Dataset.range(first, first + here).map(part)

    return dataset.flat_map(divide)


class ServedSteps(KerasSteps):
    """A Keras 3 model on parameter servers, whose steps are done by workers, several at once."""

    def __init__(
        self,
        model: Model,
        shape: Architecture,
        columns: Columns,
        optimizer: str,
        rate: float,
        strategy: Any,
        layers_of: Callable[[Columns], KerasLayers] = KerasLayers,
    ) -> None:
        """Builds the model on the servers of a `ParameterServerStrategy`."""
        super().__init__(model, shape, columns, optimizer, rate, strategy, layers_of)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self.at_once = _AT_ONCE * resolver.cluster_spec().num_tasks("worker")

    def start(self, features: Mapping[str, Any], labels: Any) -> Callable[[], tuple[float, Scored]]:
        """See `Steps`."""
        result = self._coordinator.schedule(self._step, (dict(features), labels))

        def wait() -> tuple[float, Scored]:
            loss, scored = result.fetch()
            return float(loss), Scored(*scored.T)

        return wait


class GraphSteps(Steps):
    """A compat.v1 graph and its Session."""

    def __init__(
        self,
        model: Model,
        shape: Architecture,
        columns: Columns,
        optimizer: str,
        rate: float,
        seed: int = 0,
    ) -> None:
        """Builds the graph and initializes its variables."""
        graph = tf.Graph()
        with graph.as_default():
            v1.set_random_seed(seed)
            self._features = placeholders(columns)
            self._labels = v1.placeholder(tf.float32, [None, 1], name="label")
            logits = model.logits(GraphLayers(columns, self._features), shape)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=self._labels, logits=logits)
            loss = tf.reduce_mean(losses)
            self._logits = tf.squeeze(logits, 1)
            train = graph_optimizer(optimizer, rate).minimize(loss)
            self._fetches = [loss, self._logits, train]
            self._saver = v1.train.Saver(v1.global_variables(), max_to_keep=None)
            # Entered, it would make its graph that of the whole thread.
            self._session = v1.Session(graph=graph)
            self._session.run(v1.global_variables_initializer())

    def _feeds(self, features: Mapping[str, Any]) -> dict[Any, Any]:
        feeds = {}
        for name, value in features.items():
            if isinstance(value, tf.SparseTensor):
                parts = (value.indices.numpy(), value.values.numpy(), value.dense_shape.numpy())
                feeds[self._features[name]] = v1.SparseTensorValue(*parts)
            else:
                feeds[self._features[name]] = np.asarray(value)
        return feeds

    def start(self, features: Mapping[str, Any], labels: Any) -> Callable[[], tuple[float, Scored]]:
        """See `Steps`."""
        given = np.asarray(labels)
        feeds = {**self._feeds(features), self._labels: given}
        loss, logits, _ = self._session.run(self._fetches, feeds)
        return lambda: (float(loss), Scored(given[:, 0], logits))

    def scores(self, features: Mapping[str, Any], labels: Any) -> Scored:
        """See `Steps`."""
        logits = self._session.run(self._logits, self._feeds(features))
        return Scored(np.asarray(labels)[:, 0], logits)

    def save(self, prefix: Path) -> None:
        """See `Steps`."""
        with self._session.graph.as_default():
            self._saver.save(self._session, str(prefix), write_meta_graph=False, write_state=False)

    def restore(self, prefix: Path) -> None:
        """See `Steps`."""
        with self._session.graph.as_default():
            self._saver.restore(self._session, str(prefix))


def placeholders(columns: Columns) -> dict[str, Any]:
    """A placeholder of the current graph for each feature, called like it."""
    made = {}
    for name, spec in columns.inputs.specs().items():
        make = v1.placeholder
        if isinstance(spec, tf.SparseTensorSpec):
            make = v1.sparse_placeholder
        made[name] = make(spec.dtype, spec.shape, name=name)
    return made

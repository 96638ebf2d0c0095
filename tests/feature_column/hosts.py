"""The layers of stock TensorFlow and tf_keras that take feature columns, run and observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from tests.reference import gradient_parts

Array = Any
Columns = Sequence[Any]
Features = dict[str, Any]

v1 = tf.compat.v1


@dataclass
class Outcome:
    """What a layer computed."""

    output: Array
    """[batch, sum of D], the columns in the order of their names."""
    gradients: dict[str, tuple[Array, Array]]
    """Of each trained variable, by name: the ids, and the gradient of `loss` as a dense array."""
    variables: list[tuple[str, tuple[int, ...], str, bool]]
    """Name, shape, dtype and whether it is trained of each."""
    collections: dict[str, list[str]]
    """The names of the variables in each collection of a v1 graph."""
    ran: set[str]
    """The types of the ops in the graphs that ran."""


def loss(output: Any) -> Any:
    """A sum in which every element counts differently."""
    factors = tf.cos(tf.range(tf.size(output), dtype=tf.float32))
    return tf.reduce_sum(tf.reshape(output, [-1]) * tf.cast(factors, output.dtype))


def op_types(graphs: Iterable[Any]) -> set[str]:
    """Of all nodes in graphs and their functions."""
    found = set()
    for graph in graphs:
        functions = (node.op for f in graph.library.function for node in f.node_def)
        found |= {node.op for node in graph.node} | set(functions)
    return found


def placeholders(features: Features) -> tuple[Features, dict[Any, Any]]:
    """Tensors of unknown sizes in a v1 graph, and what to feed: constants would be folded."""
    tensors = {}
    for name, value in features.items():
        if isinstance(value, v1.SparseTensorValue):
            dtype = tf.as_dtype(value.values.dtype)
            tensors[name] = v1.sparse_placeholder(dtype, [None] * len(value.dense_shape))
        else:
            tensors[name] = v1.placeholder(value.dtype, [None, *value.shape[1:]])
    return tensors, {tensors[name]: value for name, value in features.items()}


def as_tensors(features: Features) -> Features:
    """Tensors to call a layer or a function with."""
    return {
        name: tf.SparseTensor(*value)
        if isinstance(value, v1.SparseTensorValue)
        else tf.constant(value)
        for name, value in features.items()
    }


def input_layer(
    make_columns: Callable[[], Columns],
    features: Features,
    layer: Callable[..., Any] = v1.feature_column.input_layer,
    partitioner: Any = None,
    **options: Any,
) -> Outcome:
    """compat.v1 `input_layer`, or a layer that is called like it, in a session."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tensors, feed = placeholders(features)
        with v1.variable_scope("model", partitioner=partitioner):
            output = layer(tensors, make_columns(), **options)
        trained = v1.trainable_variables()
        gradients = v1.gradients(loss(output), trained) if trained else []
        parts = [gradient_parts(*pair) for pair in zip(gradients, trained, strict=True)]
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        (values, parts), ran = run_session(session, (output, parts), feed)
        return Outcome(
            output=values,
            gradients={v.name: part for v, part in zip(trained, parts, strict=True)},
            variables=_described(v1.global_variables()),
            collections={name: _names(graph, name) for name in graph.collections},
            ran=ran,
        )


def run_session(session: Any, fetches: Any, feed: dict[Any, Any]) -> tuple[Any, set[str]]:
    """The values, and the types of the ops that ran."""
    options = v1.RunOptions(output_partition_graphs=True)
    metadata = v1.RunMetadata()
    values = session.run(fetches, feed, options, metadata)
    return values, op_types(metadata.partition_graphs)


def _names(graph: Any, collection: str) -> list[str]:
    return [getattr(item, "name", type(item).__name__) for item in graph.get_collection(collection)]


def dense_features(
    make_columns: Callable[[], Columns],
    features: Features,
    compiled: bool = True,
    **options: Any,
) -> Outcome:
    """tf_keras `DenseFeatures` in TensorFlow 2, in a function or eagerly."""
    layer = tf_keras.layers.DenseFeatures(make_columns(), name="inputs")

    def step(tensors: Features) -> Any:
        with tf.GradientTape() as tape:
            output = layer(tensors, **options)
            total = loss(output)
        trained = layer.trainable_variables
        gradients = tape.gradient(total, trained) if trained else []
        return output, [gradient_parts(*pair) for pair in zip(gradients, trained, strict=True)]

    call = tf.function(step) if compiled else step
    with recorded() as ran:
        output, parts = call(as_tensors(features))
    parts = [(ids.numpy(), dense.numpy()) for ids, dense in parts]
    names = [v.name for v in layer.trainable_variables]
    return Outcome(
        output=output.numpy(),
        gradients=dict(zip(names, parts, strict=True)),
        variables=_described(layer.variables),
        collections={},
        ran=ran,
    )


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """Collects the types of the ops that run in the block, eagerly or in functions' graphs."""
    ran: set[str] = set()

    def note(op_type: str | bytes, *_: Any, graph: Any = None, **__: Any) -> None:
        if graph is None:  # else the op does not run, it is put into this graph
            ran.add(tf.compat.as_str(op_type))

    op_callbacks.add_op_callback(note)
    try:
        with context.collect_graphs() as graphs:
            yield ran
    finally:
        op_callbacks.remove_op_callback(note)
    ran |= op_types(graphs)


def _described(variables: Iterable[Any]) -> list[tuple[str, tuple[int, ...], str, bool]]:
    return [(v.name, tuple(v.shape), v.dtype.base_dtype.name, v.trainable) for v in variables]

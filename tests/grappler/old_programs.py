"""Training graphs as programs of TensorFlow 1 have them: segment ids are cast to int32.

What wrote the ops of a lookup then is not in TensorFlow any more, so they are put together here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

ROWS, DIM, BATCH = 20, 4, 6

_SEGMENT = {
    "mean": tf.raw_ops.SparseSegmentMean,
    "sum": tf.raw_ops.SparseSegmentSum,
    "sqrtn": tf.raw_ops.SparseSegmentSqrtN,
}
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
}


@dataclass(frozen=True)
class OldColumn:
    """A column of an old program.

    Attributes:
        table: "ref", a variable of TensorFlow 1; "read", a resource of which all is read, as up to
            1.13; "resource", one that is gathered from.
        gather: the op that gathers from what is read.
        plain: whether no ids are pruned and no rows filled.
    """

    table: str = "ref"
    combiner: str = "mean"
    weighted: bool = False
    plain: bool = False
    default_id: int | None = None
    max_norm: float | None = None
    gather: str = "GatherV2"

    def __str__(self) -> str:
        said = [self.table, self.combiner, self.gather]
        said += [name for name in ("weighted", "plain") if getattr(self, name)]
        said += [] if self.default_id is None else ["default_id"]
        said += [] if self.max_norm is None else ["max_norm"]
        return "-".join(said)


def old_program(columns: list[OldColumn], optimizer: str = "sgd") -> tf.Graph:
    """A graph with nodes `loss`, `train` and `initialize`."""
    with tf.Graph().as_default() as graph:
        found = [_column(f"c{number}", column) for number, column in enumerate(columns)]
        kernel = v1.get_variable(
            "kernel",
            initializer=np.linspace(-1, 1, len(columns) * DIM, dtype=np.float32)[:, None],
            use_resource=columns[0].table != "ref",
        )
        logits = tf.matmul(tf.concat(found, 1), kernel)
        loss = tf.reduce_mean(tf.square(logits - 1), name="loss")
        OPTIMIZERS[optimizer]().minimize(loss, name="train")
        tf.group(v1.global_variables_initializer(), name="initialize")
    return graph


def run_old(graph: tf.Graph, columns: list[OldColumn], steps: int = 3) -> list[Any]:
    """The losses of some steps and the variables after them."""
    rng = np.random.default_rng(3)
    with v1.Session(graph=graph) as session:
        session.run("initialize")
        losses = [session.run(["loss:0", "train"], _batch(rng, columns))[0] for _ in range(steps)]
        return [*losses, *session.run(graph.get_collection("variables"))]


def _column(name: str, column: OldColumn) -> Any:
    start = np.random.default_rng(sum(name.encode())).normal(size=(ROWS, DIM)).astype(np.float32)
    is_ref = column.table == "ref"
    table = v1.get_variable(f"{name}_table", initializer=start, use_resource=not is_ref)
    with tf.name_scope(name):
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        weights = v1.placeholder(tf.float32, [None], "weights") if column.weighted else None
        if column.plain:
            return _reduced(column, table, ids, weights)
        return _safe(column, table, ids, weights)


def _safe(column: OldColumn, table: Any, ids: Any, weights: Any) -> Any:
    """`safe_embedding_lookup_sparse`, as it was."""
    shape = ids.dense_shape
    rows = tf.reduce_prod(tf.slice(shape, [0], [1]))
    ids = tf.sparse.reshape(ids, tf.stack([rows, tf.gather(shape, 1)]))
    keep = ids.values >= 0
    if weights is not None and column.combiner != "sum":
        keep = tf.logical_and(keep, weights > 0)
    if weights is not None:
        kept = tf.sparse.retain(tf.SparseTensor(ids.indices, weights, ids.dense_shape), keep)
        weights = tf.sparse.fill_empty_rows(kept, 1.0)[0].values
    ids = tf.sparse.retain(ids, keep)
    ids, is_row_empty = tf.sparse.fill_empty_rows(ids, column.default_id or 0)
    result = _reduced(column, table, ids, weights)
    if column.default_id is None:
        flags = tf.tile(tf.reshape(is_row_empty, [-1, 1]), tf.stack([1, tf.shape(result)[1]]))
        result = tf.raw_ops.Select(condition=flags, x=tf.zeros_like(result), y=result)
    given = tf.slice(tf.cast(shape, tf.int32), [0], [1])
    return tf.reshape(result, tf.concat([given, tf.slice(tf.shape(result), [1], [-1])], 0))


def _reduced(column: OldColumn, table: Any, ids: Any, weights: Any) -> Any:
    """`embedding_lookup_sparse`, as it was."""
    segments = tf.cast(ids.indices[:, 0], tf.int32)
    keys, places = tf.unique(ids.values)
    rows = tf.identity(_gathered(column, table, keys))
    if column.max_norm is not None:
        rows = tf.clip_by_norm(rows, column.max_norm, axes=[1])
    if weights is None:
        reduce = _SEGMENT[column.combiner]
        return reduce(data=rows, indices=places, segment_ids=segments)
    rows = tf.gather(rows, places)
    ones = tf.fill(tf.expand_dims(tf.rank(rows) - 1, 0), 1)
    weights = tf.reshape(weights, tf.concat([tf.shape(weights), ones], 0))
    weights.set_shape([None, 1])
    summed = tf.math.segment_sum(rows * weights, segments)
    if column.combiner == "sum":
        return summed
    if column.combiner == "mean":
        return tf.math.divide(summed, tf.math.segment_sum(weights, segments))
    squares = tf.math.segment_sum(tf.pow(weights, 2), segments)
    return tf.math.divide(summed, tf.sqrt(squares))


def _gathered(column: OldColumn, table: Any, keys: Any) -> Any:
    if column.table == "resource":
        return tf.gather(table, keys)
    read = table.value() if column.table == "ref" else table.read_value()
    if column.gather == "Gather":
        return tf.raw_ops.Gather(params=read, indices=keys)
    return tf.gather(read, keys)


def _batch(rng: np.random.Generator, columns: list[OldColumn]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, column in enumerate(columns):
        lengths = rng.integers(0, 4, BATCH)
        lengths[-1] = 2  # a plain lookup ends at the last row that has an entry
        if column.plain:
            lengths = np.maximum(lengths, 1)
        rows = np.repeat(np.arange(BATCH), lengths)
        count = len(rows)
        found[f"c{number}/ids/indices:0"] = np.stack([rows, np.arange(count)], 1)
        low = 0 if column.plain else -2
        found[f"c{number}/ids/values:0"] = rng.integers(low, ROWS, count)
        found[f"c{number}/ids/shape:0"] = np.array([BATCH, 30])
        if column.weighted:
            weights = rng.uniform(0.5 if column.plain else -0.5, 2, count)
            found[f"c{number}/weights:0"] = weights.astype(np.float32)
    return found

"""Lookups as layers and hand-written models have them: rows by dense ids, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

v1 = tf.compat.v1


@dataclass(frozen=True)
class Table:
    """A table of rows.

    Attributes:
      rows, dim: its sizes.
      kind: how it is read: by "resource" gathers, as the value of a "read" variable, or as a
        "constant" or a v1 "ref" variable.
    """

    rows: int = 20
    dim: int = 4
    kind: str = "resource"


@dataclass(frozen=True)
class Model:
    """Lookups side by side.

    Attributes:
      tables: one for each lookup.
      shape: of the ids, without the batch.
      ids: their dtype.
      dtype: of the tables.
      wraps: whether ids < 0 count from the end of the table, as Keras 3 has it.
      between: what is between a gather and the join: nothing, "flatten", "flatten as Keras", which
        computes the shape, "squeeze", "expand" or "identity".
      joins: what joins them: op and axis of each; the second reads the same rows.
      beside: whether a matrix that is no lookup is the first thing to be joined.
    """

    tables: tuple[Table, ...] = (Table(), Table(13, 3), Table(7, 8))
    shape: tuple[int, ...] = (1,)
    ids: str = "int64"
    dtype: str = "float32"
    wraps: bool = False
    between: str = "flatten"
    joins: tuple[tuple[str, int], ...] = (("concat", 1),)
    beside: bool = False

    @property
    def rank(self) -> int:
        """Of what is joined."""
        rank = 2 + len(self.shape)
        if self.between.startswith("flatten"):
            return 2
        return rank + {"squeeze": -1, "expand": 1}.get(self.between, 0)


def values(table: Table, dtype: str, seed: int) -> npt.NDArray[Any]:
    """Rows with numbers that arithmetic would change."""
    kind = tf.as_dtype(dtype).as_numpy_dtype
    found = np.random.default_rng(seed).normal(size=(table.rows, table.dim)).astype(kind)
    found[0, 0], found[-1, -1] = np.nan, -0.0
    return found


def build(model: Model) -> graph_pb2.GraphDef:
    """A graph with placeholders `ids_0` and so on, `initialize`, and `out`, `out_1` of joins."""
    with tf.Graph().as_default() as graph:
        outputs(model, [ids_placeholder(model, k) for k in range(len(model.tables))])
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def ids_placeholder(model: Model, number: int) -> Any:
    return v1.placeholder(model.ids, [None, *model.shape], f"ids_{number}")


def outputs(model: Model, ids: list[Any]) -> list[tf.Tensor]:
    rows = [rows_of(model, k, one) for k, one in enumerate(ids)]
    parts = [rearranged(model, one) for one in rows]
    results = []
    for number, (join, axis) in enumerate(model.joins):
        joined = list(parts)
        if model.beside:
            first = tf.cast(tf.reshape(ids[0], [tf.shape(ids[0])[0], -1]), model.dtype)
            joined = [first, *joined]
        result = tf.concat(joined, axis) if join == "concat" else tf.stack(joined, axis)
        results.append(tf.identity(result, f"out_{number}" if number else "out"))
    return results


def make_table(model: Model, number: int) -> Any:
    table = model.tables[number]
    found = values(table, model.dtype, number)
    if table.kind == "constant":
        return tf.constant(found, name=f"table_{number}")
    is_resource = table.kind != "ref"
    variable = v1.get_variable(f"table_{number}", initializer=found, use_resource=is_resource)
    return variable.read_value() if table.kind == "read" else variable


def rows_of(model: Model, number: int, ids: Any) -> tf.Tensor:
    """The gather of a lookup."""
    table = make_table(model, number)
    if model.wraps:
        ids = tf.where(ids < 0, ids + model.tables[number].rows, ids)
    return tf.gather(table, ids)


def rearranged(model: Model, rows: tf.Tensor) -> tf.Tensor:
    width = rows.shape[-1] * int(np.prod(model.shape))
    if model.between == "flatten":
        return tf.reshape(rows, [-1, width])
    if model.between == "flatten as Keras":
        return tf.reshape(rows, [tf.shape(rows)[0], width])
    if model.between == "squeeze":
        return tf.squeeze(rows, [1])
    if model.between == "expand":
        return tf.expand_dims(rows, 1)
    return tf.identity(rows) if model.between == "identity" else rows


def feeds(model: Model, batch: int = 7, seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    """Ids of the whole table, those below 0 too if they count from its end."""
    rng = np.random.default_rng(seed)
    return {
        f"ids_{k}:0": rng.integers(
            -table.rows if model.wraps else 0, table.rows, (batch, *model.shape)
        ).astype(model.ids)
        for k, table in enumerate(model.tables)
    }

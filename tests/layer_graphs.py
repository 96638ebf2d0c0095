"""Lookups as layers and hand-written models have them: rows by dense ids, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
      rows, dim: its sizes; without a dim it is a vector.
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
      between: what is between a gather and the join, see `BETWEEN`.
      joins: what joins them: op and axis of each; the second reads the same rows.
      beside: whether a matrix that is no lookup is the first thing to be joined.
      bag: what is made of the rows of the last axis of the ids, or of ragged or sparse ids, which
        are padded; see `BAGS`.
      any_length: whether the graph does not know `shape`, only that there are as many sizes.
      taken: how ids are taken out of one matrix of those of all lookups, `ids_0`; see `TAKEN`.
    """

    tables: tuple[Table, ...] = (Table(), Table(13, 3), Table(7, 8))
    shape: tuple[int, ...] = (1,)
    ids: str = "int64"
    dtype: str = "float32"
    wraps: bool = False
    between: str = "flatten"
    joins: tuple[tuple[str, int], ...] = (("concat", 1),)
    beside: bool = False
    bag: str = ""
    any_length: bool = False
    taken: str = ""

    @property
    def is_ragged(self) -> bool:
        """Whether ids are ragged."""
        return self.bag.startswith("ragged")

    @property
    def is_padded(self) -> bool:
        """Whether ids are sparse, and rows are those of all elements."""
        return self.bag.startswith("padded")


def values(table: Table, dtype: str, seed: int) -> npt.NDArray[Any]:
    """Rows with numbers that arithmetic would change."""
    kind = tf.as_dtype(dtype).as_numpy_dtype
    shape = (table.rows, table.dim) if table.dim else (table.rows,)
    found = np.random.default_rng(seed).normal(size=shape).astype(kind)
    found.reshape(-1)[0], found.reshape(-1)[-1] = np.nan, -0.0
    return found


def build(model: Model) -> graph_pb2.GraphDef:
    """A graph with placeholders `ids_0` and so on, `initialize`, and `out`, `out_1` of joins."""
    with tf.Graph().as_default() as graph:
        outputs(model, all_ids(model))
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def all_ids(model: Model) -> list[Any]:
    """The ids of each lookup."""
    count = len(model.tables)
    if not model.taken:
        return [ids_placeholder(model, k) for k in range(count)]
    matrix = v1.placeholder(model.ids, [None, count + 1], "ids_0")
    return [TAKEN[model.taken](matrix, column_of(model, k)) for k in range(count)]


def column_of(model: Model, number: int) -> int:
    """The column of the ids of a lookup, of a matrix of those of all: nobody reads the first."""
    return len(model.tables) - number


#: Each (matrix, column) -> ids; of shape () or (1,).
TAKEN: dict[str, Callable[[Any, int], Any]] = {
    "vector": lambda matrix, k: matrix[:, k],
    "from the end": lambda matrix, k: matrix[:, k - matrix.shape[1]],
    "unstack": lambda matrix, k: tf.unstack(matrix, axis=1)[k],
    "ellipsis": lambda matrix, k: matrix[..., k],
    "slice": lambda matrix, k: matrix[:, k : k + 1],
    "slice from the end": lambda matrix, k: matrix[:, k - matrix.shape[1] :][:, :1],
    "split": lambda matrix, k: tf.split(matrix, matrix.shape[1], 1)[k],
    "expanded": lambda matrix, k: tf.expand_dims(matrix[:, k], 1),
}
TAKEN_VECTORS, TAKEN_MATRICES = tuple(TAKEN)[:4], tuple(TAKEN)[4:]


def ids_placeholder(model: Model, number: int) -> Any:
    if model.is_padded:
        return v1.sparse_placeholder(model.ids, [None, *model.shape], f"ids_{number}")
    if not model.is_ragged:
        shape = [None] * len(model.shape) if model.any_length else model.shape
        return v1.placeholder(model.ids, [None, *shape], f"ids_{number}")
    values = v1.placeholder(model.ids, [None], f"ids_{number}")
    splits = v1.placeholder(tf.int64, [None], f"splits_{number}")
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def outputs(model: Model, ids: list[Any]) -> list[tf.Tensor]:
    rows = [rows_of(model, k, one) for k, one in enumerate(ids)]
    if model.bag:
        pairs = enumerate(zip(rows, ids, strict=True))
        rows = [BAGS[model.bag](model, k, *pair) for k, pair in pairs]
    parts = [rearranged(model, one) for one in rows]
    results = []
    for number, (join, axis) in enumerate(model.joins):
        joined = list(parts)
        if model.beside:
            given = ids[0]
            given = tf.sparse.to_dense(given) if isinstance(given, tf.SparseTensor) else given
            first = tf.cast(tf.reshape(given, [tf.shape(given)[0], -1]), model.dtype)
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
    if model.is_padded:
        wrapped = tf.SparseTensor(ids.indices, _wrapped(model, number, ids.values), ids.dense_shape)
        expanded = tf.sparse.expand_dims(wrapped, -1)
        return v1.nn.safe_embedding_lookup_sparse(table, expanded, combiner="mean", default_id=0)
    if model.is_ragged:
        rows: tf.Tensor = tf.ragged.map_flat_values(partial(_gathered, model, number, table), ids)
        return rows
    return _gathered(model, number, table, ids)


def _gathered(model: Model, number: int, table: Any, ids: Any) -> tf.Tensor:
    return tf.gather(table, _wrapped(model, number, ids))


def _wrapped(model: Model, number: int, ids: Any) -> Any:
    return tf.where(ids < 0, ids + model.tables[number].rows, ids) if model.wraps else ids


def _mask(rows: Any, ids: Any) -> Any:
    """As numbers, [B, L, 1]."""
    return tf.cast(tf.expand_dims(tf.not_equal(ids, 0), -1), rows.dtype)


def _select(rows: Any, ids: Any) -> Any:
    mask = tf.expand_dims(tf.not_equal(ids, 0), -1)
    return tf.where(mask, rows, tf.zeros([], rows.dtype))


def _selected(rows: Any, ids: Any) -> Any:
    return tf.reduce_sum(_select(rows, ids), -2)


def _tile(rows: Any, mask: Any) -> Any:
    return tf.tile(mask, [1, 1, rows.shape[-1]])


def _lengths(model: Model, number: int, rows: Any) -> tuple[Any, Any]:
    """Lengths, and the mask that they make."""
    lengths = v1.placeholder(tf.int32, [None, 1], f"lengths_{number}")
    mask = tf.transpose(tf.sequence_mask(lengths, model.shape[-1]), [0, 2, 1])
    return lengths, tf.cast(mask, rows.dtype)


def _by_lengths(model: Model, number: int, rows: Any, ids: Any) -> Any:
    lengths, mask = _lengths(model, number, rows)
    divisor = tf.cast(lengths, rows.dtype) + tf.constant(EPSILON, rows.dtype)
    return tf.reduce_sum(rows * _tile(rows, mask), 1) / divisor


def _weights(model: Model, number: int, rows: Any) -> Any:
    weights = v1.placeholder(rows.dtype, [None, *model.shape], f"weights_{number}")
    return tf.expand_dims(weights, -1)


def _by_weights(model: Model, number: int, rows: Any, ids: Any) -> Any:
    weights = _weights(model, number, rows)
    return tf.math.divide_no_nan(tf.reduce_sum(rows * weights, -2), tf.reduce_sum(weights, -2))


def _by_squares(model: Model, number: int, rows: Any, ids: Any) -> Any:
    weights = _weights(model, number, rows)
    root = tf.sqrt(tf.reduce_sum(tf.square(weights), -2))
    return tf.math.divide_no_nan(tf.reduce_sum(rows * weights, -2), root)


def _with_ones(model: Model, number: int, rows: Any, ids: Any) -> Any:
    ones = tf.expand_dims(tf.ones_like(ids, rows.dtype), -1)
    return tf.math.divide_no_nan(tf.reduce_sum(rows * ones, -2), tf.reduce_sum(ones, -2))


def _product_mean(model: Model, number: int, rows: Any, ids: Any) -> Any:
    mask = _mask(rows, ids)
    count = tf.reduce_sum(mask, -2) + tf.constant(EPSILON, rows.dtype)
    return tf.reduce_sum(rows * mask, -2) / count


def _given_epsilon(model: Model, number: int, rows: Any, ids: Any) -> Any:
    mask = _mask(rows, ids)
    # The shape of another placeholder might not be known: old ones say so by this very one.
    default = tf.constant(0.5, rows.dtype)
    epsilon = v1.placeholder_with_default(default, [], f"epsilon_{number}")
    return tf.reduce_sum(rows * mask, -2) / (tf.reduce_sum(mask, -2) + epsilon)


def _ragged_weights(model: Model, number: int, rows: Any, ids: Any) -> Any:
    weights = v1.placeholder(rows.dtype, [None], f"weights_{number}")
    columns = ids.with_values(tf.expand_dims(weights, -1))
    return tf.math.divide_no_nan(tf.reduce_sum(rows * columns, 1), tf.reduce_sum(columns, 1))


def _padded(model: Model, number: int, rows: Any, ids: Any) -> Any:
    """As keras-rs has it."""
    is_weighted = "weighted" in model.bag
    ones = tf.ones_like(ids.values, rows.dtype)
    values = v1.placeholder(rows.dtype, [None], f"weights_{number}") if is_weighted else ones
    weights = tf.sparse.to_dense(tf.SparseTensor(ids.indices, values, ids.dense_shape))
    weights = tf.expand_dims(weights, -1)
    total = tf.reduce_sum(rows * weights, -2)
    if "sqrtn" in model.bag:
        root = tf.sqrt(tf.reduce_sum(tf.square(weights), -2))
        return tf.math.divide_no_nan(total, root)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights, -2))


def _penalized(rows: Any, mask: Any) -> Any:
    """As DeepCTR has it, whose number float16 does not hold."""
    return tf.reduce_max(rows - (1 - _tile(rows, mask)) * (1e4 if rows.dtype == "half" else 1e9), 1)


def _by_segments(reduced: Any, number: int, rows: Any) -> Any:
    return reduced(rows.flat_values, v1.placeholder(tf.int64, [None], f"rows_{number}"))


EPSILON = np.float32(1e-8)

#: Each (model, number, rows, ids) -> the bags; ragged ones of a RaggedTensor.
BAGS: dict[str, Callable[[Model, int, Any, Any], Any]] = {
    "sum": lambda model, number, rows, ids: tf.reduce_sum(rows, -2),
    "kept sum": lambda model, number, rows, ids: tf.reduce_sum(rows, 1, keepdims=True),
    "mean": lambda model, number, rows, ids: tf.reduce_mean(rows, -2),
    "selected sum": lambda model, number, rows, ids: _selected(rows, ids),
    "selected mean": lambda model, number, rows, ids: (
        _selected(rows, ids) / tf.reduce_sum(_mask(rows, ids), -2)
    ),
    "product": lambda model, number, rows, ids: tf.reduce_sum(_mask(rows, ids) * rows, 1),
    "tiled product": lambda model, number, rows, ids: tf.reduce_sum(
        rows * _tile(rows, _mask(rows, ids)), 1
    ),
    "product mean": _product_mean,
    "given epsilon": _given_epsilon,
    "ones mean": _with_ones,
    "lengths": _by_lengths,
    "weighted mean": _by_weights,
    "weighted sqrtn": _by_squares,
    "max": lambda model, number, rows, ids: tf.reduce_max(rows, -2),
    "kept max": lambda model, number, rows, ids: tf.reduce_max(rows, 1, keepdims=True),
    "selected max": lambda model, number, rows, ids: tf.reduce_max(_select(rows, ids), 1),
    "penalized max": lambda model, number, rows, ids: _penalized(rows, _mask(rows, ids)),
    "lengths max": lambda model, number, rows, ids: _penalized(
        rows, _lengths(model, number, rows)[1]
    ),
    "ragged sum": lambda model, number, rows, ids: tf.reduce_sum(rows, 1),
    "ragged mean": lambda model, number, rows, ids: tf.reduce_mean(rows, 1),
    "ragged max": lambda model, number, rows, ids: tf.reduce_max(rows, 1),
    "ragged segment sum": lambda model, number, rows, ids: _by_segments(
        tf.math.segment_sum, number, rows
    ),
    "ragged segment mean": lambda model, number, rows, ids: _by_segments(
        tf.math.segment_mean, number, rows
    ),
    "ragged weighted mean": _ragged_weights,
    "padded mean": _padded,
    "padded weighted sqrtn": _padded,
}


def _flattened(model: Model, rows: tf.Tensor, count: Any) -> tf.Tensor:
    width = rows.shape[-1] * (1 if model.bag else int(np.prod(model.shape)))
    return tf.reshape(rows, [count, width])


#: Each (model, rows) -> what is joined; slices are of an axis of size 1 in front of the last.
BETWEEN: dict[str, Callable[[Model, Any], Any]] = {
    "": lambda model, rows: rows,
    "identity": lambda model, rows: tf.identity(rows),
    "flatten": lambda model, rows: _flattened(model, rows, -1),
    "flatten as Keras": lambda model, rows: _flattened(model, rows, tf.shape(rows)[0]),
    "squeeze": lambda model, rows: tf.squeeze(rows, [1]),
    "expand": lambda model, rows: tf.expand_dims(rows, 1),
    "new axis": lambda model, rows: rows[:, tf.newaxis],
    "first": lambda model, rows: rows[:, 0],
    "last": lambda model, rows: rows[:, -1, :],
    "first behind an ellipsis": lambda model, rows: rows[..., 0, :],
    "first few": lambda model, rows: tf.squeeze(rows[:, :5], [1]),
    "last few": lambda model, rows: tf.squeeze(rows[:, -1:], [1]),
    "gather": lambda model, rows: tf.gather(rows, 0, axis=1),
    "unstack": lambda model, rows: tf.unstack(rows, axis=1)[0],
    "split": lambda model, rows: tf.split(rows, 1, 1)[0][:, 0],
    "split by sizes": lambda model, rows: tf.split(rows, [1], 1)[0][:, 0],
    "slice": lambda model, rows: tf.slice(rows, [0, 0, 0], [-1, 1, rows.shape[-1]])[:, 0],
    "slice of measured size": lambda model, rows: tf.slice(
        rows, [0, 0, 0], [tf.shape(rows)[0], 1, -1]
    )[:, 0],
}
SLICES = tuple(BETWEEN)[6:]
"""Those that slice."""


def rearranged(model: Model, rows: tf.Tensor) -> tf.Tensor:
    result: tf.Tensor = BETWEEN[model.between](model, rows)
    return result


def ids_key(model: Model, number: int) -> str:
    """What the numbers of ids are fed as."""
    return f"ids_{number}/values:0" if model.is_padded else f"ids_{number}:0"


def _indices(rng: np.random.Generator, batch: int, length: int) -> npt.NDArray[Any]:
    """Entries of a sparse matrix, for all seeds as many: none in row 0, all in some."""
    rows = (rng.choice(length, 5 * row % (length + 1), replace=False) for row in range(batch))
    pairs = [(row, column) for row, columns in enumerate(rows) for column in sorted(columns)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def feeds(model: Model, batch: int = 7, seed: int = 1) -> dict[str, Any]:
    """Ids of the whole table, those below 0 too if they count from its end."""
    rng, found = np.random.default_rng(seed), dict[str, Any]()
    for k, table in enumerate(model.tables):
        lowest, shape = -table.rows if model.wraps else 0, (batch, *model.shape)
        if model.is_ragged:
            lengths = rng.integers(0, 25, batch)
            lengths[:1] = 0
            if "segment" in model.bag:
                # Nothing tells that there are rows behind the last one with an id.
                lengths[-1:] = 3
            shape = (int(lengths.sum()),)
            found[f"splits_{k}:0"] = np.cumsum([0, *lengths])
            if "segment" in model.bag:
                found[f"rows_{k}:0"] = np.repeat(np.arange(batch), lengths)
        if model.is_padded:
            indices = _indices(rng, *shape)
            # Some are below the table, even counted from its end.
            shape, lowest = (len(indices),), lowest - 3
            found |= {f"ids_{k}/indices:0": indices, f"ids_{k}/shape:0": [batch, *model.shape]}
        ids = rng.integers(lowest, table.rows, shape).astype(model.ids)
        if model.bag and not model.is_ragged and not model.is_padded:
            ids[rng.random(shape) < 0.4] = 0
            ids[:1] = 0
        found[ids_key(model, k)] = ids
        if model.bag.startswith("lengths"):
            found[f"lengths_{k}:0"] = rng.integers(0, model.shape[-1] + 3, (batch, 1)).astype("i4")
        if model.bag == "given epsilon":
            found[f"epsilon_{k}:0"] = np.array(1 / (k + 3), model.dtype)
        if "weighted" in model.bag:
            found[f"weights_{k}:0"] = rng.normal(size=shape).astype(model.dtype)
    return _in_a_matrix(model, found, batch) if model.taken else found


def _in_a_matrix(model: Model, each: dict[str, Any], batch: int) -> dict[str, Any]:
    count = len(model.tables)
    matrix = np.full((batch, count + 1), 1 << 30, model.ids)
    for k in range(count):
        matrix[:, column_of(model, k)] = each[ids_key(model, k)].reshape(-1)
    return {"ids_0:0": matrix}

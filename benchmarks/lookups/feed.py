"""Inputs inside a TensorFlow graph: read from variables, or the arguments of a function."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.lookups.batch import NUMERICS, Batch, words
from benchmarks.lookups.draws import Bags
from benchmarks.lookups.workloads import Column, Kind, Program

#: The tensors of one column: (indices, values, dense_shape[, weights]), or one dense tensor.
Parts = tuple[tf.Tensor, ...]

_SPARSE = ("sparse", "words")
#: What columns get in place of integers.
_VALUES = {"bucketized": tf.float32, "word": tf.string, "words": tf.string}


class Feed:
    """Variables that hold a batch: few of them, which the graph splits into columns.

    Sizes are unknown in the graph, as they are in a model that serves batches of any size. One
    variable per column and tensor would cost more than many of the lookups.
    """

    def __init__(self, program: Program) -> None:
        self._columns = program.columns
        self._groups = [
            _Group(kind, [i for i, column in enumerate(self._columns) if column.kind == kind])
            for kind in dict.fromkeys(column.kind for column in self._columns)
        ]
        self._numerics = tf.Variable(np.zeros([0, NUMERICS], np.float32), shape=[None, NUMERICS])
        self._true = tf.Variable(True)

    def load(self, batch: Batch) -> None:
        """Puts a batch into the variables."""
        for group in self._groups:
            group.load([batch.columns[place] for place in group.places])
        self._numerics.assign(batch.numerics)

    def read(self) -> list[Parts]:
        """In a graph: the tensors of each column."""
        found: dict[int, Parts] = {}
        for group in self._groups:
            found.update(zip(group.places, group.read(self._columns), strict=True))
        return [found[place] for place in range(len(self._columns))]

    def numerics(self) -> tf.Tensor:
        """In a graph: float32 [batch, NUMERICS]."""
        return self._numerics.read_value()

    def consume(self, columns: list[Parts], result: tf.Tensor | None = None) -> tf.Tensor:
        """In a graph: a result behind an op that needs all of these tensors and does nothing.

        An op that others wait for by control edges alone would be taken out of the graph.
        """
        flat = [part for parts in columns for part in parts]
        with tf.control_dependencies([tf.raw_ops.Assert(condition=self._true, data=flat)]):
            return tf.constant(0.0) if result is None else tf.identity(result)


class _Group:
    """The columns of one kind, which lie in the same variables."""

    def __init__(self, kind: Kind, places: list[int]) -> None:
        self._kind = kind
        self.places = places
        values = _VALUES.get(kind, tf.int64)
        if kind in _SPARSE:
            self._variables = {
                "indices": _variable(tf.int64, [None, 2]),
                "values": _variable(values, [None]),
                "sizes": _variable(tf.int64, [len(places)]),
                "shapes": _variable(tf.int64, [len(places), 2]),
                "weights": _variable(tf.float32, [None]),
            }
        else:
            self._variables = {"dense": _variable(values, [len(places), None, 1])}

    def load(self, columns: list[Any]) -> None:
        if self._kind not in _SPARSE:
            self._variables["dense"].assign(np.stack([_dense(self._kind, one) for one in columns]))
            return
        ids = np.concatenate([one.ids for one in columns])
        weights = [one.weights for one in columns if one.weights is not None]
        numbers = {
            "indices": np.concatenate([one.indices for one in columns]),
            "values": words(ids) if self._kind == "words" else ids,
            "sizes": np.array([len(one.ids) for one in columns]),
            "shapes": np.stack([one.dense_shape for one in columns]),
            "weights": np.concatenate(weights) if weights else np.zeros(0, np.float32),
        }
        for name, variable in self._variables.items():
            variable.assign(numbers[name])

    def read(self, columns: tuple[Column, ...]) -> list[Parts]:
        found = {name: variable.read_value for name, variable in self._variables.items()}
        if self._kind not in _SPARSE:
            return [(one,) for one in tf.unstack(found["dense"]())]
        weighted = [place for place in self.places if columns[place].weighted]
        if weighted not in ([], self.places):
            raise ValueError("either all sparse columns are weighted or none is")
        count, sizes = len(self.places), found["sizes"]()
        divided = ("indices", "values", *(["weights"] if weighted else []))
        indices, *others = (tf.split(found[name](), sizes, num=count) for name in divided)
        parts = [indices, others[0], tf.unstack(found["shapes"]()), *others[1:]]
        return list(zip(*parts, strict=True))


def _variable(dtype: tf.DType, shape: list[int | None]) -> tf.Variable:
    start = np.zeros([size or 0 for size in shape], dtype.as_numpy_dtype)
    return tf.Variable(start, shape=shape, dtype=dtype)


def _dense(kind: Kind, column: Any) -> Any:
    """[batch, 1] floats, ids or words of a column that has one per row."""
    if not isinstance(column, Bags):
        return column
    return words(column.dense) if kind == "word" else column.dense


def _specs(column: Column) -> list[tf.TensorSpec]:
    """The tensors of a column, with sizes unknown."""
    values = _VALUES.get(column.kind, tf.int64)
    if column.kind not in _SPARSE:
        return [tf.TensorSpec([None, 1], values)]
    sparse = [([None, 2], tf.int64), ([None], values), ([2], tf.int64), ([None], tf.float32)]
    return [tf.TensorSpec(*one) for one in sparse[: 3 + column.weighted]]


def arguments(program: Program, batch: Batch) -> list[tf.Tensor]:
    """The same tensors as `Feed.read` gives, of all columns in one list, for a call."""
    found: list[Any] = []
    for column, one in zip(program.columns, batch.columns, strict=True):
        if column.kind in _SPARSE:
            assert isinstance(one, Bags)
            values = words(one.ids) if column.kind == "words" else one.ids
            found += [one.indices, values, one.dense_shape, one.weights][: 3 + column.weighted]
        else:
            found.append(_dense(column.kind, one))
    return [tf.convert_to_tensor(part) for part in [*found, batch.numerics]]


def signature(program: Program) -> list[tf.TensorSpec]:
    """What `arguments` gives, with sizes unknown."""
    found = [spec for column in program.columns for spec in _specs(column)]
    return [*found, tf.TensorSpec([None, NUMERICS], tf.float32)]


def columns_of(program: Program, flat: list[tf.Tensor]) -> list[Parts]:
    """Takes what `arguments` gives apart again, without the numerics at its end."""
    rest = iter(flat)
    return [tuple(islice(rest, len(_specs(column)))) for column in program.columns]

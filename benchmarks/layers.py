"""Lookups of layers, with fusion and without: rows side by side, bags, products of one-hot ids.

Each workload is a function of variables that hold its ids. Stock's and the fused one take turns in
one process, after their results were compared; what reading the ids takes is measured beside them.
Both have tables of their own: once a variable was read sparsely, each ReadVariableOp copies it, and
stock's Keras 3 models have one for each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from benchmarks.case import Row
from benchmarks.graphs import loop, net_of, reading, traced
from benchmarks.lookups.catalog import CARDINALITIES
from benchmarks.measure import calls_in_turns, peak

#: How many times as much memory as fusion stock has to need for products of one-hot ids.
_MIN_MEMORY = 20
_MAX_ROWS = 1_000_000
COLUMNS = 26


@dataclass(frozen=True)
class Workload:
    """Lookups of one kind.

    Attributes:
        kind: "rows", "sequences", "masked", "padded", "ragged", or "hot" for ids as ones among
            zeros that a matrix is multiplied by.
        batch: rows.
        dim: of each table.
        length: ids of a row; of ragged ones, the mean.
        columns: how many.
        classes: of each column of one-hot ids.
        least: what stock's time over the fused one's should be.
    """

    kind: str
    batch: int
    dim: int = 16
    length: int = 1
    columns: int = COLUMNS
    classes: int = 0
    least: float = 0.0

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        length = "" if self.kind == "rows" else f", {self.length} ids"
        if self.kind == "hot":
            length = f" of {self.classes} classes"
        return f"{self.columns} {self.kind}{length}, dim {self.dim}, batch {self.batch}"


WORKLOADS = (
    *(
        Workload("rows", batch, least=least)
        for batch, least in ((1, 1.5), (64, 3), (512, 5), (4096, 2.5), (65536, 2.5))
    ),
    Workload("rows", 2048, 128, least=2.5),
    *(Workload(kind, 512, length=n, least=4) for kind in ("masked", "padded") for n in (20, 50)),
    Workload("ragged", 512, length=10, least=4),
    Workload("sequences", 512, length=50, columns=8, least=2),
    *(Workload("hot", 512, 128, classes=classes, least=10) for classes in (1_000, 100_000)),
)


def measure(workload: int, seconds: float, scale: float) -> Iterator[Row]:
    """Yields milliseconds net of reading the ids, and of one-hot ids the memory of a call, too.

    Args:
        workload: its place in `WORKLOADS`.
        seconds: for all sides.
        scale: of the rows of tables and of the classes.
    """
    one = WORKLOADS[workload]
    yield _measured(replace(one, classes=int(one.classes * scale)), seconds, scale)


def _calls(workload: Workload) -> int:
    """How many calls are one loop; of what takes long, or is not known in a loop, there is none."""
    if workload.kind == "ragged" or workload.classes > 1_000:
        return 1
    return max(1, min(100, 20_000 // (workload.batch * workload.length)))


def _ids(workload: Workload, rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if workload.kind == "ragged":
        lengths = rng.poisson(workload.length, workload.batch)
        values = rng.integers(0, rows, lengths.sum())
        return tf.RaggedTensor.from_row_lengths(values, lengths)
    ids = rng.integers(1, max(rows, 2), (workload.batch, workload.length))
    if workload.kind == "masked":
        ends = rng.integers(1, workload.length + 1, (workload.batch, 1))
        ids[np.arange(workload.length) >= ends] = 0
    return tf.constant(np.minimum(ids, rows - 1))


def _looked_up(workload: Workload, layer: Any, ids: Any) -> Any:
    if workload.kind == "ragged":
        rows = tf.ragged.map_flat_values(tf.nn.embedding_lookup, layer, ids)
        return tf.reduce_mean(rows, 1)
    rows = layer(ids)
    if workload.kind == "rows":
        return keras.layers.Flatten()(rows)
    return rows if workload.kind == "sequences" else keras.layers.GlobalAveragePooling1D()(rows)


def _tables(workload: Workload, scale: float) -> list[int]:
    """The rows of each."""
    if workload.kind == "hot":
        return [workload.classes] * workload.columns
    capped = [max(2, int(scale * min(rows, _MAX_ROWS))) for rows in CARDINALITIES]
    return capped[: workload.columns]


def _joined(workload: Workload, sizes: Sequence[int], ids: Sequence[Any]) -> Callable[..., Any]:
    """A function of all ids that gives what is looked up side by side, in tables of its own."""
    if workload.kind == "hot":
        shape = [sum(sizes), workload.dim]
        kernel = tf.Variable(tf.random.stateless_normal(shape, [1, 1], stddev=0.05))

        def product(given: list[Any]) -> Any:
            pairs = zip(given, sizes, strict=True)
            hot = [tf.one_hot(tf.reshape(one, [-1]), rows) for one, rows in pairs]
            return tf.matmul(tf.concat(hot, 1), kernel)

        return product
    if workload.kind == "ragged":
        tables = [
            tf.Variable(tf.random.stateless_normal([rows, workload.dim], [1, k]))
            for k, rows in enumerate(sizes)
        ]

        def means(given: list[Any]) -> Any:
            pairs = zip(given[::2], given[1::2], strict=True)
            ragged = [tf.RaggedTensor.from_row_splits(*pair, validate=False) for pair in pairs]
            found = [_looked_up(workload, *pair) for pair in zip(tables, ragged, strict=True)]
            return tf.concat(found, -1)

        return means
    inputs = [keras.Input(one.shape[1:], dtype="int64") for one in ids]
    is_masked = workload.kind == "masked"
    layers = [
        keras.layers.Embedding(
            rows, workload.dim, keras.initializers.RandomNormal(seed=k), mask_zero=is_masked
        )
        for k, rows in enumerate(sizes)
    ]
    found = [_looked_up(workload, *pair) for pair in zip(layers, inputs, strict=True)]
    model: Callable[..., Any] = keras.Model(inputs, keras.layers.Concatenate()(found))
    return model


def _functions(workload: Workload, scale: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What looks up, and what reads the ids alone, from variables that hold them."""
    sizes = _tables(workload, scale)
    ids = [_ids(workload, rows, k) for k, rows in enumerate(sizes)]
    # How many ragged ids there are depends on the batch.
    free = [None] if workload.kind == "ragged" else None
    parts = tf.nest.flatten(ids, expand_composites=True)
    variables = [tf.Variable(part, shape=free) for part in parts]
    join = _joined(workload, sizes, ids)

    def values() -> list[Any]:
        return [variable.read_value() for variable in variables]

    return lambda: join(values()), reading(values)


def _measured(workload: Workload, seconds: float, scale: float) -> Row:
    look_up, read = _functions(workload, scale)
    fused_look_up, _ = _functions(workload, scale)
    count, is_hot = _calls(workload), workload.kind == "hot"
    whole, stock_bytes = peak(_numbers(traced(look_up)))
    sides = {"stock": loop(look_up, count), "ids": loop(read, count)}
    with fusion.fused():
        warm = traced(fused_look_up)
        warm()
        same, fused_bytes = peak(_numbers(warm))
        report = fusion.stats().last_report
        sides["fused"] = loop(fused_look_up, count)
    assert report is not None
    assert report.fused_count == (1 if is_hot else workload.columns), str(report)
    if is_hot:
        # Stock adds in the order of a product of matrices.
        np.testing.assert_allclose(same, whole, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(whole, same)
    values = net_of("ids", calls_in_turns(sides, seconds), count)
    least = {"over stock": workload.least}
    if is_hot:
        values |= {"stock, MB": stock_bytes / 1e6, "fused, MB": fused_bytes / 1e6}
        values["times the memory"] = stock_bytes / fused_bytes
        least["times the memory"] = _MIN_MEMORY
    return Row({"workload": workload.title}, values, least=least)


def _numbers(call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: call().numpy()

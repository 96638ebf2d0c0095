"""Encoded ids and a matrix, as layers, feature columns and hand-written models multiply them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

v1 = tf.compat.v1


@dataclass(frozen=True)
class Part:
    """Columns of what is multiplied.

    Attributes:
      kind: one of `PARTS` or `OTHERS`, or "dense".
      classes: of the ids; of dense ones, how many there are.
      length: ids of a row, where there may be many; None: it is not known.
      ids: their dtype.
    """

    kind: str = "vector"
    classes: int = 100
    length: int | None = 3
    ids: str = "int64"

    @property
    def columns(self) -> int:
        """How many there are."""
        return self.classes * (self.length or 1) if self.kind == "flat" else self.classes

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of the placeholder, without the batch."""
        if self.kind in ("vector", *OTHERS):
            return ()
        if self.kind == "dense":
            return (self.classes,)
        return (1,) if self.kind in ("column", "squeezed") else (self.length,)


@dataclass(frozen=True)
class Product:
    """A product.

    Attributes:
      parts: what is side by side in a row.
      width: columns of the matrix.
      dtype: of it.
      kernel: how it is read: a "variable" or a "constant".
      nested: whether the parts but the first are in a concat of their own.
      follows: a function of the product.
      device: where the nodes are.
    """

    parts: tuple[Part, ...] = (Part(),)
    width: int = 8
    dtype: str = "float32"
    kernel: str = "variable"
    nested: bool = False
    follows: Callable[[Any], Any] = field(default=tf.identity)
    device: str = ""


def _hot(part: Part, ids: Any, dtype: str) -> Any:
    return tf.one_hot(ids, part.classes, dtype=dtype)


def _counts(part: Part, ids: Any, dtype: str, *, binary: bool) -> Any:
    # What tf.math.bincount(axis=-1) of layers comes to.
    size = tf.minimum(part.classes, tf.maximum(part.classes, tf.size(ids)))
    kind = dtype if dtype in ("float32", "float64") else "int32"
    counts = tf.raw_ops.DenseBincount(
        input=ids,
        size=tf.cast(size, ids.dtype),
        weights=tf.constant([], kind),
        binary_output=binary,
    )
    return tf.cast(counts, dtype)


#: Each (part, ids, dtype) -> [B, columns]; with "each", of all ids, there is nothing beside it.
PARTS: dict[str, Callable[[Part, Any, str], Any]] = {
    "vector": _hot,
    "column": lambda part, ids, dtype: tf.reshape(_hot(part, ids, dtype), [-1, part.classes]),
    "squeezed": lambda part, ids, dtype: tf.squeeze(_hot(part, ids, dtype), [1]),
    "flat": lambda part, ids, dtype: tf.reshape(_hot(part, ids, dtype), [-1, part.columns]),
    "each": lambda part, ids, dtype: tf.reshape(_hot(part, ids, dtype), [-1, part.classes]),
    "sum": lambda part, ids, dtype: tf.reduce_sum(_hot(part, ids, dtype), -2),
    "max": lambda part, ids, dtype: tf.reduce_max(_hot(part, ids, dtype), 1),
    "truth": lambda part, ids, dtype: tf.reduce_sum(
        tf.cast(tf.one_hot(ids, part.classes, True, False), dtype), 1
    ),
    "count": lambda part, ids, dtype: _counts(part, ids, dtype, binary=False),
    "binary": lambda part, ids, dtype: _counts(part, ids, dtype, binary=True),
}

MIXED = tuple(sorted({*PARTS} - {"each"}))

#: Encodings that are not understood.
OTHERS: dict[str, Callable[[Part, Any, str], Any]] = {
    "twos": lambda part, ids, dtype: tf.one_hot(ids, part.classes, 2.0, 0.0, dtype=dtype),
    "bools": lambda part, ids, dtype: tf.cast(tf.cast(_hot(part, ids, dtype), tf.bool), dtype),
    "unknown": lambda part, ids, dtype: tf.one_hot(
        ids, v1.placeholder_with_default(part.classes, []), dtype=dtype
    ),
}

COUNTED = ("count", "binary")
"""Kinds that refuse ids below 0."""


def build(product: Product) -> graph_pb2.GraphDef:
    """A graph with placeholders `in_0` and so on, `initialize`, the matrix `x`, and `out`."""
    with tf.Graph().as_default() as graph, tf.device(product.device):
        x = matrix(product)
        out = product.follows(tf.matmul(x, kernel(product), name="product"))
        tf.identity(out, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def matrix(product: Product) -> Any:
    """What is multiplied."""
    parts, encodings = [], PARTS | OTHERS
    for number, part in enumerate(product.parts):
        kind = product.dtype if part.kind == "dense" else part.ids
        given = v1.placeholder(kind, [None, *part.shape], f"in_{number}")
        parts.append(
            given if part.kind == "dense" else encodings[part.kind](part, given, product.dtype)
        )
    if product.nested and len(parts) > 2:
        parts = [parts[0], tf.concat(parts[1:], 1)]
    return tf.concat(parts, -1, name="x") if len(parts) > 1 else parts[0]


def values(product: Product) -> npt.NDArray[Any]:
    """The matrix that others are multiplied by."""
    shape = (sum(part.columns for part in product.parts), product.width)
    rng = np.random.default_rng(0)
    found: npt.NDArray[Any] = rng.normal(size=shape).astype(
        tf.as_dtype(product.dtype).as_numpy_dtype
    )
    return found


def kernel(product: Product) -> Any:
    if product.kernel == "constant":
        return tf.constant(values(product), name="kernel")
    return v1.get_variable("kernel", initializer=values(product), use_resource=True)


def feeds(product: Product, batch: int = 7, seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    """Ids, some of them none of their classes."""
    rng, found = np.random.default_rng(seed), dict[str, npt.NDArray[Any]]()
    for number, part in enumerate(product.parts):
        shape = (batch, *(4 if size is None else size for size in part.shape))
        if part.kind == "dense":
            one = rng.normal(size=shape).astype(tf.as_dtype(product.dtype).as_numpy_dtype)
        else:
            lowest = 0 if part.kind in COUNTED or part.ids == "uint8" else -2
            highest = min(part.classes + 3, 256 if part.ids == "uint8" else 1 << 30)
            # Few ids, of which some are in a row more than once.
            few = rng.integers(lowest, highest, 5)
            one = rng.choice(few, shape).astype(part.ids)
        found[f"in_{number}:0"] = one
    return found


def bounds(product: Product, feed: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """4 · eps · n · Σ|terms| of each element of the product, for the n terms that are not 0."""
    from tests.passes import stock_graphs as stock

    with tf.Graph().as_default() as graph:
        tf.identity(tf.cast(matrix(product), tf.float64), name="out")
        tf.no_op(name="initialize")
        (x,) = stock.run(graph.as_graph_def(), feed, optimize=False)
    eps = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    terms = np.abs(x) @ np.abs(values(product).astype(np.float64))
    count = np.count_nonzero(x, axis=1)[:, None]
    found: npt.NDArray[Any] = 4 * eps[product.dtype] * count * terms
    return found

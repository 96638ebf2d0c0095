"""`enable` and `rewrite` fuse the same lookups, whatever TensorFlow's optimizers leave of shapes.

Only the passes run, and no kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.layer_graphs import build
from tests.passes.test_bags import MODELS
from tests.reference import assert_same_bits

COLUMNS, LENGTH, ROWS = 3, 4, 50

#: What stands in front of ids [batch, columns, length] of int64, and leaves them so.
FRONTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "nothing": lambda x: x,
    "remainder": lambda x: x % ROWS,
    "truncated remainder": lambda x: tf.truncatemod(x, ROWS),
    "product": lambda x: x * 3,
    "product of two": lambda x: x * (x + 1),
    "quotient": lambda x: x // 2,
    "power": lambda x: x**2,
    "difference": lambda x: tf.math.squared_difference(x, 1),
    "broadcast sum": lambda x: x + tf.range(LENGTH, dtype=tf.int64),
    "as string": lambda x: tf.strings.to_hash_bucket_fast(tf.as_string(x), ROWS),
    "strong hash": lambda x: tf.strings.to_hash_bucket_strong(tf.as_string(x), ROWS, [1, 2]),
    "legacy hash": lambda x: tf.compat.v1.string_to_hash_bucket(tf.as_string(x), ROWS),
    "to number": lambda x: tf.strings.to_number(tf.as_string(x), tf.int64),
    "string join": lambda x: _hashed(tf.strings.join([tf.as_string(x), "a"])),
    "lower": lambda x: _hashed(tf.strings.lower(tf.as_string(x))),
    "substr": lambda x: _hashed(tf.strings.substr(tf.as_string(x), 0, 1)),
    "regex": lambda x: _hashed(tf.strings.regex_replace(tf.as_string(x), "1", "2")),
    "strip": lambda x: _hashed(tf.strings.strip(tf.as_string(x))),
    "string length": lambda x: tf.cast(tf.strings.length(tf.as_string(x)), tf.int64),
    "bitwise and": lambda x: tf.bitwise.bitwise_and(x, 15),
    "bitwise or": lambda x: tf.bitwise.bitwise_or(x, 1),
    "bitwise xor": lambda x: tf.bitwise.bitwise_xor(x, 3),
    "shift": lambda x: tf.bitwise.right_shift(x, 1),
    "invert": lambda x: ROWS + tf.bitwise.invert(x),
    "cumulated": lambda x: tf.cumsum(x, 2),
    "cumulated product": lambda x: tf.math.cumprod(x, 2),
    "pad": lambda x: tf.pad(x, [[0, 0], [0, 0], [1, 0]])[..., :LENGTH],
    "pad v2": lambda x: tf.pad(x, [[0, 0], [0, 0], [1, 0]], constant_values=1)[..., :LENGTH],
    "mirror pad": lambda x: tf.pad(x, [[0, 0], [0, 0], [1, 0]], "REFLECT")[..., :LENGTH],
    "sorted": lambda x: tf.sort(x, 2),
    "argsort": lambda x: tf.argsort(x, 2),
    "top k": lambda x: tf.math.top_k(tf.cast(x, tf.int32), 2).values,
    "roll": lambda x: tf.roll(x, 1, 2),
    "reverse": lambda x: tf.reverse(x, [2]),
    "reverse sequence": lambda x: tf.reverse_sequence(
        x, tf.ones_like(x[:, 0, 0]), seq_axis=2, batch_axis=0
    ),
    "stack": lambda x: tf.stack([x[:, :, 0], x[:, :, 1]], 2),
    "unstack": lambda x: tf.stack(tf.unstack(x, axis=2), -1),
    "gather": lambda x: tf.gather(x, [2, 0], axis=2),
    "batch gather": lambda x: tf.gather(x, x % LENGTH, batch_dims=2, axis=2),
    "gather nd": lambda x: tf.gather_nd(x, tf.zeros_like(x)[..., None] % COLUMNS, batch_dims=2),
    "argmax": lambda x: tf.argmax(tf.one_hot(x, ROWS), -1),
    "broadcast": lambda x: tf.broadcast_to(x, tf.shape(x)),
    "tile": lambda x: tf.tile(x, [1, 1, 2]),
    "repeat": lambda x: tf.repeat(x, 2, 2),
    "map": lambda x: tf.map_fn(lambda one: one + 1, x),
    "vectorized map": lambda x: tf.vectorized_map(lambda one: one + 1, x),
    "round": lambda x: tf.cast(tf.round(tf.cast(x, tf.float32)), tf.int64),
    "floor": lambda x: tf.cast(tf.floor(tf.cast(x, tf.float32) / 2), tf.int64),
    "log": lambda x: tf.cast(tf.math.log1p(tf.cast(x, tf.float32)), tf.int64),
    "bucketized": lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[1.0, 2.0]),
    "searched": lambda x: tf.searchsorted(tf.range(ROWS, dtype=tf.int64), x),
    "clipped": lambda x: tf.clip_by_value(x, 0, ROWS - 1),
    "where": lambda x: tf.where(x > ROWS, tf.zeros_like(x), x),
    "maximum": lambda x: tf.maximum(x, 1),
    "transposed": lambda x: tf.transpose(tf.transpose(x, [0, 2, 1]), [0, 2, 1]),
    "concat": lambda x: tf.concat([x, x], 2),
    "split": lambda x: tf.split(x, 2, 2)[1],
    "slice": lambda x: tf.slice(x, [0, 0, 1], [-1, -1, 2]),
    "strided": lambda x: x[:, :, ::2],
    "reversed by strides": lambda x: x[:, :, ::-1],
    "reduced": lambda x: tf.reduce_max(x[..., None], -1),
    "reshaped": lambda x: tf.reshape(x, [-1, COLUMNS, LENGTH]),
    "ragged": lambda x: tf.RaggedTensor.from_tensor(x).to_tensor(shape=[None, COLUMNS, LENGTH]),
    "sparse": lambda x: tf.sparse.to_dense(tf.sparse.from_dense(x)),
    "scattered": lambda x: tf.tensor_scatter_nd_update(x, [[0, 0, 0]], tf.constant([1], tf.int64)),
    "cond": lambda x: tf.cond(tf.reduce_all(x > 0), lambda: x + 1, lambda: x * 2),
    "switch": lambda x: tf.switch_case(tf.size(x) % 2, [lambda: x + 1, lambda: x * 2]),
    "scan": lambda x: tf.transpose(
        tf.scan(lambda _, one: one + 1, tf.transpose(x, [2, 0, 1])), [1, 2, 0]
    ),
    "while": lambda x: _looped(lambda y: y + 1, x),
    "rolled in a while": lambda x: _looped(lambda y: tf.concat([y[..., 1:], y[..., :1]], 2), x),
    "nested whiles": lambda x: _looped(lambda y: _looped(lambda z: z + 1, y), x),
    "a longer batch in each while": lambda x: _looped(
        lambda y: tf.concat([y, y], 0), x, [None, COLUMNS, LENGTH]
    ),
    "one hot product": lambda x: tf.reduce_sum(tf.one_hot(x, ROWS, dtype=tf.int64), -1),
    "einsum": lambda x: tf.einsum("bcl->bcl", x),
    "quantized": lambda x: tf.cast(tf.cast(x, tf.int16), tf.int64),
    "numbers": lambda x: tf.cast(tf.math.is_finite(tf.cast(x, tf.float32)), tf.int64),
    "sign": tf.sign,
    "stopped": lambda x: tf.stop_gradient(x + 1),
    "decoded": lambda x: tf.cast(
        tf.io.decode_raw(tf.strings.substr(tf.as_string(x + 1000), 0, 4), tf.uint8), tf.int64
    )[..., 0],
}


def _looped(
    body: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, invariant: list[int | None] | None = None
) -> tf.Tensor:
    shapes = (tf.TensorShape([]), x.shape if invariant is None else tf.TensorShape(invariant))
    _, result = tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, body(y)), (0, x), shape_invariants=shapes
    )
    return result


def _hashed(words: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(words, ROWS)


Tables = list[tf.Variable]


def gathers(ids: tf.Tensor, tables: Tables) -> list[tf.Tensor]:
    """Rows of one id for each table."""
    return [tf.gather(table, ids[:, i, 0]) for i, table in enumerate(tables)]


def means(ids: tf.Tensor, tables: Tables) -> list[tf.Tensor]:
    """Means of the rows of many ids."""
    return [tf.reduce_mean(tf.gather(table, ids[:, i]), 1) for i, table in enumerate(tables)]


def masked(ids: tf.Tensor, tables: Tables) -> list[tf.Tensor]:
    """Means of the rows of ids that are not 0."""
    found = []
    for i, table in enumerate(tables):
        mask = tf.cast(ids[:, i] != 0, tf.float32)[..., None]
        rows = tf.reduce_sum(tf.gather(table, ids[:, i]) * mask, 1)
        found.append(rows / (tf.reduce_sum(mask, 1) + 1e-8))
    return found


FORMS: tuple[Callable[[tf.Tensor, Tables], list[tf.Tensor]], ...] = (gathers, means, masked)


def tables() -> Tables:
    rng = np.random.default_rng(3)
    return [tf.Variable(rng.normal(size=(ROWS, 8)).astype(np.float32)) for _ in range(COLUMNS)]


def traced(model: Callable[[tf.Tensor], Any], length: int | None = LENGTH) -> Any:
    spec = tf.TensorSpec([None, COLUMNS, length], tf.int64)
    return tf.function(model, autograph=False).get_concrete_function(spec)


def assert_all_fused(function: Any, count: int) -> None:
    for under in ("enable", "rewrite"):
        report = fusion.explain(function, under=under)
        assert report.fused_count == count, f"under {under}:\n{report}"


@pytest.mark.parametrize("front", FRONTS)
def test_behind_everyday_ops(front: str) -> None:
    own = [tables() for _ in FORMS]

    def model(ids: tf.Tensor) -> list[tf.Tensor]:
        ids = FRONTS[front](ids)
        return [tf.concat(form(ids, of), 1) for form, of in zip(FORMS, own, strict=True)]

    assert_all_fused(traced(model), len(FORMS) * COLUMNS)


def _numbers(mask: tf.Tensor) -> tf.Tensor:
    return tf.cast(mask, tf.float32)


#: Masks of ids [batch, length], as numbers for each row.
MASKS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "ellipsis": lambda x: _numbers(x != 0)[..., None],
    "ellipsis in front": lambda x: _numbers((x != 0)[..., None]),
    "colons": lambda x: _numbers(x != 0)[:, :, None],
    "last axis": lambda x: tf.expand_dims(_numbers(x != 0), -1),
    "axis 2": lambda x: tf.expand_dims(_numbers(x != 0), 2),
    "ones": lambda x: tf.ones_like(x, tf.float32)[..., None],
}
#: Such as are no masks by an id that is left out.
OTHER_MASKS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "of one row": lambda x: _numbers(x[:1] != 0)[..., None],
    "reversed": lambda x: _numbers(x != 0)[:, ::-1, None],
    "of the ids besides": lambda x: _numbers(x + 1 != 0)[..., None],
    "greater": lambda x: _numbers(x > 0)[..., None],
    "by two numbers": lambda x: _numbers(x != x[:1])[..., None],
}


def masked_by(mask_of: Callable[[tf.Tensor], tf.Tensor], own: Tables) -> Any:
    """A function of ids of any length, which are taken from the batch wherever they are read."""

    def model(ids: tf.Tensor) -> tf.Tensor:
        means = []
        for i, table in enumerate(own):
            rows = tf.reduce_sum(tf.gather(table, ids[:, i]) * mask_of(ids[:, i]), 1)
            means.append(rows / (tf.reduce_sum(mask_of(ids[:, i]), 1) + 1e-8))
        return tf.concat(means, 1)

    return traced(model, None)


@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_any_length(mask: str) -> None:
    own = tables()
    function = masked_by(MASKS[mask], own)
    assert_all_fused(function, COLUMNS)
    fused = fusion.fuse_function(function)
    for batch, length in ((5, 6), (2, 1), (0, 3)):
        ids = np.random.default_rng(batch).integers(-3, 3, (batch, COLUMNS, length)).clip(0)
        assert_same_bits(fused(tf.constant(ids)).numpy(), function(tf.constant(ids)).numpy())


@pytest.mark.parametrize("mask", OTHER_MASKS)
def test_what_is_nearly_a_mask_stays(mask: str) -> None:
    own = tables()
    assert_all_fused(masked_by(OTHER_MASKS[mask], own), 0)


#: What reads no more than the shape of rows.
READERS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "shape": tf.shape,
    "long shape": lambda rows: tf.shape(rows, tf.int64),
    "shapes": lambda rows: tf.raw_ops.ShapeN(input=[rows, rows])[1],
    "size": lambda rows: tf.raw_ops.Size(input=rows),
    "long size": lambda rows: tf.raw_ops.Size(input=rows, out_type=tf.int64) + 1,
    "rank": lambda rows: tf.raw_ops.Rank(input=rows) + 1,
    "zeros": lambda rows: tf.raw_ops.ZerosLike(x=rows),
    "ones": lambda rows: tf.raw_ops.OnesLike(x=rows),
    "row count": lambda rows: tf.fill(tf.shape(rows)[:1], 2.0),
}


def read_twice(form: Callable[[tf.Tensor, Tables], list[tf.Tensor]], own: Tables) -> Any:
    """A function whose rows are joined, and whose shapes are returned."""

    def model(ids: tf.Tensor) -> dict[str, Any]:
        rows = form(ids, own)
        read = {f"{name} {k}": READERS[name](one) for name in READERS for k, one in enumerate(rows)}
        return {"rows": tf.concat(rows, -1), **read}

    return traced(model)


def matrices(ids: tf.Tensor, tables: Tables) -> list[tf.Tensor]:
    """Rows of many ids, side by side."""
    return [tf.gather(table, ids[:, i]) for i, table in enumerate(tables)]


@pytest.mark.parametrize("form", [gathers, matrices, means])
def test_what_reads_shapes_of_rows(form: Any) -> None:
    own = tables()
    function = read_twice(form, own)
    assert_all_fused(function, COLUMNS)
    fused = fusion.fuse_function(function)
    for batch in (5, 1, 0):
        ids = np.random.default_rng(batch).integers(0, ROWS, (batch, COLUMNS, LENGTH))
        expected, found = function(tf.constant(ids)), fused(tf.constant(ids))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], name)


def test_what_reads_rows_is_no_reader_of_shapes() -> None:
    own = tables()

    def model(ids: tf.Tensor) -> list[tf.Tensor]:
        rows = gathers(ids, own)
        return [tf.concat(rows, 1), *map(tf.exp, rows)]

    function = traced(model)
    assert_all_fused(function, 0)


@pytest.mark.parametrize("name", [name for name in MODELS if "float16" not in name])
def test_bags_of_layers(name: str) -> None:
    model = MODELS[name]
    graph_def = build(model)
    outputs = ["out", *(f"out_{k}" for k in range(1, len(model.joins)))]
    counts = {
        fusion.explain(graph_def, under=under, outputs=outputs).fused_count
        for under in ("enable", "rewrite")
    }
    assert counts == {len(model.tables)}

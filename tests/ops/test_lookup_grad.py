"""Gradients of the inference ops are those of stock lookups of the same columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.columns import COLUMN_ATTRS

ROWS, DIM, BATCH = 12, 3, 5
INDICES = np.array([[0, 0], [0, 2], [1, 1], [3, 0], [3, 1], [3, 4]])
IDS = np.array([4, 2, -1, 4, 0, 11])
WEIGHTS = np.array([0.5, 2.0, 1.0, -1.0, 3.0, 0.25], np.float32)
SPLITS = np.array([0, 2, 3, 3, 6, 6])
UNUSED = np.ones(1, np.int64)
DEFAULTS: dict[str, Any] = {one.name: one.default for one in COLUMN_ATTRS.values()}


def table(seed: int = 0, dim: int = DIM) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(ROWS, dim)).astype(np.float32))


def top_grad(width: int = DIM, rows: int = BATCH) -> tf.Tensor:
    values = np.random.default_rng(9).normal(size=(rows, width))
    return tf.constant(values.astype(np.float32))


def gradients(result: Any, sources: list[Any], upstream: tf.Tensor) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = result()
    return [tf.convert_to_tensor(one) for one in tape.gradient(value, sources, upstream)]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.any(other)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def stock(weights: Any, source: Any, combiner: str, default_id: int, **options: Any) -> tf.Tensor:
    ids = tf.SparseTensor(INDICES, IDS, [BATCH, 5])
    return tf.nn.safe_embedding_lookup_sparse(
        source,
        ids,
        sparse_weights=None if weights is None else ids.with_values(weights),
        combiner=combiner,
        default_id=None if default_id < 0 else default_id,
        **options,
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("default_id", [-1, 2])
@pytest.mark.parametrize("max_norm", [-1.0, 0.7])
@pytest.mark.parametrize("weighted", [False, True])
def test_of_a_column(combiner: str, default_id: int, max_norm: float, weighted: bool) -> None:
    source, weights = table(), tf.constant(WEIGHTS)
    sources = [source, weights] if weighted else [source]
    options = {} if max_norm < 0 else {"max_norm": max_norm}
    expected = gradients(
        lambda: stock(weights if weighted else None, source, combiner, default_id, **options),
        sources,
        top_grad(),
    )
    places = {"indices": INDICES, "row_ids": INDICES[:, 0], "row_splits": SPLITS}
    for form, entry_rows in places.items():

        def column(form: str = form, entry_rows: Any = entry_rows) -> tf.Tensor:
            return ops.fused_embedding_lookup(
                table=source,
                ids=IDS,
                entry_rows=entry_rows,
                dense_shape=np.array([BATCH, 5]),
                weights=weights,
                form=form,
                combiner=combiner,
                max_norm=max_norm,
                prune=True,
                fill_empty_row=True,
                default_id=default_id,
                use_sparse_weights=weighted,
                prune_sparse_weights=weighted and combiner != "sum",
            )

        assert_close(gradients(column, sources, top_grad()), expected)


def test_of_a_column_that_ends_with_its_last_entry() -> None:
    source = table()
    ids = tf.SparseTensor(INDICES, np.abs(IDS), [BATCH, 5])

    def column() -> tf.Tensor:
        return ops.fused_embedding_lookup(
            table=source,
            ids=np.abs(IDS),
            entry_rows=INDICES,
            dense_shape=UNUSED,
            weights=tf.ones([1]),
            row_count="last_row",
        )

    upstream = top_grad(rows=4)
    expected = gradients(
        lambda: tf.nn.embedding_lookup_sparse(source, ids, None), [source], upstream
    )
    assert_close(gradients(column, [source], upstream), expected)


def test_of_a_group() -> None:
    tables = [table(0), table(1, 2), table(2, 4)]
    copied, weights = top_grad(1), tf.constant(WEIGHTS)
    values = tf.constant([[-1.0], [0.5], [7.0], [0.5], [2.5]])
    each: dict[str, list[Any]] = {
        "forms": ["indices", "copy", "dense", "row_splits"],
        "combiners": ["mean", "mean", "sum", "sqrtn"],
        "prunes": [True, False, True, True],
        "fill_empty_rows": [True, False, True, True],
        "default_ids": [2, -1, -1, -1],
        "use_sparse_weights": [True, False, False, False],
        "prune_sparse_weights": [True, False, False, False],
    }
    attrs = {name: each.get(name, [one.default] * 4) for name, one in COLUMN_ATTRS.items()}

    def group() -> tf.Tensor:
        return ops.grouped_embedding_lookup(
            tables=[tables[0], copied, tables[1], tables[2]],
            ids=[IDS, UNUSED, values, IDS],
            entry_rows=[INDICES, UNUSED, UNUSED, SPLITS],
            dense_shapes=[np.array([BATCH, 5]), UNUSED, UNUSED, UNUSED],
            weights=[weights, *[tf.ones([1])] * 3],
            boundaries=[0.0, 1.0, 2.0],
            boundary_counts=[0, 0, 3, 0],
            **attrs,
        )

    def columns() -> tf.Tensor:
        buckets = tf.raw_ops.Bucketize(input=values, boundaries=[0.0, 1.0, 2.0])
        parts = [
            stock(weights, tables[0], "mean", 2),
            copied,
            tf.gather(tables[1], buckets[:, 0]),
            stock(None, tables[2], "sqrtn", -1),
        ]
        return tf.concat(parts, 1)

    sources, upstream = [*tables, copied, weights], top_grad(10)
    np.testing.assert_allclose(group(), columns(), rtol=1e-6)
    assert_close(gradients(group, sources, upstream), gradients(columns, sources, upstream))


def test_the_gradient_of_a_table_has_distinct_rows() -> None:
    source = tf.Variable(table())
    with tf.GradientTape() as tape:
        result = ops.fused_embedding_lookup(
            table=source,
            ids=IDS,
            entry_rows=INDICES,
            dense_shape=np.array([BATCH, 5]),
            weights=tf.ones([1]),
            prune=True,
        )
    slices = tape.gradient(result, source)
    assert isinstance(slices, tf.IndexedSlices)
    assert sorted(slices.indices.numpy().tolist()) == [0, 2, 4, 11]

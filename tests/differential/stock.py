"""Stock TensorFlow's numbers for a case: of its own lookup, or of one put together from its ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from tests.differential.case import Case
from tests.differential.run import Outcome, like, outcome

v1 = tf.compat.v1


def stock_outcome(case: Case) -> Outcome:
    """What stock TensorFlow gives."""
    return outcome(as_stock_takes_it(case), lookup)


def as_stock_takes_it(case: Case) -> Case:
    """An equal case where stock TensorFlow has a bug.

    It divides by zero for div with more shards than rows, trips over ragged ids without rows, and
    cannot choose between its functions for ragged ids and for a ShardedVariable. The pass leaves
    the first to stock TensorFlow, and whatever it does not fuse.
    """
    if case.is_rewritten and not case.is_fused:
        return case
    if not case.is_rewritten and case.strategy == "div" and case.shards > case.rows:
        case = replace(case, table="variable", shards=1)
    if case.ids == "ragged" and case.table == "sharded":
        case = replace(case, table="variables")
    if case.ids == "ragged" and not case.lengths:
        case = replace(case, ids="sparse", outer=None)
    return case


def lookup(case: Case, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    """The stock lookup of a case."""
    if weights is not None:
        weights = like(ids, weights)
    options = {
        "combiner": case.combiner,
        "max_norm": case.max_norm,
        "partition_strategy": case.strategy,
    }
    if case.function == "safe" and case.prune:
        return v1.nn.safe_embedding_lookup_sparse(
            table, ids, weights, default_id=case.default_id, **options
        )
    return _composed(case, table, ids, weights, options)


def _composed(case: Case, table: Any, ids: Any, weights: Any, options: dict[str, Any]) -> tf.Tensor:
    """A lookup with pruning and filling to choose, around stock's plain lookup.

    The plain lookup wants sorted rows and stops at the last one that has an entry.
    """
    rows, batch, shape = _rows(ids)
    values = ids.values
    of_weights = None if weights is None else weights.values
    if case.prune:
        keep = values >= 0
        if of_weights is not None and case.combiner != "sum":
            keep &= of_weights > 0
        rows, values = tf.boolean_mask(rows, keep), tf.boolean_mask(values, keep)
        of_weights = None if of_weights is None else tf.boolean_mask(of_weights, keep)
    order = tf.argsort(rows, stable=True)
    rows, values = tf.gather(rows, order), tf.gather(values, order)
    of_weights = None if of_weights is None else tf.gather(of_weights, order)
    sorted_ids = _as_sparse(rows, values, batch)
    sorted_weights = None if of_weights is None else like(sorted_ids, of_weights)
    is_empty = tf.zeros([batch], tf.bool)
    if case.fill:
        sorted_ids, is_empty = tf.sparse.fill_empty_rows(sorted_ids, case.default_id or 0)
        if sorted_weights is not None:
            sorted_weights, _ = tf.sparse.fill_empty_rows(sorted_weights, 1.0)
    result = v1.nn.embedding_lookup_sparse(table, sorted_ids, sorted_weights, **options)
    missing = batch - tf.shape(result, tf.int64)[0]
    result = tf.pad(result, [[0, missing], [0, 0]])
    if case.default_id is None:
        result = tf.where(is_empty[:, None], tf.zeros_like(result), result)
    return tf.reshape(result, tf.concat([shape, tf.shape(result, tf.int64)[1:]], 0))


def _rows(ids: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The row of each entry, the number of rows, and the shape that they flatten."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.value_rowids(), ids.nrows(), ids.nrows()[None]
    shape = ids.dense_shape
    flat = tf.sparse.reshape(ids, tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]]))
    return flat.indices[:, 0], flat.dense_shape[0], shape[:-1]


def _as_sparse(rows: tf.Tensor, values: tf.Tensor, batch: tf.Tensor) -> tf.SparseTensor:
    columns = tf.zeros_like(rows)
    return tf.SparseTensor(tf.stack([rows, columns], 1), values, tf.stack([batch, 1]))

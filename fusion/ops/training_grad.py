"""Gradients of the training ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion.schema.columns import PRE_ATTRS
from fusion.stock_ops.combine import combine_entries


def post_gradient(op: tf.Operation, top_grad: tf.Tensor) -> list[Any]:
    """Gradients of GroupedEmbeddingPostLookUp's inputs: of rows, matrices and weights."""
    from fusion import ops

    count, copied = op.get_attr("num_columns"), op.get_attr("copied")
    given, (places, splits, weights) = op.inputs[:count], op.inputs[count:]
    firsts = _firsts(given)
    lookups = [place for place in range(count) if not copied[place]]
    result: list[Any] = [None] * (count + 3)
    for place in range(count):
        if copied[place]:
            width = tf.shape(given[place])[1]
            result[place] = tf.slice(top_grad, [0, firsts[place]], [-1, width])
    if not lookups:
        return result
    if any(isinstance(first, tf.Tensor) for first in firsts):
        widths = [tf.shape(part)[1] for part in given]
        parts = tf.split(top_grad, widths, axis=1, num=count)
        of_lookups = tf.concat([parts[place] for place in lookups], 1)
        offsets = [-1] * len(lookups)
    else:
        of_lookups, offsets = top_grad, [firsts[place] for place in lookups]
    rows = [given[place] for place in lookups]
    grads = ops.grouped_embedding_post_look_up_grad(
        top_grad=of_lookups,
        emb_rows=rows,
        unique_idxs=places,
        row_splits=splits,
        entry_weights=weights,
        offsets=offsets,
        **{
            name: [op.get_attr(name)[place] for place in lookups]
            for name in ("combiners", "use_sparse_weights", "dims")
        },
    )
    for place, grad in zip(lookups, grads, strict=True):
        result[place] = grad
    if any(op.get_attr("use_sparse_weights")) and _is_wanted(op, count + 2):
        result[count + 2] = _of_weights(op, of_lookups, rows, lookups, offsets)
    return result


def _is_wanted(op: tf.Operation, place: int) -> bool:
    """Whether anybody asks for the gradient of an input; in eager mode TensorFlow tells."""
    return place not in (getattr(op, "skip_input_indices", None) or ())


def _firsts(matrices: Sequence[tf.Tensor]) -> list[Any]:
    """Where each of the matrices starts if they are side by side: numbers if they are known."""
    firsts: list[Any] = [0]
    for matrix in matrices:
        width = matrix.shape[1] if matrix.shape.rank == 2 else None
        firsts.append(firsts[-1] + (tf.shape(matrix)[1] if width is None else width))
    return firsts[:-1]


def _of_weights(
    op: tf.Operation,
    top_grad: tf.Tensor,
    rows: Sequence[tf.Tensor],
    lookups: Sequence[int],
    offsets: Sequence[int],
) -> tf.Tensor:
    """The gradient of the entries' weights, by stock ops: it is rarely asked for."""
    weights = op.inputs[-1]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        results = _combined(op, rows, weights, lookups)
    return tape.gradient(results, weights, _parts(top_grad, rows, offsets))


def _parts(top_grad: tf.Tensor, rows: Sequence[tf.Tensor], offsets: Sequence[int]) -> list[Any]:
    """The gradient of each lookup's result."""
    parts, end = [], 0
    for part, offset in zip(rows, offsets, strict=True):
        width = tf.shape(part)[1]
        first = end if offset < 0 else offset
        parts.append(tf.slice(top_grad, [0, first], [-1, width]))
        end = first + width
    return parts


def _combined(
    op: tf.Operation, rows: Sequence[tf.Tensor], weights: tf.Tensor, lookups: Sequence[int]
) -> list[tf.Tensor]:
    """The results of the lookups, by stock ops.

    Args:
      op: the op behind the gathers, or its gradient op.
      rows: the rows of each lookup.
      weights: of the entries.
      lookups: the place of each among the columns of `op`.
    """
    places, splits = op.inputs[-3], op.inputs[-2]
    combiners, weighted = op.get_attr("combiners"), op.get_attr("use_sparse_weights")
    batch = tf.shape(splits)[1] - 1
    results = []
    for number, (part, column) in enumerate(zip(rows, lookups, strict=True)):
        own = splits[number]
        numbers = tf.repeat(tf.range(batch), own[1:] - own[:-1])
        entries = tf.gather(part, places[own[0] : own[-1]])
        if weighted[column]:
            given = weights[own[0] : own[-1]]
        else:
            given = tf.ones_like(places[own[0] : own[-1]], weights.dtype)
        combiner = tf.compat.as_str(combiners[column])
        results.append(combine_entries(combiner, entries, given, numbers, batch, None))
    return results


def second_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of GroupedEmbeddingPostLookUpGrad's inputs, which stock has for weighted lookups.

    Raises:
      LookupError: a lookup without weights.
    """
    if not all(op.get_attr("use_sparse_weights")):
        raise LookupError(f"gradient registry has no entry for: {op.type} without weights")
    top_grad, *rows = op.inputs[:-3]
    weights, lookups = op.inputs[-1], range(len(rows))
    sources = [top_grad, *rows, weights]
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(rows)
            results = _combined(op, rows, weights, lookups)
        parts = _parts(top_grad, rows, op.get_attr("offsets"))
        first = inner.gradient(results, rows, parts)
        first = [tf.convert_to_tensor(gradient) for gradient in first]
    of_top, *of_rows, of_weights = outer.gradient(first, sources, list(grads))
    return [of_top, *of_rows, None, None, of_weights]


def pre_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of GroupedEmbeddingPreLookUp's inputs: those of the weights.

    What an entry's weight gets goes to the weight that was given for it; those of fillers are
    dropped, and pruned entries get 0.
    """
    from fusion import ops

    count, of_entries = op.get_attr("num_columns"), grads[-1]
    result: list[Any] = [None] * (4 * count)
    weighted = op.get_attr("use_sparse_weights")
    if of_entries is None or not any(weighted):
        return result
    ids, rows, shapes, weights = (
        list(op.inputs[place * count : (place + 1) * count]) for place in range(4)
    )
    # Numbers from 1 in place of the weights tell where each entry was; fillers have 0.
    numbered = [
        tf.where(
            values > 0 if prunes else tf.ones_like(values, tf.bool),
            tf.range(1, tf.size(values) + 1),
            0,
        )
        for values, prunes in zip(weights, op.get_attr("prune_sparse_weights"), strict=True)
    ]
    attrs = {name: op.get_attr(name) for name in PRE_ATTRS}
    again = ops.grouped_embedding_pre_look_up(
        ids=ids,
        entry_rows=rows,
        dense_shapes=shapes,
        weights=[tf.cast(values, tf.float64) for values in numbered],
        **attrs | {"default_weights": [0.0] * count},
        **{name: op.get_attr(name) for name in ("Tkeys", "boundaries", "boundary_counts")},
    )
    places = tf.cast(again.entry_weights, tf.int32) - 1
    for place in range(count):
        if weighted[place]:
            splits = again.row_splits[place]
            part = slice(splits[0], splits[-1])
            # Negative segments are dropped.
            result[3 * count + place] = tf.math.unsorted_segment_sum(
                of_entries[part], places[part], tf.size(weights[place])
            )
    return result

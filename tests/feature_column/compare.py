"""Fused columns against stock ones, in the same host with the same features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2

from tests.bounds import Bounds, loss_factors
from tests.feature_column.hosts import Columns, Features, Outcome, as_tensors
from tests.feature_column.kinds import Column, build, initial_table
from tests.memo import computed_once
from tests.reference import assert_same_bits, assert_within

Array = Any

#: The op that combines, by family. (Lookups of v1 contain that of v2 as well.)
FUSED = {"v1": "FusedEmbeddingSparsePostLookUp", "v2": "FusedEmbeddingSparsePostLookUpV2"}
#: The beginnings of the names of the ops in stock's lookups.
STOCK = ("SparseSegment", "SegmentSum", "SparseFillEmptyRows")


def stock_ops(ran: set[str]) -> list[str]:
    """The ops of stock lookups among those that ran."""
    return sorted(name for name in ran if name.startswith(STOCK))


def both(
    make_columns: Callable[[str | None], Columns],
    features: Features,
    do_fusion: str,
    host: Callable[..., Outcome],
    **options: Any,
) -> tuple[Outcome, Outcome]:
    """What `host` makes of fused and of stock columns."""
    fused = host(partial(make_columns, do_fusion), features, **options)
    return fused, computed_once(host, partial(make_columns, None), features, **options)


def compare(
    columns: Sequence[Column],
    features: Features,
    do_fusion: str,
    host: Callable[..., Outcome],
    **options: Any,
) -> Outcome:
    """Runs `columns` in `host` fused and stock, asserts that they agree, and gives the fused run.

    Forward and gradient are bit for bit the same, or as near as rounding allows where a column has
    weights or a limit of the norm; variables and collections are the same.
    """
    fused, stock = both(partial(build, columns), features, do_fusion, host, **options)
    assert_fused(fused.ran, do_fusion)
    assert stock_ops(stock.ran)
    assert fused.variables == stock.variables
    assert fused.collections == stock.collections
    assert_numbers(fused, stock, columns, features)
    return fused


def assert_fused(ran: set[str], do_fusion: str) -> None:
    """All lookups that ran were fused ones of the family."""
    assert FUSED[do_fusion] in ran
    assert not stock_ops(ran)
    assert (FUSED["v1"] in ran) == (do_fusion == "v1")


def assert_same(fused: Outcome, stock: Outcome) -> None:
    """Variables, collections, and the bits of output and gradients are the same."""
    assert fused.variables == stock.variables
    assert fused.collections == stock.collections
    assert_same_bits(fused.output, stock.output)
    assert fused.gradients.keys() == stock.gradients.keys()
    for name, (ids, gradient) in stock.gradients.items():
        assert sorted(fused.gradients[name][0]) == sorted(ids)
        assert_same_bits(fused.gradients[name][1], gradient)


def raised(
    columns: Sequence[Column],
    features: Features,
    do_fusion: str | None,
    host: Callable[..., Outcome],
) -> Exception | None:
    """What a run raises."""
    try:
        host(partial(build, columns, do_fusion), features)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        return error
    return None


def assert_numbers(
    fused: Outcome, stock: Outcome, columns: Sequence[Column], features: Features
) -> None:
    """The outputs, column by column, and the gradients, table by table, agree."""
    assert fused.output.shape == stock.output.shape
    factors = loss_factors(stock.output.shape)
    allowed: dict[str, list[Array]] = {}
    start = 0
    for column in sorted(columns, key=lambda column: column.name):
        part = np.s_[:, start : start + column.dimension]
        start += column.dimension
        of_table = allowed.setdefault(column.table, [])
        if column.exact or not len(stock.output):
            assert_same_bits(fused.output[part], stock.output[part])
        else:
            bounds = entry_bounds(column, features, len(stock.output))
            assert_within(fused.output[part], stock.output[part], bounds.output())
            of_table.append(bounds.table_gradient(factors[part]))
    assert start == stock.output.shape[1]
    for table, of_table in allowed.items():
        _assert_same_gradient(fused, stock, table, of_table)
    assert fused.gradients.keys() == stock.gradients.keys()


def _assert_same_gradient(fused: Outcome, stock: Outcome, table: str, allowed: list[Array]) -> None:
    """`allowed` are the bounds of the columns whose gradients are added up."""
    (variable,) = (v for v in stock.variables if table in v[0])
    name, _, _, trainable = variable
    assert (name in stock.gradients) == trainable
    if not trainable:
        return
    (ids, ours), (stock_ids, theirs) = fused.gradients[name], stock.gradients[name]
    assert sorted(ids) == sorted(stock_ids)
    if allowed:
        # The sum of k gradients is rounded k - 1 times more than each of them.
        assert_within(ours, theirs, len(allowed) * sum(allowed))
    else:
        assert_same_bits(ours, theirs)


def entry_bounds(column: Column, features: Features, rows_of_output: int) -> Bounds:
    """How far a column's lookup may be from stock's; the ids are those stock gives it."""
    cache = feature_column_v2.FeatureTransformationCache(as_tensors(features))
    state = feature_column_v2._StateManagerImpl(None, trainable=False)
    categorical = column.categorical()
    ids, weights = categorical.get_sparse_tensors(cache, state)
    values, rows = ids.values.numpy(), ids.indices[:, 0].numpy()
    given = np.ones(len(values), np.float32) if weights is None else weights.values.numpy()
    valid = values >= 0
    if column.combiner != "sum":
        valid &= given > 0
    kept = valid if column.safe else np.ones_like(valid)
    return Bounds(
        table=initial_table(categorical.num_buckets, column.dimension),
        values=values[kept],
        rows=rows[kept],
        weights=None if weights is None else given[kept],
        combiner=column.combiner,
        max_norm=column.max_norm,
        batch=rows_of_output,
    )

"""Lookups in sharded tables as lookups in the rows that come for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from fusion.distribute.rows import fetch
from fusion.distribute.sharded import Sharded

_Ids = TypeVar("_Ids", tf.SparseTensor, tf.RaggedTensor)


def rows_here(tables: Sequence[Sharded], ids: Sequence[_Ids]) -> list[tuple[tf.Tensor, _Ids]]:
    """The rows of ids, [u, D], and the ids with the places of theirs in these, of each table.

    Args:
      tables: whose rows come in one exchange.
      ids: of each, checked.
    """
    given = zip(tables, ids, strict=True)
    fetched = fetch(tables, [table.as_ids(_values(some)) for table, some in given])
    return [(got.rows, _with(some, got.places)) for some, got in zip(ids, fetched, strict=True)]


def _values(ids: _Ids) -> tf.Tensor:
    return ids.values if isinstance(ids, tf.SparseTensor) else ids.flat_values


def _with(ids: _Ids, values: tf.Tensor) -> _Ids:
    is_sparse = isinstance(ids, tf.SparseTensor)
    return ids.with_values(values) if is_sparse else ids.with_flat_values(values)

"""The graph of a lookup, but for the middle, in which the families of ops differ."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.lookup import v1, v2
from fusion.lookup.ids import (
    Ids,
    Weights,
    as_sparse,
    by_first_dimension,
    flatten,
    unflatten,
    weight_values,
)
from fusion.lookup.options import LookupOptions
from fusion.lookup.tables import as_shards
from fusion.tables.partitioned import KeyedTable

_FAMILIES = {"v1": v1.lookup_rows, "v2": v2.lookup_rows}


def lookup(
    params: Any,
    sp_ids: Ids,
    sparse_weights: Weights | None,
    options: LookupOptions,
    params_name: str = "params",
    ids_name: str = "sp_ids",
) -> tf.Tensor:
    """The lookup that `options` ask for; see `functions`. Names are for error messages."""
    shards = as_shards(params, params_name, getattr(sparse_weights, "dtype", None))
    sp_ids = as_sparse(sp_ids, options, ids_name)
    weights = weight_values(sparse_weights, shards[0].dtype)
    if isinstance(shards[0], KeyedTable):
        options = options.without_filled_rows()
    lookup_rows = _FAMILIES[options.version]
    if options.row_count == "last_row":
        return lookup_rows(shards, by_first_dimension(sp_ids), weights, options)
    result = lookup_rows(shards, flatten(sp_ids), weights, options)
    return unflatten(result, sp_ids)

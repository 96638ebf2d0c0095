"""What the training ops should give, for the random columns of `embedding_columns`, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.schema.columns import PRE_ATTRS


def pre(columns: list[dict[str, Any]], **given: Any) -> Any:
    """The columns by one GroupedEmbeddingPreLookUp."""
    names = {"ids": "ids", "entry_rows": "entry_rows", "dense_shape": "dense_shapes"}
    inputs: dict[str, Any] = {
        plural: [column["inputs"][name] for column in columns] for name, plural in names.items()
    }
    inputs["weights"] = [column["inputs"]["weights"] for column in columns]
    lists = {
        name: [column["attrs"].get(attr.name) for column in columns]
        for name, attr in PRE_ATTRS.items()
    }
    lists["sort_keys"] = [column.get("sorts", False) for column in columns]
    boundaries = [column["attrs"]["boundaries"] for column in columns]
    return ops.grouped_embedding_pre_look_up(
        **inputs,
        Tkeys=[tf.int64] * len(columns),
        **lists,
        boundaries=[limit for limits in boundaries for limit in limits],
        boundary_counts=[len(limits) for limits in boundaries],
        **given,
    )


def post(columns: list[dict[str, Any]], rows: Any, entries: Any, **given: Any) -> Any:
    """The columns' rows combined by one GroupedEmbeddingPostLookUp; rows of copies are matrices."""
    return ops.grouped_embedding_post_look_up(
        emb_rows=rows,
        **shared(entries),
        copied=[column["attrs"]["form"] == "copy" for column in columns],
        combiners=[column["attrs"]["combiner"] for column in columns],
        use_sparse_weights=[column["attrs"]["use_sparse_weights"] for column in columns],
        divide_no_nans=[column["attrs"]["divide_no_nan"] for column in columns],
        dims=[column["attrs"]["dim"] for column in columns],
        **given,
    )


def grad(columns: list[dict[str, Any]], top: Any, rows: Any, entries: Any, **given: Any) -> Any:
    """The gradients of the rows of lookups by one GroupedEmbeddingPostLookUpGrad."""
    return ops.grouped_embedding_post_look_up_grad(
        top_grad=top,
        emb_rows=rows,
        **shared(entries),
        combiners=[column["attrs"]["combiner"] for column in columns],
        use_sparse_weights=[column["attrs"]["use_sparse_weights"] for column in columns],
        dims=[column["attrs"]["dim"] for column in columns],
        **{"offsets": [-1] * len(columns)} | given,
    )


def shared(entries: Any) -> dict[str, Any]:
    """The outputs of GroupedEmbeddingPreLookUp that the other ops read."""
    return {
        "unique_idxs": entries.unique_idxs,
        "row_splits": entries.row_splits,
        "entry_weights": entries.entry_weights,
    }


def expected(column: dict[str, Any]) -> tuple[list[int], list[list[tuple[int, float]]]]:
    """The distinct ids of a column, and of each row the (place, weight) of its entries."""
    attrs = column["attrs"]
    kept = _kept(column)
    keys: dict[int, int] = {}
    result = []
    for entries in kept:
        filled = entries
        if not entries and attrs["fill_empty_row"]:
            keys.setdefault(max(attrs["default_id"], 0), len(keys))
            if attrs["default_id"] >= 0:
                weight = attrs["default_weight"] if attrs["use_sparse_weights"] else 1.0
                filled = [(attrs["default_id"], weight)]
        result.append([(keys.setdefault(number, len(keys)), weight) for number, weight in filled])
    if not column.get("sorts", False):
        return list(keys), result
    ascending = sorted(keys)
    ranks = [ascending.index(key) for key in keys]
    return ascending, [[(ranks[place], weight) for place, weight in row] for row in result]


def _kept(column: dict[str, Any]) -> list[list[tuple[int, float]]]:
    given, attrs = column["inputs"], column["attrs"]
    ids = np.asarray(given["ids"])
    if attrs["form"] == "dense":
        batch, width = ids.shape
        rows = np.repeat(np.arange(batch), width)
        places = np.tile(np.arange(width), batch)
        ids = ids.reshape(-1)
    else:
        rows, places = np.asarray(given["entry_rows"]), np.zeros(len(ids), np.int64)
        if attrs["form"] == "row_splits":
            batch = len(rows) - 1
            rows = np.repeat(np.arange(batch), np.diff(rows))
        else:
            batch = int(np.asarray(given["dense_shape"]).reshape(-1)[0])
            rows = rows[:, 0] if rows.ndim == 2 else rows
    weighted = attrs["use_sparse_weights"]
    weights = np.asarray(given["weights"], np.float64) if weighted else np.ones(len(ids))
    kept: list[list[tuple[int, float]]] = [[] for _ in range(batch)]
    for row, value, place, weight in zip(rows, ids, places, weights, strict=True):
        if attrs["use_ignored_id"] and value == attrs["ignored_id"]:
            continue
        number = _number(value, int(place), attrs)
        if attrs["prune"] and number < 0:
            continue
        if weighted and attrs["prune_sparse_weights"] and not weight > 0:
            continue
        kept[row].append((number, float(weight)))
    return kept


def _number(value: Any, place: int, attrs: dict[str, Any]) -> int:
    """The id that an element stands for."""
    if attrs["boundaries"]:
        value = np.searchsorted(np.array(attrs["boundaries"], np.float32), value, "right")
    number = int(value) + place * attrs["column_stride"]
    if attrs["num_buckets"] and not 0 <= number < attrs["num_buckets"]:
        number = attrs["bucket_default"]
    return int(number)

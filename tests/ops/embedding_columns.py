"""Random columns for the inference ops, and the same columns computed by the v2 family."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.schema.columns import COLUMN_ATTRS
from fusion.schema.row_formats import PLAIN, pack_rows, unpack_rows
from tests import reference

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Of few kinds: code is compiled for each.
DIMS = {"float32": (1, 3, 16, 130), "float64": (5, 8)}
FORMS = ("indices", "row_ids", "row_splits", "dense")
NO_IDS = np.zeros(0, np.int64)


def attrs(**given: Any) -> dict[str, Any]:
    """All attrs of a column, by the names of the single op."""
    return {attr.name: attr.default for attr in COLUMN_ATTRS.values()} | {"boundaries": []} | given


def lookup(column: dict[str, Any]) -> Any:
    """The column by FusedEmbeddingLookup."""
    given = {**column["attrs"], **packing([column])}
    return ops.fused_embedding_lookup(**column["inputs"], **given)


def packing(columns: list[dict[str, Any]]) -> dict[str, str]:
    """The attr that an op has if a table has packed rows."""
    is_packed = any(column["attrs"]["row_format"] != PLAIN for column in columns)
    return {"Tpacked": "uint8"} if is_packed else {}


def packed(column: dict[str, Any], row_format: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same column with packed rows, and with the plain ones that these stand for."""
    table = np.asarray(column["inputs"]["table"])
    rows, dim = pack_rows(table, row_format), table.shape[1]
    plain = unpack_rows(rows, row_format, dim)
    return (
        {
            "inputs": {**column["inputs"], "table": rows},
            "attrs": {**column["attrs"], "row_format": row_format, "dim": dim},
        },
        {**column, "inputs": {**column["inputs"], "table": plain}},
    )


def grouped(columns: list[dict[str, Any]], **given: Any) -> Any:
    """The columns by one GroupedEmbeddingLookup."""
    names = {"table": "tables", "dense_shape": "dense_shapes"}
    inputs: dict[str, list[Any]] = {}
    for column in columns:
        for name, value in column["inputs"].items():
            inputs.setdefault(names.get(name, name), []).append(value)
    lists = {
        name: [column["attrs"][attr.name] for column in columns]
        for name, attr in COLUMN_ATTRS.items()
    }
    boundaries = [column["attrs"]["boundaries"] for column in columns]
    return ops.grouped_embedding_lookup(
        **inputs,
        **lists,
        boundaries=[limit for limits in boundaries for limit in limits],
        boundary_counts=[len(limits) for limits in boundaries],
        **packing(columns),
        **given,
    )


def run(column: dict[str, Any]) -> Any:
    """The column by FusedEmbeddingLookup, as an array."""
    return lookup(column).numpy()


def copied(matrix: Any) -> dict[str, Any]:
    """A column of a group that is no lookup."""
    inputs = {
        "table": matrix,
        "ids": NO_IDS,
        "entry_rows": NO_IDS,
        "dense_shape": NO_IDS,
        "weights": np.zeros(0, np.asarray(matrix).dtype),
    }
    return {"inputs": inputs, "attrs": attrs(form="copy", dim=np.asarray(matrix).shape[1])}


def draw(rng: np.random.Generator, form: str, rows: int, dtype: str = "float32") -> dict[str, Any]:
    """A random column with `rows` rows."""
    kind = DTYPES.get(dtype, dtype)
    table_rows, dim = int(rng.integers(1, 40)), int(rng.choice(DIMS.get(dtype, (5,))))
    lengths = rng.integers(0, rng.choice([2, 4, 30]), rows)
    ids_type = rng.choice(["int32", "int64"])
    entries = reference.sparse(rng, list(lengths), table_rows, ids_type, negative=0.1)
    weighted = form != "dense" and rng.random() < 0.4
    weights = entries["weights"].astype(kind)
    weights[rng.random(len(weights)) < 0.2] = 0
    rows_type = rng.choice(["int32", "int64"])
    given: dict[str, Any] = {
        "ids": entries["values"],
        "entry_rows": entries["indices"][:, 0].astype(rows_type),
        "dense_shape": entries["dense_shape"],
    }
    if form == "indices":
        given["entry_rows"] = entries["indices"]
    elif form == "row_splits":
        given["entry_rows"] = np.cumsum([0, *lengths]).astype(rows_type)
    elif form == "dense":
        width = int(rng.integers(1, 4))
        given["ids"] = rng.integers(-1, table_rows, [rows, width]).astype(ids_type)
    table = rng.standard_normal((table_rows, dim)).astype(kind)
    given |= {"table": table, "weights": weights if weighted else np.ones(0, kind)}
    return {
        "inputs": given,
        "attrs": attrs(
            form=form,
            combiner=str(rng.choice(["sum", "mean", "sqrtn"])),
            max_norm=float(rng.choice([-1.0, -1.0, 0.0, 1.5])),
            prune=True,
            fill_empty_row=bool(rng.random() < 0.8),
            default_id=int(rng.choice([-1, 0, table_rows - 1])),
            use_sparse_weights=bool(weighted),
            prune_sparse_weights=bool(weighted and rng.random() < 0.5),
            default_weight=float(rng.choice([1.0, 2.0])),
            divide_no_nan=bool(rng.random() < 0.5),
            dim=int(rng.choice([dim, -1])),
        ),
    }


def by_v2(column: dict[str, Any]) -> Any:
    """The column by the ops of the v2 family; rows are those of dense_shape."""
    given, told = column["inputs"], column["attrs"]
    fill = {key: told[key] for key in ("fill_empty_row", "default_id")}
    prune = fill | {key: told[key] for key in ("prune", "num_buckets", "bucket_default")}
    if told["form"] == "dense":
        ids = given["ids"]
        if told["boundaries"]:
            ids = tf.raw_ops.Bucketize(input=ids, boundaries=told["boundaries"])
        dense = {key: told[key] for key in ("use_ignored_id", "ignored_id", "column_stride")}
        entries = ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.int64, **prune, **dense)
        values, indices, empty, shape = entries
        weights: Any = np.ones(1, given["table"].dtype)
    else:
        rows = np.asarray(given["entry_rows"])
        if told["form"] == "row_splits":
            shape = [len(rows) - 1, 1]
            rows = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
        else:
            shape = [int(np.asarray(given["dense_shape"]).reshape(-1)[0]), 1]
            rows = rows[:, 0] if rows.ndim == 2 else rows
        is_weighted = told["use_sparse_weights"]
        keys = ("use_sparse_weights", "prune_sparse_weights", "default_weight")
        values, indices, weights, empty = ops.prune_invalid_and_fill_empty_rows(
            sp_values=given["ids"],
            sp_indices=np.stack([rows, rows], 1).astype(np.int64),
            sp_dense_shape=shape,
            sp_weights_values=given["weights"] if is_weighted else np.ones(1, given["table"].dtype),
            **prune,
            **{key: told[key] for key in keys},
        )
    unique = ops.unique_with_counts_v3(input=values)
    rest = ("combiner", "max_norm", "use_sparse_weights", "divide_no_nan")
    return ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=[tf.gather(given["table"], unique.unique_keys)],
        partition_permutation=[[0, 0]],
        sp_dense_shape=shape,
        indices_before_unique=indices,
        is_row_empty=empty,
        unique_idxs=unique.unique_idxs,
        sp_weights_values=weights,
        **fill,
        **{key: told[key] for key in rest},
    ).emb_vectors

"""`GroupedEmbeddingLookup` of columns that are given row by row, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.schema.columns import COLUMN_ATTRS


def grouped(
    tables: Sequence[Any],
    ids: Sequence[Any],
    splits: Sequence[Any],
    combiners: Sequence[str],
    packed: str = "float32",
    **own: Any,
) -> Any:
    """The columns side by side.

    Args:
        tables, ids, splits, combiners: of each column its table, its ids and where rows begin.
        packed: the type of what stored rows are made of.
        own: values of other attrs, which all columns have in common.
    """
    count = len(tables)
    lists = {name: [own.get(name, attr.default)] * count for name, attr in COLUMN_ATTRS.items()}
    lists |= {"forms": ["row_splits"] * count, "combiners": [*combiners]}
    return ops.grouped_embedding_lookup(
        tables=[*tables],
        ids=[*ids],
        entry_rows=[*splits],
        dense_shapes=[tf.zeros([1], tf.int64)] * count,
        weights=[tf.ones([1])] * count,
        boundaries=[],
        boundary_counts=[0] * count,
        Tpacked=packed,
        **lists,
    )

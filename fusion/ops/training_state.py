"""What the kernels of the training ops know of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusion.cpu_ops import column_words as layout
from fusion.ops.lookup_state import (
    LOOKUPS,
    POST,
    PRE,
    WEIGHTED_COUNT,
    lookup_state,
    put_kernels,
    split_columns,
    state_head,
)
from fusion.runtime.native.objects import address
from fusion.schema.attributes import COMBINERS
from fusion.schema.columns import GRAD_ATTRS, POST_ATTRS, PRE_ATTRS

#: What a column is without its part on one side of the gather.
_NO_ROWS: dict[str, Any] = {
    "combiner": "sum",
    "max_norm": -1.0,
    "divide_no_nan": True,
    "dim": -1,
}
_NO_IDS: dict[str, Any] = {
    "Tids": "int32",
    "Trows": "int32",
    "boundaries": (),
    "max_norm": -1.0,
    "prune": False,
    "fill_empty_row": False,
    "default_id": -1,
    "prune_sparse_weights": False,
    "default_weight": 1.0,
    "row_count": "dense_shape",
    "use_ignored_id": False,
    "ignored_id": -1,
    "column_stride": 0,
    "num_buckets": 0,
    "bucket_default": 0,
}


def pre_state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a GroupedEmbeddingPreLookUp, from its attrs.

    Raises:
      ValueError: lists of other lengths than the number of columns; attrs that do not go together.
    """
    columns = [_NO_ROWS | column for column in split_columns(values, PRE_ATTRS)]
    return lookup_state(values["T"], columns, device, PRE)


def post_state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a GroupedEmbeddingPostLookUp, from its attrs.

    Raises:
      ValueError: lists of other lengths than the number of columns.
    """
    columns = [
        _NO_IDS | column | {"form": "copy" if column["copied"] else "listed"}
        for column in split_columns(values, POST_ATTRS)
    ]
    return lookup_state(values["T"], columns, device, POST)


def grad_state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a GroupedEmbeddingPostLookUpGrad, from its attrs.

    Raises:
      ValueError: lists of other lengths than the number of columns; a combiner that there is not.
    """
    dtype = values["T"]
    columns = split_columns(values, GRAD_ATTRS)
    head = state_head(dtype, len(columns), device)
    head[LOOKUPS] = len(columns)
    words: list[int] = []
    for column in columns:
        described = [0] * layout.COLUMN_WORDS
        weighted = bool(column["use_sparse_weights"])
        head[WEIGHTED_COUNT] += int(weighted)
        described[layout.COMBINER] = COMBINERS.index(column["combiner"])
        described[layout.WEIGHTED] = int(weighted)
        described[layout.DIM] = column["dim"]
        described[layout.TOP_OFFSET] = column["offset"]
        if device == "CPU":
            put_kernels(described, _scatter_kernel(dtype, weighted), dtype, column["dim"])
        words += described
    return [*head, *words]


def _scatter_kernel(dtype: str, weighted: bool) -> Callable[[int, int], int]:
    def kernel_for(lanes: int, count: int) -> int:
        shape = f"{count}x{lanes}" if lanes else "any"
        name = f"scatter_{dtype}_{shape}{'_weighted' if weighted else ''}"

        def compile_it() -> bytes:
            from fusion.cpu_ops import scatter
            from fusion.runtime.native.compiler import compile_object

            if lanes:
                kernel = scatter.piece_kernel(dtype, lanes, count, weighted)
            else:
                kernel = scatter.any_kernel(dtype, weighted)
            return compile_object(kernel, 1, name)

        return address(name, compile_it)

    return kernel_for

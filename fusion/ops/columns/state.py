"""What the kernels of ops for whole columns know of a node: attrs as words, and code addresses."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion.cpu_ops import column_layout as layout
from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.cpu_ops.row_tiles import most_elements, tile_for
from fusion.ops.cpu.columns.layout import FULL, POST, PRE, ColumnsState
from fusion.runtime.native.objects import address
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.layout import State, double_word
from fusion.runtime.tensorflow.spec import Attr
from fusion.runtime.threads.pool import pool_address
from fusion.schema.attributes import COMBINERS
from fusion.schema.columns import (
    COLUMN_ATTRS,
    COLUMN_COMBINERS,
    DENSE_FORMS,
    GRAD_ATTRS,
    LATER_LISTS,
    POST_ATTRS,
    PRE_ATTRS,
    SUM_ORDERS,
    is_mean,
)

_FORMATS = {
    "indices": layout.INDICES,
    "row_ids": layout.ROW_IDS,
    "row_splits": layout.ROW_SPLITS,
    "dense": layout.DENSE,
    "each": layout.DENSE,
    "lengths": layout.DENSE,
    "copy": layout.COPY,
    "listed": layout.LISTED,
}


def single_state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a FusedEmbeddingLookup, from its attrs.

    Raises:
      ValueError: attrs that do not go together.
    """
    column = {attr.name: values[attr.name] for attr in COLUMN_ATTRS.values()}
    column |= {key: values[key] for key in ("Tids", "Trows", "boundaries")}
    return lookup_state(values["T"], [column], device)


def grouped_state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a GroupedEmbeddingLookup, from its attrs.

    Raises:
      ValueError: lists of other lengths than the number of columns; attrs that do not go together.
    """
    return lookup_state(values["T"], split_columns(values, COLUMN_ATTRS), device)


def split_columns(
    values: Mapping[str, Any], column_attrs: Mapping[str, Attr]
) -> list[dict[str, Any]]:
    """The attrs of each column of a group, from those of the op.

    Args:
      values: the op's attrs; with `Tids` columns have dtypes and boundaries too.
      column_attrs: attrs of a column by the name of their list.

    Raises:
      ValueError: lists of other lengths than the number of columns.
    """
    count, has_ids = values["num_columns"], "Tids" in values
    dtypes = [name for name in ("Tids", "Trows", "Tkeys") if name in values]
    values = {
        name: [column_attrs[name].default] * count if name in LATER_LISTS and not value else value
        for name, value in values.items()
    }
    for name in (*dtypes, *column_attrs, *(["boundary_counts"] if has_ids else [])):
        if len(values[name]) != count:
            raise ValueError(f"{name} has {len(values[name])} items for {count} columns")
    columns = [
        {attr.name: values[name][index] for name, attr in column_attrs.items()}
        | {key: values[key][index] for key in dtypes}
        for index in range(count)
    ]
    if has_ids:
        limits = _split_boundaries(values["boundaries"], values["boundary_counts"])
        for column, boundaries in zip(columns, limits, strict=True):
            column["boundaries"] = boundaries
    return columns


def _split_boundaries(boundaries: Sequence[float], counts: Sequence[int]) -> list[Sequence[float]]:
    ends = [0]
    for number in counts:
        if number < 0:
            raise ValueError(f"boundary_counts must not be negative, got {number}")
        ends.append(ends[-1] + number)
    if ends[-1] != len(boundaries):
        raise ValueError(f"there are {len(boundaries)} boundaries, but counts of {ends[-1]}")
    return [boundaries[first:end] for first, end in itertools.pairwise(ends)]


def lookup_state(
    dtype: str, columns: Sequence[Mapping[str, Any]], device: str, role: int = FULL
) -> list[int]:
    """The state of an op of that role on a type of device; its tables or weights are of a dtype.

    Raises:
      ValueError: attrs that do not go together.
    """
    on_cpu = device == "CPU"
    dims = [-1 if role == PRE else column["dim"] for column in columns]
    limits: list[float] = []
    words: list[int] = []
    lookups = weighted = 0
    for index, column in enumerate(columns):
        _check(index, column, dtype, role, device)
        described = _column_fields(column, len(limits))
        described[ColumnAttrs.is_rounded_once] = int(dtype == "bfloat16" and is_mean(column))
        if on_cpu and role != PRE:
            put_kernels(described, _gather_kernel(dtype, column), dtype, column["dim"])
        described[ColumnAttrs.lookup_index] = lookups
        if column["form"] != "copy":
            lookups += 1
            weighted += int(column["use_sparse_weights"])
        words += described
        limits += layout.laid_out(column["boundaries"])
    # Of each column that may have them, see `_take_table`.
    zeros = 0
    if on_cpu:
        zeros = _zero_words(dtype, max((d for d in dims if d <= layout.MOST_ZEROS), default=0))
    head = state_head(dtype, len(columns), device)
    head[ColumnsState.role] = role
    head[ColumnsState.lookup_count] = lookups
    head[ColumnsState.weighted_count] = weighted
    head[ColumnsState.boundaries_offset] = ColumnsState.columns + len(columns) * ColumnAttrs.SIZE
    packed = _packed(limits)
    head[ColumnsState.zeros_offset] = (
        head[ColumnsState.boundaries_offset] + len(packed) if zeros else 0
    )
    return [*head[State.SIZE :], *words, *packed, *[0] * zeros]


def state_head(dtype: str, columns: int, device: str) -> list[int]:
    """The first fields of a state, as far as they depend on nothing else."""
    head = [0] * ColumnsState.columns
    head[ColumnsState.column_count] = columns
    head[ColumnsState.item_bytes] = DTYPES[dtype].item_bytes
    head[ColumnsState.dtype_code] = DTYPES[dtype].code
    if device == "CPU":
        head[ColumnsState.pool] = pool_address()
    return head


def _zero_words(dtype: str, dim: int) -> int:
    return (dim * DTYPES[dtype].item_bytes + 7) // 8


def _packed(numbers: Sequence[float]) -> list[int]:
    """An even number of numbers as float32, two in a word."""
    return list(struct.unpack(f"<{len(numbers) // 2}q", struct.pack(f"<{len(numbers)}f", *numbers)))


def _check(index: int, column: Mapping[str, Any], dtype: str, role: int, device: str) -> None:
    """Refuses attrs that make no sense together.

    Raises:
      ValueError: with the column and the attr.
    """
    form = column["form"]
    problem = ""
    if form == "copy":
        return
    if column["Tids"].startswith("float") and not column["boundaries"]:
        problem = f"ids of dtype {column['Tids']} need boundaries"
    elif form == "indices" and column["Trows"] != "int64":
        problem = f"entry_rows of form indices must be int64, not {column['Trows']}"
    elif column["row_count"] == "last_row" and form not in ("indices", "row_ids"):
        problem = f"row_count last_row does not go with form {form}"
    elif form in DENSE_FORMS and column["use_sparse_weights"] and column["sum_order"] != "axis":
        problem = f"form {form} has no weights, but with sum_order axis"
    elif form not in DENSE_FORMS and (
        column["boundaries"] or column["column_stride"] or column["use_ignored_id"]
    ):
        problem = f"boundaries, column_stride and use_ignored_id do not go with form {form}"
    elif list(column["boundaries"]) != sorted(column["boundaries"]):
        problem = f"boundaries must be ascending, got {list(column['boundaries'])}"
    problem = problem or _order_problem(column, dtype, role, device)
    if problem:
        raise ValueError(f"column {index}: {problem}")


_FORMS_OF_ORDERS = {
    "axis": ("dense", "lengths"),
    "sequence": ("row_splits",),
    "dense_segment": ("row_ids",),
}
"""The forms of ids that rows are added of in each order but the first."""


def _order_problem(column: Mapping[str, Any], dtype: str, role: int, device: str) -> str:
    """Says what attrs do not go with an order of sums, "" if all do."""
    form, order = column["form"], column["sum_order"]
    if order != "axis" and form == "lengths":
        return "form lengths needs sum_order axis"
    of_axis = ("mask_product", "mask_penalty", "divisor_epsilon", "epsilon_input")
    masks = [name for name in of_axis if column[name]]
    if order != "axis" and masks:
        return f"{' and '.join(masks)} needs sum_order axis"
    if order == "segment":
        is_max = column["combiner"] == "max"
        return "combiner max needs sum_order axis or sequence" if is_max else ""
    if role != FULL or device != "CPU":
        return f"sum_order {order} has no kernel {'there' if role != FULL else f'on a {device}'}"
    if form not in _FORMS_OF_ORDERS[order]:
        return f"sum_order {order} does not go with form {form}"
    if order == "dense_segment":
        wrong = [f"combiner {name}" for name in ("sqrtn", "max") if column["combiner"] == name]
        wrong += ["row_count dense_shape"] if column["row_count"] != "last_row" else []
        if wrong:
            return f"sum_order {order} does not go with {' and '.join(wrong)}"
    return _unfit(column, is_half=DTYPES[dtype].is_widened)


def _unfit(column: Mapping[str, Any], *, is_half: bool) -> str:
    """Says what attrs do not go with sums in the order of dense ones, "" if all do."""
    form, is_axis = column["form"], column["sum_order"] == "axis"
    if is_axis and not 0 <= column["dim"] <= layout.MOST_ZEROS:
        return f"sum_order axis needs a dim in [0, {layout.MOST_ZEROS}], not {column['dim']}"
    names = ("prune", "prune_sparse_weights", "boundaries", "num_buckets", "column_stride")
    wrong = [name for name in names if column[name]]
    if column["max_norm"] >= 0:
        wrong.append("max_norm")
    if column["fill_empty_row"] and column["default_id"] >= 0:
        wrong.append("default_id")
    if column["use_sparse_weights"] and (column["use_ignored_id"] or form == "lengths"):
        wrong.append("use_sparse_weights beside other masks")
    if column["epsilon_input"] and (column["use_sparse_weights"] or column["divisor_epsilon"]):
        wrong.append("epsilon_input beside use_sparse_weights or divisor_epsilon")
    if column["mask_penalty"] and (column["use_sparse_weights"] or column["mask_product"]):
        wrong.append("mask_penalty beside products")
    order = column["sum_order"]
    if column["use_sparse_weights"] and not is_axis:
        is_wrong = order == "dense_segment" or column["combiner"] == "max" or is_half
        wrong += ["use_sparse_weights"] if is_wrong else []
    return f"sum_order {order} does not go with {', '.join(wrong)}" if wrong else ""


def _column_fields(column: Mapping[str, Any], first_limit: int) -> list[int]:
    words = [0] * ColumnAttrs.SIZE
    words[ColumnAttrs.id_format] = _FORMATS[column["form"]]
    words[ColumnAttrs.is_each] = int(column["form"] == "each")
    words[ColumnAttrs.combiner] = COLUMN_COMBINERS.index(column["combiner"])
    words[ColumnAttrs.max_norm] = double_word(column["max_norm"])
    words[ColumnAttrs.prune] = int(column["prune"])
    words[ColumnAttrs.fill_empty_row] = int(column["fill_empty_row"])
    words[ColumnAttrs.default_id] = column["default_id"]
    words[ColumnAttrs.use_sparse_weights] = int(column["use_sparse_weights"])
    words[ColumnAttrs.prune_sparse_weights] = int(column["prune_sparse_weights"])
    words[ColumnAttrs.default_weight] = double_word(column["default_weight"])
    words[ColumnAttrs.divide_no_nan] = int(column["divide_no_nan"])
    words[ColumnAttrs.ends_at_last_row] = int(column["row_count"] == "last_row")
    words[ColumnAttrs.use_ignored_id] = int(column["use_ignored_id"])
    words[ColumnAttrs.ignored_id] = column["ignored_id"]
    words[ColumnAttrs.column_stride] = column["column_stride"]
    words[ColumnAttrs.num_buckets] = column["num_buckets"]
    words[ColumnAttrs.bucket_default] = column["bucket_default"]
    words[ColumnAttrs.wrap_negative] = int(column["wrap_negative"])
    words[ColumnAttrs.has_lengths] = int(column["form"] == "lengths")
    words[ColumnAttrs.sum_order] = SUM_ORDERS.index(column["sum_order"])
    words[ColumnAttrs.mask_product] = int(column["mask_product"])
    words[ColumnAttrs.mask_penalty] = double_word(column["mask_penalty"])
    words[ColumnAttrs.divisor_epsilon] = double_word(column["divisor_epsilon"])
    words[ColumnAttrs.epsilon_input] = int(column["epsilon_input"])
    words[ColumnAttrs.dim] = column["dim"]
    words[ColumnAttrs.ids_dtype] = DTYPES[column["Tids"]].code
    words[ColumnAttrs.rows_dtype] = DTYPES[column["Trows"]].code
    words[ColumnAttrs.keys_dtype] = DTYPES[column.get("Tkeys", "int64")].code
    words[ColumnAttrs.sort_key] = int(column.get("sort_key", False))
    words[ColumnAttrs.first_boundary] = first_limit
    words[ColumnAttrs.boundary_count] = len(column["boundaries"])
    return words


def put_kernels(
    words: list[int], kernel_for: Callable[[int, int], int], dtype: str, dim: int
) -> None:
    """Puts the addresses of kernels for rows of `dim` elements among a column's words.

    Args:
      kernel_for: (lanes, count) -> the address of the kernel for such tiles; for (0, 0) of that
        for any number of elements.
    """
    if dim <= 0:
        words[ColumnAttrs.tail_kernel] = kernel_for(0, 0)
        return
    most = most_elements(dtype)
    words[ColumnAttrs.tail_kernel] = kernel_for(*tile_for(dtype, (dim - 1) % most + 1))
    if dim > most:
        words[ColumnAttrs.tile_kernel] = kernel_for(*tile_for(dtype, most))
        words[ColumnAttrs.tile_width] = most


def _gather_kernel(dtype: str, column: Mapping[str, Any]) -> Callable[[int, int], int]:
    is_copy = column["form"] == "copy"
    weighted = bool(column["use_sparse_weights"]) and not is_copy
    clipped = column["max_norm"] >= 0 and not is_copy
    order = 0 if is_copy else SUM_ORDERS.index(column["sum_order"])
    if order != layout.SEGMENT:
        return _stock_kernel(dtype, column, order)
    extras = ("_weighted" if weighted else "") + ("_clipped" if clipped else "")

    def kernel_for(lanes: int, count: int) -> int:
        name = f"gather_{dtype}_{f'{count}x{lanes}' if lanes else 'any'}{extras}"

        def compile_it() -> bytes:
            from fusion.cpu_ops import gather
            from fusion.runtime.native.compiler import compile_object

            if lanes:
                kernel = gather.tile_kernel(dtype, lanes, count, weighted, clipped)
            else:
                kernel = gather.any_kernel(dtype, weighted, clipped)
            return compile_object(kernel, 1, name)

        return address(name, compile_it)

    return kernel_for


def _stock_kernel(dtype: str, column: Mapping[str, Any], order: int) -> Callable[[int, int], int]:
    terms, takes_max = "", column["combiner"] == "max"
    if column["use_sparse_weights"] or column["mask_product"]:
        terms = "_weighted"
    elif column["mask_penalty"]:
        terms = "_less"

    extras = f"{terms}{'_max' if takes_max else ''}_{SUM_ORDERS[order]}"

    def kernel_for(lanes: int, count: int) -> int:
        name = f"gather_{dtype}_{f'{count}x{lanes}' if lanes else 'any'}{extras}"

        def compile_it() -> bytes:
            from fusion.cpu_ops.dense import kernels
            from fusion.runtime.native.compiler import compile_object

            kinds = {"": kernels.PLAIN, "_weighted": kernels.TIMES, "_less": kernels.LESS}
            how = kinds[terms], order, takes_max
            if lanes:
                kernel = kernels.tile_kernel(dtype, lanes, count, *how)
            else:
                kernel = kernels.any_kernel(dtype, *how)
            return compile_object(kernel, 1, name)

        return address(name, compile_it)

    return kernel_for


#: What an op on one side of the gather does nothing of.
_LATER = {COLUMN_ATTRS[name].name: COLUMN_ATTRS[name].default for name in LATER_LISTS}

#: What a column is without its part on one side of the gather.
_NO_ROWS: dict[str, Any] = {
    "combiner": "sum",
    "max_norm": -1.0,
    "divide_no_nan": True,
    "dim": -1,
    **_LATER,
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
    **_LATER,
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
    head[ColumnsState.lookup_count] = len(columns)
    words: list[int] = []
    for column in columns:
        described = [0] * ColumnAttrs.SIZE
        weighted = bool(column["use_sparse_weights"])
        head[ColumnsState.weighted_count] += int(weighted)
        described[ColumnAttrs.combiner] = COMBINERS.index(column["combiner"])
        described[ColumnAttrs.use_sparse_weights] = int(weighted)
        described[ColumnAttrs.dim] = column["dim"]
        described[ColumnAttrs.top_grad_offset] = column["offset"]
        if device == "CPU":
            put_kernels(described, _scatter_kernel(dtype, weighted), dtype, column["dim"])
        words += described
    return [*head[State.SIZE :], *words]


def _scatter_kernel(dtype: str, weighted: bool) -> Callable[[int, int], int]:
    def kernel_for(lanes: int, count: int) -> int:
        shape = f"{count}x{lanes}" if lanes else "any"
        name = f"scatter_{dtype}_{shape}{'_weighted' if weighted else ''}"

        def compile_it() -> bytes:
            from fusion.cpu_ops import scatter
            from fusion.runtime.native.compiler import compile_object

            if lanes:
                kernel = scatter.tile_kernel(dtype, lanes, count, weighted)
            else:
                kernel = scatter.any_kernel(dtype, weighted)
            return compile_object(kernel, 1, name)

        return address(name, compile_it)

    return kernel_for

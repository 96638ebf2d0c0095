"""What the kernel of the inference ops knows of a node: its attrs as words, and code addresses."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from fusion.cpu_ops import column_words as layout
from fusion.cpu_ops.pieces import ITEM_BYTES, most_elements, piece_for
from fusion.ops.common import COMBINERS
from fusion.runtime.registration import code_address, double_word
from fusion.runtime.threads import pool_address

#: The body of a kernel's state, by word: the number of columns; bytes and kind of an element of
#: the tables; the pool of threads, 0 for none; the places of the boundaries and of a row of zeros
#: in the state, the latter 0 if there is none; whether to ask for large pages. Columns follow,
#: then boundaries as float32, then zeros.
(COUNT, ITEM, KIND, POOL, LIMITS_AT, ZEROS_AT, LARGE_PAGES, COLUMNS) = range(8)

#: "0" leaves the pages of tables and results as they are.
LARGE_PAGES_VARIABLE = "FUSION_LARGE_PAGES"
#: So many tables of a column, one after the other, are noted for large pages.
_NOTES = 4

#: Words before the body: the addresses of the kernel and of the op's table.
BODY = 2

#: Rows with more elements have no row of zeros to stand for them.
_MOST_ZEROS = 4096


def single_state(values: Mapping[str, Any]) -> list[int]:
    """The state of a FusedEmbeddingLookup, from its attrs.

    Raises:
      ValueError: attrs that do not go together.
    """
    from fusion.ops.lookup import COLUMN_ATTRS

    column = {attr.name: values[attr.name] for attr in COLUMN_ATTRS.values()}
    column |= {key: values[key] for key in ("Tids", "Trows", "boundaries")}
    return _state(values["T"], [column])


def grouped_state(values: Mapping[str, Any]) -> list[int]:
    """The state of a GroupedEmbeddingLookup, from its attrs.

    Raises:
      ValueError: lists of other lengths than the number of columns; attrs that do not go together.
    """
    from fusion.ops.lookup import COLUMN_ATTRS

    count = values["num_columns"]
    for name in ("Tids", "Trows", *COLUMN_ATTRS, "boundary_counts"):
        if len(values[name]) != count:
            raise ValueError(f"{name} has {len(values[name])} items for {count} columns")
    ends = [0]
    for number in values["boundary_counts"]:
        if number < 0:
            raise ValueError(f"boundary_counts must not be negative, got {number}")
        ends.append(ends[-1] + number)
    if ends[-1] != len(values["boundaries"]):
        raise ValueError(
            f"there are {len(values['boundaries'])} boundaries, but counts of {ends[-1]}"
        )
    columns = []
    for place in range(count):
        column = {attr.name: values[name][place] for name, attr in COLUMN_ATTRS.items()}
        column |= {key: values[key][place] for key in ("Tids", "Trows")}
        column["boundaries"] = values["boundaries"][ends[place] : ends[place + 1]]
        columns.append(column)
    return _state(values["T"], columns)


def _state(dtype: str, columns: Sequence[Mapping[str, Any]]) -> list[int]:
    for place, column in enumerate(columns):
        _check(place, column)
    dims = [column["dim"] for column in columns]
    limits: list[float] = []
    words: list[int] = []
    for column in columns:
        words += _column_words(dtype, column, len(limits))
        limits += layout.laid_out(column["boundaries"])
    item = ITEM_BYTES[dtype]
    zeros = 0 if min(dims) < 0 or max(dims) > _MOST_ZEROS else (max(dims) * item + 7) // 8
    kinds = ("int32", "int64", "float32", "float64", "float16", "bfloat16")
    head = [0] * COLUMNS
    head[COUNT], head[ITEM], head[KIND] = len(columns), item, kinds.index(dtype)
    head[POOL], head[LARGE_PAGES] = pool_address(), int(_wants_large_pages())
    head[LIMITS_AT] = BODY + COLUMNS + len(columns) * layout.COLUMN_WORDS
    packed = _packed(limits)
    head[ZEROS_AT] = head[LIMITS_AT] + len(packed) if zeros else 0
    return [*head, *words, *packed, *[0] * zeros]


def _packed(numbers: Sequence[float]) -> list[int]:
    """An even number of numbers as float32, two in a word."""
    return list(struct.unpack(f"<{len(numbers) // 2}q", struct.pack(f"<{len(numbers)}f", *numbers)))


def _wants_large_pages() -> bool:
    return os.environ.get(LARGE_PAGES_VARIABLE) != "0"


def _check(place: int, column: Mapping[str, Any]) -> None:
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
    elif form == "dense" and column["use_sparse_weights"]:
        problem = "form dense has no weights"
    elif form != "dense" and (
        column["boundaries"] or column["column_stride"] or column["use_ignored_id"]
    ):
        problem = f"boundaries, column_stride and use_ignored_id do not go with form {form}"
    elif list(column["boundaries"]) != sorted(column["boundaries"]):
        problem = f"boundaries must be ascending, got {list(column['boundaries'])}"
    if problem:
        raise ValueError(f"column {place}: {problem}")


def _column_words(dtype: str, column: Mapping[str, Any], first_limit: int) -> list[int]:
    from fusion.ops.lookup import GROUP_FORMS

    kinds = ("int32", "int64", "float32", "float64")
    is_copy = column["form"] == "copy"
    words = [0] * layout.COLUMN_WORDS
    words[layout.FORM] = GROUP_FORMS.index(column["form"])
    words[layout.COMBINER] = COMBINERS.index(column["combiner"])
    words[layout.MAX_NORM] = double_word(column["max_norm"])
    words[layout.PRUNE] = int(column["prune"])
    words[layout.FILL] = int(column["fill_empty_row"])
    words[layout.DEFAULT_ID] = column["default_id"]
    words[layout.WEIGHTED] = int(column["use_sparse_weights"])
    words[layout.PRUNE_WEIGHTS] = int(column["prune_sparse_weights"])
    words[layout.DEFAULT_WEIGHT] = double_word(column["default_weight"])
    words[layout.NO_NAN] = int(column["divide_no_nan"])
    words[layout.ROW_COUNT] = int(column["row_count"] == "last_row")
    words[layout.USE_IGNORED] = int(column["use_ignored_id"])
    words[layout.IGNORED] = column["ignored_id"]
    words[layout.STRIDE] = column["column_stride"]
    words[layout.BUCKETS] = column["num_buckets"]
    words[layout.BUCKET_DEFAULT] = column["bucket_default"]
    words[layout.DIM] = column["dim"]
    words[layout.IDS_KIND] = kinds.index(column["Tids"])
    words[layout.ROWS_KIND] = kinds.index(column["Trows"])
    words[layout.BOUNDARIES] = first_limit
    words[layout.BOUNDARY_COUNT] = len(column["boundaries"])
    weighted = bool(column["use_sparse_weights"]) and not is_copy
    clipped = column["max_norm"] >= 0 and not is_copy
    kernels = _kernels(dtype, column["dim"], weighted, clipped)
    words[layout.REST], words[layout.WHOLE], words[layout.PIECE] = kernels
    words[layout.NOTES_LEFT] = _NOTES if _wants_large_pages() else 0
    return words


def _kernels(dtype: str, dim: int, weighted: bool, clipped: bool) -> tuple[int, int, int]:
    """The addresses of kernels for rows of `dim` elements, and what the second takes at once."""
    if dim <= 0:
        return _kernel(dtype, 0, 0, weighted, clipped), 0, 0
    piece = most_elements(dtype)
    rest = _kernel(dtype, *piece_for(dtype, (dim - 1) % piece + 1), weighted, clipped)
    if dim <= piece:
        return rest, 0, 0
    whole = piece_for(dtype, piece)
    return rest, _kernel(dtype, *whole, weighted, clipped), piece


def _kernel(dtype: str, lanes: int, count: int, weighted: bool, clipped: bool) -> int:
    """The address of a kernel for a piece; of that for any number of elements if `lanes` is 0."""
    extras = ("_weighted" if weighted else "") + ("_clipped" if clipped else "")
    name = f"gather_{dtype}_{f'{count}x{lanes}' if lanes else 'any'}{extras}"

    def compile_it() -> bytes:
        from fusion.cpu_ops import gather
        from fusion.runtime.compiler import compile_object

        if lanes:
            kernel = gather.piece_kernel(dtype, lanes, count, weighted, clipped)
        else:
            kernel = gather.any_kernel(dtype, weighted, clipped)
        return compile_object(kernel, 1, name)

    return code_address(name, compile_it)

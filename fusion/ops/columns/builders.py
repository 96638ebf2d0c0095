"""The builders of the states of the ops for whole columns, and what they need to know."""

from __future__ import annotations

import inspect

from fusion.cpu_ops.row_tiles import tiles
from fusion.ops.cpu.columns.kernel_indices import FIRST_FLOAT, MOST_TILES
from fusion.ops.cpu.columns.layout import (
    FULL,
    GRAD,
    POST,
    PRE,
    ColumnsConstants,
    GivenColumn,
    Source,
    Tile,
)
from fusion.ops.row_kernels import GATHERS, SCATTERS
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS, INT32, INT64
from fusion.runtime.tensorflow.layout import double_word
from fusion.runtime.tensorflow.spec import Attr, Builder, Constants, OpSpec
from fusion.schema.columns import COLUMN_ATTRS, GRAD_ATTRS, POST_ATTRS, PRE_ATTRS

#: What a column is where its op has no attr for it.
_DEFAULTS = {
    "max_norm": double_word(-1.0),
    "default_id": -1,
    "default_weight": double_word(1.0),
    "divide_no_nan": 1,
    "ignored_id": -1,
    "dim": -1,
    "Tids": INT32,
    "Trows": INT32,
    "Tkeys": INT64,
}


def columns_constants(role: int, lists: dict[str, Attr]) -> Constants:
    """The words of `ColumnsConstants` for ops of a role.

    Args:
      lists: attrs of a column by the name of their list.
    """

    def words(spec: OpSpec, device: str, access: object) -> list[Word]:
        del device, access
        result: list[Word] = [0] * ColumnsConstants.SIZE
        result[ColumnsConstants.role] = role
        attrs = [attr.name for attr in spec.attrs]
        for field, name in (
            (ColumnsConstants.dtype_attr, "T"),
            (ColumnsConstants.count_attr, "num_columns"),
            (ColumnsConstants.boundaries_attr, "boundaries"),
            (ColumnsConstants.boundary_counts_attr, "boundary_counts"),
            (ColumnsConstants.num_others_attr, "num_others"),
            (ColumnsConstants.output_columns_attr, "output_columns"),
        ):
            result[field] = attrs.index(name) if name in attrs else -1
        list_of = {attr.name: name for name, attr in lists.items()}
        for index, name in enumerate(inspect.get_annotations(GivenColumn)):
            start = ColumnsConstants.sources + Source.SIZE * index
            result[start : start + Source.SIZE] = _source(
                spec, attrs, name, list_of.get(name, name)
            )
        for code in range(FIRST_FLOAT, FIRST_FLOAT + len(FLOATS)):
            _put_tiles(result, code)
        return result

    return words


def _source(spec: OpSpec, attrs: list[str], name: str, list_name: str) -> list[int]:
    """The words of a `Source`."""
    words = [0] * Source.SIZE
    found = list_name if list_name in attrs else name
    words[Source.default] = _DEFAULTS.get(name, 0)
    words[Source.attr] = attrs.index(found) if found in attrs else -1
    if found in attrs:
        attr = spec.attrs[attrs.index(found)]
        words[Source.is_list] = int(attr.is_list)
        words[Source.is_dtype] = int(attr.element == "type")
    return words


def _put_tiles(words: list[int], code: int) -> None:
    (dtype,) = (dtype.name for dtype in DTYPES.values() if dtype.code == code)
    shapes, index = tiles(dtype), code - FIRST_FLOAT
    words[ColumnsConstants.tile_counts + index] = len(shapes)
    for k, (lanes, vectors) in enumerate(shapes):
        tile = ColumnsConstants.tiles + (index * MOST_TILES + k) * Tile.SIZE
        words[tile + Tile.lanes], words[tile + Tile.vectors] = lanes, vectors


_NAME, _MODULE = "build_columns_state", "fusion.ops.cpu.columns.states"

LOOKUP = Builder(_NAME, _MODULE, columns_constants(FULL, COLUMN_ATTRS), GATHERS)
PRE_LOOKUP = Builder(_NAME, _MODULE, columns_constants(PRE, PRE_ATTRS))
POST_LOOKUP = Builder(_NAME, _MODULE, columns_constants(POST, POST_ATTRS), GATHERS)
POST_LOOKUP_GRAD = Builder(_NAME, _MODULE, columns_constants(GRAD, GRAD_ATTRS), SCATTERS)

"""The builder of the states of ops for whole columns."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import LESS, LIMIT_BLOCK, PLAIN, TIMES, ColumnAttrs
from fusion.cpu_ops.kernel_indices import (
    FIRST_FLOAT,
    GATHER_VARIANTS,
    MAX_TILES,
    SCATTER_VARIANTS,
    ordered,
    shape_index,
    table_code,
)
from fusion.ops.columns.cpu.column_checks import (
    check_column,
    is_copy,
    is_dense,
    is_each,
    is_lengths,
    is_mean,
)
from fusion.ops.columns.cpu.layout import (
    FULL,
    GRAD,
    POST,
    PRE,
    ColumnsConstants,
    ColumnsState,
    NodeColumn,
    Tile,
)
from fusion.ops.columns.cpu.node_columns import (
    check_lists,
    columns_of_output,
    limit_count,
    output_count,
    read_column,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load, load_as, store, store_as
from fusion.runtime.native.pointers import address_of, as_record, stack_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.states import (
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    give_up,
    may_have_row_kernel,
    pool_of,
    row_kernel,
)
from fusion.runtime.tensorflow.dtypes import BFLOAT16, DTYPES
from fusion.schema.columns import MAX_ZEROS, Column
from fusion.schema.row_formats import PACKED_BITS, WORD_BITS

_shape_index, _table_code, _ordered = jit(shape_index), jit(table_code), jit(ordered)
_BFLOAT16 = BFLOAT16
_SEGMENT = column_layout.SEGMENT

#: `NodeColumn` and `ColumnAttrs` begin with those of a column.
_FIELDS = len(fields(Column))

#: (code, number of TF_DataType, bytes of an element).
_DTYPES = tuple((d.code, d.enum, d.item_bytes) for d in DTYPES.values() if d.code >= 0)

#: (index of a row format, bits in front of elements, those of an element).
_PACKED = tuple((index, *bits) for index, bits in enumerate(PACKED_BITS.values(), 1))


def build_columns_state(creation: Creation) -> None:
    """The builder, see `creation`."""
    constants = as_record(ColumnsConstants, constants_of(creation))
    if constants != 0:
        columns_state(creation, constants, int64(0))


@jit
def columns_state(creation: Creation, constants: ColumnsConstants, more: int) -> int:
    """Builds a state with so many words more, at `ColumnsState.keyed_offset`; 0 if it cannot be."""
    count_attr, boundaries = constants.count_attr, constants.boundaries_attr
    count = attr_word(creation, count_attr) if count_attr >= 0 else int64(1)
    check_lists(creation, constants, count)
    if creation.has_failed != 0:
        return int64(0)
    limits = int64(0)
    if boundaries >= 0:
        for column in range(count):
            limits += _laid_out_count(limit_count(creation, constants, column))
    dtype = _code_of(attr_word(creation, constants.dtype_attr))
    zeros = _zero_words(creation, constants, count, dtype)
    columns_end = ColumnsState.columns + count * ColumnAttrs.SIZE
    end = columns_end + limits // 2 + zeros
    address = as_record(ColumnsState, begin_state(creation, end + more))
    if address == 0:
        return int64(0)
    state = address
    _put_head(creation, constants, state, count, dtype)
    state.boundaries_offset = columns_end
    if zeros != 0:
        state.zeros_offset = columns_end + limits // 2
    if more != 0:
        state.keyed_offset = end
    _put_columns(creation, constants, state, count)
    if creation.has_failed != 0:
        give_up(creation)
        return int64(0)
    return address


@jit
def _put_head(
    creation: Creation, constants: ColumnsConstants, state: ColumnsState, count: int, dtype: int
) -> None:
    role = constants.role
    state.column_count = count
    state.output_count = output_count(creation, constants)
    state.item_bytes = _item_bytes(dtype)
    state.dtype_code = dtype
    state.role = role if role != GRAD else int64(FULL)
    if creation.record.is_for_gpu == 0:
        state.pool = pool_of(creation)


@jit
def _put_columns(
    creation: Creation, constants: ColumnsConstants, state: ColumnsState, count: int
) -> None:
    """Writes the columns of a state, and all boundaries."""
    node_column = stack_record(NodeColumn)
    role, dtype = constants.role, state.dtype_code
    on_gpu = creation.record.is_for_gpu
    lookups, weighted = int64(0), int64(0)
    first_boundary, item = int64(0), int64(0)
    output, output_end = int64(0), columns_of_output(creation, constants, int64(0), count)
    limits = address_of(state) + 8 * state.boundaries_offset
    for index in range(count):
        read_column(creation, constants, index, node_column)
        boundaries = limit_count(creation, constants, index)
        node_column.T = dtype
        node_column.role = role
        node_column.boundaries = boundaries
        node_column.on_gpu = on_gpu
        if role != GRAD:
            check_column(creation, constants, index, node_column, first_boundary)
        if creation.has_failed != 0:
            return
        column = state.columns[index]
        _put_column(node_column, column, role)
        if index == output_end:
            output += 1
            output_end += columns_of_output(creation, constants, output, count)
        column.output = output
        column.first_boundary = item
        column.boundary_count = boundaries
        is_mean_of_halves = dtype == _BFLOAT16 and role == FULL and is_mean(node_column)
        column.is_rounded_once = int64(is_mean_of_halves)
        _put_kernels(creation, constants, node_column, column, dtype)
        column.lookup_index = lookups
        if not is_copy(node_column, role):
            lookups += 1
            weighted += node_column.use_sparse_weights
        _lay_out(creation, constants, first_boundary, boundaries, limits + 4 * item)
        item += _laid_out_count(boundaries)
        first_boundary += boundaries
    state.lookup_count = lookups
    state.weighted_count = weighted


@jit
def _put_column(node_column: NodeColumn, column: ColumnAttrs, role: int) -> None:
    """Writes the attrs of a column for kernels."""
    id_format = node_column.form
    if role == POST:
        id_format = int64(column_layout.LISTED)
        if node_column.copied != 0:
            id_format = int64(column_layout.COPY)
    elif is_dense(node_column):
        id_format = int64(column_layout.DENSE)
    elif is_copy(node_column, role):
        id_format = int64(column_layout.COPY)
    for field in range(_FIELDS):
        store(column, field, load(node_column, field))
    column.id_format = id_format
    column.is_each = int64(role != POST and is_each(node_column))
    column.has_lengths = int64(role != POST and is_lengths(node_column))
    column.row_words = _row_words(node_column)
    column.ids_dtype = node_column.Tids
    column.rows_dtype = node_column.Trows
    column.keys_dtype = node_column.Tkeys
    column.sort_key = node_column.sort_key
    column.top_grad_offset = node_column.offset


@jit
def _put_kernels(
    creation: Creation,
    constants: ColumnsConstants,
    node_column: NodeColumn,
    column: ColumnAttrs,
    dtype: int,
) -> None:
    """Writes the addresses of the kernels for rows of a column's dimension, on a CPU."""
    role, dim = constants.role, node_column.dim
    if role == PRE or creation.record.is_for_gpu != 0:
        return
    if role == GRAD:
        variants, variant = int64(SCATTER_VARIANTS), node_column.use_sparse_weights
    else:
        variants, variant = int64(GATHER_VARIANTS), _gather_variant(node_column, role)
    code = dtype - FIRST_FLOAT
    tiles = as_record(Tile, address_of(constants.tiles[code * MAX_TILES]))
    count = constants.tile_counts[code]
    last = tiles[count - 1]
    max_width = last.lanes * last.vectors
    table = _table_code(dtype, node_column.row_format)
    tail = _shape_index(table, _tile_for(tiles, count, max(dim - 1, int64(0)) % max_width + 1))
    whole = _shape_index(table, _tile_for(tiles, count, max_width))
    tail, whole = tail * variants + variant, whole * variants + variant
    is_there = may_have_row_kernel(creation, tail) and (
        dim <= max_width or may_have_row_kernel(creation, whole)
    )
    if dim <= 0 or not is_there:
        index = _shape_index(table, int64(0)) * variants + variant
        column.tail_kernel = row_kernel(creation, index)
        return
    column.tail_kernel = row_kernel(creation, tail)
    if dim > max_width:
        column.tile_kernel = row_kernel(creation, whole)
        column.tile_width = max_width


@jit
def _tile_for(tiles: Tile, count: int, elements: int) -> int:
    """The number of the tile for so many elements."""
    for k in range(count):
        tile = tiles[k]
        fits = elements <= tile.lanes * tile.vectors
        if tile.vectors == 1:
            fits = elements == tile.lanes
        if fits:
            return int64(k + 1)
    return count


@jit
def _gather_variant(node_column: NodeColumn, role: int) -> int:
    copies, order = is_copy(node_column, role), node_column.sum_order
    weighted = node_column.use_sparse_weights
    if copies or order == _SEGMENT:
        if copies:
            return int64(0)
        return weighted + 2 * int64(node_column.max_norm >= 0.0)
    terms = int64(PLAIN)
    if weighted != 0 or node_column.mask_product != 0:
        terms = int64(TIMES)
    elif node_column.mask_penalty != 0.0:
        terms = int64(LESS)
    return _ordered(order, terms, int64(node_column.combiner == _MAX))


#: The index of "max" among combiners.
_MAX = 3


@jit
def _code_of(number: int) -> int:
    """The code of a dtype."""
    for code, enum, _ in _DTYPES:
        if enum == number:
            return int64(code)
    return int64(-1)


@jit
def _item_bytes(dtype: int) -> int:
    for code, _, item in _DTYPES:
        if code == dtype:
            return int64(item)
    return int64(0)


@jit
def _zero_words(creation: Creation, constants: ColumnsConstants, count: int, dtype: int) -> int:
    """The words of a row of zeros, as long as the longest row that it is for."""
    role = constants.role
    if role == GRAD or creation.record.is_for_gpu != 0:
        return int64(0)
    node_column, max_bytes = stack_record(NodeColumn), int64(0)
    if role != PRE:
        for index in range(count):
            read_column(creation, constants, index, node_column)
            dim = node_column.dim
            if dim <= MAX_ZEROS:
                max_bytes = max(
                    max_bytes, dim * _item_bytes(dtype), _row_words(node_column) * (WORD_BITS // 8)
                )
    return (max_bytes + 7) // 8


@jit
def _row_words(node_column: NodeColumn) -> int:
    """The words of a packed row, see `row_formats.packed_words`; 0 of plain ones."""
    for row_format, header, item in _PACKED:
        if node_column.row_format == row_format:
            bits = header + item * node_column.dim
            return (bits + WORD_BITS - 1) // WORD_BITS
    return int64(0)


@jit
def _laid_out_count(boundaries: int) -> int:
    """The numbers that so many boundaries are in memory, see `column_layout.LIMIT_BLOCK`."""
    blocks = (boundaries + LIMIT_BLOCK - 1) // LIMIT_BLOCK
    return blocks * (LIMIT_BLOCK + 1) + LIMIT_BLOCK + blocks % 2 if blocks else int64(0)


@jit
def _lay_out(
    creation: Creation, constants: ColumnsConstants, first: int, count: int, out: int
) -> None:
    """Writes boundaries as `column_layout.LIMIT_BLOCK` says."""
    blocks = (count + LIMIT_BLOCK - 1) // LIMIT_BLOCK
    attr = constants.boundaries_attr
    for k in range(_laid_out_count(count)):
        store_as(out, k, np.float32(np.inf), np.float32)
    for k in range(count):
        number = np.float32(as_float(attr_item(creation, attr, first + k)))
        store_as(out, k, number, np.float32)
    for block in range(blocks):
        largest = load_as(out, (block + 1) * LIMIT_BLOCK - 1, np.float32)
        store_as(out, blocks * LIMIT_BLOCK + block, largest, np.float32)

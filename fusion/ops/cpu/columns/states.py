"""The builder of the states of ops for whole columns."""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import LESS, LIMIT_BLOCK, PLAIN, TIMES, ColumnAttrs
from fusion.ops.cpu.columns.column_checks import (
    check_column,
    is_copy,
    is_dense,
    is_each,
    is_lengths,
    is_mean,
)
from fusion.ops.cpu.columns.given_columns import (
    check_lists,
    columns_of_output,
    limit_count,
    output_count,
    read_column,
)
from fusion.ops.cpu.columns.kernel_indices import (
    FIRST_FLOAT,
    GATHER_VARIANTS,
    MOST_TILES,
    SCATTER_VARIANTS,
    ordered,
    shape_index,
    table_code,
)
from fusion.ops.cpu.columns.layout import (
    FULL,
    GRAD,
    POST,
    PRE,
    ColumnsConstants,
    ColumnsState,
    GivenColumn,
    Tile,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load, load_as, stack_words, store, store_as
from fusion.runtime.registration.creation import Creation, KernelsRecord
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
from fusion.schema.row_formats import PACKED_BITS, WORD_BITS

_shape_index, _table_code, _ordered = jit(shape_index), jit(table_code), jit(ordered)
_BFLOAT16 = BFLOAT16
_SEGMENT = column_layout.SEGMENT
_MOST_ZEROS = column_layout.MOST_ZEROS

#: (code, number of TF_DataType, bytes of an element).
_DTYPES = tuple((d.code, d.enum, d.item_bytes) for d in DTYPES.values() if d.code >= 0)

#: (index of a row format, bits in front of elements, those of an element).
_PACKED = tuple((index, *bits) for index, bits in enumerate(PACKED_BITS.values(), 1))


def build_columns_state(creation: int) -> None:
    """The builder, see `creation`."""
    constants = constants_of(creation)
    if constants != 0:
        columns_state(creation, constants, int64(0))


@jit
def columns_state(creation: int, constants: int, more: int) -> int:
    """Builds a state with so many words more, at `ColumnsState.keyed_offset`; 0 if it cannot be."""
    count_attr, boundaries = (
        load(constants, ColumnsConstants.count_attr),
        load(constants, ColumnsConstants.boundaries_attr),
    )
    count = attr_word(creation, count_attr) if count_attr >= 0 else int64(1)
    check_lists(creation, constants, count)
    if load(creation, Creation.has_failed) != 0:
        return int64(0)
    limits = int64(0)
    if boundaries >= 0:
        for column in range(count):
            limits += _laid_out_count(limit_count(creation, constants, column))
    dtype = _code_of(attr_word(creation, load(constants, ColumnsConstants.dtype_attr)))
    zeros = _zero_words(creation, constants, count, dtype)
    columns_end = ColumnsState.columns + count * ColumnAttrs.SIZE
    end = columns_end + limits // 2 + zeros
    state = begin_state(creation, end + more)
    if state == 0:
        return int64(0)
    _put_head(creation, constants, state, count, dtype)
    store(state, ColumnsState.boundaries_offset, columns_end)
    if zeros != 0:
        store(state, ColumnsState.zeros_offset, columns_end + limits // 2)
    if more != 0:
        store(state, ColumnsState.keyed_offset, end)
    _put_columns(creation, constants, state, count)
    if load(creation, Creation.has_failed) != 0:
        give_up(creation)
        return int64(0)
    return state


@jit
def _put_head(creation: int, constants: int, state: int, count: int, dtype: int) -> None:
    role = load(constants, ColumnsConstants.role)
    store(state, ColumnsState.column_count, count)
    store(state, ColumnsState.output_count, output_count(creation, constants))
    store(state, ColumnsState.item_bytes, _item_bytes(dtype))
    store(state, ColumnsState.dtype_code, dtype)
    store(state, ColumnsState.role, role if role != GRAD else int64(FULL))
    if load(load(creation, Creation.record), KernelsRecord.is_for_gpu) == 0:
        store(state, ColumnsState.pool, pool_of(creation))


@jit
def _put_columns(creation: int, constants: int, state: int, count: int) -> None:
    """Writes what a state has of each column, and all boundaries."""
    given = stack_words(GivenColumn.SIZE)
    role, dtype = load(constants, ColumnsConstants.role), load(state, ColumnsState.dtype_code)
    lookups, weighted = int64(0), int64(0)
    first_boundary, item = int64(0), int64(0)
    output, output_end = int64(0), columns_of_output(creation, constants, int64(0), count)
    limits = state + 8 * load(state, ColumnsState.boundaries_offset)
    for index in range(count):
        read_column(creation, constants, index, given)
        boundaries = limit_count(creation, constants, index)
        if role != GRAD:
            check_column(creation, constants, index, given, boundaries, first_boundary, dtype)
        if load(creation, Creation.has_failed) != 0:
            return
        column = state + 8 * (ColumnsState.columns + index * ColumnAttrs.SIZE)
        _put_column(given, column, role)
        if index == output_end:
            output += 1
            output_end += columns_of_output(creation, constants, output, count)
        store(column, ColumnAttrs.output, output)
        store(column, ColumnAttrs.first_boundary, item)
        store(column, ColumnAttrs.boundary_count, boundaries)
        is_mean_of_halves = dtype == _BFLOAT16 and role == FULL and is_mean(given)
        store(column, ColumnAttrs.is_rounded_once, int64(is_mean_of_halves))
        _put_kernels(creation, constants, given, column, dtype)
        store(column, ColumnAttrs.lookup_index, lookups)
        if not is_copy(given, role):
            lookups += 1
            weighted += load(given, GivenColumn.use_sparse_weights)
        _lay_out(creation, constants, first_boundary, boundaries, limits + 4 * item)
        item += _laid_out_count(boundaries)
        first_boundary += boundaries
    store(state, ColumnsState.lookup_count, lookups)
    store(state, ColumnsState.weighted_count, weighted)


@jit
def _put_column(given: int, column: int, role: int) -> None:
    """Writes what a column does."""
    id_format = load(given, GivenColumn.form)
    if role == POST:
        id_format = int64(column_layout.LISTED)
        if load(given, GivenColumn.copied) != 0:
            id_format = int64(column_layout.COPY)
    elif is_dense(given):
        id_format = int64(column_layout.DENSE)
    elif is_copy(given, role):
        id_format = int64(column_layout.COPY)
    store(column, ColumnAttrs.combiner, load(given, GivenColumn.combiner))
    store(column, ColumnAttrs.use_sparse_weights, load(given, GivenColumn.use_sparse_weights))
    store(column, ColumnAttrs.dim, load(given, GivenColumn.dim))
    store(column, ColumnAttrs.row_words, _row_words(given))
    if role == GRAD:
        store(column, ColumnAttrs.top_grad_offset, load(given, GivenColumn.offset))
        return
    store(column, ColumnAttrs.id_format, id_format)
    store(column, ColumnAttrs.is_each, int64(role != POST and is_each(given)))
    store(column, ColumnAttrs.has_lengths, int64(role != POST and is_lengths(given)))
    store(column, ColumnAttrs.max_norm, load(given, GivenColumn.max_norm))
    store(column, ColumnAttrs.prune, load(given, GivenColumn.prune))
    store(column, ColumnAttrs.fill_empty_row, load(given, GivenColumn.fill_empty_row))
    store(column, ColumnAttrs.default_id, load(given, GivenColumn.default_id))
    prunes_weights = load(given, GivenColumn.prune_sparse_weights)
    store(column, ColumnAttrs.prune_sparse_weights, prunes_weights)
    store(column, ColumnAttrs.default_weight, load(given, GivenColumn.default_weight))
    store(column, ColumnAttrs.divide_no_nan, load(given, GivenColumn.divide_no_nan))
    store(column, ColumnAttrs.ends_at_last_row, load(given, GivenColumn.row_count))
    store(column, ColumnAttrs.use_ignored_id, load(given, GivenColumn.use_ignored_id))
    store(column, ColumnAttrs.ignored_id, load(given, GivenColumn.ignored_id))
    store(column, ColumnAttrs.column_stride, load(given, GivenColumn.column_stride))
    store(column, ColumnAttrs.num_buckets, load(given, GivenColumn.num_buckets))
    store(column, ColumnAttrs.bucket_default, load(given, GivenColumn.bucket_default))
    store(column, ColumnAttrs.wrap_negative, load(given, GivenColumn.wrap_negative))
    store(column, ColumnAttrs.sum_order, load(given, GivenColumn.sum_order))
    store(column, ColumnAttrs.mask_product, load(given, GivenColumn.mask_product))
    store(column, ColumnAttrs.mask_penalty, load(given, GivenColumn.mask_penalty))
    store(column, ColumnAttrs.divisor_epsilon, load(given, GivenColumn.divisor_epsilon))
    store(column, ColumnAttrs.epsilon_input, load(given, GivenColumn.epsilon_input))
    store(column, ColumnAttrs.ids_dtype, load(given, GivenColumn.Tids))
    store(column, ColumnAttrs.rows_dtype, load(given, GivenColumn.Trows))
    store(column, ColumnAttrs.keys_dtype, load(given, GivenColumn.Tkeys))
    store(column, ColumnAttrs.sort_key, load(given, GivenColumn.sort_key))


@jit
def _put_kernels(creation: int, constants: int, given: int, column: int, dtype: int) -> None:
    """Writes the addresses of the kernels for rows of a column's dimension, on a CPU."""
    role, dim = load(constants, ColumnsConstants.role), load(given, GivenColumn.dim)
    if role == PRE or load(load(creation, Creation.record), KernelsRecord.is_for_gpu) != 0:
        return
    if role == GRAD:
        variants, variant = int64(SCATTER_VARIANTS), load(given, GivenColumn.use_sparse_weights)
    else:
        variants, variant = int64(GATHER_VARIANTS), _gather_variant(given, role)
    place = ColumnsConstants.tiles + (dtype - FIRST_FLOAT) * MOST_TILES * Tile.SIZE
    tiles = constants + 8 * place
    count = load(constants, ColumnsConstants.tile_counts + dtype - FIRST_FLOAT)
    last = tiles + 8 * Tile.SIZE * (count - 1)
    most = load(last, Tile.lanes) * load(last, Tile.vectors)
    table = _table_code(dtype, load(given, GivenColumn.row_format))
    tail = _shape_index(table, _tile_for(tiles, count, max(dim - 1, int64(0)) % most + 1))
    whole = _shape_index(table, _tile_for(tiles, count, most))
    tail, whole = tail * variants + variant, whole * variants + variant
    is_there = may_have_row_kernel(creation, tail) and (
        dim <= most or may_have_row_kernel(creation, whole)
    )
    if dim <= 0 or not is_there:
        index = _shape_index(table, int64(0)) * variants + variant
        store(column, ColumnAttrs.tail_kernel, row_kernel(creation, index))
        return
    store(column, ColumnAttrs.tail_kernel, row_kernel(creation, tail))
    if dim > most:
        store(column, ColumnAttrs.tile_kernel, row_kernel(creation, whole))
        store(column, ColumnAttrs.tile_width, most)


@jit
def _tile_for(tiles: int, count: int, elements: int) -> int:
    """The number of the tile for so many elements, see `row_tiles.tile_for`."""
    for k in range(count):
        lanes, vectors = load(tiles, Tile.SIZE * k), load(tiles, Tile.SIZE * k + Tile.vectors)
        fits = elements == lanes if vectors == 1 else elements <= lanes * vectors
        if fits:
            return int64(k + 1)
    return count


@jit
def _gather_variant(given: int, role: int) -> int:
    copies, order = is_copy(given, role), load(given, GivenColumn.sum_order)
    weighted = load(given, GivenColumn.use_sparse_weights)
    if copies or order == _SEGMENT:
        if copies:
            return int64(0)
        return weighted + 2 * int64(as_float(load(given, GivenColumn.max_norm)) >= 0.0)
    terms = int64(PLAIN)
    if weighted != 0 or load(given, GivenColumn.mask_product) != 0:
        terms = int64(TIMES)
    elif as_float(load(given, GivenColumn.mask_penalty)) != 0.0:
        terms = int64(LESS)
    return _ordered(order, terms, int64(load(given, GivenColumn.combiner) == _MAX))


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
def _zero_words(creation: int, constants: int, count: int, dtype: int) -> int:
    """The words of a row of zeros, as long as the longest row that it is for."""
    role = load(constants, ColumnsConstants.role)
    if role == GRAD or load(load(creation, Creation.record), KernelsRecord.is_for_gpu) != 0:
        return int64(0)
    given, most = stack_words(GivenColumn.SIZE), int64(0)
    if role != PRE:
        for index in range(count):
            read_column(creation, constants, index, given)
            dim = load(given, GivenColumn.dim)
            if dim <= _MOST_ZEROS:
                most = max(most, dim * _item_bytes(dtype), _row_words(given) * (WORD_BITS // 8))
    return (most + 7) // 8


@jit
def _row_words(given: int) -> int:
    """The words of a packed row, see `row_formats.packed_words`; 0 of plain ones."""
    for row_format, header, element in _PACKED:
        if load(given, GivenColumn.row_format) == row_format:
            bits = header + element * load(given, GivenColumn.dim)
            return (bits + WORD_BITS - 1) // WORD_BITS
    return int64(0)


@jit
def _laid_out_count(boundaries: int) -> int:
    """The numbers that so many boundaries are in memory, see `column_layout.laid_out`."""
    blocks = (boundaries + LIMIT_BLOCK - 1) // LIMIT_BLOCK
    return blocks * (LIMIT_BLOCK + 1) + LIMIT_BLOCK + blocks % 2 if blocks else int64(0)


@jit
def _lay_out(creation: int, constants: int, first: int, count: int, out: int) -> None:
    """Writes boundaries as `column_layout.laid_out` says."""
    blocks = (count + LIMIT_BLOCK - 1) // LIMIT_BLOCK
    attr = load(constants, ColumnsConstants.boundaries_attr)
    for k in range(_laid_out_count(count)):
        store_as(out, k, np.float32(np.inf), np.float32)
    for k in range(count):
        number = np.float32(as_float(attr_item(creation, attr, first + k)))
        store_as(out, k, number, np.float32)
    for block in range(blocks):
        largest = load_as(out, (block + 1) * LIMIT_BLOCK - 1, np.float32)
        store_as(out, blocks * LIMIT_BLOCK + block, largest, np.float32)

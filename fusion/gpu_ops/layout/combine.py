"""How a `CombineCall` is written.

`call` is an array of the host's, int64, which is copied to the address `base` of the device.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops.column_layout import COPY, INDICES, LISTED, ROW_IDS, ColumnAttrs, ColumnInputs
from fusion.gpu_ops.layout.arrays import array_index, open_arrays, words_of
from fusion.gpu_ops.layout.call import THREADS, WARP, CombineCall, group_of, lanes_of
from fusion.runtime.cuda.layout import ErrorRecord

#: With fewer threads a GPU has nothing to do while rows are on their way.
_BUSY_THREADS = 1 << 17
#: A warp computes a bag if bags have so many elements on average: each share of it is some blocks.
_LONG = 128
#: The same where threads are few: what has nothing to do costs nothing.
_LONG_FOR_FEW = 16

#: The bits of -0.0, the only double that is negative as a word but not as a number.
_MINUS_ZERO = -(2**63)


_ARRAYS = (
    (CombineCall.errors, ErrorRecord.SIZE, 0),
    (CombineCall.tiles, 1, 1),
    (CombineCall.check_tiles, 1, 1),
    (CombineCall.unsorted, 0, 1),
    (CombineCall.outs, 0, 1),
    (CombineCall.out_bytes, 0, 1),
    (CombineCall.lanes, 0, 1),
    (CombineCall.groups, 0, 1),
    (CombineCall.shares, 0, 1),
    (CombineCall.plain, 0, 1),
    (CombineCall.columns, 0, ColumnAttrs.SIZE),
    (CombineCall.inputs, 0, ColumnInputs.SIZE),
)


def words_of_call(columns: int, boundaries: int) -> int:
    """The words of a call of so many columns, with so many boundaries in all."""
    return words_of(columns, CombineCall.SIZE, _ARRAYS) + (boundaries + 1) // 2


def open_call(call: Any, base: int, columns: int) -> int:
    """Writes where the arrays of a call are; gives the index of its boundaries.

    Kernels report errors in the call itself, unless its field is changed.
    """
    boundaries = open_arrays(call, base, columns, CombineCall.SIZE, _ARRAYS)
    call[CombineCall.column_count] = columns
    return boundaries


def is_plain(call: Any, column: int, source: int) -> bool:
    """Whether elements are ids as they are, which count if they are in the table.

    That is without weights and max_norm. `column` and `source` are indices in the call.
    """
    limit = call[column + ColumnAttrs.max_norm]
    if call[column + ColumnAttrs.id_format] == COPY:
        return True
    if call[column + ColumnAttrs.use_sparse_weights] != 0 or limit >= 0 or limit == _MINUS_ZERO:
        return False
    if (
        call[column + ColumnAttrs.boundary_count] != 0
        or call[column + ColumnAttrs.num_buckets] != 0
        or call[column + ColumnAttrs.wrap_negative] != 0
    ):
        return False
    if (
        call[column + ColumnAttrs.column_stride] != 0
        and call[source + ColumnInputs.id_columns] != 1
    ):
        return False
    ignored = call[column + ColumnAttrs.ignored_id]
    return (
        call[column + ColumnAttrs.use_ignored_id] == 0
        or not 0 <= ignored < call[source + ColumnInputs.table_rows]
    )


def output_end(call: Any, base: int, first: int) -> int:
    """The column behind those that are side by side in an output, `first` being their first."""
    columns, end = array_index(call, base, CombineCall.columns) + ColumnAttrs.output, first + 1
    output = call[columns + first * ColumnAttrs.SIZE]
    while end < call[CombineCall.column_count] and call[columns + end * ColumnAttrs.SIZE] == output:
        end += 1
    return end


def width_of(call: Any, base: int, first: int, end: int) -> int:
    """The elements of a row of these columns side by side."""
    source, width = array_index(call, base, CombineCall.inputs) + ColumnInputs.table_dim, 0
    for column in range(first, end):
        width += call[source + column * ColumnInputs.SIZE]
    return width


def put_output(call: Any, base: int, first: int, end: int, item: int, out: int) -> None:
    """Writes where the results of these columns are, side by side from the address `out` on."""
    outs = array_index(call, base, CombineCall.outs)
    out_bytes = array_index(call, base, CombineCall.out_bytes)
    source = array_index(call, base, CombineCall.inputs) + ColumnInputs.table_dim
    row_bytes = item * width_of(call, base, first, end)
    for column in range(first, end):
        call[outs + column], call[out_bytes + column] = out, row_bytes
        out += item * call[source + column * ColumnInputs.SIZE]


def _at_once(call: Any, base: int, column: int, item: int, skew: int) -> int:
    """The elements of a row that a thread can read and write at once."""
    source = array_index(call, base, CombineCall.inputs) + column * ColumnInputs.SIZE
    addresses = call[array_index(call, base, CombineCall.outs) + column]
    addresses |= call[array_index(call, base, CombineCall.out_bytes) + column]
    addresses |= call[source + ColumnInputs.table] | skew
    return lanes_of(item, call[source + ColumnInputs.table_dim], addresses)


def _listed(call: Any, base: int) -> int:
    """The columns behind gathers, each of which has the number of entries of all of them."""
    columns, count = array_index(call, base, CombineCall.columns), 0
    for k in range(call[CombineCall.column_count]):
        count += call[columns + k * ColumnAttrs.SIZE + ColumnAttrs.id_format] == LISTED
    return count


def _threads(call: Any, base: int, batch: int, item: int, skew: int) -> int:
    """How many threads there are if each reads as much at once as it can."""
    sources = array_index(call, base, CombineCall.inputs)
    threads = 0
    for k in range(call[CombineCall.column_count]):
        source = sources + k * ColumnInputs.SIZE
        lanes = _at_once(call, base, k, item, skew)
        threads += batch * group_of(call[source + ColumnInputs.table_dim], lanes)
    return threads


def lay_out(call: Any, base: int, batch: int, item: int, skew: int) -> None:
    """Writes what depends on the columns, their sources and results, which are in the call.

    As many threads read a row as have something to read, at most a warp. They compute a bag, or, if
    it is long, all the groups of a warp do.

    Args:
        batch, item: rows of the result, and the bytes of an element.
        skew: the remainder of the addresses of rows modulo 16; 0: see their tables.
    """
    call[CombineCall.batch_size] = batch
    columns = array_index(call, base, CombineCall.columns)
    sources = array_index(call, base, CombineCall.inputs)
    lanes = array_index(call, base, CombineCall.lanes)
    groups = array_index(call, base, CombineCall.groups)
    shares = array_index(call, base, CombineCall.shares)
    tiles = array_index(call, base, CombineCall.tiles)
    check = array_index(call, base, CombineCall.check_tiles)
    plain = array_index(call, base, CombineCall.plain)
    is_busy = _threads(call, base, batch, item, skew) >= _BUSY_THREADS
    length, listed = _LONG if is_busy else _LONG_FOR_FEW, _listed(call, base)
    call[CombineCall.is_all_plain] = 1
    for k in range(call[CombineCall.column_count]):
        column, source = columns + k * ColumnAttrs.SIZE, sources + k * ColumnInputs.SIZE
        dim, form = call[source + ColumnInputs.table_dim], call[column + ColumnAttrs.id_format]
        at_once = _at_once(call, base, k, item, skew)
        group = group_of(dim, at_once)
        alike = listed if form == LISTED else 1
        is_long = call[source + ColumnInputs.id_count] >= max(length * batch * alike, 1)
        call[lanes + k], call[groups + k] = at_once, group
        call[shares + k] = WARP // group if is_long else 1
        call[plain + k] = is_plain(call, column, source)
        call[CombineCall.is_all_plain] &= call[plain + k]
        bags = THREADS // (group * call[shares + k])
        needed = (batch + bags - 1) // bags if dim > 0 else 0
        call[tiles + k + 1] = call[tiles + k] + needed
        checked = call[source + ColumnInputs.id_count] if form in (INDICES, ROW_IDS) else 0
        call[check + k + 1] = call[check + k] + (checked + THREADS - 1) // THREADS


def tiles_of(call: Any, base: int, field: int) -> int:
    """The tiles of a launch, by the word of its tiles."""
    return call[array_index(call, base, field) + call[CombineCall.column_count]]

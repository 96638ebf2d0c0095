"""Gathering the rows of keys: an index says which they are, see `index`."""

from __future__ import annotations

from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.tables.cpu_kernels.index import find_rows, note_keys
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_words

#: Keys that are looked up before their rows are read, so that loads from memory overlap.
_BLOCK = 16

#: Lines of a row that are prefetched.
_MAX_LINES = 8

_LINE_BYTES = 64


@jit
def gather(args: KeyedGather, first: int, end: int) -> None:
    """Finds and gathers the rows of some keys, which are not added.

    Args:
      args: the address of a `KeyedGather`.
      first, end: which keys.
    """
    for start in range(first, end, _BLOCK):
        count = min(int64(_BLOCK), end - start)
        keys, rows = as_words(args.keys + 8 * start), _rows(args, start)
        find_rows(args.index, keys, count, rows)
        _ask(args, start, count)
        if start > first:
            _copy(args, start - _BLOCK, int64(_BLOCK))
    if end > first:
        start = first + (end - 1 - first) // _BLOCK * _BLOCK
        _copy(args, start, end - start)
    addition = args.addition
    if addition != 0:
        note_keys(args.index, end - first, _rows(args, first), addition)


@jit
def _rows(args: KeyedGather, start: int) -> Words:
    return as_words(args.rows + 8 * start)


@jit
def row_address(args: KeyedGather, row: int) -> int:
    """The address of a row, of the default one for -1."""
    if row < 0:
        return args.default
    return args.table + row * args.row_bytes


@jit
def _ask(args: KeyedGather, start: int, count: int) -> None:
    """Prefetches rows."""
    rows, size = _rows(args, start), args.row_bytes
    lines = min((size + _LINE_BYTES - 1) // _LINE_BYTES, int64(_MAX_LINES))
    for k in range(count):
        address = row_address(args, rows[k])
        for line in range(lines):
            prefetch_line(address + _LINE_BYTES * line)


@jit
def _copy(args: KeyedGather, start: int, count: int) -> None:
    rows, size = _rows(args, start), args.row_bytes
    out = args.out + start * size
    for k in range(count):
        c_memcpy(out + k * size, row_address(args, rows[k]), size)


@jit
def find_addresses(args: KeyedGather, keys: Words, count: int, rows: Words) -> None:
    """Replaces keys by the addresses of their rows.

    Args:
      keys: the address of int64 [count], in and out.
      rows: that of scratch, int64 [count].
    """
    find_rows(args.index, keys, count, rows)
    for k in range(count):
        keys[k] = row_address(args, rows[k])


@jit
def copy_missing(args: KeyedGather, count: int, missing: Words) -> None:
    """Gathers the rows of keys again that had none.

    Args:
      missing: the address of the numbers of these keys, int64 [count].
    """
    size = args.row_bytes
    for k in range(count):
        number = missing[k]
        row = args.rows[number]
        c_memcpy(args.out + number * size, row_address(args, row), size)

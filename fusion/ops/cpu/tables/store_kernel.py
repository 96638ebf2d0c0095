"""TableStoreGather on a CPU.

Rows that are in the store's cache are copied without Python. What is to be waited for, of all
tables together, Python is asked for in one upcall.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.hot_rows.layout import (
    HotTable,
    StoreCall,
    StoreRecord,
    TableCall,
    Waiting,
    WaitingTable,
)
from fusion.cpu_ops.hot_rows.lookup import call_at_index, count_latency, enter, leave
from fusion.cpu_ops.hot_rows.store import find_store, find_table
from fusion.ops.cpu.columns.inputs import input_tensor
from fusion.ops.cpu.tables.inputs import element_count
from fusion.ops.cpu.tables.store_layout import StoreColumn, StoreGatherState
from fusion.runtime.native.clock import now
from fusion.runtime.native.errors import (
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    fail,
    fail_column,
)
from fusion.runtime.native.frame import (
    check,
    context,
    count_rows,
    extended_output,
    failed,
    kernel_state,
    scratch_bytes,
    status_of,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, call_at, load, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_delete_tensor, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads.jobs import count_helpers
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord

#: Of an element of a row, float32.
_ITEM_BYTES = 4


@jit
def _open_column(frame: int, record: int, job: int, index: int, first: int) -> int:
    """Sets the table, the keys and the output of a column; returns the number of its table."""
    state, call = kernel_state(frame), call_at_index(job, index)
    column = state + 8 * (StoreGatherState.columns + StoreColumn.SIZE * index)
    name, length = state + load(column, StoreColumn.name), load(column, StoreColumn.name_length)
    number = find_table(record, name, length, load(column, StoreColumn.name_hash), first)
    if number < 0:
        text = ": the table store %s has no such table"
        store_name = state + load(state, StoreGatherState.store)
        fail_column(frame, FAILED_PRECONDITION, text, index, store_name)
        return number
    table = load(record, StoreRecord.tables) + 8 * HotTable.SIZE * number
    dim, width = load(column, StoreColumn.dim), load(table, HotTable.row_bytes) // _ITEM_BYTES
    if dim != width:
        text = ": rows of the table have %lld elements, but dims says %lld"
        fail_column(frame, INVALID_ARGUMENT, text, index, width, dim)
        return number
    slot = stack_words(int64(1))
    keys = input_tensor(context(frame), index, slot, status_of(frame))
    if keys == 0:
        check(frame)
        return number
    store(call, TableCall.table, table)
    store(call, TableCall.keys, tf_tensor_data(keys))
    store(call, TableCall.key_count, element_count(keys))
    out = extended_output(frame, index, keys, dim, int64(_ITEM_BYTES))
    store(call, TableCall.out, out)
    tf_delete_tensor(keys)  # the context holds the input
    return number


@jit
def _open_columns(frame: int, record: int, job: int) -> None:
    """Sets all columns, and where the numbers of keys are written that are not there."""
    total, number = int64(0), int64(-1)
    for index in range(load(job, StoreCall.call_count)):
        number = _open_column(frame, record, job, int64(index), number + 1)
        if failed(frame):
            return
        total += load(call_at_index(job, int64(index)), TableCall.key_count)
    count_rows(frame, total)
    missing = scratch_bytes(frame, 8 * total)
    for index in range(load(job, StoreCall.call_count)):
        call = call_at_index(job, int64(index))
        store(call, TableCall.missing, missing)
        missing += 8 * load(call, TableCall.key_count)


@jit
def _write_waiting(job: int, head: int, tables: int) -> None:
    """Writes what Python is asked to fetch."""
    record, at = load(job, StoreCall.store), int64(0)
    store(head, Waiting.store, record)
    store(head, Waiting.table_count, tables)
    keys = head + 8 * (Waiting.SIZE + WaitingTable.SIZE * tables)
    for index in range(load(job, StoreCall.call_count)):
        call = call_at_index(job, int64(index))
        if load(call, TableCall.is_waiting) == 0:
            continue
        entry = head + 8 * (Waiting.tables + WaitingTable.SIZE * at)
        offset = load(call, TableCall.table) - load(record, StoreRecord.tables)
        count = load(call, TableCall.missing_count)
        store(entry, WaitingTable.number, offset // (8 * HotTable.SIZE))
        store(entry, WaitingTable.key_count, count)
        for k in range(count):
            number = load(load(call, TableCall.missing), k)
            store(keys, k, load(load(call, TableCall.keys), number))
        keys += 8 * count
        at += 1


@jit
def _copy_fetched(job: int, rows: int) -> None:
    """Copies the rows that were fetched to where they belong."""
    for index in range(load(job, StoreCall.call_count)):
        call = call_at_index(job, int64(index))
        if load(call, TableCall.is_waiting) == 0:
            continue
        size = load(load(call, TableCall.table), HotTable.row_bytes)
        for k in range(load(call, TableCall.missing_count)):
            number = load(load(call, TableCall.missing), k)
            c_memcpy(load(call, TableCall.out) + number * size, rows, size)
            rows += size


@jit
def _fetch(frame: int, job: int) -> None:
    """Has Python fetch the rows that are waited for."""
    tables, row_bytes, record = int64(0), int64(0), load(job, StoreCall.store)
    for index in range(load(job, StoreCall.call_count)):
        call = call_at_index(job, int64(index))
        if load(call, TableCall.is_waiting) != 0:
            size = load(load(call, TableCall.table), HotTable.row_bytes)
            row_bytes += size * load(call, TableCall.missing_count)
            tables += 1
    words = Waiting.SIZE + WaitingTable.SIZE * tables + load(job, StoreCall.waiting_count)
    head = scratch_bytes(frame, 8 * words)
    if failed(frame):
        return
    _write_waiting(job, head, tables)
    request = new_request(load(record, StoreRecord.server), head, 8 * words)
    if request == 0:
        fail(frame, RESOURCE_EXHAUSTED, "no memory to ask for rows of %lld bytes", row_bytes)
        return
    upcalls, patience = load(record, StoreRecord.upcalls), load(record, StoreRecord.patience_ns)
    if not upcall(upcalls, request, patience):
        text = (
            "rows that are not in the cache were not fetched, because Python's lock (the GIL) was "
            "not to be had in time: another thread kept it"
        )
        fail(frame, DEADLINE_EXCEEDED, text)
        return
    code, result = load(request, RequestRecord.code), load(request, RequestRecord.result)
    if result == 0:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for rows of %lld bytes", row_bytes)
    elif code != 0:
        fail(frame, code, "%s", result)
    elif load(request, RequestRecord.result_length) != row_bytes:
        length = load(request, RequestRecord.result_length)
        fail(frame, INTERNAL, "%lld bytes were fetched for rows of %lld", length, row_bytes)
    else:
        _copy_fetched(job, result)
    free_request(request)


@jit
def _gather(frame: int, record: int) -> None:
    """Gathers from a store that stays open meanwhile."""
    begun, count = now(), load(kernel_state(frame), StoreGatherState.column_count)
    size = 8 * (StoreCall.SIZE + TableCall.SIZE * count)
    job = scratch_bytes(frame, size)
    if failed(frame):
        return
    c_memset(job, np.int32(0), size)
    store(job, StoreCall.store, record)
    store(job, StoreCall.calls, job + 8 * StoreCall.SIZE)
    store(job, StoreCall.call_count, count)
    _open_columns(frame, record, job)
    if failed(frame):
        return
    call_at(load(record, StoreRecord.lookup), job)
    count_helpers(frame, job)
    if load(job, StoreCall.waiting_count) > 0:
        _fetch(frame, job)
    count_latency(record, now() - begun)


def gather_from_store(frame: int) -> None:
    """The kernel body."""
    state = kernel_state(frame)
    names, name = load(state, StoreGatherState.names), state + load(state, StoreGatherState.store)
    if names == 0:
        text = "a library of ops has no table stores: they need fusion's own kernels, in Python"
        fail(frame, FAILED_PRECONDITION, text)
        return
    record = find_store(names, name, load(state, StoreGatherState.store_length))
    if record == 0 or not enter(record):
        text = (
            "no table store %s is open in this process: open one "
            "(fusion.tables.TableStore) and give it this name by its register()"
        )
        fail(frame, FAILED_PRECONDITION, text, name)
        return
    _gather(frame, record)
    leave(record)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """The kernel body."""
    return gather_from_store

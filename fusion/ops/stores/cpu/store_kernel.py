"""TableStoreGather on a CPU.

Rows that are in the store's cache are copied without Python. What is to be waited for, of all
tables together, Python is asked for in one upcall.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.columns.cpu.inputs import input_tensor
from fusion.ops.stores.cpu.store_layout import StoreGatherState
from fusion.ops.stores.cpu_kernels.layout import (
    HotTable,
    StoreCall,
    StoreRecord,
    TableCall,
    Waiting,
    WaitingTable,
)
from fusion.ops.stores.cpu_kernels.lookup import count_latency, enter, leave
from fusion.ops.stores.cpu_kernels.store import find_store, find_table
from fusion.ops.tables.cpu.inputs import element_count
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, call_at, store
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.system import now
from fusion.runtime.tensorflow.c_api import tf_delete_tensor, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads.jobs import count_helpers
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord, UpcallsRecord

#: Of an element of a row, float32.
_ITEM_BYTES = 4


@jit
def _open_column(
    frame: op.Frame, record: StoreRecord, job: StoreCall, index: int, first: int
) -> int:
    """Sets the table, the keys and the output of a column; returns the number of its table."""
    state = as_record(StoreGatherState, frame.state)
    call = job.calls[index]
    column = state.columns[index]
    name, length = state + column.name, column.name_length
    number = find_table(record, name, length, column.name_hash, first)
    if number < 0:
        text = ": the table store %s has no such table"
        store_name = state + state.store
        op.fail_column(frame, op.FAILED_PRECONDITION, text, index, store_name)
        return number
    table = record.tables[number]
    dim, width = column.dim, table.row_bytes // _ITEM_BYTES
    if dim != width:
        text = ": rows of the table have %lld elements, but dims says %lld"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, width, dim)
        return number
    slot = stack_words(int64(1))
    keys = input_tensor(frame.context, index, slot, frame.status)
    if keys == 0:
        op.check(frame)
        return number
    call.table = table
    call.keys = as_words(tf_tensor_data(keys))
    call.key_count = element_count(keys)
    out = op.extended_output(frame, index, keys, dim, int64(_ITEM_BYTES))
    call.out = out
    tf_delete_tensor(keys)  # the context holds the input
    return number


@jit
def _open_columns(frame: op.Frame, record: StoreRecord, job: StoreCall) -> None:
    """Sets all columns, and where the numbers of keys are written that are not there."""
    total, number = int64(0), int64(-1)
    for index in range(job.call_count):
        number = _open_column(frame, record, job, int64(index), number + 1)
        if op.failed(frame):
            return
        total += job.calls[index].key_count
    op.count_rows(frame, total)
    missing = op.scratch_bytes(frame, 8 * total)
    for index in range(job.call_count):
        call = job.calls[index]
        call.missing = as_words(missing)
        missing += 8 * call.key_count


@jit
def _write_waiting(job: StoreCall, head: Waiting, tables: int) -> None:
    """Writes what Python is asked to fetch."""
    record, at = job.store, int64(0)
    head.store = record
    head.table_count = tables
    keys = head + 8 * (Waiting.SIZE + WaitingTable.SIZE * tables)
    for index in range(job.call_count):
        call = job.calls[index]
        if call.is_waiting == 0:
            continue
        entry = head.tables[at]
        offset = call.table - record.tables
        count = call.missing_count
        entry.number = offset // (8 * HotTable.SIZE)
        entry.key_count = count
        for k in range(count):
            number = call.missing[k]
            store(keys, k, call.keys[number])
        keys += 8 * count
        at += 1


@jit
def _copy_fetched(job: StoreCall, rows: int) -> None:
    """Copies the rows that were fetched to where they belong."""
    for index in range(job.call_count):
        call = job.calls[index]
        if call.is_waiting == 0:
            continue
        size = call.table.row_bytes
        for k in range(call.missing_count):
            number = call.missing[k]
            c_memcpy(call.out + number * size, rows, size)
            rows += size


@jit
def _fetch(frame: op.Frame, job: StoreCall) -> None:
    """Has Python fetch the rows that are waited for."""
    tables, row_bytes, record = int64(0), int64(0), job.store
    for index in range(job.call_count):
        call = job.calls[index]
        if call.is_waiting != 0:
            size = call.table.row_bytes
            row_bytes += size * call.missing_count
            tables += 1
    words = Waiting.SIZE + WaitingTable.SIZE * tables + job.waiting_count
    head = as_record(Waiting, op.scratch_bytes(frame, 8 * words))
    if op.failed(frame):
        return
    _write_waiting(job, head, tables)
    request = as_record(RequestRecord, new_request(record.server, head, 8 * words))
    if request == 0:
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory to ask for rows of %lld bytes", row_bytes)
        return
    upcalls, patience = as_record(UpcallsRecord, record.upcalls), record.patience_ns
    if not upcall(upcalls, request, patience):
        text = (
            "rows that are not in the cache were not fetched, because Python's lock (the GIL) was "
            "not to be had in time: another thread kept it"
        )
        op.fail(frame, op.DEADLINE_EXCEEDED, text)
        return
    code, result = request.code, request.result
    if result == 0:
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for rows of %lld bytes", row_bytes)
    elif code != 0:
        op.fail(frame, code, "%s", result)
    elif request.result_length != row_bytes:
        length = request.result_length
        op.fail(frame, op.INTERNAL, "%lld bytes were fetched for rows of %lld", length, row_bytes)
    else:
        _copy_fetched(job, result)
    free_request(as_words(request))


@jit
def _gather(frame: op.Frame, record: StoreRecord) -> None:
    """Gathers from a store that stays open meanwhile."""
    begun, count = now(), as_record(StoreGatherState, frame.state).column_count
    size = 8 * (StoreCall.SIZE + TableCall.SIZE * count)
    job = as_record(StoreCall, op.scratch_bytes(frame, size))
    if op.failed(frame):
        return
    c_memset(job, np.int32(0), size)
    job.store = record
    job.calls = as_record(TableCall, job[1])
    job.call_count = count
    _open_columns(frame, record, job)
    if op.failed(frame):
        return
    call_at(record.lookup, job)
    count_helpers(frame, job)
    if job.waiting_count > 0:
        _fetch(frame, job)
    count_latency(record, now() - begun)


def gather_from_store(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(StoreGatherState, frame.state)
    names, name = state.names, state + state.store
    if names == 0:
        text = "a library of ops has no table stores: they need fusion's own kernels, in Python"
        op.fail(frame, op.FAILED_PRECONDITION, text)
        return
    record = as_record(StoreRecord, find_store(names, name, state.store_length))
    if record == 0 or not enter(record):
        text = (
            "no table store %s is open in this process: open one "
            "(fusion.tables.TableStore) and give it this name by its register()"
        )
        op.fail(frame, op.FAILED_PRECONDITION, text, name)
        return
    _gather(frame, record)
    leave(record)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """The kernel body."""
    return gather_from_store

"""What TensorFlow calls with every graph that it optimizes, in native code.

Most graphs have nothing in them for us, and most processes have this off: those need nothing of
Python. For the rest Python is asked, by an upcall.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import atomic_add, atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at, load, stack_words, store
from fusion.runtime.optimizer.layout import OptimizerRecord
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_get_code,
    tf_new_status,
    tf_set_status,
)
from fusion.runtime.tensorflow.layout import Buffer
from fusion.runtime.upcalls.native import free_request, new_request, now, upcall
from fusion.runtime.upcalls.service import NameList, RequestRecord

_OK, _ABORTED = 0, 10

_i32, _i64 = types.int32, types.int64
_c_memmem = types.ExternalFunction("memmem", _i64(_i64, _i64, _i64, _i64))


def optimize(record: int, graph: int, item: int, result: int, status: int) -> None:
    """Optimizes a graph; `record` is an `OptimizerRecord`, the rest is TensorFlow's."""
    # First of all: whatever happens, the graph is left alone. An empty result that goes with
    # another status would be an empty graph.
    tf_set_status(status, _i32(_ABORTED), load(record, OptimizerRecord.empty))
    rule = atomic_load(record, OptimizerRecord.rule)
    if rule == 0:
        return
    start = now()
    if _is_met(rule, load(graph, Buffer.data), load(graph, Buffer.length)):
        _ask(record, graph, item, result, status)
    if load(record, OptimizerRecord.is_counted) != 0:
        atomic_add(record, OptimizerRecord.seen_count, int64(1))
        atomic_add(record, OptimizerRecord.nanoseconds, now() - start)


def write_whether_met(rule: int, data: int, length: int, met: int) -> None:
    """Sets the word at `met` to whether bytes meet a rule."""
    store(met, 0, int64(_is_met(rule, data, length)))


@jit
def _is_met(rule: int, data: int, length: int) -> bool:
    """Whether bytes meet a rule, see `prefilter`."""
    at, absent = rule + 8, int64(0)
    met = False
    for _ in range(load(rule, 0)):
        holds, sets = not met, load(at, 0)
        at += 8
        for _ in range(sets):
            found, strings = False, load(at, 0)
            at += 8
            for _ in range(strings):
                string = load(at, 0)
                # Clauses that follow each other may begin with the same string.
                if holds and not found and string != absent:
                    found = _c_memmem(data, length, string, load(at, 1)) != 0
                    absent = absent if found else string
                at += 16
            holds = holds and found
        met = met or holds
    return met


@jit
def _ask(record: int, graph: int, item: int, result: int, status: int) -> None:
    """Has Python optimize a graph."""
    request = new_request(
        load(record, OptimizerRecord.server_number),
        load(graph, Buffer.data),
        load(graph, Buffer.length),
    )
    if request == 0:
        return
    preserved = _names(
        load(record, OptimizerRecord.preserved_size), load(record, OptimizerRecord.preserved), item
    )
    store(request, RequestRecord.first_names, preserved)
    store(
        request,
        RequestRecord.second_names,
        _names(
            load(record, OptimizerRecord.fetches_size), load(record, OptimizerRecord.fetches), item
        ),
    )
    if not upcall(
        load(record, OptimizerRecord.upcalls), request, load(record, OptimizerRecord.patience_ns)
    ):
        atomic_add(record, OptimizerRecord.timeout_count, int64(1))
        return
    if load(request, RequestRecord.result) != 0:
        store(result, Buffer.data, load(request, RequestRecord.result))
        store(result, Buffer.length, load(request, RequestRecord.result_length))
        store(result, Buffer.deallocator, load(record, OptimizerRecord.free))
        store(request, RequestRecord.result, int64(0))
        tf_set_status(status, _i32(_OK), load(record, OptimizerRecord.empty))
    free_request(request)


@jit
def _names(size_function: int, function: int, item: int) -> int:
    """A list of names of an item, for a request; 0 if TensorFlow does not give it.

    Args:
      size_function, function: addresses of TF_Get...ListSize and TF_Get...List.
    """
    sizes = stack_words(2)
    store(sizes, 0, int64(0))
    # A status of its own: functions that succeed set it, too.
    status = tf_new_status()
    call_at(size_function, item, sizes, sizes + 8, status)
    count, names = int64(_i32(load(sizes, 0))), int64(0)
    if tf_get_code(status) == _OK:
        names = c_malloc(8 * NameList.names + 16 * count + load(sizes, 1))
    if names != 0:
        store(names, NameList.count, count)
        starts = names + 8 * NameList.names
        lengths, storage = starts + 8 * count, starts + 16 * count
        call_at(function, item, starts, lengths, count, storage, load(sizes, 1), status)
        if tf_get_code(status) != _OK:
            c_free(names)
            names = int64(0)
    tf_delete_status(status)
    return names

"""What TensorFlow calls with every graph that it optimizes, in native code.

Most graphs have no op of interest, and most processes have this off: those need no Python. For the
other graphs Python is called, by an upcall.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import atomic_add, atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcmp, call_at, load_as, store
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.system import now
from fusion.runtime.optimizer.layout import OpRecord, OptimizerRecord, RuleRecord
from fusion.runtime.optimizer.prefilter import slot
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_get_code,
    tf_new_status,
    tf_set_status,
)
from fusion.runtime.tensorflow.layout import Buffer
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import NameList, RequestRecord

_OK, _ABORTED = 0, 10

_i32, _i64 = types.int32, types.int64

#: Fields of serialized messages: 256 times the depth of the message in the graph, and the tag.
_NODE, _LIBRARY, _FUNCTION, _FUNCTION_NODE = 0x00A, 0x012, 0x10A, 0x21A
#: The tags of the fields of a node.
_NAME, _OP = 0x0A, 0x12
#: The bits of a tag that hold its wire type, and their value for a one-byte tag before a length.
_WIRE_TYPE, _WITH_LENGTH = 0x87, 2
_NO_TAG = 0
#: The maximum number of bytes of a length.
_LENGTH_BYTES = 5

_slot = jit(slot)


def optimize(
    record: OptimizerRecord, graph: Buffer, item: int, result: Buffer, status: int
) -> None:
    """Optimizes a graph; `record` is an `OptimizerRecord`, the rest is TensorFlow's."""
    # First: unless all succeeds, the graph is left alone. An empty result with another status
    # would be an empty graph.
    tf_set_status(status, _i32(_ABORTED), record.empty)
    rule = as_record(RuleRecord, atomic_load(record, OptimizerRecord.rule))
    if rule == 0:
        return
    start = now()
    if _is_met(rule, graph.data, graph.length):
        _ask(record, graph, item, result, status)
    if record.is_counted != 0:
        atomic_add(record, OptimizerRecord.seen_count, int64(1))
        atomic_add(record, OptimizerRecord.nanoseconds, now() - start)


def write_whether_met(rule: RuleRecord, data: int, length: int, met: int) -> None:
    """Sets the word at `met` to whether bytes meet a rule."""
    store(met, 0, int64(_is_met(rule, data, length)))


@jit
def _is_met(rule: RuleRecord, data: int, length: int) -> bool:
    """Whether a serialized graph meets a rule, see `prefilter`.

    It goes through the nodes of the graph and of the functions in its library, and reads only ops.
    """
    at, end, present = data, data + length, int64(0)
    # The depth in the graph, and the ends of the enclosing messages.
    depth, ends = 0, stack_words(2)
    while at < end or depth > 0:
        if at == end:
            depth -= 1
            end = ends[depth]
            continue
        tag, start, stop = _field(at, end)
        field = depth << 8 | tag
        at = stop
        if tag == _NO_TAG:
            return True
        if field in (_NODE, _FUNCTION_NODE):
            sets = _sets(rule, start, stop, present)
            present |= sets
            if sets != 0 and _holds(rule, present):
                return True
        elif field in (_LIBRARY, _FUNCTION):
            ends[depth] = end
            depth += 1
            at, end = start, stop
    return False


@jit
def _holds(rule: RuleRecord, present: int) -> bool:
    """Whether a clause of a rule holds if a graph has ops of the sets `present`."""
    for k in range(rule.clause_count):
        missing = rule.clauses[k] & ~present
        if missing == 0:
            return True
    return False


@jit
def _sets(rule: RuleRecord, at: int, end: int, present: int) -> int:
    """The sets that the op of a node is in, as bits; 0 if all of them are in `present` already.

    For a node that is not as TensorFlow writes it: all sets.
    """
    tag, start, stop = _field(at, end)
    if tag == _NAME:
        tag, start, stop = _field(stop, end)
    if tag != _OP or start == stop:
        return int64(-1)
    length = stop - start
    index = _slot(length, _byte(start), _byte(stop - 1))
    op = rule.ops + 8 * OpRecord.SIZE * index
    while as_record(OpRecord, op).text != 0:
        is_new = as_record(OpRecord, op).sets & ~present != 0
        if (
            is_new
            and length == as_record(OpRecord, op).length
            and _is_text(as_record(OpRecord, op), start)
        ):
            return as_record(OpRecord, op).sets
        op += 8 * OpRecord.SIZE
    return int64(0)


@jit
def _is_text(op: OpRecord, text: int) -> bool:
    """Whether an op of a rule has the name that is at `text`, of its length."""
    return bool(c_memcmp(op.text, text, op.length) == 0)


@jit
def _field(at: int, end: int) -> tuple[int, int, int]:
    """The tag of the field at `at`, and where its content begins and ends.

    There is no tag if the field is truncated, or not encoded as messages and strings are: a tag of
    one byte and a length as a varint.
    """
    none = int64(_NO_TAG), at, at
    if end - at < 2:
        return none
    tag, byte = _byte(at), _byte(at + 1)
    at, size, shift = at + 2, byte & 127, 7
    while byte >= 128:
        if at == end or shift == 7 * _LENGTH_BYTES:
            return none
        byte = _byte(at)
        at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
    if tag & _WIRE_TYPE != _WITH_LENGTH or size > end - at:
        return none
    return tag, at, at + size


@jit
def _byte(at: int) -> int:
    return int64(load_as(at, int64(0), types.uint8))


@jit
def _ask(record: OptimizerRecord, graph: Buffer, item: int, result: Buffer, status: int) -> None:
    """Has Python optimize a graph."""
    request = as_record(RequestRecord, new_request(record.server_number, graph.data, graph.length))
    if request == 0:
        return
    preserved = _names(record.preserved_size, record.preserved, item)
    request.first_names = preserved
    request.second_names = _names(record.fetches_size, record.fetches, item)
    if not upcall(record.upcalls, request, record.patience_ns):
        atomic_add(record, OptimizerRecord.timeout_count, int64(1))
        return
    if request.result != 0:
        result.data = request.result
        result.length = request.result_length
        result.deallocator = record.free
        request.result = int64(0)
        tf_set_status(status, _i32(_OK), record.empty)
    free_request(as_words(request))


@jit
def _names(size_function: int, function: int, item: int) -> NameList:
    """A list of names of an item, for a request; 0 if TensorFlow does not give it.

    Args:
      size_function, function: addresses of TF_Get...ListSize and TF_Get...List.
    """
    sizes = stack_words(2)
    sizes[0] = int64(0)
    # A status of its own: functions that succeed set it, too.
    status = tf_new_status()
    call_at(size_function, item, sizes, sizes + 8, status)
    count, memory = int64(_i32(sizes[0])), as_record(NameList, int64(0))
    if tf_get_code(status) == _OK:
        memory = as_record(NameList, c_malloc(8 * NameList.names + 16 * count + sizes[1]))
    names = memory
    if names != 0:
        names.count = count
        starts = names.names
        lengths, storage = starts + 8 * count, starts + 16 * count
        call_at(function, item, starts, lengths, count, storage, sizes[1], status)
        if tf_get_code(status) != _OK:
            c_free(names)
            names = as_record(NameList, 0)
    tf_delete_status(status)
    return names

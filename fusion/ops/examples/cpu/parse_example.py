"""FusedParseExample on a CPU.

Tasks scan Examples: they write rows of fixed length, and note where other values lie. When all are
counted there are tensors for these, and the same tasks write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.examples.cpu.calls import (
    NAMES,
    SERIALIZED,
    begin_tasks,
    end_tasks,
    new_targets,
    share_out,
    take_defaults,
    take_examples,
)
from fusion.ops.examples.cpu.example_layout import FIRST_DEFAULT, ParseState
from fusion.ops.examples.cpu.parse_errors import fail_by_example
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    OK,
    PADDED,
    RAGGED,
    ParseJob,
    Place,
    Total,
)
from fusion.ops.examples.cpu_kernels.tasks import do_task, open_reader, reader_of, reader_words
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.native.unaligned import put_half
from fusion.runtime.tensorflow.c_api import tf_dim, tf_num_dims, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs


@jit
def work(job: ParseJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        do_task(job, task)


@jit
def _do_all(frame: op.Frame, job: ParseJob) -> None:
    """Does all tasks, by all threads that there are."""
    slot = begin_tasks(frame, job)
    work(job, int64(0))
    end_tasks(frame, job, slot)


@jit
def _has_names(frame: op.Frame, serialized: int, names: int) -> bool:
    """Whether Examples have names; an error if their shape is another."""
    is_same = tf_num_dims(names) == tf_num_dims(serialized)
    if element_count(names) == 0:
        return False
    if is_same and tf_num_dims(names) == 1:
        is_same = tf_dim(names, np.int32(0)) == tf_dim(serialized, np.int32(0))
    if not is_same:
        text = "names must be empty or of the shape of serialized: there are %lld for %lld Examples"
        count = element_count(serialized)
        op.fail(frame, op.INVALID_ARGUMENT, text, element_count(names), count)
    return is_same


@jit
def _new_rows(frame: op.Frame, job: ParseJob, number: int, count: int) -> None:
    """A new tensor of a dense feature, of so many strides if it is PADDED."""
    feature, target = job.names.features[number], job.targets[number]
    dims = stack_words(feature.rank + 1)
    first = 0 if job.is_single != 0 else 1
    dims[0] = job.example_count
    for axis in range(feature.rank):
        dims[first + axis] = feature.dims[axis]
    if feature.form == PADDED:
        dims[first] = count
    target.row_bytes = count * feature.count * feature.item_bytes
    rank = first + feature.rank
    target.values = op.shaped_output(frame, feature.output, dims, rank, feature.item_bytes)


@jit
def _new_vectors(frame: op.Frame, job: ParseJob, number: int, total: Total) -> None:
    """New tensors of a sparse or ragged feature that has so many values."""
    state = as_record(ParseState, frame.state)
    feature, target = job.names.features[number], job.targets[number]
    dims, output = stack_words(int64(2)), feature.output
    is_single = job.is_single != 0
    dims[0] = total.count
    target.values = op.shaped_output(frame, output, dims, int64(1), feature.item_bytes)
    if feature.form == RAGGED:
        dims[0] = int64(0) if is_single else job.example_count + 1
        output += state.group.ragged_count
        target.splits = op.shaped_output(frame, output, dims, int64(1), feature.split_bytes)
        return
    dims[1] = 1 if is_single else 2
    sparse = state.group.sparse_count
    target.indices = as_words(op.shaped_output(frame, output - sparse, dims, int64(2), int64(8)))
    dims[0] = dims[1]
    shape = as_words(op.shaped_output(frame, output + sparse, dims, int64(1), int64(8)))
    if op.failed(frame):
        return
    shape[0] = job.example_count
    shape[dims[1] - 1] = total.max_count


@jit
def _sum_counts(job: ParseJob, place: int, total: Total) -> None:
    """Sums up a feature's values; a task's total becomes the number of those in front of it."""
    total.count = 0
    total.max_count = 0
    for task in range(job.task_count):
        one = reader_of(job, int64(task)).totals[place]
        count = one.count
        one.count = total.count
        total.count = total.count + count
        total.max_count = max(total.max_count, one.max_count)


@jit
def _allocate_others(frame: op.Frame, job: ParseJob) -> None:
    """New tensors of features of any length, now that their values are counted."""
    total = stack_record(Total)
    for number in range(job.names.count):
        feature = job.names.features[number]
        if feature.form == FIXED:
            continue
        _sum_counts(job, feature.place, total)
        if feature.form == PADDED:
            _new_rows(frame, job, int64(number), total.max_count // feature.count)
        else:
            _new_vectors(frame, job, int64(number), total)
        if op.failed(frame):
            return
        if feature.form == RAGGED and job.is_single == 0:
            splits = job.targets[number].splits
            if feature.split_bytes == 8:
                as_words(splits)[0] = 0
            else:
                put_half(splits, int64(0))


@jit
def _last_wrong(job: ParseJob) -> int:
    """The number of the first Example that a task has found to be wrong, from 1 on; 0 for none."""
    for task in range(job.task_count):
        reader = reader_of(job, int64(task))
        if reader.code != OK:
            return reader.example
    return int64(0)


@jit
def _report_wrong(frame: op.Frame, job: ParseJob, names: int) -> bool:
    """Whether an Example is wrong, which is an error of the call."""
    wrong = _last_wrong(job)
    if wrong == 0:
        return False
    open_reader(job, int64(0))
    fail_by_example(frame, reader_of(job, int64(0)), wrong, names)
    return True


@jit
def _parse(frame: op.Frame, job: ParseJob, names: int) -> None:
    """Parses, when inputs are there."""
    count = job.names.count
    for number in range(count):
        if job.names.features[number].form == FIXED:
            _new_rows(frame, job, int64(number), int64(1))
    places = 8 * Place.SIZE * job.place_count * job.example_count
    job.places = as_record(Place, op.scratch_bytes(frame, places))
    if op.failed(frame):
        return
    _do_all(frame, job)
    if _report_wrong(frame, job, names) or job.place_count == 0:
        return
    _allocate_others(frame, job)
    if op.failed(frame):
        return
    job.is_filling = 1
    _do_all(frame, job)
    _report_wrong(frame, job, names)


@jit
def _parse_inputs(frame: op.Frame, job: ParseJob, tensors: Words) -> None:
    """Takes the inputs, and parses."""
    state = as_record(ParseState, frame.state)
    serialized = take(frame, tensors, int64(SERIALIZED), int64(SERIALIZED))
    names = take(frame, tensors, int64(NAMES), int64(NAMES)) if serialized != 0 else int64(0)
    if op.failed(frame):
        return
    has_names = _has_names(frame, serialized, names)
    total = int64(0) if op.failed(frame) else take_examples(frame, job, serialized)
    op.count_rows(frame, job.example_count)
    job.targets = new_targets(frame, state.group.names.count)
    if op.failed(frame):
        return
    share_out(frame, job, total, reader_words(job.names.count, job.place_count))
    if op.failed(frame):
        return
    take_defaults(frame, state.group, job.targets, tensors)
    if not op.failed(frame):
        _parse(frame, job, tf_tensor_data(names) if has_names else int64(0))


def parse_examples(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(ParseState, frame.state)
    job = stack_record(ParseJob)
    clear(job)
    job.names = state.group.names
    job.place_count = state.group.place_count
    count = FIRST_DEFAULT + state.group.default_count
    tensors = as_words(op.scratch_bytes(frame, 8 * count))
    if op.failed(frame):
        return
    for k in range(count):
        tensors[k] = 0
    _parse_inputs(frame, job, tensors)
    release(tensors, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return parse_examples, work, ParseJob

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
    new_indices,
    new_rows,
    new_splits,
    new_targets,
    new_values,
    new_vector,
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
    SPARSE,
    Feature,
    ParseJob,
    Place,
    Target,
    Total,
)
from fusion.ops.examples.cpu_kernels.tasks import do_task, open_reader, reader_of, reader_words
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import (
    as_record,
    as_words,
    clear,
    stack_record,
    stack_words,
)
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
def _new_vectors(frame: op.Frame, job: ParseJob, number: int, total: Total) -> None:
    """New tensors of a sparse or ragged feature that has so many values."""
    group = as_record(ParseState, frame.state).group
    feature, target = job.names.features[number], job.targets[number]
    new_values(frame, feature, target, total.count)
    if feature.form == SPARSE:
        new_indices(frame, job, feature, target, group.sparse_count, total)
    elif job.is_single != 0:
        # There are none: the tensor is empty.
        new_vector(frame, feature.output + group.ragged_count, int64(0), feature.split_bytes)
    else:
        count, output = job.example_count + 1, feature.output + group.ragged_count
        target.splits = new_splits(frame, output, count, int64(1), feature.split_bytes)


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
            rows = total.max_count // feature.count
            new_rows(frame, job, feature, job.targets[number], rows)
        else:
            _new_vectors(frame, job, int64(number), total)
        if op.failed(frame):
            return


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
def _new_rows(frame: op.Frame, job: ParseJob, feature: Feature, target: Target) -> None:
    """Rows of a FIXED feature: a new tensor, or a part of one that it shares with others."""
    if feature.row_values == 0:
        new_rows(frame, job, feature, target, int64(1))
        return
    item = feature.item_bytes
    target.row_bytes = item * feature.row_values
    first = job.targets[feature.first]
    if target != first:
        start = first.values - job.names.features[feature.first].offset
        target.values = start + feature.offset
        return
    dims, is_batch = stack_words(int64(2)), int64(0 if job.is_single != 0 else 1)
    dims[0] = job.example_count
    dims[is_batch] = feature.row_values
    start = op.shaped_output(frame, feature.output, dims, 1 + is_batch, item)
    target.values = start + feature.offset


@jit
def _parse(frame: op.Frame, job: ParseJob, names: int) -> None:
    """Parses, when inputs are there."""
    count = job.names.count
    for number in range(count):
        feature = job.names.features[number]
        if feature.form == FIXED:
            _new_rows(frame, job, feature, job.targets[number])
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
    for number in range(job.names.count):
        feature, target = job.names.features[number], job.targets[number]
        target.buckets = feature.buckets
        target.reciprocal = feature.reciprocal
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

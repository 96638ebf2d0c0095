"""FusedParseSequenceExample on a CPU.

Tasks find what Examples have, and count it. Then there are tensors, and the same tasks write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    share_out,
    take_defaults,
    take_examples,
)
from fusion.ops.examples.cpu.example_layout import FIRST_DEFAULT, FeatureGroup
from fusion.ops.examples.cpu.sequence_errors import fail_by_sequence
from fusion.ops.examples.cpu.sequence_layout import SequenceState
from fusion.ops.examples.cpu_kernels.layout import FIXED, OK, PADDED, SPARSE, Feature, Target
from fusion.ops.examples.cpu_kernels.sequence_layout import Piece, SequenceJob, SequenceTotal
from fusion.ops.examples.cpu_kernels.sequence_tasks import (
    do_sequences,
    open_sequences,
    sequence_reader,
    sequence_words,
)
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs


@jit
def work(job: SequenceJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        do_sequences(job, task)


@jit
def _do_all(frame: op.Frame, job: SequenceJob) -> None:
    """Does all tasks, by all threads that there are."""
    slot = begin_tasks(frame, job)
    work(job, int64(0))
    end_tasks(frame, job, slot)


@jit
def _sum_totals(job: SequenceJob, number: int, total: SequenceTotal) -> None:
    """Sums up a feature's values; a task's total becomes the number of those in front of it."""
    clear(total)
    for task in range(job.task_count):
        one = sequence_reader(job, int64(task)).totals[number]
        count, rows = one.count, one.rows
        one.count = total.count
        one.rows = total.rows
        total.count = total.count + count
        total.rows = total.rows + rows
        total.max_count = max(total.max_count, one.max_count)
        total.max_rows = max(total.max_rows, one.max_rows)


@jit
def _new_list_indices(
    frame: op.Frame,
    job: SequenceJob,
    feature: Feature,
    target: Target,
    sparse_count: int,
    total: SequenceTotal,
) -> None:
    """New tensors of the indices and the shape of a sparse feature list, one of so many."""
    dims, width = stack_words(int64(2)), int64(2 if job.is_single != 0 else 3)
    dims[0] = total.count
    dims[1] = width
    output = feature.output - sparse_count
    target.indices = as_words(op.shaped_output(frame, output, dims, int64(2), int64(8)))
    dims[0] = width
    output = feature.output + sparse_count
    shape = as_words(op.shaped_output(frame, output, dims, int64(1), int64(8)))
    if op.failed(frame):
        return
    shape[0] = job.example_count
    shape[width - 2] = total.max_rows
    shape[width - 1] = total.max_count


@jit
def _new_dense_list(
    frame: op.Frame,
    job: SequenceJob,
    feature: Feature,
    target: Target,
    dense_count: int,
    total: SequenceTotal,
) -> None:
    """New tensors of the rows and the lengths of a dense feature list, one of so many."""
    new_rows(frame, job, feature, target, total.max_rows)
    dims = stack_words(int64(1))
    dims[0] = job.example_count
    rank, output = int64(0 if job.is_single != 0 else 1), feature.output + dense_count
    target.lengths = as_words(op.shaped_output(frame, output, dims, rank, int64(8)))


@jit
def _allocate(
    frame: op.Frame, job: SequenceJob, group: FeatureGroup, index: int, total: SequenceTotal
) -> None:
    """New tensors of a feature of a group, which has so many values."""
    number = index + (job.context.count if group.is_of_lists != 0 else int64(0))
    feature, target = job.features[number], job.targets[number]
    is_list, is_single = group.is_of_lists != 0, job.is_single != 0
    if feature.form == FIXED:
        new_rows(frame, job, feature, target, int64(1))
        return
    if feature.form == PADDED:
        _new_dense_list(frame, job, feature, target, group.dense_count, total)
        return
    new_values(frame, feature, target, total.count)
    if feature.form == SPARSE:
        if is_list:
            _new_list_indices(frame, job, feature, target, group.sparse_count, total)
        else:
            new_indices(frame, job, feature, target, group.sparse_count, total)
        return
    output, item = feature.output + group.ragged_count, feature.split_bytes
    # Of an Example alone there is one number, which means nothing.
    rank, count = int64(0 if is_single else 1), job.example_count + 1
    target.splits = new_splits(frame, output, count, rank, item)
    if is_list:
        output += group.ragged_count
        target.inner_splits = new_splits(frame, output, total.rows + 1, int64(1), item)


@jit
def _allocate_all(frame: op.Frame, job: SequenceJob) -> None:
    """New tensors of all features, now that their values are counted."""
    state, total = as_record(SequenceState, frame.state), stack_record(SequenceTotal)
    for number in range(job.feature_count):
        _sum_totals(job, int64(number), total)
        is_list = number >= job.context.count
        if is_list:
            _allocate(frame, job, state.lists, number - job.context.count, total)
        else:
            _allocate(frame, job, state.context, int64(number), total)
        if op.failed(frame):
            return


@jit
def _is_empty_wrong(job: SequenceJob) -> bool:
    """Whether there are no Examples, which is wrong where the context must have values."""
    if job.example_count > 0:
        return False
    for number in range(job.context.count):
        feature = job.features[number]
        if feature.form == FIXED and feature.is_required != 0 and feature.count > 0:
            return True
    return False


@jit
def _report_wrong(frame: op.Frame, job: SequenceJob, names: int) -> bool:
    """Whether something is wrong, which is an error of the call."""
    is_wrong = _is_empty_wrong(job)
    for task in range(job.task_count):
        is_wrong = is_wrong or sequence_reader(job, int64(task)).code != OK
    if is_wrong:
        open_sequences(job, int64(0))
        fail_by_sequence(frame, sequence_reader(job, int64(0)), names)
    return is_wrong


@jit
def _parse(frame: op.Frame, job: SequenceJob, names: int) -> None:
    """Parses, when inputs are there."""
    pieces = 8 * Piece.SIZE * job.feature_count * job.example_count
    job.pieces = as_record(Piece, op.scratch_bytes(frame, pieces))
    if op.failed(frame):
        return
    _do_all(frame, job)
    if _report_wrong(frame, job, names):
        return
    _allocate_all(frame, job)
    if op.failed(frame):
        return
    job.is_filling = 1
    _do_all(frame, job)
    _report_wrong(frame, job, names)


@jit
def _parse_inputs(frame: op.Frame, job: SequenceJob, tensors: Words) -> None:
    """Takes the inputs, and parses."""
    state = as_record(SequenceState, frame.state)
    serialized = take(frame, tensors, int64(SERIALIZED), int64(SERIALIZED))
    names = take(frame, tensors, int64(NAMES), int64(NAMES)) if serialized != 0 else int64(0)
    if op.failed(frame):
        return
    total = take_examples(frame, job, serialized)
    op.count_rows(frame, job.example_count)
    has_names = element_count(names) > 0
    if has_names and element_count(names) != job.example_count:
        text = "example_names must be empty or have the correct number of elements"
        op.fail(frame, op.INVALID_ARGUMENT, text)
    if op.failed(frame):
        return
    job.targets = new_targets(frame, job.feature_count)
    if op.failed(frame):
        return
    share_out(frame, job, total, sequence_words(job.context, job.lists))
    if op.failed(frame):
        return
    take_defaults(frame, state.context, job.targets, tensors)
    if not op.failed(frame):
        _parse(frame, job, tf_tensor_data(names) if has_names else int64(0))


def parse_sequences(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(SequenceState, frame.state)
    job = stack_record(SequenceJob)
    clear(job)
    job.context = state.context.names
    job.lists = state.lists.names
    job.features = state.context.names.features
    job.feature_count = job.context.count + job.lists.count
    count = FIRST_DEFAULT + state.context.default_count
    tensors = as_words(op.scratch_bytes(frame, 8 * count))
    if op.failed(frame):
        return
    for k in range(count):
        tensors[k] = 0
    _parse_inputs(frame, job, tensors)
    release(tensors, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return parse_sequences, work, SequenceJob

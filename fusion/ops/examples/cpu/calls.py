"""What calls of all parsers do with their inputs, and how they have their tasks done."""

from __future__ import annotations

import numpy as np

from fusion.ops.examples.cpu.example_layout import FIRST_DEFAULT, ExampleState, FeatureGroup
from fusion.ops.examples.cpu_kernels.layout import (
    PADDED,
    Example,
    ExampleJob,
    Feature,
    Target,
    Total,
)
from fusion.ops.tables.cpu.inputs import element_count, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.strings import string_of
from fusion.runtime.native.unaligned import put_half
from fusion.runtime.tensorflow.c_api import tf_dim, tf_num_dims, tf_tensor_data
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: The inputs; defaults follow.
SERIALIZED, NAMES = range(FIRST_DEFAULT)

#: A task has at least so many bytes, and there are at most so many for each thread.
_TASK_BYTES, _TASKS_PER_THREAD = 16384, 4


@jit
def begin_tasks(frame: op.Frame, job: ExampleJob) -> int:
    """Lets helper threads do tasks; the slot of the job."""
    state = as_record(ExampleState, frame.state)
    pool = as_record(Pool, state.pool if job.task_count > 1 else int64(0))
    job.kernel = state.kernel
    job.next_task = 0
    return jobs.open_job(pool, job)


@jit
def end_tasks(frame: op.Frame, job: ExampleJob, slot: int) -> None:
    """Waits until all tasks are done."""
    state = as_record(ExampleState, frame.state)
    pool = as_record(Pool, state.pool if job.task_count > 1 else int64(0))
    jobs.close_job(pool, slot)
    jobs.count_helpers(frame, job)


@jit
def new_targets(frame: op.Frame, count: int) -> Target:
    """The targets of so many features, of zeros; not there if the call has failed."""
    words = Target.SIZE * count
    targets = as_words(op.scratch_bytes(frame, 8 * words))
    if not op.failed(frame):
        for k in range(words):
            targets[k] = 0
    return as_record(Target, targets)


@jit
def take_examples(frame: op.Frame, job: ExampleJob, serialized: int) -> int:
    """Sets where the Examples lie; returns how many bytes they have."""
    if tf_num_dims(serialized) > 1:
        text = "serialized must be a scalar or a vector, but has rank %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, int64(tf_num_dims(serialized)))
        return int64(0)
    count, total = element_count(serialized), int64(0)
    job.is_single = 1 if tf_num_dims(serialized) == 0 else 0
    job.example_count = count
    job.examples = as_record(Example, op.scratch_bytes(frame, 8 * Example.SIZE * count))
    if op.failed(frame):
        return total
    strings = tf_tensor_data(serialized)
    for k in range(count):
        example = job.examples[k]
        start, size = string_of(strings, k)
        example.start = start
        example.size = size
        total += size
    return total


@jit
def share_out(frame: op.Frame, job: ExampleJob, total: int, words: int) -> None:
    """Divides the Examples among tasks by their bytes, of which there are so many in all.

    Args:
      words: those of a reader and its memory.
    """
    state = as_record(ExampleState, frame.state)
    threads = int64(1) if state.pool == 0 else 1 + state.pool.thread_count
    count = min(total // _TASK_BYTES, _TASKS_PER_THREAD * threads)
    count = max(min(count, job.example_count), int64(1))
    memory = op.scratch_bytes(frame, 8 * (count + 1 + words * count))
    if op.failed(frame):
        return
    firsts, task, size = as_words(memory + 8 * words * count), int64(1), int64(0)
    firsts[0] = 0
    for k in range(job.example_count):
        if task < count and size * count >= total * task:
            firsts[task] = k
            task += 1
        size += job.examples[k].size
    firsts[task] = job.example_count
    job.firsts = firsts
    job.task_count = task
    job.reader_words = words
    job.readers = memory


@jit
def _check_default(frame: op.Frame, feature: Feature, default: int, index: int) -> None:
    """Checks the shape of the default of a dense feature."""
    if feature.form == PADDED:
        if element_count(default) != 1:
            text = (
                "dense_defaults[%lld] must be the one element that rows are filled with, but has "
                "%lld"
            )
            op.fail(frame, op.INVALID_ARGUMENT, text, index, element_count(default))
        return
    is_same = int64(tf_num_dims(default)) == feature.rank
    for axis in range(feature.rank):
        is_same = is_same and tf_dim(default, np.int32(axis)) == feature.dims[axis]
    if not is_same:
        text = "dense_defaults[%lld] must have the shape of the feature, but has %lld elements"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, element_count(default))


@jit
def take_defaults(frame: op.Frame, group: FeatureGroup, targets: Target, tensors: Words) -> None:
    """Sets the defaults of features that have one; `tensors` as in `take`."""
    for index in range(group.dense_count):
        feature = group.names.features[index]
        if feature.default_input < 0:
            continue
        default = take(frame, tensors, feature.default_input, feature.default_input)
        if op.failed(frame):
            return
        _check_default(frame, feature, default, feature.default_input - FIRST_DEFAULT)
        if op.failed(frame):
            return
        targets[index].default = tf_tensor_data(default)


@jit
def new_rows(
    frame: op.Frame, job: ExampleJob, feature: Feature, target: Target, count: int
) -> None:
    """A new tensor of a dense feature, of so many strides if it is PADDED."""
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
def new_vector(frame: op.Frame, output: int, count: int, item: int) -> int:
    """The address of a new tensor of so many elements."""
    dims = stack_words(int64(1))
    dims[0] = count
    return op.shaped_output(frame, output, dims, int64(1), item)


@jit
def new_values(frame: op.Frame, feature: Feature, target: Target, count: int) -> None:
    """A new tensor of the values of a sparse or ragged feature."""
    target.values = new_vector(frame, feature.output, count, feature.item_bytes)


@jit
def new_indices(
    frame: op.Frame,
    job: ExampleJob,
    feature: Feature,
    target: Target,
    sparse_count: int,
    total: Total,
) -> None:
    """New tensors of the indices and the shape of a sparse feature, one of so many."""
    dims, width = stack_words(int64(2)), int64(1 if job.is_single != 0 else 2)
    dims[0] = total.count
    dims[1] = width
    output = feature.output - sparse_count
    target.indices = as_words(op.shaped_output(frame, output, dims, int64(2), int64(8)))
    shape = as_words(new_vector(frame, feature.output + sparse_count, width, int64(8)))
    if op.failed(frame):
        return
    shape[0] = job.example_count
    shape[width - 1] = total.max_count


@jit
def new_splits(frame: op.Frame, output: int, count: int, rank: int, item: int) -> int:
    """The address of a new tensor of so many row splits, or of rank 0, that begins with 0."""
    dims = stack_words(int64(1))
    dims[0] = count
    splits = op.shaped_output(frame, output, dims, rank, item)
    if op.failed(frame):
        return splits
    if item == 8:
        as_words(splits)[0] = 0
    else:
        put_half(splits, int64(0))
    return splits

"""What TensorFlow's parser says of Examples that are wrong."""

from __future__ import annotations

from fusion.ops.examples.cpu.error_text import (
    append_bytes,
    append_dtype,
    append_escaped,
    append_example,
    append_shape,
)
from fusion.ops.examples.cpu_kernels.exact import parse_exactly
from fusion.ops.examples.cpu_kernels.layout import (
    ABSENT,
    BROKEN_STRIDE,
    FIXED,
    MALFORMED,
    NO_MEMORY,
    OK,
    OTHER_DTYPE,
    OTHER_SIZE,
    PADDED,
    UNSUPPORTED,
    Example,
    Feature,
    ParseJob,
    Reader,
)
from fusion.ops.examples.cpu_kernels.tasks import begin_example
from fusion.ops.examples.cpu_kernels.wire import FLOATS, INTS, STRINGS
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import stack_record
from fusion.runtime.native.strings import string_of
from fusion.runtime.native.text import (
    Message,
    append_byte,
    append_literal,
    append_number,
    begin,
    literal,
)

#: The bytes of a message beside what it quotes.
_MESSAGE_BYTES = 512
#: Of a dimension in a message.
_DIM_BYTES = 24

#: TensorFlow's parser has tasks of so many bytes, at least so many and at most.
_TASK_BYTES, _MIN_TASKS, _MAX_TASKS = 50000, 8, 64


@jit
def _append_values(message: Message, dtype: int) -> None:
    """Appends what TensorFlow calls the values of a dtype."""
    if dtype in (INTS, FLOATS):
        append_dtype(message, dtype)
    else:
        append_literal(message, literal("bytes"))
    append_literal(message, literal(" values "))


@jit
def _append_name(message: Message, reader: Reader, names: int) -> None:
    """Appends the name of the Example, from a tensor of them; 0 if there is none."""
    append_literal(message, literal("Name: "))
    append_example(message, names, reader.example - 1)
    append_literal(message, literal(", "))


@jit
def _append_feature(message: Message, reader: Reader, feature: Feature, names: int) -> None:
    """Appends which feature of which Example is wrong."""
    is_single = reader.job.is_single != 0
    if not is_single:
        _append_name(message, reader, names)
    append_literal(message, literal("Key: "))
    append_bytes(message, feature.address, feature.size)
    if not is_single:
        append_literal(message, literal(", Index: "))
        append_number(message, reader.example - 1)
    append_literal(message, literal(".  "))


@jit
def _append_other_dtype(message: Message, reader: Reader, feature: Feature) -> None:
    append_literal(message, literal("Data types don't match. "))
    if feature.form in (FIXED, PADDED):
        append_literal(message, literal("Data type: "))
        append_dtype(message, reader.detail)
        append_literal(message, literal(" but expected type: "))
        append_dtype(message, feature.dtype)
    else:
        append_literal(message, literal("Expected type: "))
        append_dtype(message, feature.dtype)
        append_literal(message, literal(", Actual type: "))
        append_dtype(message, reader.detail)


@jit
def _append_absent(message: Message, reader: Reader, feature: Feature, names: int) -> None:
    if reader.job.is_single == 0:
        _append_name(message, reader, names)
    append_literal(message, literal("Feature: "))
    append_bytes(message, feature.address, feature.size)
    append_literal(message, literal(" (data type: "))
    append_dtype(message, feature.dtype)
    append_literal(message, literal(") is required but could not be found."))


@jit
def _first_of_task(job: ParseJob, example: int) -> int:
    """The first Example of that task of TensorFlow's parser which an Example is in."""
    count, tasks, size = job.example_count, int64(0), int64(0)
    for k in range(count):
        if size == 0:
            tasks += 1
        size += job.examples[k].size + 1
        if size > _TASK_BYTES:
            size = int64(0)
    tasks = max(min(int64(_MIN_TASKS), count), min(int64(_MAX_TASKS), tasks))
    first = int64(0)
    for task in range(tasks):
        start = count * task // tasks
        if start <= example:
            first = start
    return first


@jit
def _values_so_far(reader: Reader) -> int:
    """How many values of the feature TensorFlow's task has when it finds that one is wrong."""
    job, wrong, count = reader.job, reader.example, reader.detail
    place = job.names.features[reader.feature].place
    number = reader.feature
    for example in range(_first_of_task(job, wrong - 1), wrong - 1):
        begin_example(reader, int64(example))
        parse_exactly(reader)
        count += job.places[example * job.place_count + place].count >> 1
    reader.example = wrong
    reader.feature = number
    return count


@jit
def _append_sizes(message: Message, reader: Reader, feature: Feature) -> None:
    """Appends how many values there are, and what they should be."""
    is_stride = reader.code == BROKEN_STRIDE
    count = _values_so_far(reader) if is_stride else reader.detail
    append_literal(message, literal("Number of "))
    _append_values(message, feature.dtype)
    if is_stride:
        append_literal(message, literal("is not a multiple of stride length. Saw "))
        append_number(message, count)
        append_literal(message, literal(" values but output shape is: "))
    else:
        append_literal(message, literal("!= expected.  Values size: "))
        append_number(message, count)
        append_literal(message, literal(" but output shape: "))
    append_shape(message, feature, int64(0))


@jit
def _append_list(message: Message, dtype: int) -> None:
    """Appends what protocol buffers call a list of a dtype."""
    if dtype in (INTS, FLOATS):
        append_dtype(message, dtype)
    else:
        append_literal(message, literal("bytes"))
    append_literal(message, literal("_list"))


@jit
def _append_malformed(message: Message, reader: Reader, feature: Feature) -> None:
    """Appends that a feature cannot be parsed, and of a single Example why."""
    append_literal(message, literal("Can't parse serialized Example"))
    if reader.job.is_single == 0:
        append_literal(message, literal("."))
    elif reader.code == OTHER_SIZE:
        append_literal(message, literal(": Some "))
        _append_list(message, feature.dtype)
        append_literal(message, literal(" slice was not parsed."))
    elif feature.dtype == STRINGS and feature.form != FIXED:
        append_literal(message, literal(": Could not get num elements in bytes_list."))
    else:
        append_literal(message, literal(": Parsing "))
        _append_list(message, feature.dtype)
        append_literal(message, literal(" failed."))


@jit
def _append_stride(message: Message, reader: Reader, feature: Feature) -> None:
    """Appends that values of a single Example are not whole strides."""
    append_literal(message, literal("Error while parsing feature with key "))
    append_bytes(message, feature.address, feature.size)
    append_literal(message, literal(": number of elements should be divisible by "))
    append_number(message, feature.count)
    append_literal(message, literal(", found "))
    append_number(message, reader.detail)
    append_literal(message, literal(" instead"))


@jit
def _write(message: Message, reader: Reader, example: Example, names: int) -> None:
    """Writes what is wrong with an Example."""
    code, feature = reader.code, reader.job.names.features[reader.feature]
    is_size = code in (OTHER_SIZE, BROKEN_STRIDE)
    if code == MALFORMED:
        append_literal(message, literal("Could not parse example input, value: '"))
        append_escaped(message, example.start, example.size)
        append_byte(message, ord("'"))
    elif code == UNSUPPORTED:
        append_literal(message, literal("Unsupported datatype."))
    elif code == ABSENT:
        _append_absent(message, reader, feature, names)
    elif code == BROKEN_STRIDE and reader.job.is_single != 0:
        _append_stride(message, reader, feature)
    else:
        _append_feature(message, reader, feature, names)
        if code == OTHER_DTYPE:
            _append_other_dtype(message, reader, feature)
        elif is_size and reader.job.is_single == 0:
            _append_sizes(message, reader, feature)
        else:
            _append_malformed(message, reader, feature)


@jit
def fail_by_example(frame: op.Frame, reader: Reader, last: int, names: int) -> None:
    """Reports the first Example that is wrong, of the first ones up to that of a number.

    Args:
      names: the address of the names of Examples, elements of a tensor; 0 if they have none.
    """
    job = reader.job
    for example in range(last):
        begin_example(reader, int64(example))
        if not parse_exactly(reader):
            break
    if reader.code in (OK, NO_MEMORY):
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for the strings of Examples")
        return
    example, feature = job.examples[reader.example - 1], job.names.features[reader.feature]
    size = _MESSAGE_BYTES + 4 * example.size + feature.size + _DIM_BYTES * feature.rank
    if names != 0:
        _, length = string_of(names, reader.example - 1)
        size += length
    text = op.scratch_bytes(frame, size)
    if op.failed(frame):
        return
    message = stack_record(Message)
    begin(message, text, size)
    _write(message, reader, example, names)
    op.fail_with(frame, op.INVALID_ARGUMENT, text)

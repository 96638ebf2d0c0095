"""What TensorFlow's parser says of SequenceExamples that are wrong.

It goes over all Examples for one thing after the other: whether they are well-formed; how many
values each feature of the context has, and each feature list, which is an error where one is of
another dtype; then over features, dense ones first, those of the context before lists. The first
thing that is wrong is what it says. Which feature is counted first is not determined: here it is
the first that is asked for.
"""

from __future__ import annotations

from fusion.ops.examples.cpu.error_text import (
    append_bytes,
    append_dtype,
    append_example,
    append_shape,
)
from fusion.ops.examples.cpu_kernels.feature_lists import BROKEN_ROW, CUT, any_feature, any_row
from fusion.ops.examples.cpu_kernels.layout import FIXED, PADDED, SPARSE, Feature
from fusion.ops.examples.cpu_kernels.sequence_layout import SequenceReader
from fusion.ops.examples.cpu_kernels.sequence_scan import find_exactly
from fusion.ops.examples.cpu_kernels.sequence_tasks import begin_sequence
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import stack_record
from fusion.runtime.native.strings import string_of
from fusion.runtime.native.text import Message, append_literal, append_number, begin, literal

#: What is wrong: bytes; the dtype of a feature of the context, or of a row; where a row begins; how
#: many values the context has at most, or in an Example; how many are read of a list of any length;
#: how many values a dense list has, or one of its rows; something that is required is missing.
(MALFORMED, OTHER_DTYPE, OTHER_ROW, BROKEN, MOST_VALUES, OTHER_COUNT, CUT_VALUES) = range(1, 8)
(NO_STRIDES, ROW_SIZE, NO_FEATURE, NO_LIST) = range(8, 12)

#: The bytes of a message beside what it quotes, and of a dimension.
_MESSAGE_BYTES, _DIM_BYTES = 512, 24


@jit
def _set_error(reader: SequenceReader, code: int, number: int, row: int, detail: int) -> bool:
    """Notes what is wrong; True."""
    reader.code = code
    reader.feature = number
    reader.row = row
    reader.detail = detail
    return True


@jit
def _context_values(reader: SequenceReader, number: int) -> tuple[int, bool]:
    """How many values the Example has of a feature of the context, and whether one is cut off."""
    piece, dtype = reader.pieces[number], reader.job.features[number].dtype
    if piece.size == 0:
        return int64(0), False
    _, count, kind, _ = any_feature(dtype, piece.value, piece.value + piece.size)
    return count, kind == CUT


@jit
def _row_error(reader: SequenceReader, number: int) -> tuple[bool, int, bool]:
    """Goes over a feature list of the Example as it is counted.

    Returns:
      Whether a row is wrong, which is noted; how many values there are; whether one is cut off.
    """
    piece, dtype = reader.pieces[number], reader.job.features[number].dtype
    at, end, row, values, is_cut = piece.value, piece.value + piece.size, int64(0), int64(0), False
    while at < end:
        _, count, kind, at = any_row(dtype, at, end, int64(0))
        if count < 0:
            code = int64(BROKEN if count == BROKEN_ROW else OTHER_ROW)
            return _set_error(reader, code, number, row, int64(0)), values, is_cut
        is_cut = is_cut or kind == CUT
        values += count
        row += 1
    return False, values, is_cut


@jit
def _counting_error(reader: SequenceReader, number: int) -> bool:
    """Whether a feature cannot be counted, which is noted, and in which Example."""
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        if number < reader.job.context.count:
            count, _ = _context_values(reader, number)
            if count < 0:
                return _set_error(reader, int64(OTHER_DTYPE), number, int64(0), int64(0))
        else:
            is_wrong, _, _ = _row_error(reader, number)
            if is_wrong:
                return True
    return False


@jit
def _fixed_error(reader: SequenceReader, number: int) -> bool:
    """Whether a dense feature of the context is wrong."""
    feature, row = reader.job.features[number], int64(0)
    most = int64(0) if feature.is_required != 0 else feature.count
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        count, _ = _context_values(reader, number)
        most = max(most, count)
    if most != feature.count:
        return _set_error(reader, int64(MOST_VALUES), number, row, most)
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        if reader.pieces[number].value == 0:
            if feature.is_required != 0:
                return _set_error(reader, int64(NO_FEATURE), number, row, row)
            continue
        count, is_cut = _context_values(reader, number)
        if count != most or is_cut:
            return _set_error(reader, int64(OTHER_COUNT), number, row, count)
    return False


@jit
def _dense_row_error(reader: SequenceReader, number: int) -> bool:
    """Whether a row of a dense list of the Example is wrong, as it is read."""
    piece, feature = reader.pieces[number], reader.job.features[number]
    at, end, row = piece.value, piece.value + piece.size, int64(0)
    while at < end:
        _, count, kind, at = any_row(feature.dtype, at, end, int64(0))
        if kind == CUT:
            return _set_error(reader, int64(BROKEN), number, row, count)
        if count != feature.count:
            return _set_error(reader, int64(ROW_SIZE), number, row, count)
        row += 1
    return False


@jit
def _dense_list_error(reader: SequenceReader, number: int) -> bool:
    """Whether a dense feature list is wrong."""
    feature, most = reader.job.features[number], int64(0)
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        _, values, _ = _row_error(reader, number)
        most = max(most, values)
    if most % feature.count != 0:
        return _set_error(reader, int64(NO_STRIDES), number, int64(0), most)
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        if reader.pieces[number].value == 0 and feature.is_required != 0:
            return _set_error(reader, int64(NO_LIST), number, int64(0), int64(0))
        if _dense_row_error(reader, number):
            return True
    return False


@jit
def _cut_error(reader: SequenceReader, number: int) -> bool:
    """Whether a string of a list of any length is cut off.

    TensorFlow ends the process where the feature is sparse.
    """
    for example in range(reader.job.example_count):
        begin_sequence(reader, int64(example))
        if number < reader.job.context.count:
            _, is_cut = _context_values(reader, number)
        else:
            _, _, is_cut = _row_error(reader, number)
        if is_cut:
            return _set_error(reader, int64(CUT_VALUES), number, int64(0), int64(0))
    return False


@jit
def find_error(reader: SequenceReader) -> bool:
    """Whether something is wrong with the Examples of a call, of which the first is noted."""
    job = reader.job
    for example in range(job.example_count):
        begin_sequence(reader, int64(example))
        if not find_exactly(reader):
            return _set_error(reader, int64(MALFORMED), int64(0), int64(0), int64(0))
    for number in range(job.feature_count):
        if _counting_error(reader, int64(number)):
            return True
    for k in range(job.feature_count):
        number, form = int64(k), job.features[k].form
        if form == FIXED:
            is_wrong = _fixed_error(reader, number)
        elif form == PADDED:
            is_wrong = _dense_list_error(reader, number)
        else:
            is_wrong = _cut_error(reader, number)
        if is_wrong:
            return True
    return False


@jit
def _append_name(message: Message, reader: SequenceReader, names: int) -> None:
    append_literal(message, literal("Name: "))
    append_example(message, names, reader.example - 1)
    append_literal(message, literal(", "))


@jit
def _append_key(message: Message, feature: Feature) -> None:
    append_bytes(message, feature.address, feature.size)


@jit
def _append_expected(message: Message, feature: Feature) -> None:
    append_literal(message, literal(".  Data types don't match. Expected type: "))
    append_dtype(message, feature.dtype)


@jit
def _write_of_context(
    message: Message, reader: SequenceReader, feature: Feature, names: int
) -> None:
    """Writes what is wrong with a feature of the context."""
    code = reader.code
    if code == OTHER_DTYPE:
        _append_name(message, reader, names)
        append_literal(message, literal("Context feature: "))
        _append_key(message, feature)
        _append_expected(message, feature)
    elif code == MOST_VALUES:
        append_literal(message, literal("Inconsistent max number of elements for feature "))
        _append_key(message, feature)
        append_literal(message, literal(": expected "))
        append_number(message, feature.count)
        append_literal(message, literal(", but found "))
        append_number(message, reader.detail)
    elif code == NO_FEATURE:
        append_literal(message, literal("Feature: "))
        _append_key(message, feature)
        append_literal(message, literal(" (data type: "))
        append_dtype(message, feature.dtype)
        append_literal(message, literal(") is required but could not be found."))
    elif code == OTHER_COUNT:
        append_literal(message, literal("Unexpected number of elements in example "))
        append_example(message, names, reader.example - 1)
    else:
        append_literal(message, literal("Unexpected total number of elements in feature "))
        _append_key(message, feature)


@jit
def _write_of_dense_list(
    message: Message, reader: SequenceReader, feature: Feature, names: int
) -> None:
    """Writes what is wrong with the values of a dense feature list."""
    if reader.code == NO_STRIDES:
        append_literal(message, literal("Feature list '"))
        _append_key(message, feature)
        text = literal("' has an unexpected number of values.  Total values size: ")
        append_literal(message, text)
        append_number(message, reader.detail)
        append_literal(message, literal(" is not consistent with output shape: "))
        append_shape(message, feature, int64(0))
        return
    _append_name(message, reader, names)
    if reader.code == NO_LIST:
        append_literal(message, literal("Feature list '"))
        _append_key(message, feature)
        append_literal(message, literal("' is required but could not be found.  "))
        append_literal(message, literal("Did you mean to include it in "))
        append_literal(message, literal("feature_list_dense_missing_assumed_empty or "))
        append_literal(message, literal("feature_list_dense_defaults?"))
        return
    append_literal(message, literal("Key: "))
    _append_key(message, feature)
    append_literal(message, literal(", Index: "))
    append_number(message, reader.row)
    append_literal(message, literal(".  Number of values != expected.  values size: "))
    append_number(message, reader.detail)
    append_literal(message, literal(" but output shape: "))
    append_shape(message, feature, int64(1))


@jit
def _write_of_list(message: Message, reader: SequenceReader, feature: Feature, names: int) -> None:
    """Writes what is wrong with a feature list."""
    code = reader.code
    if code == OTHER_ROW:
        _append_name(message, reader, names)
        append_literal(message, literal("Feature list: "))
        _append_key(message, feature)
        append_literal(message, literal(", Index: "))
        append_number(message, reader.row)
        _append_expected(message, feature)
    elif code == BROKEN:
        append_literal(message, literal("Error in sequence feature "))
        _append_key(message, feature)
        append_literal(message, literal(" in example "))
        append_example(message, names, reader.example - 1)
    elif code == CUT_VALUES:
        append_literal(message, literal("Unexpected number of elements "))
        if feature.form == SPARSE:
            append_literal(message, literal("in feature "))
        else:
            append_literal(message, literal("for feature "))
        _append_key(message, feature)
    else:
        _write_of_dense_list(message, reader, feature, names)


@jit
def _write(message: Message, reader: SequenceReader, names: int) -> None:
    """Writes what is wrong."""
    feature = reader.job.features[reader.feature]
    if reader.code == MALFORMED:
        append_literal(message, literal("Invalid protocol message input, example id: "))
        append_example(message, names, reader.example - 1)
    elif reader.feature < reader.job.context.count:
        _write_of_context(message, reader, feature, names)
    else:
        _write_of_list(message, reader, feature, names)


@jit
def fail_by_sequence(frame: op.Frame, reader: SequenceReader, names: int) -> None:
    """Reports what is wrong with the Examples of a call.

    Args:
      names: the address of the names of Examples, elements of a tensor; 0 if they have none.
    """
    if not find_error(reader):
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for the strings of Examples")
        return
    size = int64(_MESSAGE_BYTES)
    if reader.code != MALFORMED:
        feature = reader.job.features[reader.feature]
        size += feature.size + _DIM_BYTES * feature.rank
    if names != 0 and reader.example > 0:
        _, length = string_of(names, reader.example - 1)
        size += length
    text = op.scratch_bytes(frame, size)
    if op.failed(frame):
        return
    message = stack_record(Message)
    begin(message, text, size)
    _write(message, reader, names)
    op.fail_with(frame, op.INVALID_ARGUMENT, text)

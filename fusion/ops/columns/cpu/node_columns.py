"""The columns of a node, read from its attrs."""

from __future__ import annotations

from fusion.ops.columns.cpu.layout import ATTR_FIELDS, ColumnsConstants, NodeColumn, Source
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import attr_count, attr_item, attr_word
from fusion.runtime.tensorflow.dtypes import DTYPES

#: (code, number of TF_DataType).
_CODES = tuple((dtype.code, dtype.enum) for dtype in DTYPES.values() if dtype.code >= 0)


@jit
def _attr_name(creation: Creation, attr: int) -> int:
    """The address of the name of an attr."""
    record = creation.record
    return record.attrs[attr].name


@jit
def check_lists(creation: Creation, constants: ColumnsConstants, count: int) -> None:
    """Refuses lists that have another length than the number of columns."""
    for field in range(ATTR_FIELDS):
        source = constants.sources[field]
        attr = source.attr
        if attr < 0 or source.is_list == 0 or _is_left_out(creation, source):
            continue
        _check_length(creation, attr, count)
    counts = constants.boundary_counts_attr
    if counts >= 0:
        _check_length(creation, counts, count)
        _check_counts(creation, counts, constants.boundaries_attr)
    _check_outputs(creation, constants, count)
    names = creation.record.names
    has_many = constants.count_attr >= 0
    if names >= 0 and has_many and attr_count(creation, names) > 0:
        _check_length(creation, names, count)


@jit
def _is_left_out(creation: Creation, source: Source) -> bool:
    """Whether an attr is a list that may be empty, and is."""
    return source.may_be_empty != 0 and attr_count(creation, source.attr) == 0


@jit
def _check_length(creation: Creation, attr: int, count: int) -> None:
    length = attr_count(creation, attr)
    if length != count:
        name = _attr_name(creation, attr)
        text = "%s has %lld items for %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, name, length, count)


@jit
def _check_counts(creation: Creation, counts: int, boundaries: int) -> None:
    """Refuses `boundary_counts` that do not add up to the number of boundaries."""
    total, boundary_count = int64(0), attr_count(creation, boundaries)
    for k in range(attr_count(creation, counts)):
        number = attr_item(creation, counts, k)
        if number < 0:
            text = "boundary_counts must not be negative, got %lld"
            refuse(creation, INVALID_ARGUMENT, text, number)
            return
        total += min(number, boundary_count + 1)
    if total != boundary_count:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "there are %lld boundaries, but counts of %lld",
            boundary_count,
            total,
        )


@jit
def output_count(creation: Creation, constants: ColumnsConstants) -> int:
    """The number of matrices that columns are in."""
    attr = constants.num_others_attr
    return attr_word(creation, attr) + 1 if attr >= 0 else int64(1)


@jit
def columns_of_output(
    creation: Creation, constants: ColumnsConstants, output: int, count: int
) -> int:
    """How many columns an output has, of `count` in all."""
    attr = constants.output_columns_attr
    if attr < 0 or attr_count(creation, attr) == 0:
        return count
    return attr_item(creation, attr, output)


@jit
def _check_outputs(creation: Creation, constants: ColumnsConstants, count: int) -> None:
    """Refuses `output_columns` that do not add up to the number of columns."""
    attr = constants.output_columns_attr
    outputs = output_count(creation, constants)
    if attr < 0 or (outputs == 1 and attr_count(creation, attr) == 0):
        return
    length, total = attr_count(creation, attr), int64(0)
    if length != outputs:
        text = "output_columns has %lld items for %lld outputs"
        refuse(creation, INVALID_ARGUMENT, text, length, outputs)
        return
    for k in range(outputs):
        number = attr_item(creation, attr, k)
        if number < 1:
            text = "output_columns must be at least 1, got %lld"
            refuse(creation, INVALID_ARGUMENT, text, number)
            return
        total += min(number, count + 1)
    if total != count:
        text = "output_columns add up to %lld, but there are %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, total, count)


@jit
def limit_count(creation: Creation, constants: ColumnsConstants, column: int) -> int:
    """The number of a column's boundaries."""
    counts = constants.boundary_counts_attr
    boundaries = constants.boundaries_attr
    if counts >= 0:
        return attr_item(creation, counts, column)
    return attr_count(creation, boundaries) if boundaries >= 0 else int64(0)


@jit
def read_column(
    creation: Creation, constants: ColumnsConstants, index: int, column: NodeColumn
) -> None:
    """Reads a column from the attrs of a node into `column`."""
    for field in range(ATTR_FIELDS):
        source = constants.sources[field]
        attr, value = source.attr, source.default
        if attr >= 0 and not _is_left_out(creation, source):
            if source.is_list == 0:
                value = attr_word(creation, attr)
            else:
                value = attr_item(creation, attr, index)
            if source.is_dtype != 0:
                value = _code_of(value)
        store(column, field, value)


@jit
def _code_of(number: int) -> int:
    for code, enum in _CODES:
        if enum == number:
            return int64(code)
    return int64(-1)

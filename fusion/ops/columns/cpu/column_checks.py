"""Refuses attrs of a column that break a rule of `fusion.schema.column_rules`."""

from __future__ import annotations

from fusion.cpu_ops.column_layout import AXIS
from fusion.ops.columns.cpu.layout import (
    FLOAT_RANGE,
    ONE_OF,
    POST,
    ColumnRule,
    ColumnsConstants,
    NodeColumn,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import attr_item
from fusion.runtime.tensorflow.attrs import STRING
from fusion.schema.column_rules import RULES
from fusion.schema.columns import COLUMN_COMBINERS, GROUP_FORMS

_DENSE, _EACH, _LENGTHS, _COPY = map(GROUP_FORMS.index, ("dense", "each", "lengths", "copy"))
_MEAN = COLUMN_COMBINERS.index("mean")
_RULE_COUNT = len(RULES)


@jit
def is_copy(column: NodeColumn, role: int) -> bool:
    """Whether a column is a matrix that is copied."""
    if role == POST:
        return column.copied != 0
    return column.form == _COPY


@jit
def is_dense(column: NodeColumn) -> bool:
    """Whether ids are in a dense tensor."""
    return _DENSE <= column.form <= _LENGTHS


@jit
def is_each(column: NodeColumn) -> bool:
    """Whether each id is a row."""
    return column.form == _EACH


@jit
def is_lengths(column: NodeColumn) -> bool:
    """Whether rows have a number of entries, from the left."""
    return column.form == _LENGTHS


@jit
def is_mean(column: NodeColumn) -> bool:
    """Whether a column is a Mean over an axis, see `fusion.schema.columns.Column.is_mean`."""
    is_wanted = column.sum_order == AXIS and column.form == _DENSE and column.combiner == _MEAN
    masks = (
        column.use_ignored_id
        | column.use_sparse_weights
        | column.epsilon_input
        | column.divide_no_nan
    )
    epsilon = column.divisor_epsilon
    return is_wanted and masks == 0 and epsilon == 0.0


@jit
def check_column(
    creation: Creation, constants: ColumnsConstants, index: int, column: NodeColumn, first: int
) -> None:
    """Refuses a column whose attrs break a rule.

    Args:
      first: the index of its first boundary among all.
    """
    if column.role == POST:
        return
    for number in range(_RULE_COUNT):
        rule = constants.rules[number]
        if _applies(rule, column):
            one = _value(creation, constants, column, rule.values[0])
            other = _value(creation, constants, column, rule.values[1])
            refuse(creation, INVALID_ARGUMENT, rule.text, index, one, other)
            return
    _check_ascending(creation, constants, index, column.boundaries, first)


@jit
def _applies(rule: ColumnRule, column: NodeColumn) -> bool:
    """Whether all tests of a rule hold."""
    for number in range(rule.test_count):
        test = rule.tests[number]
        value, kind = load(column, test.field), test.kind
        low, high = test.low, test.high
        if kind == ONE_OF:
            holds = 0 <= value < 63 and (low >> value) & 1 != 0
        elif kind == FLOAT_RANGE:
            holds = as_float(low) <= as_float(value) <= as_float(high)
        else:
            holds = low <= value <= high
        if holds == (test.negated != 0):
            return False
    return True


@jit
def _value(creation: Creation, constants: ColumnsConstants, column: NodeColumn, field: int) -> int:
    """The value of a field for a message: the address of a string, or a number."""
    if field < 0:
        return int64(0)
    record = creation.record
    entry = record.attrs[constants.sources[field].attr]
    value = load(column, field)
    return entry.allowed[value].address if entry.kind == STRING else value


@jit
def _check_ascending(
    creation: Creation, constants: ColumnsConstants, index: int, boundaries: int, first: int
) -> None:
    attr = constants.boundaries_attr
    for k in range(1, boundaries):
        before = as_float(attr_item(creation, attr, first + k - 1))
        limit = as_float(attr_item(creation, attr, first + k))
        if limit < before:
            text = "column %lld: boundaries must be ascending, but %g follows %g"
            refuse(creation, INVALID_ARGUMENT, text, index, limit, before)
            return

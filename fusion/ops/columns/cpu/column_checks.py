"""What attrs of a column do not go together, as `fusion.schema.column_rules` says it."""

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
def is_copy(given: NodeColumn, role: int) -> bool:
    """Whether a column is a matrix that is copied."""
    if role == POST:
        return given.copied != 0
    return given.form == _COPY


@jit
def is_dense(given: NodeColumn) -> bool:
    """Whether ids are in a dense tensor."""
    return _DENSE <= given.form <= _LENGTHS


@jit
def is_each(given: NodeColumn) -> bool:
    """Whether each id is a row."""
    return given.form == _EACH


@jit
def is_lengths(given: NodeColumn) -> bool:
    """Whether rows have a number of entries, from the left."""
    return given.form == _LENGTHS


@jit
def is_mean(given: NodeColumn) -> bool:
    """Whether a column is a Mean over an axis, see `fusion.schema.columns.Column.is_mean`."""
    is_wanted = given.sum_order == AXIS and given.form == _DENSE and given.combiner == _MEAN
    masks = (
        given.use_ignored_id | given.use_sparse_weights | given.epsilon_input | given.divide_no_nan
    )
    epsilon = given.divisor_epsilon
    return is_wanted and masks == 0 and epsilon == 0.0


@jit
def check_column(
    creation: Creation, constants: ColumnsConstants, index: int, given: NodeColumn, first: int
) -> None:
    """Refuses a column whose attrs make no sense together.

    Args:
      first: the index of its first boundary among all.
    """
    if given.role == POST:
        return
    for number in range(_RULE_COUNT):
        rule = constants.rules[number]
        if _applies(rule, given):
            one = _value(creation, constants, given, rule.values[0])
            other = _value(creation, constants, given, rule.values[1])
            refuse(creation, INVALID_ARGUMENT, rule.text, index, one, other)
            return
    _check_ascending(creation, constants, index, given.boundaries, first)


@jit
def _applies(rule: ColumnRule, given: NodeColumn) -> bool:
    """Whether all tests of a rule hold."""
    for number in range(rule.test_count):
        test = rule.tests[number]
        value, kind = load(given, test.field), test.kind
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
def _value(creation: Creation, constants: ColumnsConstants, given: NodeColumn, field: int) -> int:
    """What a message has for a field: the address of a string, or a number."""
    if field < 0:
        return int64(0)
    record = creation.record
    entry = record.attrs[constants.sources[field].attr]
    value = load(given, field)
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

"""The builders of the states of the ops for whole columns, and their constants."""

from __future__ import annotations

import re
import struct

from fusion.cpu_ops.kernel_indices import FIRST_FLOAT, MAX_TILES
from fusion.cpu_ops.row_tiles import tiles
from fusion.ops.base.row_kernels import GATHERS, SCATTERS
from fusion.ops.columns.cpu.layout import (
    ATTR_FIELDS,
    FLOAT_RANGE,
    FULL,
    GRAD,
    INT_RANGE,
    MAX_RULE_TEXT,
    ONE_OF,
    POST,
    PRE,
    ROLES,
    ColumnRule,
    ColumnsConstants,
    NodeColumn,
    RuleTest,
    Source,
    Tile,
)
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS, INT32, INT64
from fusion.runtime.tensorflow.layout import double_word
from fusion.runtime.tensorflow.spec import Attr, Builder, Constants, OpSpec
from fusion.schema.column_rules import RULES, Rule, Test
from fusion.schema.columns import (
    COLUMN_ATTRS,
    GRAD_ATTRS,
    GROUP_FORMS,
    LATER_LISTS,
    POST_ATTRS,
    PRE_ATTRS,
)

_ATTRS = {attr.name: attr for attr in COLUMN_ATTRS.values()}

#: What else a column is where its op has no attr for it.
_DEFAULTS: dict[str, Word] = {"Tids": INT32, "Trows": INT32, "Tkeys": INT64}


def _default(name: str) -> Word:
    """The value of a field of `NodeColumn` for an op without an attr for it."""
    attr = _ATTRS.get(name)
    if attr is None:
        return _DEFAULTS.get(name, 0)
    if isinstance(attr.default, float):
        return double_word(attr.default)
    return attr.allowed.index(str(attr.default)) if attr.allowed else int(attr.default or 0)


def columns_constants(role: int, lists: dict[str, Attr]) -> Constants:
    """The words of `ColumnsConstants` for ops of a role.

    Args:
      lists: attrs of a column by the name of their list.
    """

    def words(spec: OpSpec, device: str, access: object) -> list[Word]:
        del device, access
        result: list[Word] = [0] * ColumnsConstants.SIZE
        result[ColumnsConstants.role] = role
        attrs = [attr.name for attr in spec.attrs]
        for field, name in (
            (ColumnsConstants.dtype_attr, "T"),
            (ColumnsConstants.count_attr, "num_columns"),
            (ColumnsConstants.boundaries_attr, "boundaries"),
            (ColumnsConstants.boundary_counts_attr, "boundary_counts"),
            (ColumnsConstants.num_others_attr, "num_others"),
            (ColumnsConstants.output_columns_attr, "output_columns"),
        ):
            result[field] = attrs.index(name) if name in attrs else -1
        list_of = {attr.name: name for name, attr in lists.items()}
        for index, name in enumerate([*NodeColumn.FIELDS][:ATTR_FIELDS]):
            start = ColumnsConstants.sources + Source.SIZE * index
            result[start : start + Source.SIZE] = _source(
                spec, attrs, name, list_of.get(name, name)
            )
        for code in range(FIRST_FLOAT, FIRST_FLOAT + len(FLOATS)):
            _put_tiles(result, code)
        for number, rule in enumerate(RULES):
            start = ColumnsConstants.rules + ColumnRule.SIZE * number
            result[start : start + ColumnRule.SIZE] = _rule(rule)
        return result

    return words


def _source(spec: OpSpec, attrs: list[str], name: str, list_name: str) -> list[Word]:
    """The words of a `Source`."""
    words: list[Word] = [0] * Source.SIZE
    attr_name = list_name if list_name in attrs else name
    words[Source.default] = _default(name)
    words[Source.attr] = attrs.index(attr_name) if attr_name in attrs else -1
    if attr_name in attrs:
        attr = spec.attrs[attrs.index(attr_name)]
        words[Source.is_list] = int(attr.is_list)
        words[Source.is_dtype] = int(attr.element == "type")
        words[Source.may_be_empty] = int(attr_name in LATER_LISTS)
    return words


def _put_tiles(words: list[int], code: int) -> None:
    (dtype,) = (dtype.name for dtype in DTYPES.values() if dtype.code == code)
    shapes, index = tiles(dtype), code - FIRST_FLOAT
    words[ColumnsConstants.tile_counts + index] = len(shapes)
    for k, (lanes, vectors) in enumerate(shapes):
        tile = ColumnsConstants.tiles + (index * MAX_TILES + k) * Tile.SIZE
        words[tile + Tile.lanes], words[tile + Tile.vectors] = lanes, vectors


def _rule(rule: Rule) -> list[Word]:
    """The words of a `ColumnRule`."""
    words: list[Word] = [0] * ColumnRule.SIZE
    names = re.findall(r"{(\w+)}", rule.text)
    text = rule.text
    for k, name in enumerate(names):
        text = text.replace(f"{{{name}}}", "%s" if _ATTRS[name].allowed else "%lld")
        words[ColumnRule.values + k] = getattr(NodeColumn, name)
    for k in range(len(names), 2):
        words[ColumnRule.values + k] = -1
    content = f"column %lld: {text}".encode().ljust(MAX_RULE_TEXT, b"\0")
    assert content.endswith(b"\0"), f"longer than {MAX_RULE_TEXT}: {rule.text}"
    words[ColumnRule.text : ColumnRule.values] = struct.unpack(f"={MAX_RULE_TEXT // 8}q", content)
    words[ColumnRule.test_count] = len(rule.tests)
    for k, test in enumerate(rule.tests):
        start = ColumnRule.tests + RuleTest.SIZE * k
        words[start : start + RuleTest.SIZE] = _test(test)
    return words


def _test(test: Test) -> list[Word]:
    """The words of a `RuleTest`."""
    words: list[Word] = [0] * RuleTest.SIZE
    words[RuleTest.field] = getattr(NodeColumn, test.field)
    words[RuleTest.negated] = int(test.negated)
    if test.values:
        words[RuleTest.kind] = ONE_OF
        words[RuleTest.low] = sum(1 << _number(test.field, value) for value in test.values)
    elif test.field in _ATTRS and _ATTRS[test.field].kind == "float":
        words[RuleTest.kind] = FLOAT_RANGE
        words[RuleTest.low] = double_word(test.low)
        words[RuleTest.high] = double_word(test.high)
    else:
        words[RuleTest.kind] = INT_RANGE
        words[RuleTest.low] = int(max(test.low, -(2**63)))
        words[RuleTest.high] = int(min(test.high, 2**63 - 1))
    return words


def _number(field: str, value: str | bool) -> int:
    """The number that `NodeColumn` has for a value of a field."""
    if isinstance(value, bool):
        return int(value)
    if field == "role":
        return ROLES[value]
    if field == "form":
        return GROUP_FORMS.index(value)
    if field in _ATTRS:
        return _ATTRS[field].allowed.index(value)
    return DTYPES[value].code


_NAME, _MODULE = "build_columns_state", "fusion.ops.columns.cpu.states"

LOOKUP = Builder(_NAME, _MODULE, columns_constants(FULL, COLUMN_ATTRS), GATHERS)
PRE_LOOKUP = Builder(_NAME, _MODULE, columns_constants(PRE, PRE_ATTRS))
POST_LOOKUP = Builder(_NAME, _MODULE, columns_constants(POST, POST_ATTRS), GATHERS)
POST_LOOKUP_GRAD = Builder(_NAME, _MODULE, columns_constants(GRAD, GRAD_ATTRS), SCATTERS)

"""Which attrs of an embedding column exclude each other.

The rules are read where a node's state is made (`columns.cpu.column_checks`), when an op's function
is called while a graph is built (`columns.attr_errors`), and for docs/ops.md. They cover the attrs
and what else a column has by then: its dtypes, how many boundaries, the role of its op, whether its
table is an embedding variable, and whether it is on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusion.schema.columns import DENSE_FORMS, MAX_ZEROS
from fusion.schema.row_formats import PACKED_FORMATS


@dataclass(frozen=True)
class Test:
    """What a field is: one of some values, or a number from `low` to `high`; or is not."""

    field: str
    values: tuple[str | bool, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    negated: bool = False

    def holds(self, column: Mapping[str, Any]) -> bool:
        """Whether it holds for the fields of a column; it does not for one that is not known."""
        if self.field not in column:
            return False
        value = column[self.field]
        is_one = value in self.values if self.values else self.low <= value <= self.high
        return is_one != self.negated


@dataclass(frozen=True)
class Rule:
    """The message for columns for which all tests hold; `{name}` stands for a field."""

    text: str
    tests: tuple[Test, ...]


def _is(field: str, *values: str | bool) -> Test:
    return Test(field, values)


def _is_not(field: str, *values: str | bool) -> Test:
    return Test(field, values, negated=True)


def _flag(field: str) -> Test:
    return Test(field, (True,))


def _nonzero(field: str) -> Test:
    return Test(field, low=0, high=0, negated=True)


_PACKED = _is("row_format", *PACKED_FORMATS)
_DENSE, _LISTED = _is("form", *DENSE_FORMS), _is_not("form", *DENSE_FORMS, "copy")
_ORDER, _AXIS = "sum_order {sum_order}", _is("sum_order", "axis")
_NO_AXIS, _NO_SEGMENT = _is_not("sum_order", "axis"), _is_not("sum_order", "segment")
_SEGMENTS, _WEIGHTED = _is("sum_order", "dense_segment"), _flag("use_sparse_weights")
_LIMITED = Test("max_norm", low=0)
_ONE_COLUMN = Test("id_column", low=0)
_TWO_MASKS = f"{_ORDER} does not go with use_sparse_weights beside other masks"
_EPSILONS = f"{_ORDER} does not go with epsilon_input beside use_sparse_weights or divisor_epsilon"
_PENALTY = f"{_ORDER} does not go with mask_penalty beside products"
_UNWEIGHTED = f"{_ORDER} does not go with use_sparse_weights"
_CHANGED = "boundaries, column_stride and use_ignored_id do not go with form {form}"


def _rule(text: str, *tests: Test) -> Rule:
    return Rule(text, tests)


def _of_packed(text: str, test: Test) -> Rule:
    return Rule(f"row_format {{row_format}} {text}", (_PACKED, test))


def _not_in_order(what: str, *tests: Test) -> Rule:
    """A rule for what only sum_order segment has."""
    return Rule(f"{_ORDER} does not go with {what}", (_NO_SEGMENT, *tests))


def _only_axis(name: str, test: Test) -> Rule:
    return Rule(f"{name} needs sum_order axis", (_NO_AXIS, test))


_OF_TABLES = (
    _of_packed("has no kernel on a GPU", _flag("on_gpu")),
    _of_packed("needs tables of dtype float32", _is_not("T", "float32")),
    _of_packed("needs Tpacked uint8", _is("Tpacked", "float32")),
    _of_packed("does not go with form copy", _is("form", "copy")),
    _of_packed("does not go with max_norm", _LIMITED),
    _of_packed("needs a dim of at least 1, not {dim}", Test("dim", high=0)),
)
_OF_LOOKUPS = (
    *(
        _rule(
            f"ids of dtype {dtype} need boundaries", _is("Tids", dtype), Test("boundaries", high=0)
        )
        for dtype in ("float32", "float64")
    ),
    _rule(
        "entry_rows of form indices must be int64, not int32",
        _is("form", "indices"),
        _is_not("Trows", "int64"),
    ),
    _rule(
        "row_count last_row does not go with form {form}",
        _is("row_count", "last_row"),
        _is_not("form", "indices", "row_ids"),
    ),
    _rule("form {form} has no weights, but with sum_order axis", _DENSE, _WEIGHTED, _NO_AXIS),
    _rule(_CHANGED, _LISTED, _nonzero("boundaries")),
    _rule(_CHANGED, _LISTED, _nonzero("column_stride")),
    _rule(_CHANGED, _LISTED, _flag("use_ignored_id")),
    _rule("id_column has no kernel on a GPU", _ONE_COLUMN, _flag("on_gpu")),
    _rule("id_column is not implemented for this op", _ONE_COLUMN, _is_not("role", "full")),
    _rule("id_column does not go with form {form}", _ONE_COLUMN, _is_not("form", "each")),
    _only_axis("form lengths", _is("form", "lengths")),
    _only_axis("mask_product", _flag("mask_product")),
    _only_axis("mask_penalty", _nonzero("mask_penalty")),
    _only_axis("divisor_epsilon", _nonzero("divisor_epsilon")),
    _only_axis("epsilon_input", _flag("epsilon_input")),
    _rule(
        "combiner max needs sum_order axis or sequence",
        _is("combiner", "max"),
        _is("sum_order", "segment"),
    ),
    _rule(f"{_ORDER} has no kernel on a GPU", _NO_SEGMENT, _flag("on_gpu")),
    _rule(f"{_ORDER} is not implemented for this op", _NO_SEGMENT, _is_not("role", "full")),
    *(
        _rule(
            f"{_ORDER} does not go with form {{form}}",
            _is("sum_order", order),
            _is_not("form", *forms),
        )
        for order, forms in {
            "axis": ("dense", "lengths"),
            "sequence": ("row_splits",),
            "dense_segment": ("row_ids",),
        }.items()
    ),
    _rule(
        f"{_ORDER} does not go with combiner {{combiner}}",
        _SEGMENTS,
        _is("combiner", "sqrtn", "max"),
    ),
    _rule(
        f"{_ORDER} does not go with row_count dense_shape",
        _SEGMENTS,
        _is("row_count", "dense_shape"),
    ),
    _rule(
        f"{_ORDER} needs a dim in [0, {MAX_ZEROS}], not {{dim}}",
        _AXIS,
        Test("dim", low=0, high=MAX_ZEROS, negated=True),
    ),
    _not_in_order("prune", _flag("prune")),
    _not_in_order("prune_sparse_weights", _flag("prune_sparse_weights")),
    _not_in_order("boundaries", _nonzero("boundaries")),
    _not_in_order("num_buckets", _nonzero("num_buckets")),
    _not_in_order("column_stride", _nonzero("column_stride")),
    _not_in_order("max_norm", _LIMITED),
    _not_in_order("default_id", _flag("fill_empty_row"), Test("default_id", low=0)),
    _rule(_TWO_MASKS, _NO_SEGMENT, _WEIGHTED, _flag("use_ignored_id")),
    _rule(_TWO_MASKS, _NO_SEGMENT, _WEIGHTED, _is("form", "lengths")),
    _rule(_EPSILONS, _NO_SEGMENT, _flag("epsilon_input"), _WEIGHTED),
    _rule(_EPSILONS, _NO_SEGMENT, _flag("epsilon_input"), _nonzero("divisor_epsilon")),
    _rule(_PENALTY, _NO_SEGMENT, _nonzero("mask_penalty"), _WEIGHTED),
    _rule(_PENALTY, _NO_SEGMENT, _nonzero("mask_penalty"), _flag("mask_product")),
    _rule(_UNWEIGHTED, _SEGMENTS, _WEIGHTED),
    _rule(_UNWEIGHTED, _is("sum_order", "sequence"), _WEIGHTED, _is("combiner", "max")),
    _rule(_UNWEIGHTED, _is("sum_order", "sequence"), _WEIGHTED, _is("T", "float16", "bfloat16")),
)

_OF_KEYED = (
    _rule("the dim of an embedding variable must be at least 1, not {dim}", Test("dim", high=0)),
    *(
        _rule("an embedding variable needs sum_order segment, and no form copy", test)
        for test in (_is("form", "copy"), _NO_SEGMENT)
    ),
    _rule("wrap_negative does not go with an embedding variable", _flag("wrap_negative")),
    _rule("an embedding variable has row_format plain", _PACKED),
)

#: That it is no matrix which is copied.
IS_LOOKUP = _is_not("form", "copy")

#: The first that applies is the error.
RULES = (
    *_OF_TABLES,
    *(Rule(rule.text, (IS_LOOKUP, *rule.tests)) for rule in _OF_LOOKUPS),
    *(Rule(rule.text, (_flag("keyed"), *rule.tests)) for rule in _OF_KEYED),
)


def broken(column: Mapping[str, Any]) -> str:
    """The message of the first rule that a column breaks, by its fields; "" if it breaks none."""
    for rule in RULES:
        if all(test.holds(column) for test in rule.tests):
            return rule.text.format_map(column)
    return ""

"""What a rule of columns refuses, is refused alike by kernels and by functions in a graph."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.column_rules import RULES, Rule, broken
from fusion.schema.column_rules import Test as RuleTest
from fusion.schema.columns import COLUMN_ATTRS, GROUP_FORMS
from tests.ops.embedding_columns import attrs

ATTRS = {attr.name: attr for attr in COLUMN_ATTRS.values()}
ALLOWED = {
    "form": GROUP_FORMS,
    "T": ("float32", "float16"),
    "Tids": ("int64", "float32"),
    "Trows": ("int64", "int32"),
    "Tpacked": ("float32", "uint8"),
    "role": ("full", "pre"),
}
GOOD = {"T": "float32", "Tids": "int64", "Trows": "int64", "boundaries": 0, "form": "dense"}
#: What a test cannot have: a GPU, and another op.
ELSEWHERE = ("on_gpu", "role", "keyed")


def value(test: RuleTest) -> Any:
    """A value for which a test holds."""
    attr = ATTRS.get(test.field)
    if test.values:
        allowed = ALLOWED.get(test.field) or (attr.allowed if attr and attr.allowed else ())
        return next(one for one in (*test.values, *allowed) if (one in test.values) != test.negated)
    number = test.low + 1 if test.negated else max(test.low, min(test.high, 0))
    number = test.high + 1 if test.negated and test.high > 0 else number
    return float(number) if attr is not None and attr.kind == "float" else int(number)


def column_of(rule: Rule) -> dict[str, Any]:
    """The fields of a column that breaks a rule, or one before it."""
    found = {test.field: value(test) for test in rule.tests}
    return {
        "T": "float32",
        "Tids": "int64",
        "Trows": "int64",
        "boundaries": 0,
        "form": "dense",
    } | found


def call(column: dict[str, Any]) -> Any:
    """The column by GroupedEmbeddingLookup."""
    own = attrs(**{name: column[name] for name in column if name in ATTRS})
    count = column["boundaries"]
    return ops.grouped_embedding_lookup(
        tables=[tf.zeros([4, 3], column["T"])],
        ids=[tf.zeros([2, 1], column["Tids"])],
        entry_rows=[tf.zeros([2], column["Trows"])],
        dense_shapes=[tf.constant([2], tf.int64)],
        weights=[tf.zeros([0], column["T"])],
        boundaries=[float(number) for number in range(count)],
        boundary_counts=[count],
        Tpacked=column.get("Tpacked", "float32"),
        **{name: [own[attr.name]] for name, attr in COLUMN_ATTRS.items()},
    )


HERE = [rule for rule in RULES if all(test.field not in ELSEWHERE for test in rule.tests)]


@pytest.mark.parametrize("number", range(len(HERE)))
def test_kernels_and_functions_refuse_the_same(number: int) -> None:
    column = column_of(HERE[number])
    text = broken(attrs() | {"role": "full", "Tpacked": "float32"} | column)
    assert text
    with pytest.raises(tf.errors.InvalidArgumentError) as of_kernel:
        call(column)
    assert f"column 0: {text}" in str(of_kernel.value)
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError) as in_graph:
        call(column)
    assert str(in_graph.value) == f"grouped_embedding_lookup: column 0: {text}"


def test_a_column_that_breaks_no_rule_becomes_a_node() -> None:
    assert broken(attrs() | {"role": "full", "Tpacked": "float32"} | GOOD) == ""
    with tf.Graph().as_default() as graph:
        call(GOOD)
    assert "GroupedEmbeddingLookup" in {op.type for op in graph.get_operations()}


def test_no_rule_is_said_of_what_is_not_known() -> None:
    assert broken({}) == ""
    assert broken({"form": "lengths", "sum_order": "segment"})


def test_embedding_variables_have_rules_of_their_own() -> None:
    known = attrs(dim=4) | {"keyed": True, "boundaries": 0}
    assert broken(known) == ""
    assert broken(known | {"keyed": False, "dim": -1}) == ""
    assert broken(known | {"dim": -1}).startswith("the dim of an embedding variable")
    assert broken(known | {"wrap_negative": True}).startswith("wrap_negative does not go with")

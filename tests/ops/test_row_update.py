"""FusedEmbeddingRowUpdate gives the bits of stock's ops for rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.cpu_ops.rules import RULES
from tests import reference
from tests.reference import MODES

DTYPES = (np.float32, np.float64)
#: Slots that are never negative, and numbers for any rule.
POSITIVE = ("v", "accumulator")
NUMBERS = (0.37, 0.1, 0.02, 0.003)
SPECIAL = [0.0, -0.0, 1e-40, -1e-310, 1e38, -1e308, np.inf, -np.inf, np.nan]


def some(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape).astype(dtype)
    places = rng.random(shape) < 0.2
    with np.errstate(over="ignore"):
        values[places] = rng.choice(SPECIAL, places.sum()).astype(dtype)
    return values


def inputs(shape, dtype, rule):
    """Rows with numbers of all kinds; of what is never negative no such ones."""
    slots, numbers = RULES[rule]
    given = {f"slot_{k}": some(shape, dtype, k) for k in range(len(slots))}
    for k, name in enumerate(slots):
        if name in POSITIVE:
            given[f"slot_{k}"] = np.abs(given[f"slot_{k}"])
    updates = some(shape, dtype, 9)
    return given | {"updates": updates, "numbers": np.array(NUMBERS[: len(numbers)], dtype)}


def fused(rule):
    def build(_, updates, numbers, **slots):
        return ops.fused_embedding_row_update(updates, numbers, [*slots.values()], rule=rule)

    return build


def by_scatter(rule, updates, numbers, slot_0):
    variable = tf.Variable(slot_0)
    slices = tf.IndexedSlices(updates * numbers[0], tf.range(len(slot_0)))
    {"add": variable.scatter_add, "subtract": variable.scatter_sub}[rule](slices)
    return [variable.numpy()]


def by_momentum(rule, updates, numbers, slot_0, slot_1):
    rate, momentum = numbers
    change = tf.constant(updates) * rate
    m = slot_1 * momentum - change
    return [slot_0 + (m if rule == "momentum" else m * momentum - change), m]


def by_adam(rule, updates, numbers, slot_0, slot_1, slot_2):
    g, m, v = (tf.constant(one) for one in (updates, slot_1, slot_2))
    rate, a, b, epsilon = numbers
    if rule == "adam":
        m, v = m + (g - m) * a, v + (tf.square(g) - v) * b
    else:
        m, v = m + (-m * a) + g * a, v + (-v * b) + tf.square(g) * b
    return [slot_0 - m * rate / (tf.sqrt(v) + epsilon), m, v]


def by_ftrl(rule, updates, numbers, slot_0, slot_1, slot_2):
    variables = [tf.Variable(one) for one in (slot_0, slot_1, slot_2)]
    rate, l1, two_l2, two_shrinkages = numbers
    if updates.size:
        tf.raw_ops.ResourceSparseApplyFtrlV2(
            **{n: v.handle for n, v in zip(("var", "accum", "linear"), variables, strict=True)},
            grad=updates,
            indices=tf.range(len(updates)),
            lr=rate,
            l1=l1,
            l2=two_l2 / 2,
            l2_shrinkage=two_shrinkages / 2,
            lr_power=updates.dtype.type(-0.5),
        )
    return variables


STOCK: dict[str, Any] = {
    "add": by_scatter,
    "subtract": by_scatter,
    "momentum": by_momentum,
    "nesterov": by_momentum,
    "adam": by_adam,
    "adam_in_parts": by_adam,
    "ftrl": by_ftrl,
}


def assert_same_bits(mine, theirs):
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine, theirs)
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(mine[numbers]), np.signbit(theirs[numbers]))


SHAPES = [(0, 3), (3, 0), (1, 1), (5, 7), (64, 16), (100, 33)]
CASES = [("eager", shape) for shape in SHAPES] + [(mode, (5, 7)) for mode in MODES[1:]]


@pytest.mark.parametrize(("mode", "shape"), CASES, ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_stock(mode, rule, dtype, shape):
    given = inputs(shape, dtype, rule)
    mine = reference.run(mode, fused(rule), given)
    theirs = STOCK[rule](rule, **given)
    for one, other in zip(mine, theirs, strict=True):
        if rule == "ftrl" and shape[1] == 1:
            # TensorFlow rounds rows of one element in another way.
            np.testing.assert_allclose(one, other, rtol=1e-6)
        else:
            assert_same_bits(one, np.asarray(other))


def test_every_rule_is_compared():
    assert list(STOCK) == list(RULES)


#: rule, argument, bad value, what the message says.
BAD = [
    ("subtract", "slot_0", np.ones((1, 7)), r"slots.*(must be|says that it is) 5"),
    ("subtract", "updates", np.ones((5, 1)), r"slots.*(must be|says that it is) 1"),
    ("subtract", "updates", np.ones(5), r"updates must have (shape|rank)"),
    ("adam", "slot_2", np.ones((5, 7, 1)), r"slots must have (shape|rank)"),
    ("adam", "slot_2", np.ones((4, 7)), r"slots.*(must be|says that it is) 5"),
    ("add", "numbers", np.float32(3), r"numbers must have (shape|rank)"),
    ("add", "numbers", np.ones(2), "numbers has 2 items, but the rule takes 1"),
    ("ftrl", "numbers", np.ones(3), "numbers has 3 items, but the rule takes 4"),
    ("ftrl", "numbers", np.array([0, 1, 1, 1]), r"lr is not a positive .*numbers\[0\]"),
    ("ftrl", "numbers", np.array([np.nan, 1, 1, 1]), r"lr is not a positive .*numbers\[0\]"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rule", "argument", "value", "message"), BAD)
def test_bad_input(mode, rule, argument, value, message):
    """Nothing is spread over rows."""
    given = inputs((5, 7), np.float32, rule) | {argument: value.astype(np.float32)}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        reference.run(mode, fused(rule), given)


@pytest.mark.parametrize("mode", MODES)
def test_slots_that_the_rule_does_not_have(mode):
    given = inputs((5, 7), np.float32, "adam") | {"numbers": np.ones(2, np.float32)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="slots has 3 items, but the rule ta"):
        reference.run(mode, fused("momentum"), given)


def test_it_has_no_gradient():
    rows = tf.constant(inputs((5, 7), np.float32, "add")["slot_0"])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        result = ops.fused_embedding_row_update(rows, [1.0], [rows], rule="add")
    assert tape.gradient(result, rows) is None

"""The programs of row-sparse optimizers have the bits of the stock ops that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from fusion.optimizers.programs import PROGRAMS
from tests.ops.update_cases import Case
from tests.update_programs import same

#: The rate, and what else a rule has; that of ftrl ends with -l1.
NUMBERS = (0.37, 0.1, 0.02, 0.003, -0.1)


def by_momentum(rule: str, g: Any, row: Any, m: Any) -> list[Any]:
    rate, momentum = NUMBERS[:2]
    change = g * rate
    m = m * momentum - change
    return [row + (m if rule == "momentum" else m * momentum - change), m]


def by_adam(rule: str, g: Any, row: Any, m: Any, v: Any, hat: Any = None) -> list[Any]:
    rate, a, b, epsilon = NUMBERS[:4]
    if rule.endswith("in_parts"):
        m, v = m + (-m * a) + g * a, v + (-v * b) + tf.square(g) * b
    else:
        m, v = m + (g - m) * a, v + (tf.square(g) - v) * b
    hats = [] if hat is None else [tf.maximum(hat, v)]
    return [row - m * rate / (tf.sqrt([v, *hats][-1]) + epsilon), m, v, *hats]


def by_ftrl(_: str, g: Any, *rows: Any) -> list[Any]:
    """TensorFlow's op."""
    variables = [tf.Variable(row) for row in rows]
    rate, l1, two_l2, two_shrinkages = NUMBERS[:4]
    tf.raw_ops.ResourceSparseApplyFtrlV2(
        **{n: v.handle for n, v in zip(("var", "accum", "linear"), variables, strict=True)},
        grad=g,
        indices=tf.range(len(g)),
        lr=rate,
        l1=l1,
        l2=two_l2 / 2,
        l2_shrinkage=two_shrinkages / 2,
        lr_power=-0.5,
    )
    return variables


def by_adagrad(_: str, g: Any, row: Any, accumulator: Any) -> list[Any]:
    rate, epsilon = NUMBERS[:2]
    accumulator = accumulator + tf.square(g)
    return [row - rate * g / tf.sqrt(accumulator + epsilon), accumulator]


STOCK: dict[str, Any] = {
    "momentum": by_momentum,
    "nesterov": by_momentum,
    "adam": by_adam,
    "adam_in_parts": by_adam,
    "amsgrad": by_adam,
    "amsgrad_in_parts": by_adam,
    "ftrl": by_ftrl,
    "adagrad": by_adagrad,
}


def test_every_program_is_compared() -> None:
    assert {*STOCK} == {*PROGRAMS}


@pytest.mark.parametrize("rule", STOCK)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize(("rows", "dim"), [(1, 2), (5, 7), (64, 16), (100, 33)])
def test_equals_stock(rule: str, dtype: str, is_special: bool, rows: int, dim: int) -> None:
    """Also numbers that are not finite, zeros and denormals."""
    case = Case(PROGRAMS[rule], rows, dim, rows, dtype=dtype, special=is_special, seed=rows)
    case.ids = tf.range(rows)
    case.scalars = [tf.constant(number, dtype) for number in NUMBERS[: len(case.scalars)]]
    variables = case.variables()
    before = [tf.constant(variable.numpy()) for variable in variables]
    case.update(variables, sparse=[True] * len(variables), deduplicate=rule != "adagrad")
    theirs = STOCK[rule](rule, case.values[0], *before)
    for mine, other in zip(variables, theirs, strict=True):
        assert same(mine.numpy(), other.numpy(), any_zero=rule == "ftrl")

"""What optimizers do to the rows of a table, and to those of their own variables beside it.

Each rule is a formula in tiles (see `vectors`). Its operations are rounded one after the other, as
those of stock TensorFlow are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.row_tiles import tiles
from fusion.cpu_ops.rules import RULES
from fusion.cpu_ops.vectors import between, root, tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as
from fusion.runtime.tensorflow.dtypes import DTYPES

#: The words of a call: where the updates are, then each of the old rows, then each of the new ones.
_UPDATES, _OLD = range(2)

#: (take, put, number) -> a jitted function (words, numbers, offset); see `_by`.
Rule = Callable[[Any, Any, Any], Any]


def _add(take: Any, put: Any, number: Any) -> Any:
    @jit
    def update(words: int, numbers: int, offset: int) -> None:
        change = take(words, _UPDATES, offset) * number(numbers, 0)
        put(words, _OLD + 1, offset, take(words, _OLD, offset) + change)

    return update


def _subtract(take: Any, put: Any, number: Any) -> Any:
    @jit
    def update(words: int, numbers: int, offset: int) -> None:
        change = take(words, _UPDATES, offset) * number(numbers, 0)
        put(words, _OLD + 1, offset, take(words, _OLD, offset) - change)

    return update


def _momentum(take: Any, put: Any, number: Any) -> Any:
    @jit
    def update(words: int, numbers: int, offset: int) -> None:
        change = take(words, _UPDATES, offset) * number(numbers, 0)
        m = take(words, _OLD + 1, offset) * number(numbers, 1) - change
        put(words, _OLD + 2, offset, take(words, _OLD, offset) + m)
        put(words, _OLD + 3, offset, m)

    return update


def _nesterov(take: Any, put: Any, number: Any) -> Any:
    @jit
    def update(words: int, numbers: int, offset: int) -> None:
        change = take(words, _UPDATES, offset) * number(numbers, 0)
        m = take(words, _OLD + 1, offset) * number(numbers, 1) - change
        step = m * number(numbers, 1) - change
        put(words, _OLD + 2, offset, take(words, _OLD, offset) + step)
        put(words, _OLD + 3, offset, m)

    return update


@jit
def _towards(mean: Any, value: Any, share: Any) -> Any:
    """A mean that takes up a share of a value, as Keras 3 rounds it."""
    return mean + (value - mean) * share


@jit
def _in_parts(mean: Any, value: Any, share: Any) -> Any:
    """The same as tf_keras rounds it."""
    return mean - mean * share + value * share


def _adam_by(moved: Any) -> Rule:
    def adam(take: Any, put: Any, number: Any) -> Any:
        @jit
        def update(words: int, numbers: int, offset: int) -> None:
            g = take(words, _UPDATES, offset)
            m = moved(take(words, _OLD + 1, offset), g, number(numbers, 1))
            v = moved(take(words, _OLD + 2, offset), g * g, number(numbers, 2))
            step = m * number(numbers, 0) / (root(v) + number(numbers, 3))
            put(words, _OLD + 3, offset, take(words, _OLD, offset) - step)
            put(words, _OLD + 4, offset, m)
            put(words, _OLD + 5, offset, v)

        return update

    return adam


def _ftrl(take: Any, put: Any, number: Any) -> Any:
    @jit
    def update(words: int, numbers: int, offset: int) -> None:
        rate, l1, two_l2 = number(numbers, 0), number(numbers, 1), number(numbers, 2)
        g, row = take(words, _UPDATES, offset), take(words, _OLD, offset)
        accumulator, linear = take(words, _OLD + 1, offset), take(words, _OLD + 2, offset)
        more = accumulator + g * g
        shrunk = g + row * number(numbers, 3)
        linear = linear + (shrunk - (root(more) - root(accumulator)) / rate * row)
        row = (between(linear, -l1, l1) - linear) / (root(more) / rate + two_l2)
        put(words, _OLD + 3, offset, row)
        put(words, _OLD + 4, offset, more)
        put(words, _OLD + 5, offset, linear)

    return update


#: By rule, a function (take, put, number) -> a jitted one (words, numbers, offset); see `_by`.
FORMULAS: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam_by(_towards),
    "adam_in_parts": _adam_by(_in_parts),
    "ftrl": _ftrl,
}
assert tuple(FORMULAS) == tuple(RULES)


def updater(stored: str) -> Any:
    """A jitted function (rule, words, numbers, elements) that updates rows of dtype `stored`.

    The rule is its number in `RULES`, and one of them.
    """
    *others, last = (_all_by(stored, rule) for rule in RULES)

    @jit
    def update(rule: int, words: int, numbers: int, elements: int) -> None:
        last(words, numbers, elements)

    for element, kernel in reversed([*enumerate(others)]):
        update = _either(element, kernel, update)
    return update


def _either(number: int, kernel: Any, other: Any) -> Any:
    """A jitted function as that of `updater` that does `kernel` if the rule is that number."""

    @jit
    def update(rule: int, words: int, numbers: int, elements: int) -> None:
        if rule == number:
            kernel(words, numbers, elements)
        else:
            other(rule, words, numbers, elements)

    return update


def _all_by(stored: str, rule: str) -> Any:
    """A jitted function (words, numbers, elements) that does a rule to rows of dtype `stored`."""
    lanes, item = tiles(stored)[-1][0], DTYPES[stored].item_bytes
    by_vector, by_element = _by(stored, rule, lanes), _by(stored, rule, 1)

    @jit
    def update(words: int, numbers: int, elements: int) -> None:
        element = int64(0)
        while element + lanes <= elements:
            by_vector(words, numbers, element * item)
            element += lanes
        while element < elements:
            by_element(words, numbers, element * item)
            element += 1

    return update


def _by(stored: str, rule: str, lanes: int) -> Any:
    """A jitted function (words, numbers, offset in bytes) for so many elements."""
    ops, dtype = tile_ops(stored, lanes, 1), getattr(np, stored)
    load_tile, store_tile = ops.load, ops.store

    @jit
    def take(words: int, which: int, offset: int) -> Any:
        return load_tile(load(words, which) + offset, int64(0))

    @jit
    def put(words: int, which: int, offset: int, tile: Any) -> None:
        store_tile(load(words, which) + offset, int64(0), tile)

    @jit
    def number(numbers: int, which: int) -> Any:
        return load_as(numbers, int64(which), dtype)

    return FORMULAS[rule](take, put, number)

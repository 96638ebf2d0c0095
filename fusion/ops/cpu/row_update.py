"""FusedEmbeddingRowUpdate on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fusion.cpu_ops.row_rules import updater
from fusion.cpu_ops.rules import MOST_SLOTS, RULES
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import (
    attr,
    count_rows,
    data,
    failed,
    list_length,
    new_output,
    size,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, stack_words, store
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""
    dtype, slot, arg = DTYPES[types["T"]].stored_type, spec.slots, spec.input_indices
    check_counts = count_checker(spec)
    words_of_call, item = 1 + 2 * MOST_SLOTS, DTYPES[types["T"]].item_bytes
    ftrl, update = list(RULES).index("ftrl"), updater(types["T"])

    @jit
    def check(frame: int, rule: int) -> None:
        check_counts(frame, rule)
        if failed(frame):
            return
        numbers = data(frame, arg.numbers, 0)
        if rule == ftrl and not load_as(numbers, int64(0), dtype) > 0:
            fail(frame, INVALID_ARGUMENT, "rule ftrl: lr is not a positive scalar (numbers[0])")

    def body(frame: int) -> None:
        rule = attr(frame, slot.rule)
        check(frame, rule)
        if failed(frame):
            return
        count, rows = list_length(frame), size(frame, arg.updates, 0, 0)
        dim = size(frame, arg.updates, 0, 1)
        count_rows(frame, rows)
        words = stack_words(words_of_call)
        store(words, 0, data(frame, arg.updates, 0))
        for index in range(count):
            store(words, 1 + index, data(frame, arg.slots, index))
            output = new_output(frame, index, int64(2), rows, dim, int64(item))
            store(words, 1 + count + index, output)
        if not failed(frame):
            update(rule, words, data(frame, arg.numbers, 0), rows * dim)

    return body


def count_checker(spec: OpSpec) -> Any:
    """A jitted function (frame, rule) that reports other numbers of slots or numbers."""
    numbers_index = spec.input_indices.numbers
    slots = _packed(len(rule.slots) for rule in RULES.values())
    numbers = _packed(len(rule.numbers) for rule in RULES.values())

    @jit
    def check(frame: int, rule: int) -> None:
        expected, actual = (slots >> 4 * rule) & 15, list_length(frame)
        if expected != actual:
            text = "slots has %lld items, but the rule takes %lld"
            fail(frame, INVALID_ARGUMENT, text, actual, expected)
        expected, actual = (numbers >> 4 * rule) & 15, size(frame, numbers_index, 0, 0)
        if expected != actual:
            text = "numbers has %lld items, but the rule takes %lld"
            fail(frame, INVALID_ARGUMENT, text, actual, expected)

    return check


def _packed(counts: Iterable[int]) -> int:
    """Small numbers in one, which compiled code takes apart by index."""
    return sum(count << 4 * index for index, count in enumerate(counts))

"""FusedParseSequenceExample with several threads, where bytes end, and the memory of strings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest

from tests import guarded
from tests.differential import sequences
from tests.example_bytes import floats, ints, sequence_of, strings
from tests.guarded import PAGE, string_at
from tests.ops.test_parse_memory import HAS_MEMORY_IN_USE, bytes_in_use
from tests.parse_calls import Asked, Dtype, difference
from tests.sequence_calls import CONTEXT_FORMS, LIST_FORMS, SequenceCall, check, fused, stock
from tests.tiers import examples as of_tier

CONTEXT = (
    Asked(b"id", shape=(1,)),
    Asked(b"rates", "fixed", "float32", (4,)),
    Asked(b"text", "default", "string"),
    Asked(b"ids", "sparse"),
    Asked(b"bag", "ragged", splits="int32"),
)
LISTS = (
    Asked(b"steps"),
    Asked(b"pairs", "padded", "float32", (2,)),
    Asked(b"words", "sparse", "string"),
    Asked(b"seen", "ragged"),
    Asked(b"names", "padded", "string"),
)


def row(number: int) -> bytes:
    """A SequenceExample of some hundred bytes."""
    rng = np.random.default_rng(number)
    bags = [rng.integers(0, 1 << 40, rng.integers(0, 12)).tolist() for _ in range(8)]
    words = [b"word %d" % number * int(size) for size in rng.integers(1, 9, rng.integers(0, 4))]
    context = {
        "bag": ints(bags[0]),
        "id": ints([number]),
        "ids": ints(bags[1]),
        "rates": floats(rng.random(4).tolist()),
    }
    if number % 5:
        context["text"] = strings([b"text %d" % number])
    lists = {
        "steps": [ints([step]) for step in bags[2]],
        "pairs": [floats(rng.random(2).tolist()) for _ in bags[3]],
        "words": [strings(words[:size]) for size in range(len(words))],
        "seen": list(map(ints, bags[: number % 8])),
    }
    if number % 3:
        lists["names"] = [strings([word]) for word in words]
    return sequence_of(context, lists)


ROWS = tuple(map(row, range(1000)))


@pytest.mark.usefixtures("two_threads")
def test_a_large_batch_is_several_tasks() -> None:
    assert sum(map(len, ROWS)) > 1 << 17
    assert not isinstance(check(SequenceCall(CONTEXT, LISTS, ROWS)), str)


GOOD = {"id": ints([1]), "rates": floats([1] * 4)}
BAD = {
    "another dtype": sequence_of({**GOOD, "id": floats([1])}, {"steps": []}),
    "missing": sequence_of({"id": ints([1])}, {"steps": []}),
    "no list": sequence_of(GOOD),
    "malformed": b"\x0a\x05ab",
    "a row of another size": sequence_of(GOOD, {"steps": [], "pairs": [floats([1, 2, 3, 4])]}),
    "a varint of eleven bytes": sequence_of(
        {**GOOD, "ids": b"\x1a\x0d\x0a\x0b" + b"\x80" * 10 + b"\x01"}, {"steps": []}
    ),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", BAD)
def test_the_first_error_of_a_large_batch(name: str) -> None:
    """Others, of other kinds, are in Examples behind it."""
    for at in (0, 499, 999):
        for later in ((), tuple(BAD.values()) if at < 900 else ()):
            rows = (*ROWS[:at], BAD[name], *ROWS[at + 1 : 990], *later, *ROWS[995:])
            names = tuple(b"n%d" % number for number in range(len(rows)))
            assert isinstance(check(SequenceCall(CONTEXT, LISTS, rows, names=names)), str)


def test_many_threads_at_once() -> None:
    sizes = (0, 1, 2, 10, 30, 100, 300, 500)
    # Without Examples features that are required are an error.
    calls = [
        SequenceCall(CONTEXT, LISTS, ROWS[50 * k : 50 * k + size]) for k, size in enumerate(sizes)
    ]
    expected = [stock(call) for call in calls]

    def run(seed: int) -> None:
        for index in np.random.default_rng(seed).permutation(len(calls)):
            text = difference(fused(calls[index]), expected[index])
            assert text is None, text

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(16)))


def _assert_within(page: int, call: SequenceCall) -> None:
    """Parses each Example as it lies in front of a page that is not there, and behind one."""
    for one in call.examples:
        if len(one) > PAGE:
            continue
        alone = replace(call, examples=(one,), names=())
        expected = fused(alone)
        for address in (page, page + PAGE - len(one)):
            serialized = string_at(address, one, call.is_single)
            assert difference(fused(alone, serialized=serialized), expected) is None, alone


_VALUES: tuple[tuple[Dtype, int, bytes], ...] = (
    *(("int64", n, ints([1 << 7 * size] * n)) for n in (1, 2, 3, 40) for size in (0, 1, 6, 8)),
    *(("float32", n, floats([1] * n)) for n in (1, 2, 9)),
    *(("string", 1, strings([b"x" * n])) for n in (0, 1, 7, 8, 15, 16, 21, 22, 23, 24, 40)),
)


def test_nothing_is_read_behind_an_example_or_in_front_of_it() -> None:
    with guarded.page() as page:
        for call in islice(sequences.calls(Random(7)), of_tier(150)):
            _assert_within(page, call)
        for dtype, count, value in _VALUES:
            for form in CONTEXT_FORMS:
                shape = (count,) if form in ("fixed", "default") else ()
                asked = Asked(b"name", form, dtype, shape)
                whole = sequence_of({"name": value})
                for example in (whole, whole[:-2]):  # without the field of lists
                    _assert_within(page, SequenceCall((asked,), (), (example,)))
            for form in LIST_FORMS:
                shape = (count,) if form in ("fixed", "padded") else ()
                asked = Asked(b"name", form, dtype, shape)
                example = sequence_of(lists={"name": [value, value]})
                _assert_within(page, SequenceCall((), (asked,), (example,)))


_BIG = b"x" * 5000
_STRINGS = (
    (
        Asked(b"s", "default", "string", (2,)),
        Asked(b"v", "sparse", "string"),
        Asked(b"i", "sparse"),
    ),
    (Asked(b"l", "padded", "string"), Asked(b"r", "ragged", "string")),
)
_WHOLE = sequence_of(
    {"s": strings([_BIG] * 2), "v": strings([_BIG])},
    {"l": [strings([_BIG])] * 3, "r": [strings([_BIG] * 2)]},
)
_LAST = {
    "good": _WHOLE,
    "absent": b"",
    "another dtype": sequence_of({"v": ints([1])}),
    "a varint of eleven bytes": sequence_of({"i": b"\x1a\x0d\x0a\x0b" + b"\x80" * 10 + b"\x01"}),
}
_CALLS = 200


@pytest.mark.skipif(not HAS_MEMORY_IN_USE, reason="glibc before 2.33")
@pytest.mark.parametrize("name", _LAST)
def test_nothing_is_left_of_strings(name: str) -> None:
    call = SequenceCall(*_STRINGS, (_WHOLE, _LAST[name], _WHOLE))
    for _ in range(20):
        fused(call)
    before = bytes_in_use()
    for _ in range(_CALLS):
        fused(call)
    # TensorFlow itself keeps some hundred bytes of an error.
    assert bytes_in_use() - before < _CALLS * len(_BIG) / 4

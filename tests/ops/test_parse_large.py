"""FusedParseExample with several threads, and where the bytes of Examples end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest

from tests import guarded
from tests.differential import examples
from tests.example_bytes import entry, example, floats, ints, of, strings
from tests.guarded import PAGE, string_at
from tests.parse_calls import FORMS, Asked, Call, Dtype, check, difference, fused, stock
from tests.tiers import examples as of_tier

FEATURES = (
    Asked(b"id", shape=(1,)),
    Asked(b"rates", "fixed", "float32", (4,)),
    Asked(b"text", "default", "string"),
    Asked(b"words", "padded", "string"),
    Asked(b"ids", "sparse"),
    Asked(b"bag", "ragged", splits="int32"),
    Asked(b"weights", "ragged", "float32"),
)


def row(number: int) -> bytes:
    """An Example of some hundred bytes."""
    rng = np.random.default_rng(number)
    bags = [rng.integers(0, 1 << 40, rng.integers(0, 12)).tolist() for _ in range(2)]
    words = [b"word %d" % number * int(size) for size in rng.integers(1, 9, rng.integers(0, 4))]
    return of(
        bag=ints(bags[0]),
        id=ints([number]),
        ids=ints(bags[1]),
        rates=floats(rng.random(4).tolist()),
        words=strings(words),
        weights=floats(rng.random(len(bags[0])).tolist()),
        **({"text": strings([b"text %d" % number])} if number % 5 else {}),
    )


ROWS = tuple(map(row, range(1000)))


@pytest.mark.usefixtures("two_threads")
def test_a_large_batch_is_several_tasks() -> None:
    assert sum(map(len, ROWS)) > 1 << 17
    assert not isinstance(check(Call(FEATURES, ROWS)), str)


BAD = {
    "another dtype": of(id=floats([1]), rates=floats([1] * 4)),
    "missing": of(id=ints([1])),
    "malformed": b"\x0a\x05ab",
    "a varint of eleven bytes": of(
        id=ints([1]), rates=floats([1] * 4), ids=b"\x1a\x0d\x0a\x0b" + b"\x80" * 10 + b"\x01"
    ),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", BAD)
def test_the_first_error_of_a_large_batch(name: str) -> None:
    """A varint of too many bytes is seen when others of later Examples have been."""
    for at in (0, 499, 999):
        later = tuple(BAD.values()) if at < 900 else ()
        rows = (*ROWS[:at], BAD[name], *ROWS[at + 1 : 990], *later, *ROWS[995:])
        found = check(Call(FEATURES, rows))
        assert isinstance(found, str)
        assert f"Index: {at}." in found or name in ("missing", "malformed")


def test_many_threads_at_once() -> None:
    batches = [Call(FEATURES, ROWS[first : first + size]) for first, size in _parts()]
    expected = [stock(call) for call in batches]

    def run(seed: int) -> None:
        for index in np.random.default_rng(seed).permutation(len(batches)):
            text = difference(fused(batches[index]), expected[index])
            assert text is None, text

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(16)))


def _parts() -> list[tuple[int, int]]:
    """The first rows of batches, and how many they have."""
    return [(50 * k, size) for k, size in enumerate((0, 1, 2, 10, 30, 100, 300, 500))]


@pytest.mark.usefixtures("two_threads")
def test_strides_are_counted_as_in_the_tasks_of_stock() -> None:
    """Its message has the values of all Examples of the task up to the wrong one."""
    asked = (Asked(b"p", "padded", shape=(2,)),)
    rows = [of(p=ints(range(2 * (k % 7)))) for k in range(3000)]
    for at in (0, 1, 700, 1500, 2999):
        wrong = [*rows[:at], of(p=ints([1, 2, 3])), *rows[at + 1 :]]
        assert "is not a multiple of stride length" in str(check(Call(asked, tuple(wrong))))


def _assert_within(page: int, call: Call) -> None:
    """Parses each Example as it lies in front of a page that is not there, and behind one."""
    for one in call.examples:
        if len(one) > PAGE:
            continue
        alone = replace(call, examples=(one,), names=())
        expected = fused(alone)
        for address in (page, page + PAGE - len(one)):
            serialized = string_at(address, one, call.is_single)
            assert difference(fused(alone, serialized=serialized), expected) is None, alone


def test_nothing_is_read_behind_an_example_or_in_front_of_it() -> None:
    """What may be read of an Example are its own bytes; where pages begin and end, others crash."""
    with guarded.page() as page:
        for call in islice(examples.calls(Random(7)), of_tier(150)):
            _assert_within(page, call)
        for dtype, count, value in _VALUES:
            for name in (b"", b"a" * 7, b"a" * 15, b"a" * 16, b"a" * 17):
                whole = example(entry(name, value))
                for form in FORMS:
                    shape = (count,) if form in ("fixed", "default") else ()
                    _assert_within(page, Call((Asked(name, form, dtype, shape),), (whole,)))
                _assert_within(page, Call((Asked(b"b", "sparse"),), (whole,)))


_VALUES: tuple[tuple[Dtype, int, bytes], ...] = (
    *(("int64", n, ints([1 << 7 * size] * n)) for n in (1, 2, 3, 40) for size in (0, 1, 6, 8)),
    *(("float32", n, floats([1] * n)) for n in (1, 2, 9)),
    *(("string", 1, strings([b"x" * n])) for n in (0, 1, 7, 8, 15, 16, 21, 22, 23, 24, 40)),
    *(("string", 2, strings([b"x" * n, b"y" * m])) for n in (18, 20, 21, 22) for m in (0, 1, 2)),
)

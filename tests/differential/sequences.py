"""Random tf.SequenceExamples, some of them damaged, and random features that are asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from random import Random

from tests.differential.examples import (
    BATCHES,
    CALLS,
    NAMES,
    NEGATIVE_LENGTH,
    UNKNOWN,
    Family,
    compare_calls,
    damaged,
    feature_of,
    with_long_lengths,
)
from tests.example_bytes import entry, feature_list
from tests.parse_calls import DTYPES, Asked, Form, Result
from tests.saved_model.wire import message
from tests.sequence_calls import SequenceCall, fused
from tests.sequence_calls import mismatch as difference_of

#: How often each form is drawn.
_CONTEXT_FORMS: tuple[Form, ...] = ("fixed", "fixed", "default", "default", "sparse", "ragged")
_LIST_FORMS: tuple[Form, ...] = ("fixed", "padded", "padded", "sparse", "ragged")
#: How deep in a SequenceExample the list of a row is.
_ROW_LIST = 5
#: A list of no values, for each dtype.
_EMPTY = {"string": b"\x0a\x00", "float32": b"\x12\x00", "int64": b"\x1a\x00"}


def calls(random: Random) -> Iterator[SequenceCall]:
    """Yields calls without end."""
    while True:
        context = _asked(random, _CONTEXT_FORMS, ((), (), (1,), (2,), (2, 2), (0,)))
        lists = _asked(random, _LIST_FORMS, ((), (), (1,), (2,), (2, 2)))
        for _ in range(CALLS):
            yield _call(random, context, lists)


def _asked(
    random: Random, forms: tuple[Form, ...], shapes: tuple[tuple[int, ...], ...]
) -> tuple[Asked, ...]:
    names = random.sample(NAMES, random.randrange(5))
    asked = []
    for name in names:
        form, splits = random.choice(forms), random.choice(("int32", "int64"))
        shape = random.choice(shapes) if form in ("fixed", "default", "padded") else ()
        asked.append(Asked(name, form, random.choice(DTYPES), shape, splits))
    return tuple(asked)


def _call(random: Random, context: tuple[Asked, ...], lists: tuple[Asked, ...]) -> SequenceCall:
    count = random.choice(BATCHES)
    rate, faults = random.choice((0, 0, 0.03, 0.3)), random.choice((0, 0, 0.01, 0.05))
    made = [_example(random, context, lists, faults) for _ in range(count)]
    if random.random() < 0.2:
        made = [with_long_lengths(random, one, deepest=_ROW_LIST) for one in made]
    examples = tuple(damaged(random, one) if random.random() < rate else one for one in made)
    is_single = random.random() < 0.2
    has_names = random.random() < 0.2 and not is_single
    names = tuple(b"n%d" % number for number in range(count)) if has_names else ()
    return SequenceCall(context, lists, examples, is_single, names)


def _feature(random: Random, asked: Asked, faults: float) -> bytes:
    """A Feature of the context, or a row."""
    count = prod(asked.shape) if asked.is_dense else random.choice((0, 1, 1, 2, 5))
    if random.random() < faults:
        count += 1
    if not asked.is_dense and not count and random.random() < 0.5:
        return random.choice((b"", _EMPTY[asked.dtype]))
    dtype = asked.dtype if random.random() >= faults else random.choice(DTYPES)
    made = feature_of(random, dtype, count)
    if random.random() < faults:  # whatever follows a list is read as the next row
        made += message(1, made)
    # Lengths around it are right.
    return damaged(random, made) if random.random() < faults else made


def _is_there(random: Random, asked: Asked, faults: float) -> bool:
    return random.random() >= (faults if asked.form == "fixed" else 0.15)


def _in_some_order(random: Random, made: list[bytes]) -> list[bytes]:
    if random.random() < 0.3:
        random.shuffle(made)
    if made and random.random() < 0.05:
        made.append(random.choice(made))
    return made


def _others(random: Random) -> list[bytes]:
    return [
        entry(b"other%d" % random.randrange(4), feature_of(random, random.choice(DTYPES), 1))
        for _ in range(random.randrange(3))
    ]


def _example(
    random: Random, context: tuple[Asked, ...], lists: tuple[Asked, ...], faults: float
) -> bytes:
    of_context = [
        entry(one.key, _feature(random, one, faults))
        for one in context
        if _is_there(random, one, faults)
    ]
    of_lists = []
    for one in lists:
        if _is_there(random, one, faults):
            rows = random.choice((0, 1, 2, 5))
            each = [_feature(random, one, faults) for _ in range(rows)]
            of_lists.append(entry(one.key, feature_list(*each)))
    parts = []
    for number, made in ((1, of_context), (2, of_lists)):
        body = _in_some_order(random, [*made, *_others(random)])
        cut = random.randrange(len(body) + 1) if random.random() < 0.05 else 0
        halves = [body[:cut], body[cut:]] if cut else [body]
        parts += [message(number, b"".join(part)) for part in halves if part or cut]
    if random.random() < 0.1:
        random.shuffle(parts)
    return (random.choice(UNKNOWN) if random.random() < 0.03 else b"") + b"".join(parts)


def is_safe(call: SequenceCall, found: Result) -> bool:
    """Whether stock can be asked.

    It writes anywhere where a string of a sparse feature is cut off, and reads anywhere where the
    length of a string or of packed floats is negative as an int of 32 bits.
    """
    if not isinstance(found, str):
        return True
    has_lengths = any(one.dtype != "int64" for one in (*call.context, *call.lists))
    if has_lengths and any(map(NEGATIVE_LENGTH.search, call.examples)):
        return False
    is_cut = "number of elements in feature " in found and "Inconsistent" not in found
    return not (is_cut and any(one.form == "sparse" for one in (*call.context, *call.lists)))


def mismatch(call: SequenceCall) -> str | None:
    """How the op differs from stock's; None if it does not."""
    found = fused(call)
    return difference_of(call, found) if is_safe(call, found) else None


def _without_one(call: SequenceCall) -> Iterator[SequenceCall]:
    """Yields calls of one Example less, and of one feature less."""
    call = replace(call, names=())
    for k in range(len(call.examples)):
        yield replace(call, examples=(*call.examples[:k], *call.examples[k + 1 :]))
    for k in range(len(call.context)):
        yield replace(call, context=(*call.context[:k], *call.context[k + 1 :]))
    for k in range(len(call.lists)):
        yield replace(call, lists=(*call.lists[:k], *call.lists[k + 1 :]))


def compare(seed: int, count: int) -> dict[str, int]:
    """As `compare_calls`, of SequenceExamples."""
    imports = (
        "from tests.parse_calls import Asked\nfrom tests.sequence_calls import SequenceCall, check"
    )
    return compare_calls(seed, count, Family(calls, mismatch, _without_one, fused, imports))

"""Random tf.Examples, some of them damaged, and random features that are asked of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from random import Random
from typing import Generic, TypeVar

from tests.example_bytes import entry, floats, ints, strings
from tests.parse_calls import DTYPES, Asked, Call, Dtype, Form, Result, difference, fused, stock
from tests.saved_model.wire import fields, message, varint

#: How often each form is drawn.
_FORMS: tuple[Form, ...] = (*("fixed",) * 3, "default", "padded", "sparse", "ragged")
NAMES = (
    *(b"", b"a", b"bb", b"user_id", b"exactly8", b"exactly_sixteen_", "größe".encode()),
    *(b"a_name_of_more_than_sixteen_bytes", b"a_name_of_more_than_sixteen_byteS"),
    *(b"a_name_of_more_than_24_b%d" % number for number in range(3)),
)
_STRING_SIZES = (0, 1, 3, 8, 21, 22, 23, 40, 200)
BATCHES = (0, 1, 2, 5, 12, 40)
#: What is in front of Features: fields that an Example does not have, of each wire type.
UNKNOWN = (b"\x10\x05", b"\x1a\x02ab", b"\x25abcd", b"\x29abcdefgh")
#: Bytes that mean something.
_TELLING = (0, 1, 2, 8, 10, 13, 18, 26, 128, 255)
#: A varint has at most so many bytes, and so many have all bits of a length.
_MAX_VARINT, _HALF_VARINT = 10, 5
#: How deep in an Example an entry is, and the list of a Feature.
_ENTRY, _LIST = 2, 4
#: The tag of a string or of packed numbers, and a length of five bytes or more whose bit 31 is set.
NEGATIVE_LENGTH = re.compile(
    b"\x0a[\x80-\xff]{4}[%b]" % b"".join(re.escape(bytes([k])) for k in range(256) if k & 8),
    re.DOTALL,
)
#: How many calls have the same features.
CALLS = 20


C = TypeVar("C")


@dataclass(frozen=True)
class Family(Generic[C]):
    """Random calls of one kind, and what is done with them.

    Attributes:
        calls: yields calls without end.
        mismatch: how the op differs from stock's; None if it does not.
        without_one: yields calls of one Example less, and of one feature less.
        fused: what the op gives.
        imports: what a program needs for `check`, and a call.
    """

    calls: Callable[[Random], Iterator[C]]
    mismatch: Callable[[C], str | None]
    without_one: Callable[[C], Iterator[C]]
    fused: Callable[[C], Result]
    imports: str


def calls(random: Random) -> Iterator[Call]:
    """Yields calls without end."""
    while True:
        features = _features(random)
        for _ in range(CALLS):
            yield _call(random, features)


def _features(random: Random) -> tuple[Asked, ...]:
    names: set[bytes] = set()
    count = random.randrange(7)
    while len(names) < count:
        repeated = bytes([97 + random.randrange(26)]) * random.randrange(1, 20)
        names.add(random.choice((*NAMES, repeated)))
    return tuple(_feature(random, name) for name in random.sample(sorted(names), count))


def _feature(random: Random, name: bytes) -> Asked:
    form, dtype = random.choice(_FORMS), random.choice(DTYPES)
    shape: tuple[int, ...] = ()
    if form == "padded":
        shape = random.choice(((), (1,), (2,), (2, 2)))
    elif form in ("fixed", "default"):
        # TensorFlow crashes of floats of which a row has none.
        none = (1,) if dtype == "float32" else (0,)
        shape = random.choice(((), (1,), (1,), (2,), (3,), (2, 2), none))
    may_be_hashed = dtype == "string" and form != "padded" and prod(shape) == 1
    buckets = random.choice((0, 1, 7, 1000, 2**62 + 1)) if may_be_hashed else 0
    return Asked(name, form, dtype, shape, random.choice(("int32", "int64")), buckets)


def _call(random: Random, features: tuple[Asked, ...]) -> Call:
    count, rate = random.choice(BATCHES), random.choice((0, 0, 0.03, 0.3))
    made = [_example(random, features) for _ in range(count)]
    if random.random() < 0.2:
        made = [with_long_lengths(random, one) for one in made]
    examples = tuple(damaged(random, one) if random.random() < rate else one for one in made)
    is_single = random.random() < 0.25
    has_names = random.random() < 0.2 and not is_single
    names = tuple(b"n%d" % number for number in range(count)) if has_names else ()
    outputs = _outputs(random, features) if random.random() < 0.3 else ()
    return Call(features, examples, is_single, names, outputs)


def _outputs(random: Random, features: tuple[Asked, ...]) -> tuple[tuple[int, int], ...]:
    """The outputs of dense features, some of which are side by side, and where these lie."""
    dense = [one for one in features if one.is_dense]
    numbers, of_dtype, count = list[int](), dict[str, int](), 0
    for one in dense:
        may_join = one.form != "padded" and 0 not in one.shape
        if may_join and one.value_dtype in of_dtype and random.random() < 0.7:
            numbers.append(of_dtype[one.value_dtype])
            continue
        numbers.append(count)
        if may_join:
            of_dtype[one.value_dtype] = count
        count += 1
    return placed(random, dense, numbers)


def placed(
    random: Random, dense: Sequence[Asked], numbers: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Where features lie in the rows of their outputs, in any order."""
    columns, widths = [0] * len(dense), dict[int, int]()
    for k in random.sample(range(len(dense)), len(dense)):
        columns[k] = widths.get(numbers[k], 0)
        widths[numbers[k]] = columns[k] + prod(dense[k].shape)
    return tuple(zip(numbers, columns, strict=True))


def feature_of(random: Random, dtype: Dtype, count: int) -> bytes:
    """A Feature of so many values."""
    packed = random.random() < 0.8
    if dtype == "string":
        sizes = (random.choice(_STRING_SIZES) for _ in range(count))
        return strings([random.randbytes(size) for size in sizes])
    if not count and random.random() < 0.5:
        return message(3 if dtype == "int64" else 2, b"")
    if dtype == "float32":
        return floats([random.random() for _ in range(count)], packed)
    return ints([_int(random) for _ in range(count)], packed)


def _int(random: Random) -> int:
    large = random.randrange(1 << 20), random.randrange(1 << 63), -random.randrange(1 << 62)
    return random.choice((0, 1, 5, 127, 128, 300, -1, *large))


def _count(random: Random, feature: Asked) -> int:
    """How many values an Example has."""
    if not feature.is_dense:
        return random.choice((0, 1, 2, 5))
    strides = random.choice((0, 1, 2)) if feature.form == "padded" else 1
    return strides * prod(feature.shape) + (random.random() < 0.03)


def _entries(random: Random, features: tuple[Asked, ...]) -> list[tuple[bytes, bytes]]:
    """Names and Features of an Example."""
    found = []
    for one in features:
        if random.random() < 0.1:
            continue
        dtype = one.dtype if random.random() < 0.97 else random.choice(DTYPES)
        feature = feature_of(random, dtype, _count(random, one))
        found.append((one.key, feature if random.random() < 0.97 else b""))
    for _ in range(random.randrange(3)):
        name = b"other%d" % random.randrange(4)
        found.append((name, feature_of(random, random.choice(DTYPES), 1)))
    if random.random() < 0.3:
        random.shuffle(found)
    if found and random.random() < 0.08:
        found.append(random.choice(found))
    return found


def _example(random: Random, features: tuple[Asked, ...]) -> bytes:
    body = [
        entry(key, feature)
        if random.random() < 0.98
        else message(1, message(2, feature) + message(1, key))
        for key, feature in _entries(random, features)
    ]
    cut = random.randrange(len(body) + 1) if random.random() < 0.05 else 0
    parts = [body[:cut], body[cut:]] if cut else [body]
    serialized = b"".join(message(1, b"".join(part)) for part in parts)
    return (random.choice(UNKNOWN) if random.random() < 0.03 else b"") + serialized


def _length(random: Random, size: int) -> bytes:
    """A length, sometimes in more bytes than it needs, and with bits above the 32 that count."""
    if random.random() < 0.8:
        return varint(size)
    count = random.randrange(2, _MAX_VARINT + 1)
    if count > _HALF_VARINT and random.random() < 0.5:
        size |= random.randrange(1, 1 << 20) << 7 * _HALF_VARINT
    each = [size >> 7 * k & 0x7F for k in range(count)]
    return bytes(
        [*(one | 0x80 for one in each[:-1]), each[-1] & (1 if count == _MAX_VARINT else 0x7F)]
    )


def with_long_lengths(
    random: Random, content: bytes, depth: int = 0, deepest: int = _LIST
) -> bytes:
    """An Example, or a part so deep in one, with lengths of more bytes than they need."""
    result, end = b"", 0
    for field in fields(content) or ():
        body = content[field.body : field.end]
        is_key = depth == _ENTRY and field.number == 1
        if depth < deepest and not is_key:
            body = with_long_lengths(random, body, depth + 1, deepest)
        result += content[end : field.length] + _length(random, len(body)) + body
        end = field.end
    return result + content[end:]


def damaged(random: Random, serialized: bytes) -> bytes:
    """An Example with some bytes changed."""
    found = bytearray(serialized)
    for _ in range(random.randrange(1, 4)):
        if not found:
            break
        at, change = random.randrange(len(found)), random.randrange(6)
        if change == 0:
            found[at] = random.randrange(256)
        elif change == 1:
            del found[at]
        elif change == 2:
            found.insert(at, random.choice((*_TELLING, random.randrange(256))))
        elif change == 3:
            del found[at:]
        elif change == 4:
            found[at] = (found[at] + random.choice((-1, 1))) % 256
        else:
            found[at:at] = found[at : at + random.randrange(1, 12)]
    return bytes(found)


def is_safe(call: Call, found: Result) -> bool:
    """Whether stock can be asked, also of Examples behind the one that its error names.

    It writes behind a row where a list of floats that are not packed has more of them than that,
    and reads anywhere where the length of a string, or of packed floats of which there may be any
    number, is negative as an int of 32 bits.
    """
    if not isinstance(found, str):
        return True
    has_rows = any(one.dtype == "float32" and one.form != "padded" for one in call.dense)
    if has_rows and any(b"\x0d" in one for one in call.examples):
        return False
    fixed = ("fixed", "default")
    of_any_length = any(
        one.dtype == "string" or (one.dtype == "float32" and one.form not in fixed)
        for one in call.features
    )
    return not of_any_length or not any(map(NEGATIVE_LENGTH.search, call.examples))


def mismatch(call: Call) -> str | None:
    """How the op differs from stock's; None if it does not."""
    found = fused(call)
    return difference(found, stock(call)) if is_safe(call, found) else None


def _without_one(call: Call) -> Iterator[Call]:
    """Yields calls of one Example less, and of one feature less."""
    call = replace(call, names=())
    for k in range(len(call.examples)):
        yield replace(call, examples=(*call.examples[:k], *call.examples[k + 1 :]))
    for k in range(len(call.features)):
        features = (*call.features[:k], *call.features[k + 1 :])
        outputs = call.outputs
        if outputs and call.features[k].is_dense:
            gone = call.dense.index(call.features[k])
            left = [number for number, _ in (*outputs[:gone], *outputs[gone + 1 :])]
            numbers = [*dict.fromkeys(left)]
            dense = [one for one in features if one.is_dense]
            outputs = placed(Random(0), dense, [numbers.index(number) for number in left])
        yield replace(call, features=features, outputs=outputs)


def smallest(call: C, family: Family[C]) -> C:
    """A call that differs as one that does, of fewer Examples and features where there is one."""
    while (less := next(filter(family.mismatch, family.without_one(call)), None)) is not None:
        call = less
    return call


def compare_calls(seed: int, count: int, family: Family[C]) -> dict[str, int]:
    """Compares so many random calls; returns how many had tensors, and how many errors.

    Raises:
        AssertionError: two differ; the text is a program that shows it.
    """
    agreed = {"tensors": 0, "errors": 0}
    for call in islice(family.calls(Random(seed)), count):
        text = family.mismatch(call)
        assert text is None, (
            f"{text}\nof seed {seed}; to see it again:\n"
            f"{family.imports}\n"
            f"check({smallest(call, family)!r})"
        )
        agreed["errors" if isinstance(family.fused(call), str) else "tensors"] += 1
    return agreed


def compare(seed: int, count: int) -> dict[str, int]:
    """As `compare_calls`, of Examples."""
    imports = "from tests.parse_calls import Asked, Call, check"
    return compare_calls(seed, count, Family(calls, mismatch, _without_one, fused, imports))

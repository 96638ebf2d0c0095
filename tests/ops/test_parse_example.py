"""FusedParseExample does what stock's parser does: each rule of it, with stock beside."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.differential.examples import is_safe
from tests.example_bytes import entry, example, floats, ints, of, strings
from tests.parse_calls import DTYPES, FORMS, Asked, Call, Dtype, Form, check, fused
from tests.saved_model.wire import message, varint

FIXED, DEFAULT = Asked(b"a"), Asked(b"a", "default")
PADDED, PAIRS = Asked(b"a", "padded"), Asked(b"a", "padded", shape=(2,))
SPARSE, RAGGED = Asked(b"a", "sparse"), Asked(b"a", "ragged")
FLOATS = Asked(b"a", "sparse", "float32")
STRINGS = Asked(b"a", "sparse", "string")
OTHER = Asked(b"b", "default")

MALFORMED = "Could not parse example input, value: '"
NOT_PARSED = "Name: <unknown>, Key: a, Index: 0.  Can't parse serialized Example."
#: A varint of as many bytes as there may be, and of one more.
LONGEST, TOO_LONG = b"\x85" + b"\x80" * 8 + b"\x00", b"\x85" + b"\x80" * 9 + b"\x00"


def packed(content: bytes) -> bytes:
    """A list of integers of some bytes."""
    return message(3, message(1, content))


def parsed(features: Asked | tuple[Asked, ...], *examples: bytes) -> Call:
    return Call((features,) if isinstance(features, Asked) else features, examples)


class Case(NamedTuple):
    """A call, and what stock makes of it: the values of the output for them, or a text."""

    call: Call
    expected: Any
    output: int = 0


#: The output of the values of the one sparse feature, and the row splits of a ragged one.
VALUES, SPLITS = 1, 1
CASES = {
    "the last of two entries counts": Case(parsed(FIXED, of(a=ints([1])) + of(a=ints([2]))), [2]),
    "the last of two entries of one Example": Case(
        parsed(FIXED, example(entry(b"a", ints([1])), entry(b"a", ints([2])))), [2]
    ),
    "an earlier entry is not looked at": Case(
        parsed(FIXED, example(entry(b"a", floats([1])), entry(b"a", ints([2])))), [2]
    ),
    "the last entry is empty, FixedLen": Case(
        parsed(FIXED, example(entry(b"a", ints([1])), entry(b"a", b""))), [1]
    ),
    "the last entry is empty, VarLen": Case(
        parsed(SPARSE, example(entry(b"a", ints([1])), entry(b"a", b""))), [], VALUES
    ),
    "the last entry is empty, ragged": Case(
        parsed(RAGGED, example(entry(b"a", ints([1])), entry(b"a", b""))), []
    ),
    "the last entry is empty, FixedLenSequence": Case(
        parsed(PADDED, example(entry(b"a", ints([1])), entry(b"a", b""))), [[1]]
    ),
    "an empty Feature has the default": Case(parsed(DEFAULT, of(a=b"")), [7]),
    "an empty Feature without a default": Case(
        parsed(FIXED, of(a=b"")),
        "Name: <unknown>, Feature: a (data type: int64) is required but could not be found.",
    ),
    "no Feature has the default": Case(parsed(DEFAULT, b""), [7]),
    "no Feature, no default": Case(parsed(FIXED, b""), "Feature: a (data type: int64) is required"),
    "an empty Feature, VarLen": Case(parsed(SPARSE, of(a=b"")), [], VALUES),
    "an empty Feature, ragged": Case(parsed(RAGGED, of(a=b""), of(a=ints([5]))), [0, 0, 1], SPLITS),
    "an empty Feature, FixedLenSequence": Case(
        parsed(PADDED, of(a=b""), of(a=ints([5, 6]))), [[7, 7], [5, 6]]
    ),
    "an empty list is no default": Case(
        parsed(DEFAULT, of(a=message(3, b""))),
        "Name: <unknown>, Key: a, Index: 0.  Number of int64 values != expected.  "
        "Values size: 0 but output shape: []",
    ),
    "an empty list, VarLen": Case(parsed(SPARSE, of(a=message(3, b""))), [], VALUES),
    "an empty list, FixedLenSequence": Case(
        parsed(PADDED, of(a=message(3, b"")), of(a=ints([5]))), [[7], [5]]
    ),
    "a list that is not packed": Case(
        parsed(SPARSE, of(a=ints([1, -2], packed=False))), [1, -2], 1
    ),
    "floats that are not packed": Case(
        parsed(FLOATS, of(a=floats([1, 2], packed=False))), [1, 2], VALUES
    ),
    "packed after unpacked": Case(
        parsed(SPARSE, of(a=message(3, b"\x08\x01" + message(1, b"\x02")))), NOT_PARSED
    ),
    "the second of two packed runs": Case(
        parsed(SPARSE, of(a=message(3, message(1, b"\x01") + message(1, b"\x02")))), [1], VALUES
    ),
    "two lists in a Feature": Case(parsed(SPARSE, of(a=ints([1]) + ints([2]))), [1], VALUES),
    "a list of another dtype behind": Case(
        parsed(SPARSE, of(a=ints([1]) + floats([2]))), [1], VALUES
    ),
    "the value in front of the key": Case(
        parsed(FIXED, example(message(1, message(2, ints([3])) + message(1, b"a")))), [3]
    ),
    **{
        f"an unknown field at the top, {kind}": Case(parsed(FIXED, field + of(a=ints([3]))), [3])
        for kind, field in {
            "varint": b"\x10\x05",
            "bytes": b"\x1a\x02ab",
            "fixed32": b"\x25abcd",
            "fixed64": b"\x29abcdefgh",
        }.items()
    },
    "a group at the top": Case(parsed(FIXED, b"\x13\x14" + of(a=ints([3]))), MALFORMED),
    "an unknown field in Features": Case(
        parsed(FIXED, message(1, entry(b"a", ints([3])) + b"\x10\x05")), MALFORMED
    ),
    "an unknown field in an entry": Case(
        parsed(FIXED, example(message(1, message(1, b"a") + message(2, ints([3])) + b"\x18\x05"))),
        MALFORMED,
    ),
    "an entry without a value": Case(
        parsed(DEFAULT, example(message(1, message(1, b"a")))), MALFORMED
    ),
    "an entry that is cut": Case(parsed(FIXED, of(a=ints([3]))[:-1]), MALFORMED),
    "an Example that is cut in a name": Case(parsed(FIXED, of(abc=ints([3]))[:5]), MALFORMED),
    "an unknown list of what is asked for": Case(
        parsed(FIXED, of(a=message(4, b"\x01"))), "Unsupported datatype."
    ),
    "an unknown list of what is not": Case(
        parsed(OTHER, of(a=message(4, b"\x01"), b=ints([3]))), [3]
    ),
    "damage in what is not asked for": Case(
        parsed(OTHER, of(a=message(3, message(1, b"\xff\xff"))[:-1] + b"\xff", b=ints([3]))), [3]
    ),
    "varints of ten bytes": Case(parsed(FIXED, of(a=ints([-1]))), [-1]),
    "an overlong varint": Case(parsed(FIXED, of(a=packed(LONGEST))), [5]),
    "a varint of eleven bytes, FixedLen": Case(parsed(FIXED, of(a=packed(TOO_LONG))), NOT_PARSED),
    "a varint of eleven bytes, VarLen": Case(parsed(SPARSE, of(a=packed(TOO_LONG))), NOT_PARSED),
    "a varint that is cut": Case(parsed(SPARSE, of(a=packed(b"\x01\x80"))), NOT_PARSED),
    "packed floats of five bytes": Case(
        parsed(FLOATS, of(a=message(2, message(1, b"\0\0\x80?\x01")))), [1], VALUES
    ),
    "the first bad Example is named": Case(
        parsed(FIXED, of(a=ints([1])), of(a=floats([1])), b"\x01"),
        "Name: <unknown>, Key: a, Index: 1.  "
        "Data types don't match. Data type: float but expected type: int64",
    ),
    "the last bad feature of it is named": Case(
        parsed((FIXED, Asked(b"b"), Asked(b"c")), of(b=floats([1]), a=floats([1]), c=ints([1]))),
        "Key: a, Index: 0",
    ),
    "bad ones come before missing ones": Case(
        parsed((FIXED, Asked(b"b")), of(b=floats([1]))), "Key: b, Index: 0"
    ),
    "missing ones in the order of the keys": Case(
        parsed((Asked(b"c"), FIXED, Asked(b"b")), of(b=ints([1]))), "Feature: c (data type"
    ),
    "another dtype, VarLen": Case(
        parsed(SPARSE, of(a=strings([b"x"]))),
        "Key: a, Index: 0.  Data types don't match. Expected type: int64, Actual type: string",
    ),
    "another number of floats": Case(
        parsed(Asked(b"a", "fixed", "float32", (2, 3)), of(a=floats([1]))),
        "Number of float values != expected.  Values size: 1 but output shape: [2,3]",
    ),
    "another number of strings": Case(
        parsed(Asked(b"a", "fixed", "string", (2,)), of(a=strings([b"x"]))),
        "Number of bytes values != expected.  Values size: 1 but output shape: [2]",
    ),
    "too many strings": Case(
        parsed(Asked(b"a", "fixed", "string", (1,)), of(a=strings([b"x", b"y"]))), NOT_PARSED
    ),
    "no whole strides": Case(
        parsed(PAIRS, of(a=ints([1, 2, 3]))),
        "Number of int64 values is not a multiple of stride length. "
        "Saw 3 values but output shape is: [?,2]",
    ),
    "no whole strides behind others": Case(
        parsed(PAIRS, of(a=ints([1, 2])), of(a=ints([1, 2, 3]))), "is not a multiple of stride"
    ),
    "strides are filled up": Case(
        parsed(PAIRS, of(a=ints([1, 2])), of(a=ints([1, 2, 3, 4])), b""),
        [[[1, 2], [7, 7]], [[1, 2], [3, 4]], [[7, 7], [7, 7]]],
    ),
    "the shape of VarLen": Case(
        parsed(SPARSE, of(a=ints([1, 2])), b"", of(a=ints([1, 2, 3]))), [3, 3], 2
    ),
    "indices of VarLen": Case(
        parsed(SPARSE, of(a=ints([1, 2])), b"", of(a=ints([5]))), [[0, 0], [0, 1], [2, 0]]
    ),
    "splits of ragged": Case(
        parsed(RAGGED, of(a=ints([1, 2])), b"", of(a=ints([5]))), [0, 2, 2, 3], 1
    ),
    "the longest of FixedLenSequence": Case(
        parsed(PADDED, of(a=ints([1])), of(a=ints([2, 3]))), [[1, 7], [2, 3]]
    ),
    "no Example": Case(parsed((FIXED, Asked(b"s", "sparse"))), [0, 0], 2),
    "no feature is asked for": Case(parsed((), of(a=ints([1]))), None),
    "no feature and no Example": Case(parsed(()), None),
    "damage where no feature is asked for": Case(parsed((), b"\x01"), None),
    "a zero in what is quoted": Case(parsed(FIXED, b"\x01a\x00b\xff"), f"{MALFORMED}\x01a"),
    "a large length of an Example": Case(parsed(FIXED, b"\x0a\xff\xff\xff\xff\x0f"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_does_as_stock(name: str) -> None:
    case = CASES[name]
    found = check(case.call)
    if isinstance(case.expected, str):
        assert isinstance(found, str)
        assert case.expected in found
    elif case.expected is not None:
        assert not isinstance(found, str), found
        np.testing.assert_array_equal(found[case.output], case.expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_single", [False, True], ids=["batch", "single"])
def test_forms_and_dtypes(form: Form, dtype: Dtype, is_single: bool) -> None:
    feature = {"int64": ints([3, 4]), "float32": floats([3, 4]), "string": strings([b"x", b"y"])}
    for splits in ("int32", "int64"):
        asked = Asked(b"a", form, dtype, (2,), splits)
        rows = (of(a=feature[dtype]), b"" if form != "fixed" else of(a=feature[dtype]))
        assert not isinstance(check(Call((asked,), rows, is_single)), str)
    for bad in (of(a=feature["string" if dtype != "string" else "int64"]), of(a=b"\x07"), b"\x01"):
        assert isinstance(check(Call((asked,), (bad,), is_single)), str)


@pytest.mark.parametrize("name", CASES)
def test_one_example_without_a_batch(name: str) -> None:
    call = CASES[name].call
    check(Call(call.features, call.examples[:1], is_single=True))


def test_names_of_examples_are_in_messages() -> None:
    names = (b"one", "zwölf".encode())
    found = check(Call((FIXED,), (of(a=ints([1])), b""), names=names))
    assert str(found).startswith("Name: zw\\xc3\\xb6lf, Feature: a (data type: int64) is required")
    found = check(Call((FIXED,), (of(a=ints([1])), of(a=floats([1]))), names=names))
    assert str(found).startswith("Name: zw\\xc3\\xb6lf, Key: a, Index: 1.  Data types don't match")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 16, 21, 22, 23, 24, 127, 128, 1000, 70_000])
def test_strings_of_any_size(size: int) -> None:
    texts = [bytes(range(256)) * (size // 256 + 1), b"x" * size]
    rows = tuple(of(a=strings([text[:size]] * 2), b=ints([1])) for text in texts)
    for form in FORMS:
        found = check(Call((Asked(b"a", form, "string", (2,)),), rows))
        assert not isinstance(found, str)
        assert texts[1][:size] in found[1 if form == "sparse" else 0].reshape(-1).tolist()


def test_names_that_share_their_first_bytes() -> None:
    common = b"exactly_sixteen_"
    names = [common[:k] for k in (0, 7, 8, 9, 15, 16)]
    names += [common + rest for rest in (b"a", b"b", b"1234567", b"12345678", b"1234567812345678")]
    names += [common + b"1234567812345679", common + b"2" * 200]
    entries = [entry(name, ints([number])) for number, name in enumerate(names)]
    entries.append(entry(common + b"c", ints([99])))
    call = Call(
        tuple(Asked(name) for name in names),
        tuple(example(*entries[k:], *entries[:k]) for k in range(len(entries))),
    )
    found = check(call)
    assert [column[0] for column in found] == [*range(len(names))]


def test_a_few_of_many_features() -> None:
    rng = np.random.default_rng(0)
    names = [b"feature_of_the_model_%d" % number for number in range(300)]
    asked = tuple(Asked(names[k]) for k in rng.choice(300, 40, replace=False))
    rows = []
    for row in range(20):
        numbers = [*range(300)] if row % 2 else rng.permutation(300).tolist()
        rows.append(example(*(entry(names[k], ints([1000 * row + k])) for k in numbers)))
    found = check(Call(asked, tuple(rows)))
    numbers = [int(one.key.rpartition(b"_")[2]) for one in asked]
    expected = [[1000 * row + number for row in range(20)] for number in numbers]
    np.testing.assert_array_equal(found, expected)


def test_more_other_names_than_are_learnt() -> None:
    rows = [
        example(
            *(entry(b"other_%d" % k, ints([k])) for k in range(400 * row, 400 * row + 400)),
            entry(b"a", ints([row])),
            *(entry(b"more_%d" % k, ints([k])) for k in range(3)),
            entry(b"b", ints([row + 1])),
        )
        for row in range(4)
    ]
    found = check(Call((FIXED, OTHER), tuple(rows * 3)))
    np.testing.assert_array_equal(found, [[0, 1, 2, 3] * 3, [1, 2, 3, 4] * 3])


@pytest.mark.parametrize("form", FORMS)
def test_a_length_of_packed_floats_that_is_negative(form: Form) -> None:
    """Of lists of any number stock reads anywhere."""
    shape = (1,) if form in ("fixed", "default", "padded") else ()
    length = b"\xe1\xb1\xcb\xb9\x3e"
    value = message(2, b"\x0a" + length + b"\0\0\x80\x3f")
    call = Call((Asked(b"a", form, "float32", shape),), (example(entry(b"a", value)),))
    is_fixed = form in ("fixed", "default")
    assert is_fixed or not is_safe(call, NOT_PARSED)
    found = check(call) if is_fixed else fused(call)
    assert isinstance(found, str)
    assert is_fixed or found == NOT_PARSED


def test_a_length_of_several_bytes() -> None:
    """Lengths that fit one byte may be written as two and more."""

    def padded(number: int, content: bytes, size: int) -> bytes:
        length = bytearray(varint(len(content)))
        length[-1] |= 0x80
        length += b"\x80" * (size - len(length) - 1) + b"\x00"
        return varint(number << 3 | 2) + bytes(length) + content

    for size in range(2, 11):
        value = padded(3, padded(1, b"\x01\x02", size), size)
        whole = padded(1, padded(1, padded(1, b"a", size) + padded(2, value, size), size), size)
        for asked in (SPARSE, Asked(b"a", shape=(2,)), PADDED, OTHER):
            check(Call((asked,), (whole,)))

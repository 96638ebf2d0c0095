"""FusedParseSequenceExample does what stock's parser does: each rule of it, with stock beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.differential.sequences import is_safe
from tests.example_bytes import entry, feature_list, floats, ints, sequence, sequence_of, strings
from tests.parse_calls import DTYPES, Asked, Dtype, Form
from tests.saved_model.wire import message
from tests.sequence_calls import (
    CONTEXT_FORMS,
    LIST_FORMS,
    SequenceCall,
    check,
    fused,
)

FIXED, DEFAULT = Asked(b"f"), Asked(b"f", "default")
SPARSE, RAGGED = Asked(b"f", "sparse"), Asked(b"f", "ragged")
FLOATS, STRINGS = Asked(b"f", "sparse", "float32"), Asked(b"f", "ragged", "string")
NONE = Asked(b"f", shape=(0,))
ROWS, MAY_MISS = Asked(b"l"), Asked(b"l", "padded")
PAIRS = Asked(b"l", shape=(2,))
SPARSE_LIST, RAGGED_LIST = Asked(b"l", "sparse"), Asked(b"l", "ragged")
STRING_ROWS, RAGGED_STRINGS = Asked(b"l", "fixed", "string"), Asked(b"l", "ragged", "string")

MALFORMED = "Invalid protocol message input, example id: <unknown>"
OTHER_DTYPE = "Name: <unknown>, Context feature: f.  Data types don't match. Expected type: {dtype}"
OTHER_ROW = "Feature list: l, Index: 1.  Data types don't match. Expected type: int64"
OTHER_SIZE = "Number of values != expected.  values size: {size} but output shape: "
BROKEN = "Error in sequence feature l in example <unknown>"

ONE, TWO = ints([1]), ints([2])
ELEVEN = message(3, message(1, b"\x80" * 10 + b"\x01"))
#: A list of strings, the last of which is cut off.
CUT = b"\x0a\x07\x0a\x01a\x0a\x09bc"


def of(*features: bytes) -> bytes:
    """A SequenceExample with entries of the feature of the context."""
    return sequence(entry(b"f", feature) for feature in features)


def rows(*features: bytes) -> bytes:
    """A SequenceExample with the feature list of some rows."""
    return sequence_of(lists={"l": features})


def context(asked: Asked, *examples: bytes) -> SequenceCall:
    return SequenceCall((asked,), (), examples)


def lists(asked: Asked, *examples: bytes) -> SequenceCall:
    return SequenceCall((), (asked,), examples)


class Case(NamedTuple):
    """A call, and what stock makes of it: values of an output, or a text."""

    call: SequenceCall
    expected: Any
    output: int = 0


VALUES, SHAPE = 1, 2
LENGTHS = 1
#: The splits of a ragged list.
OUTER, INNER = 1, 2

CASES = {
    # The context
    "the last of two entries counts": Case(context(FIXED, of(ONE, TWO)), [2]),
    "of two SequenceExamples in one, too": Case(context(FIXED, of(ONE) + of(TWO)), [2]),
    "an earlier entry is not looked at": Case(context(FIXED, of(floats([1]), TWO)), [2]),
    "the last entry is empty": Case(
        context(DEFAULT, of(ONE, b"")), "Unexpected number of elements in example <unknown>"
    ),
    "the last entry is empty, sparse": Case(context(SPARSE, of(ONE, b"")), [], VALUES),
    "the last entry is empty, ragged": Case(context(RAGGED, of(ONE, b"")), []),
    "a missing feature has its default": Case(context(DEFAULT, sequence(), of(ONE)), [7, 1]),
    "a missing feature": Case(
        context(FIXED, of(ONE), sequence()),
        "Feature: f (data type: int64) is required but could not be found.",
    ),
    "a feature that no Example has": Case(
        context(FIXED, sequence()),
        "Inconsistent max number of elements for feature f: expected 1, but found 0",
    ),
    "no Example, and a feature that is required": Case(
        context(FIXED), "Inconsistent max number of elements for feature f: expected 1, but found 0"
    ),
    "no Example, and a default": Case(context(DEFAULT), []),
    "no Example, and no values are asked for": Case(context(NONE), np.zeros((0, 0)).tolist()),
    "no values are asked for": Case(context(NONE, of(ints([])), of(b"")), [[], []]),
    "too many values": Case(
        context(FIXED, of(ints([1, 2]))),
        "Inconsistent max number of elements for feature f: expected 1, but found 2",
    ),
    "too few values": Case(
        context(Asked(b"f", shape=(2,)), of(ints([1, 2])), of(ONE)),
        "Unexpected number of elements in example <unknown>",
    ),
    "another dtype": Case(context(FIXED, of(floats([1]))), OTHER_DTYPE.format(dtype="int64")),
    "an unknown list": Case(context(RAGGED, of(b"\x22\x01a")), OTHER_DTYPE.format(dtype="int64")),
    "a packed float of five bytes": Case(
        context(FLOATS, of(b"\x12\x07\x0a\x05abcde")), OTHER_DTYPE.format(dtype="float")
    ),
    "a varint of eleven bytes": Case(
        context(RAGGED, of(ELEVEN)),
        OTHER_DTYPE.format(dtype="int64"),
    ),
    "integers that are not packed": Case(context(RAGGED, of(ints([1, -1], False))), [1, -1]),
    "floats that are not packed": Case(context(FLOATS, of(floats([1, 2], False))), [1, 2], VALUES),
    "the second list of a Feature is not looked at": Case(
        context(RAGGED, of(ONE + floats([1]))), [1]
    ),
    "a row behind the list of a Feature is not looked at": Case(
        context(FIXED, of(ONE + message(1, TWO))), [1]
    ),
    "a packed run that ends in front of its list": Case(
        context(FIXED, of(message(3, message(1, b"\x05") + b"\x08\x01"))), [5]
    ),
    "a list whose length is too large": Case(
        context(RAGGED, of(b"\x1a\x55\x0a\x02\x01\x02")), [1, 2]
    ),
    "a list without values but for its length": Case(
        context(RAGGED, of(b"\x1a\x05")), OTHER_DTYPE.format(dtype="int64")
    ),
    "a string that is cut off, ragged": Case(
        context(STRINGS, of(CUT)), "Unexpected total number of elements in feature f"
    ),
    "a string that is cut off, dense": Case(
        context(replace(STRINGS, form="fixed", shape=(2,)), of(CUT)),
        "Unexpected number of elements in example <unknown>",
    ),
    "the shape of a sparse feature": Case(
        context(SPARSE, of(ints([1, 2])), sequence(), of(ints([1, 2, 3]))), [3, 3], SHAPE
    ),
    "indices of a sparse feature": Case(
        context(SPARSE, of(ints([1, 2])), sequence(), of(ints([5]))), [[0, 0], [0, 1], [2, 0]]
    ),
    "splits of a ragged feature": Case(
        context(RAGGED, of(ints([1, 2])), sequence(), of(ints([5]))), [0, 2, 2, 3], 1
    ),
    # The wire
    "a value in front of its key": Case(
        context(RAGGED, message(1, message(1, message(2, ONE) + message(1, b"f")))), MALFORMED
    ),
    "an entry without a value": Case(
        context(RAGGED, message(1, message(1, message(1, b"f")))), MALFORMED
    ),
    "another field in an entry": Case(
        context(RAGGED, message(1, message(1, entry(b"f", ONE)[2:] + b"\x18\x01"))), MALFORMED
    ),
    "another field in the context": Case(context(RAGGED, message(1, b"\x10\x01")), MALFORMED),
    "another field in front": Case(context(RAGGED, b"\x1a\x02ab" + of(ONE)), [1]),
    "a group": Case(context(RAGGED, b"\x1b\x1c" + of(ONE)), MALFORMED),
    "a length that is too large": Case(context(RAGGED, b"\x0a\x55" + of(ONE)[2:-2]), [1]),
    "an entry that is cut off": Case(context(RAGGED, of(ONE)[:-1]), MALFORMED),
    "damage in a feature that is not asked for": Case(
        context(RAGGED, sequence([entry(b"x", b"\x01\x02"), entry(b"f", ONE)])), [1]
    ),
    "a malformed Example behind a wrong one": Case(
        context(RAGGED, of(floats([1])), b"\x0a"), MALFORMED
    ),
    "lists in front of the context": Case(
        SequenceCall((RAGGED,), (MAY_MISS,), (rows(ONE, TWO)[2:] + of(ONE)[:-2],)), [1]
    ),
    # Feature lists
    "rows are filled up": Case(
        lists(ROWS, rows(ONE, TWO), rows(), rows(ONE)), [[1, 2], [0, 0], [1, 0]]
    ),
    "how many rows there are": Case(lists(ROWS, rows(ONE, TWO), rows(), rows(ONE)), [2, 0, 1], 1),
    "a missing list": Case(
        lists(ROWS, rows(ONE), sequence()),
        "Name: <unknown>, Feature list 'l' is required but could not be found.  Did you mean to "
        "include it in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
    ),
    "a list that may be missing": Case(lists(MAY_MISS, rows(ONE), sequence()), [1, 0], LENGTHS),
    "the last of two lists counts": Case(lists(ROWS, rows(ONE) + rows(TWO, TWO)), [[2, 2]]),
    "the last list is empty": Case(lists(ROWS, rows(ONE) + rows()), [0], LENGTHS),
    "a row without values": Case(
        lists(ROWS, rows(ONE, b"", TWO)), f"Key: l, Index: 1.  {OTHER_SIZE.format(size=0)}[]"
    ),
    "a row that is too long": Case(
        lists(ROWS, rows(ints([1, 2]))), f"Key: l, Index: 0.  {OTHER_SIZE.format(size=2)}[]"
    ),
    "values that are no whole rows": Case(
        lists(PAIRS, rows(ints([1, 2]), ONE)),
        "Feature list 'l' has an unexpected number of values.  Total values size: 3 is not "
        "consistent with output shape: [?,2]",
    ),
    "whole rows in all, and not each": Case(
        lists(PAIRS, rows(ONE, ONE)), f"Key: l, Index: 0.  {OTHER_SIZE.format(size=1)}[2]"
    ),
    "an Example whose values are no whole rows": Case(
        lists(PAIRS, rows(ONE), rows(ints([1, 2]))),
        f"Key: l, Index: 0.  {OTHER_SIZE.format(size=1)}[2]",
    ),
    "rows without values, sparse": Case(
        lists(SPARSE_LIST, rows(ONE, b"", b"\x1a\x00", ints([]), TWO)),
        [[0, 0, 0], [0, 4, 0]],
    ),
    "the shape of a sparse list": Case(
        lists(SPARSE_LIST, rows(ONE, b""), rows(ints([1, 2, 3])), sequence()), [3, 2, 3], SHAPE
    ),
    "rows without values, ragged": Case(
        lists(RAGGED_LIST, rows(ONE, b"", TWO), sequence(), rows(b"\x1a\x80\x00")),
        [0, 1, 1, 2, 2],
        INNER,
    ),
    "the rows of Examples, ragged": Case(
        lists(RAGGED_LIST, rows(ONE, b"", TWO), sequence(), rows(b"\x1a\x80\x00")),
        [0, 3, 3, 4],
        OUTER,
    ),
    "a row of another dtype": Case(lists(ROWS, rows(ONE, floats([1]))), OTHER_ROW),
    "a row with a varint of eleven bytes": Case(lists(ROWS, rows(ONE, ELEVEN)), OTHER_ROW),
    "one in a ragged list": Case(lists(RAGGED_LIST, rows(ONE, ELEVEN)), OTHER_ROW),
    "one in front of a row that is too long": Case(
        lists(ROWS, rows(ONE, ELEVEN, ints([1, 2]))), OTHER_ROW
    ),
    "one behind a row that is too long": Case(lists(ROWS, rows(ints([1, 2]), ELEVEN)), OTHER_ROW),
    "one in front of a row of another dtype": Case(
        lists(ROWS, rows(ONE, ELEVEN, floats([1]))), OTHER_ROW
    ),
    "one beside values that are no whole rows": Case(
        lists(PAIRS, rows(ONE, ELEVEN, ONE)), OTHER_ROW
    ),
    "an empty row of another dtype": Case(lists(RAGGED_LIST, rows(ONE, b"\x12\x00")), OTHER_ROW),
    "a row of two bytes that is no empty list": Case(
        lists(RAGGED_LIST, rows(ONE, b"\x1a\x01") + b""), OTHER_ROW
    ),
    "a row of one byte": Case(lists(RAGGED_LIST, rows(ONE, b"\x1a")), BROKEN),
    "a second list in a row": Case(lists(RAGGED_LIST, rows(ONE + TWO)), BROKEN),
    "a row behind the list of a row": Case(lists(ROWS, rows(ONE + message(1, TWO))), [[1, 2]]),
    "a row whose length is too large": Case(
        lists(RAGGED_LIST, sequence(lists=[entry(b"l", b"\x0a\x55" + ONE)])), [1]
    ),
    "another field in a list": Case(
        lists(RAGGED_LIST, sequence(lists=[entry(b"l", b"\x10\x01")])), BROKEN
    ),
    "a string that is cut off, ragged list": Case(
        lists(RAGGED_STRINGS, rows(CUT)), "Unexpected number of elements for feature l"
    ),
    "a string that is cut off, dense list": Case(lists(STRING_ROWS, rows(CUT)), BROKEN),
    "strings are filled up with empty ones": Case(
        lists(STRING_ROWS, rows(strings([b"one"]), strings([b"x" * 40])), rows()),
        [[b"one", b"x" * 40], [b"", b""]],
    ),
    "the context is counted before lists": Case(
        SequenceCall((FIXED,), (ROWS,), (sequence_of({"f": floats([1])}, {"l": [floats([1])]}),)),
        OTHER_DTYPE.format(dtype="int64"),
    ),
    "lists are counted before the context is read": Case(
        SequenceCall((FIXED,), (ROWS,), (sequence_of(lists={"l": [ONE, floats([1])]}),)), OTHER_ROW
    ),
    "one key in both": Case(
        SequenceCall((Asked(b"l"),), (ROWS,), (sequence_of({"l": ints([5])}, {"l": [ONE, TWO]}),)),
        [[1, 2]],
        1,
    ),
    "nothing is asked for": Case(SequenceCall((), (), (of(ONE), rows(ONE))), None),
    "nothing is asked for of damage": Case(SequenceCall((), (), (b"\x01",)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_does_as_stock(name: str) -> None:
    case = CASES[name]
    found = check(case.call)
    if isinstance(case.expected, str):
        assert isinstance(found, str), found
        assert case.expected in found
    elif case.expected is not None:
        assert not isinstance(found, str), found
        assert found[case.output].tolist() == case.expected


@pytest.mark.parametrize("name", CASES)
def test_one_example_without_a_batch(name: str) -> None:
    check(replace(CASES[name].call, is_single=True))


VALUES_OF: dict[Dtype, Any] = {
    "int64": lambda n: ints([(1 << 7 * k) - 1 for k in range(n)]),
    "float32": lambda n: floats([k / 3 for k in range(n)]),
    "string": lambda n: strings([b"x" * (11 * k) for k in range(n)]),
}


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", CONTEXT_FORMS)
def test_forms_and_dtypes_of_the_context(form: Form, dtype: Dtype, is_single: bool) -> None:
    for shape in ((), (1,), (2, 3)) if form in ("fixed", "default") else ((),):
        count = int(np.prod(shape))
        examples = tuple(of(VALUES_OF[dtype](n)) for n in (count, count))
        if form != "fixed":
            examples += (sequence(), of(VALUES_OF[dtype](count)))
        if form in ("sparse", "ragged"):
            examples += tuple(of(VALUES_OF[dtype](n)) for n in (0, 7, 3))
        for splits in ("int32", "int64"):
            asked = Asked(b"f", form, dtype, shape, splits)
            found = check(SequenceCall((asked,), (), examples, is_single))
            assert not isinstance(found, str)


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", LIST_FORMS)
def test_forms_and_dtypes_of_lists(form: Form, dtype: Dtype, is_single: bool) -> None:
    for shape in ((), (1,), (2, 3)) if form in ("fixed", "padded") else ((),):
        is_dense = form in ("fixed", "padded")
        sizes = [int(np.prod(shape))] * 5 if is_dense else [1, 0, 7, 3, 1]
        examples = tuple(rows(*map(VALUES_OF[dtype], sizes[:n])) for n in (2, 5, 0, 3))
        if form != "fixed":
            examples += (sequence(),)
        for splits in ("int32", "int64"):
            asked = Asked(b"l", form, dtype, shape, splits)
            found = check(SequenceCall((), (asked,), examples, is_single))
            assert not isinstance(found, str)


def test_names_of_examples_are_in_messages() -> None:
    names = (b"first", b"second")
    for call, text in (
        (context(RAGGED, of(ONE), b"\x0a"), "example id: second"),
        (context(RAGGED, of(ONE), of(floats([1]))), "Name: second, Context feature: f."),
        (lists(ROWS, rows(ONE), rows(b"")), "Name: second, Key: l, Index: 0."),
        (lists(ROWS, rows(ONE), sequence()), "Name: second, Feature list 'l' is required"),
    ):
        found = check(replace(call, names=names))
        assert isinstance(found, str)
        assert text in found
    found = check(replace(context(RAGGED, of(ONE), of(TWO)), names=names[:1]))
    assert found == "example_names must be empty or have the correct number of elements"


def test_a_string_of_a_sparse_feature_that_is_cut_off_is_an_error() -> None:
    """Stock ends the process."""
    for call, text in (
        (
            context(replace(STRINGS, form="sparse"), of(CUT)),
            "total number of elements in feature f",
        ),
        (lists(replace(RAGGED_STRINGS, form="sparse"), rows(CUT)), "elements in feature l"),
    ):
        found = fused(call)
        assert not is_safe(call, found)
        assert isinstance(found, str)
        assert text in found


def test_a_length_that_is_negative_passes_over_a_string() -> None:
    """Stock reads anywhere."""
    negative = message(1, b"\x0a\xff\xff\xff\xff\x0f")
    for form in ("fixed", "ragged"):
        call = lists(replace(RAGGED_STRINGS, form=form), rows(negative))
        assert not is_safe(call, fused(call))
        assert isinstance(fused(call), str)


def test_long_rows_and_large_numbers() -> None:
    for count in (1, 2, 15, 40, 300, 3000):
        values = [(-1) ** k * (k * 123456789) for k in range(count)]
        for packed in (True, False):
            call = lists(RAGGED_LIST, rows(ints(values, packed), ints(values[:1])), rows())
            found = check(call)
            assert not isinstance(found, str)
            assert found[0].tolist() == [*values, *values[:1]]


def test_one_wrong_feature_of_several() -> None:
    """Which is counted first is not determined: each error is that of a call for it alone."""
    asked = tuple(Asked(b"feature %d" % k, "sparse") for k in range(40))
    wrong = sequence_of({f"feature {k}": floats([k]) for k in range(40)})
    found = check(SequenceCall(asked, (), (wrong,)))
    assert isinstance(found, str)
    assert "Context feature: feature 0." in found


def test_feature_lists_of_many_names() -> None:
    """More names than are learnt, in another order in each Example."""
    rng = np.random.default_rng(0)
    asked = tuple(Asked(b"list %d" % k, "padded") for k in range(0, 600, 7))
    examples = []
    for _ in range(6):
        names = rng.permutation(600)[: int(rng.integers(300, 600))]
        examples.append(sequence_of(lists={f"list {k}": [ints([int(k)])] * 3 for k in names}))
    assert not isinstance(check(SequenceCall((), asked, tuple(examples))), str)


def test_a_list_with_all_features_of_a_row_in_one() -> None:
    """Rows that begin in a row, in front of its end and behind it."""
    body = feature_list(ONE + message(1, ints([2, 3])) + message(1, b""), TWO)
    found = check(lists(RAGGED_LIST, sequence(lists=[entry(b"l", body)])))
    assert not isinstance(found, str)
    assert found[0].tolist() == [1, 2, 3, 2]

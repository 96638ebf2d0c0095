from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fusion.schema.row_formats import (
    PACKED_FORMATS,
    PLAIN,
    ROW_FORMATS,
    pack_rows,
    packed_words,
    unpack_rows,
)
from tests.tiers import examples

DIMENSIONS = (1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 128, 200)
STEPS = {"int8": 255, "int4": 15}
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def rows_of(count: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(dimension).normal(size=(count, dimension)).astype(np.float32)


def test_names():
    assert ROW_FORMATS == (PLAIN, "float16", "bfloat16", "int8", "int4")


@pytest.mark.parametrize(
    ("row_format", "dimension", "words"),
    [
        *(("float16", 1, 1), ("bfloat16", 2, 1), ("float16", 3, 2), ("bfloat16", 128, 64)),
        *(("int8", 1, 3), ("int8", 4, 3), ("int8", 5, 4), ("int8", 128, 34)),
        *(("int4", 1, 3), ("int4", 8, 3), ("int4", 9, 4), ("int4", 128, 18)),
    ],
)
def test_words(row_format, dimension, words):
    assert packed_words(row_format, dimension) == words


@pytest.mark.parametrize(
    ("row_format", "dimension", "problem"),
    [(PLAIN, 4, "'plain' is none of"), ("int2", 4, "'int2' is none of"), ("int8", 0, "not 0")],
)
def test_no_words(row_format, dimension, problem):
    with pytest.raises(ValueError, match=problem):
        packed_words(row_format, dimension)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_there_and_back(row_format, dimension):
    rows = rows_of(20, dimension)
    packed = pack_rows(rows, row_format)
    assert packed.dtype == np.float32
    assert packed.shape == (20, packed_words(row_format, dimension))
    found = unpack_rows(packed, row_format, dimension)
    assert found.dtype == np.float32
    if row_format in HALVES:
        np.testing.assert_array_equal(found, rows.astype(HALVES[row_format]).astype(np.float32))
    else:
        step = (rows.max(1) - rows.min(1)) / STEPS[row_format]
        assert np.all(np.abs(found - rows) <= 0.5001 * step[:, np.newaxis] + 1e-6)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_zero_bits_are_zeros_and_padding_is_zero(row_format, dimension):
    words = packed_words(row_format, dimension)
    zeros = unpack_rows(np.zeros((2, words), np.float32), row_format, dimension)
    assert not zeros.view(np.uint32).any()
    ones = pack_rows(np.full((1, dimension), -2.0, np.float32), row_format).view(np.uint8)[0]
    size = {"int8": 8 + dimension, "int4": 8 + (dimension + 1) // 2}.get(row_format, 2 * dimension)
    assert not ones[size:].any()


def test_bytes():
    """The layout, which files have, to the bit."""
    rows = np.array([[-1.0, 0.0, 14.0]], np.float32)
    header = np.array([1.0, -1.0], np.float32).tobytes()
    assert pack_rows(rows, "int4").tobytes() == header + bytes([0x10, 0x0F, 0, 0])
    rows = np.array([[-1.0, 0.0, 254.0]], np.float32)
    assert pack_rows(rows, "int8").tobytes() == header + bytes([0, 1, 255, 0])
    rows = np.array([[1.0, -2.0, 0.5]], np.float32)
    halves = np.array([0x3C00, 0xC000, 0x3800, 0], "<u2").tobytes()
    assert pack_rows(rows, "float16").tobytes() == halves
    halves = np.array([0x3F80, 0xC000, 0x3F00, 0], "<u2").tobytes()
    assert pack_rows(rows, "bfloat16").tobytes() == halves


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_blocks_are_packed_as_all_at_once(row_format):
    rows = rows_of(30, 9)
    blocks = [pack_rows(rows[k : k + 7], row_format) for k in range(0, 30, 7)]
    np.testing.assert_array_equal(
        np.concatenate(blocks).view(np.uint32), pack_rows(rows, row_format).view(np.uint32)
    )
    assert pack_rows(rows[:0], row_format).shape == (0, packed_words(row_format, 9))


@pytest.mark.parametrize("number", [0.0, 0.1, -3.7e38 / 2, 2.0**-126, 1e-35])
@pytest.mark.parametrize("row_format", STEPS)
def test_constant_rows_are_exact(row_format, number):
    rows = np.full((2, 5), number, np.float32)
    np.testing.assert_array_equal(unpack_rows(pack_rows(rows, row_format), row_format, 5), rows)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row_format", STEPS)
def test_not_finite(row_format, number):
    rows = rows_of(5, 3)
    rows[2:, 1] = number
    with pytest.raises(ValueError, match="row 2: an element is not finite"):
        pack_rows(rows, row_format)


@pytest.mark.parametrize("row_format", STEPS)
def test_too_far(row_format):
    rows = rows_of(5, 2)
    rows[3] = -2e38, 2e38
    with pytest.raises(ValueError, match="row 3: an element is too far"):
        pack_rows(rows, row_format)


@pytest.mark.parametrize(("row_format", "number"), [("float16", 65520.0), ("bfloat16", 3.4e38)])
def test_too_large(row_format, number):
    rows = rows_of(5, 3)
    rows[4, 2] = -number
    with pytest.raises(ValueError, match=f"row 4: an element is too large for {row_format}"):
        pack_rows(rows, row_format)


@pytest.mark.parametrize("row_format", HALVES)
def test_half_types_keep_what_is_not_finite(row_format):
    rows = np.array([[np.nan, np.inf, -np.inf, -np.nan]], np.float32)
    found = unpack_rows(pack_rows(rows, row_format), row_format, 4)
    np.testing.assert_array_equal(found, rows)
    # A NaN of low bits alone.
    rows = np.array([[0x7F800001]], np.uint32).view(np.float32)
    assert np.isnan(unpack_rows(pack_rows(rows, row_format), row_format, 1)).all()


def test_wrong_words():
    packed = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"rows of 4 elements as int8 are \[n, 3\], not \[2, 4\]"):
        unpack_rows(packed, "int8", 4)


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 20)),
        elements=st.floats(-(2.0**126), 2.0**126, width=32),
    ),
    row_format=st.sampled_from(sorted(STEPS)),
)
def test_any_finite_rows(rows, row_format):
    dimension = rows.shape[1]
    packed = pack_rows(rows, row_format)
    found = unpack_rows(packed, row_format, dimension)
    exact = rows.astype(np.float64)
    step = (exact.max(1) - exact.min(1)) / STEPS[row_format]
    largest = np.abs(exact).max(1) + step
    bound = 0.5 * step + 2.0**-21 * largest + 2.0**-94
    assert np.all(np.abs(found - exact) <= bound[:, np.newaxis])
    # No part of a row is a denormal, whatever its thread makes of these.
    parts = np.concatenate((packed[:, :2], found), 1)
    assert np.all((parts == 0) | (np.abs(parts) >= np.finfo(np.float32).tiny))

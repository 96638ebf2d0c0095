"""How tables store their rows: as their dtype says, or packed into fewer bits.

A packed table is a float32 tensor [rows, words], of which only the bits count. Those of a row, in
the byte order of the machine, little-endian:

    float16   D elements of two bytes
    bfloat16  D elements of two bytes
    int8      scale, offset, D unsigned bytes
    int4      scale, offset, D unsigned halves of bytes, the lower half first

zeros after them up to a whole word. `scale` and `offset` are float32, and an element is
`q * scale + offset`, rounded to float32 after the product and again after the sum. Kernels that
read such rows give what `unpack_rows` does, to the bit. A row of zero bits is one of zeros.

This module needs NumPy alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

PLAIN: Final = "plain"
#: Those with a scale and an offset, and the largest number that an element is stored as.
_LARGEST: Final = {"int8": 255, "int4": 15}
#: Those of elements side by side, as half types have them.
HALF_FORMATS: Final = ("float16", "bfloat16")
#: The bytes of scale and offset.
HEADER_BYTES: Final = 8
#: Of each format of packed rows the bits in front of elements, and those of an element.
PACKED_BITS: Final = {
    **dict.fromkeys(HALF_FORMATS, (0, 16)),
    "int8": (8 * HEADER_BYTES, 8),
    "int4": (8 * HEADER_BYTES, 4),
}
PACKED_FORMATS: Final = tuple(PACKED_BITS)
ROW_FORMATS: Final = (PLAIN, *PACKED_FORMATS)

#: The bits of a word.
WORD_BITS: Final = 32

#: Scales and offsets of a smaller magnitude are zeros: then neither they nor any element are
#: denormals, which TensorFlow's threads take for zeros.
_MIN_MAGNITUDE: Final = 2.0**-103

#: Products of scales stay finite if no two elements of a row are further apart.
_MAX_DISTANCE: Final = 2.0**127


def packed_words(row_format: str, dimension: int) -> int:
    """The float32 words of a packed row of `dimension` elements.

    Raises:
      ValueError: `row_format` is none of PACKED_FORMATS, or `dimension` less than 1.
    """
    if dimension < 1:
        raise ValueError(f"a packed row has at least one element, not {dimension}")
    return -(-_bits(row_format, dimension) // WORD_BITS)


def _bits(row_format: str, dimension: int) -> int:
    if row_format not in PACKED_BITS:
        raise ValueError(f"row format {row_format!r} is none of {', '.join(PACKED_FORMATS)}")
    header, element = PACKED_BITS[row_format]
    return header + dimension * element


def _bytes(row_format: str, dimension: int) -> int:
    return -(-_bits(row_format, dimension) // 8)


def pack_rows(rows: Any, row_format: str) -> Any:
    """Packs rows; any number of them at a time gives the same as all at once.

    Elements become the nearest ones of a half type, ties to even. Those of int8 and int4 become
    the nearest of 256 or 16 numbers from the row's minimum to its maximum. Rows of one number
    stay exact, but for denormals, which become zeros.

    Args:
      rows: float32 [n, D], D >= 1.
      row_format: one of PACKED_FORMATS.

    Returns:
      float32 [n, words].

    Raises:
      ValueError: a row cannot be packed, and the text has the index of the first one: for int8
        and int4 because it has elements that are not finite, or are more than 2**127 apart; for
        half types because a finite element would become infinite.
    """
    rows = np.asarray(rows, np.float32)
    count, dimension = rows.shape
    words = packed_words(row_format, dimension)
    packed = np.zeros((count, words), np.float32).view(np.uint8)
    if row_format in HALF_FORMATS:
        packed[:, : 2 * dimension] = _narrowed(rows, row_format).view(np.uint8)
    else:
        header, numbers = _quantized(rows, _LARGEST[row_format])
        packed[:, :HEADER_BYTES] = header.view(np.uint8)
        if row_format == "int4":
            numbers = _joined(numbers)
        packed[:, HEADER_BYTES : HEADER_BYTES + numbers.shape[1]] = numbers
    return packed.view(np.float32)


def unpack_rows(packed: Any, row_format: str, dimension: int) -> Any:
    """The rows that packed ones stand for.

    Args:
      packed: float32 [n, words], see `packed_words`.
      row_format: one of PACKED_FORMATS.
      dimension: D.

    Returns:
      float32 [n, D].

    Raises:
      ValueError: the number of words is not that of such rows.
    """
    packed = np.ascontiguousarray(packed, np.float32)
    words = packed_words(row_format, dimension)
    if packed.ndim != 2 or packed.shape[1] != words:
        raise ValueError(
            f"rows of {dimension} elements as {row_format} are [n, {words}], "
            f"not {list(packed.shape)}"
        )
    stored = packed.view(np.uint8)[:, : _bytes(row_format, dimension)]
    if row_format in HALF_FORMATS:
        return _widened(np.ascontiguousarray(stored).view(np.uint16), row_format)
    scale, offset = packed[:, :1], packed[:, 1:2]
    numbers = stored[:, HEADER_BYTES:]
    if row_format == "int4":
        numbers = _halves(numbers)[:, :dimension]
    values = numbers.astype(np.float32)
    values *= scale
    values += offset
    return values


def _narrowed(rows: Any, row_format: str) -> Any:
    """The bits of the nearest elements of a half type, uint16 of the same shape."""
    if row_format == "float16":
        with np.errstate(over="ignore"):
            halves = rows.astype(np.float16)
        overflown = np.isinf(halves)
        bits = halves.view(np.uint16)
    else:
        words = np.ascontiguousarray(rows).view(np.uint32)
        upper = words >> np.uint32(16)
        nearest = words + np.uint32(0x7FFF)
        nearest += upper & np.uint32(1)
        bits = (nearest >> np.uint32(16)).astype(np.uint16)
        # A NaN stays one, whatever its lower bits are.
        is_nan = np.isnan(rows)
        bits[is_nan] = upper[is_nan].astype(np.uint16) | np.uint16(0x40)
        overflown = (bits & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    _refuse(overflown & np.isfinite(rows), f"is too large for {row_format}")
    return bits


def _widened(bits: Any, row_format: str) -> Any:
    if row_format == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _quantized(rows: Any, largest: int) -> tuple[Any, Any]:
    """Scale and offset, float32 [n, 2], and the numbers of elements, uint8 [n, D]."""
    _refuse(~np.isfinite(rows), "is not finite")
    low, high = rows.min(1).astype(np.float64), rows.max(1).astype(np.float64)
    apart = high - low
    _refuse((apart > _MAX_DISTANCE)[:, np.newaxis], "is too far from another")
    header = np.stack((apart / largest, low), 1).astype(np.float32)
    header[np.abs(header) < _MIN_MAGNITUDE] = 0.0
    # Rows that are one number are that one, however small.
    is_constant = apart == 0
    header[is_constant, 1] = _without_denormals(rows[is_constant, 0])
    scale, offset = header[:, :1].astype(np.float64), header[:, 1:].astype(np.float64)
    steps = (rows - offset) / np.where(scale == 0, 1.0, scale)
    numbers = np.where(scale == 0, 0.0, np.clip(np.rint(steps), 0, largest))
    return header, numbers.astype(np.uint8)


def _without_denormals(numbers: Any) -> Any:
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.float32(0), numbers)


def _joined(numbers: Any) -> Any:
    """Numbers below 16, uint8 [n, D], two a byte."""
    if numbers.shape[1] % 2:
        numbers = np.pad(numbers, ((0, 0), (0, 1)))
    return numbers[:, 0::2] | (numbers[:, 1::2] << np.uint8(4))


def _halves(numbers: Any) -> Any:
    """The numbers that are two a byte."""
    halves = np.stack((numbers & np.uint8(15), numbers >> np.uint8(4)), 2)
    return halves.reshape(numbers.shape[0], -1)


def _refuse(wrong: Any, text: str) -> None:
    """Raises ValueError if any element, of [n, D] flags, is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong.any(1)))
        raise ValueError(f"row {row}: an element {text}")

"""What the builder of the states of an op needs to know to share variables.

This module needs no Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.variable_access import AccessRequest, VariableAccess


class TypedAccess(Layout):
    """How variables of a dtype are shared."""

    dtype: Int64  # `TF_DataType`
    access: VariableAccess  # 0 where this TensorFlow does not let them


class AccessConstants(Layout):
    """How variables are shared: a `TypedAccess` for each dtype."""

    dtype_attr: Int64  # the index of the attr
    dtype_count: Int64
    accesses: TypedAccess = record(TypedAccess, 0)


def access_words(
    dtype_attr: int, dtypes: Sequence[str], device: str, access: Callable[[AccessRequest], Word]
) -> list[Word]:
    """The words of `AccessConstants` for variables of some dtypes on a type of device.

    Args:
      access: gives the address of the record of functions.
    """
    words: list[Word] = [dtype_attr, len(dtypes)]
    for dtype in dtypes:
        words += [DTYPES[dtype].enum, access(AccessRequest(dtype, device))]
    return words

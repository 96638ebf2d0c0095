"""What the builder of the states of an op needs to know to share variables.

This module needs no Numba.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusion.runtime.layout import Fields, Flag, Int64, Layout, fields
from fusion.runtime.tensorflow import variable_access
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.variable_access import VariableAccess


class TypedAccess(Layout):
    """How variables of a dtype are shared."""

    dtype: Int64  # `TF_DataType`
    is_there: Flag  # whether this TensorFlow lets them
    access: Fields = fields(VariableAccess.SIZE)


class AccessConstants(Layout):
    """How variables are shared: a `TypedAccess` for each dtype."""

    dtype_attr: Int64  # the index of the attr
    dtype_count: Int64
    accesses: Fields = fields(0)


def access_words(dtype_attr: int, dtypes: Sequence[str], device: str) -> list[int]:
    """The words of `AccessConstants` for variables of some dtypes on a type of device."""
    words = [dtype_attr, len(dtypes)]
    for dtype in dtypes:
        try:
            access = variable_access.functions(dtype, device)
            words += [DTYPES[dtype].enum, 1, *access]
        except NotImplementedError:
            words += [DTYPES[dtype].enum, 0, *[0] * VariableAccess.SIZE]
    return words

"""What the states of ops that combine gathered rows have in addition to the node's attrs.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Int64, Layout, record
from fusion.runtime.tensorflow.dtypes import FLOATS


class BagWords(Layout):
    """What is behind the attrs of a state, on a CPU."""

    row_kernel: Address  # for rows of any width, of the dtype that is computed in


class BagDtype(Layout):
    """A dtype of tables."""

    dtype: Int64  # `TF_DataType`
    row_kernel: Int64  # the index of that without weights, which is in front of that with them


class BagConstants(Layout):
    """What the builder of states needs to know."""

    dtype_attr: Int64  # the indices of attrs
    weighted_attr: Int64
    words: Int64  # where `BagWords` are in a state
    dtypes: BagDtype = record(BagDtype, len(FLOATS))

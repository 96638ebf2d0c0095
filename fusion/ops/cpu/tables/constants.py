"""What the builder of the states of KeyedEmbeddingGather needs to know.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Int64, Layout, fields
from fusion.runtime.tensorflow.dtypes import COMPUTED


class AccessedDtype(Layout):
    """How variables of a dtype are changed."""

    dtype: Int64  # `TF_DataType`
    item_bytes: Int64
    access: Address  # `UpdateAccess`, 0 where this TensorFlow does not let them be changed in place


class GatherAttrs(Layout):
    """The indices of attrs, by their names."""

    T: Int64
    Tid: Int64
    dim: Int64
    is_training: Int64


class GatherConstants(GatherAttrs):
    """The indices of attrs, and how variables of each dtype are changed."""

    dtypes: Fields = fields(len(COMPUTED) * AccessedDtype.SIZE)

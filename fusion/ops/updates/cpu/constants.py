"""What the builder of the states of FusedEmbeddingUpdate needs to know.

This module needs no Numba.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest, UpdateAccess


class UpdateAttrs(Layout):
    """The indices of attrs, by their names."""

    T: Int64
    Tid: Int64
    num_variables: Int64
    num_values: Int64
    num_scalars: Int64
    num_results: Int64
    dim: Int64
    offsets: Int64
    sparse: Int64
    code: Int64
    deduplicate: Int64
    wrap_negative: Int64


class UpdateDtype(Layout):
    """How variables of a dtype are updated; its index is that of the interpreter's kernel."""

    dtype: Int64  # `TF_DataType`
    item_bytes: Int64
    access: UpdateAccess  # 0 where TensorFlow does not let them be updated in place


class UpdateConstants(UpdateAttrs):
    """The indices of attrs, and what there is of each dtype."""

    dtypes: UpdateDtype = record(UpdateDtype, len(COMPUTED))


def constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    """The words of `UpdateConstants`."""
    attrs = [attr.name for attr in spec.attrs]
    words: list[Word] = [attrs.index(name) for name in UpdateAttrs.FIELDS]
    for dtype in COMPUTED:
        request = AccessRequest(dtype, device, updates=True)
        words += [DTYPES[dtype].enum, DTYPES[dtype].item_bytes, access(request)]
    return words

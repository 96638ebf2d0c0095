"""What the builder of the states of FusedEmbeddingUpdate needs to know.

This module needs no Numba.
"""

from __future__ import annotations

import inspect

from fusion.runtime.layout import Fields, Flag, Int64, Layout, fields
from fusion.runtime.tensorflow import variable_access
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import UpdateAccess


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
    program: Int64
    deduplicate: Int64
    wrap_negative: Int64


class UpdateDtype(Layout):
    """How variables of a dtype are updated; its index is that of the interpreter's kernel."""

    dtype: Int64  # `TF_DataType`
    item_bytes: Int64
    is_there: Flag  # whether this TensorFlow lets variables be updated where they are
    access: Fields = fields(UpdateAccess.SIZE)


class UpdateConstants(UpdateAttrs):
    """The indices of attrs, and what there is of each dtype."""

    dtypes: Fields = fields(len(COMPUTED) * UpdateDtype.SIZE)


def constants(spec: OpSpec, device: str) -> list[int]:
    """The words of `UpdateConstants`."""
    del device  # a CPU
    attrs = [attr.name for attr in spec.attrs]
    words = [attrs.index(name) for name in inspect.get_annotations(UpdateAttrs)]
    for dtype in COMPUTED:
        words += [DTYPES[dtype].enum, DTYPES[dtype].item_bytes]
        try:
            words += [1, *variable_access.update_functions(dtype)]
        except NotImplementedError:
            words += [0] * (1 + UpdateAccess.SIZE)
    return words

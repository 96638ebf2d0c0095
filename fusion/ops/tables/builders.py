"""What the ops that change embedding variables have in common: the builder of their states."""

from __future__ import annotations

from collections.abc import Callable

from fusion.ops.tables.cpu.layout import AccessConstants, AccessedDtype
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema.attributes import UPDATE_DTYPES


def access_constants(
    spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]
) -> list[Word]:
    """The words of `AccessConstants`."""
    attrs = [attr.name for attr in spec.attrs]
    words: list[Word] = [0] * AccessConstants.dtypes
    for field, name in (
        (AccessConstants.T, "T"),
        (AccessConstants.keys, "Tid"),
        (AccessConstants.dim, "dim"),
        (AccessConstants.is_training, "is_training"),
        (AccessConstants.number, "number"),
    ):
        words[field] = attrs.index(name) if name in attrs else -1
    words += accessed_dtypes(device, access)
    assert len(words) == AccessConstants.dtypes + len(UPDATE_DTYPES) * AccessedDtype.SIZE
    return words


def accessed_dtypes(device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    """The words of an `AccessedDtype` for each dtype of tables."""
    words: list[Word] = []
    for dtype in UPDATE_DTYPES:
        request = AccessRequest(dtype, device, updates=True)
        words += [DTYPES[dtype].enum, DTYPES[dtype].item_bytes, access(request)]
    return words


#: The builder of the states of ops that share variables.
BUILDER = Builder("build_access_state", "fusion.ops.tables.cpu.states", access_constants)

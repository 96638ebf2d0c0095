"""The builder of the states of the ops that combine gathered rows."""

from __future__ import annotations

from fusion.ops.cpu.bag_layout import BagConstants, BagDtype, BagWords
from fusion.runtime.native.jit import int64
from fusion.runtime.native.memory import load, store
from fusion.runtime.registration.creation import Creation, KernelsRecord
from fusion.runtime.registration.plain_state import plain_state
from fusion.runtime.registration.states import attr_word, constants_of, row_kernel
from fusion.runtime.tensorflow.dtypes import FLOATS

_DTYPE_COUNT = len(FLOATS)


def build_bag_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    state = plain_state(creation, int64(BagWords.SIZE))
    if state == 0 or load(load(creation, Creation.record), KernelsRecord.is_for_gpu) != 0:
        return
    dtype = attr_word(creation, load(constants, BagConstants.dtype_attr))
    weighted = attr_word(creation, load(constants, BagConstants.weighted_attr))
    words = state + 8 * load(constants, BagConstants.words)
    for k in range(_DTYPE_COUNT):
        known = constants + 8 * (BagConstants.dtypes + BagDtype.SIZE * k)
        if load(known, BagDtype.dtype) == dtype:
            kernel = row_kernel(creation, load(known, BagDtype.row_kernel) + weighted)
            store(words, BagWords.row_kernel, kernel)

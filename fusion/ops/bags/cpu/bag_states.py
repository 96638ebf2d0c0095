"""The builder of the states of the ops that combine gathered rows."""

from __future__ import annotations

from fusion.ops.bags.cpu.bag_layout import BagConstants, BagWords
from fusion.runtime.native.jit import int64
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.states import attr_word, constants_of, plain_state, row_kernel
from fusion.runtime.tensorflow.dtypes import FLOATS

_DTYPE_COUNT = len(FLOATS)


def build_bag_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(BagConstants, constants_of(creation))
    if constants == 0:
        return
    state = plain_state(creation, int64(BagWords.SIZE))
    if state == 0 or creation.record.is_for_gpu != 0:
        return
    dtype = attr_word(creation, constants.dtype_attr)
    weighted = attr_word(creation, constants.weighted_attr)
    words = as_record(BagWords, state + 8 * constants.words)
    for k in range(_DTYPE_COUNT):
        known = constants.dtypes[k]
        if known.dtype == dtype:
            kernel = row_kernel(creation, known.row_kernel + weighted)
            words.row_kernel = kernel

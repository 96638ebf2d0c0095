"""The builder of the states of the op that makes indices of vocabularies."""

from __future__ import annotations

from fusion.ops.ids.cpu.ids_layout import IndexConstants, IndexState
from fusion.ops.ids.cpu.ids_state import source_of
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
)


@jit
def _set_masks(creation: Creation, constants: IndexConstants, state: IndexState) -> None:
    """Notes the mask of each vocabulary, which has the dtype of its keys."""
    last = int64(-1)
    for k in range(state.mask_count):
        number = attr_item(creation, constants.masked, int64(k))
        if not last < number < state.count:
            text = "masked must be numbers of the %lld vocabularies in increasing order"
            refuse(creation, INVALID_ARGUMENT, text, state.count)
            return
        if source_of(attr_item(creation, constants.mask_dtypes, int64(k))) != state.sources[number]:
            text = "masks[%lld] must have the dtype of keys[%lld]"
            refuse(creation, INVALID_ARGUMENT, text, int64(k), number)
            return
        state.masks[number] = k
        last = number


def build_index_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(IndexConstants, constants_of(creation))
    if constants == 0:
        return
    count = attr_word(creation, constants.num_vocabularies)
    masks = attr_count(creation, constants.mask_dtypes)
    if attr_count(creation, constants.dtypes) != count:
        text = "keys must have a dtype for each of %lld vocabularies"
        refuse(creation, INVALID_ARGUMENT, text, count)
        return
    if attr_count(creation, constants.masked) != masks:
        text = "masked must have an item for each of %lld masks"
        refuse(creation, INVALID_ARGUMENT, text, masks)
        return
    state = as_record(IndexState, begin_state(creation, IndexState.SIZE + 2 * count))
    if state == 0:
        return
    state.count = count
    state.mask_count = masks
    state.sources = as_words(state + 8 * IndexState.SIZE)
    state.masks = as_words(state.sources + 8 * count)
    for k in range(count):
        state.sources[k] = source_of(attr_item(creation, constants.dtypes, int64(k)))
        state.masks[k] = -1
    _set_masks(creation, constants, state)

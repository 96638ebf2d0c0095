"""The state of a kernel that is for the node's dtypes: the attrs that are no types, as words."""

from __future__ import annotations

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.states import attr_word, begin_state
from fusion.runtime.tensorflow.attrs import TYPE
from fusion.runtime.tensorflow.layout import State


def build_plain_state(creation: Creation) -> None:
    """The builder of ops without one of their own; their attrs are no lists."""
    plain_state(creation, int64(0))


@jit
def plain_state(creation: Creation, more: int) -> int:
    """Builds a state with so many words more behind the attrs; 0 if it cannot be."""
    record = creation.record
    attrs, count = record.attrs, record.attr_count
    state = begin_state(creation, State.SIZE + count + more)
    if state == 0:
        return state
    slot = State.SIZE
    for attr in range(count):
        if attrs[attr].kind != TYPE:
            state[slot] = attr_word(creation, attr)
            slot += 1
    return state

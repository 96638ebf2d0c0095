"""The builder of the states of the op that parses Examples."""

from __future__ import annotations

from fusion.ops.examples.cpu.example_layout import GroupConstants, ParseState
from fusion.ops.examples.cpu.feature_groups import (
    feature_count,
    group_words,
    is_group_whole,
    set_group,
)
from fusion.ops.examples.cpu_kernels.layout import Feature
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.states import begin_state, constants_of, give_up, pool_of


def build_parse_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(GroupConstants, constants_of(creation))
    pool = pool_of(creation)
    if constants == 0 or not is_group_whole(creation, constants):
        return
    words = ParseState.SIZE + Feature.SIZE * feature_count(creation, constants)
    total = words + group_words(creation, constants)
    state = as_record(ParseState, begin_state(creation, total))
    if state == 0:
        return
    state.pool = pool
    features = state + 8 * ParseState.SIZE
    if not set_group(creation, constants, state.group, features, state + 8 * words):
        give_up(creation)

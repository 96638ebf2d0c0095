"""The builder of the states of the op that parses SequenceExamples."""

from __future__ import annotations

from fusion.ops.examples.cpu.example_layout import FeatureGroup, GroupConstants
from fusion.ops.examples.cpu.feature_groups import (
    feature_count,
    group_words,
    is_group_whole,
    name_of,
    set_group,
)
from fusion.ops.examples.cpu.sequence_layout import SequenceConstants, SequenceState
from fusion.ops.examples.cpu_kernels.layout import PADDED, Feature
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import begin_state, constants_of, give_up, pool_of


@jit
def _has_no_rows(creation: Creation, constants: GroupConstants, context: FeatureGroup) -> bool:
    """Whether no dense feature of the context is filled up."""
    for index in range(context.dense_count):
        if context.names.features[index].form == PADDED:
            text = "%s of %s[%lld]: a size of -1 in the context"
            dims = name_of(creation, constants.dense_dims)
            keys = name_of(creation, constants.dense_keys)
            refuse(creation, INVALID_ARGUMENT, text, dims, keys, int64(index))
            return False
    return True


def build_sequence_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(SequenceConstants, constants_of(creation))
    pool = pool_of(creation)
    if constants == 0 or not is_group_whole(creation, constants.context):
        return
    if not is_group_whole(creation, constants.lists):
        return
    of_context = feature_count(creation, constants.context)
    count = of_context + feature_count(creation, constants.lists)
    words = SequenceState.SIZE + Feature.SIZE * count
    context_words = group_words(creation, constants.context)
    total = words + context_words + group_words(creation, constants.lists)
    state = as_record(SequenceState, begin_state(creation, total))
    if state == 0:
        return
    state.pool = pool
    context, lists = state.context, state.lists
    features, more = state + 8 * SequenceState.SIZE, state + 8 * words
    is_right = set_group(creation, constants.context, context, features, more)
    is_right = is_right and _has_no_rows(creation, constants.context, context)
    lists.is_of_lists = 1
    lists.first_output = 3 * context.sparse_count + context.dense_count + 2 * context.ragged_count
    features += 8 * Feature.SIZE * of_context
    more += 8 * context_words
    if not is_right or not set_group(creation, constants.lists, lists, features, more):
        give_up(creation)

"""The builder of the states of the op that crosses features."""

from __future__ import annotations

from fusion.ops.ids.cpu.cross_layout import CrossConstants, CrossState
from fusion.ops.ids.cpu_kernels.cross_layout import (
    DENSE,
    HALF,
    INT32,
    INT64,
    KEYED_HALF,
    KEYED_TEXT,
    MATRIX,
    SPARSE,
    TEXT,
    Cross,
    CrossFeature,
)
from fusion.ops.ids.cpu_kernels.words import Word, signed, unsigned
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.strings import STRING_BYTES
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    pool_of,
)
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import CROSS_HASHES, MAX_CROSSED

_INT32, _INT64 = (DTYPES[name].enum for name in ("int32", "int64"))
_SEEDED, _PLAIN, _STRONG = (CROSS_HASHES.index(kind) for kind in ("seeded", "plain", "strong"))

#: Words of a key.
_KEY = 2
_ALL = 2**64 - 1
#: The remainder by which ids without buckets are not negative.
_NO_BUCKETS = 2**63 - 1


@jit
def _are_cross_lists_whole(creation: Creation, constants: CrossConstants, count: int) -> bool:
    """Whether lists have an item for each cross."""
    is_whole = attr_count(creation, constants.feature_counts) == count
    is_whole = is_whole and attr_count(creation, constants.hashes) == count
    is_whole = is_whole and attr_count(creation, constants.num_buckets) == count
    is_whole = is_whole and attr_count(creation, constants.forms) == count
    if is_whole and attr_count(creation, constants.keys) == _KEY * count:
        return True
    text = "lists of attrs must have an item for each of %lld crosses, and keys two"
    refuse(creation, INVALID_ARGUMENT, text, count)
    return False


@jit
def _are_feature_lists_whole(creation: Creation, constants: CrossConstants, count: int) -> bool:
    """Whether lists have an item for each feature."""
    ignored = attr_count(creation, constants.ignored)
    is_whole = attr_count(creation, constants.feature_forms) == count
    if is_whole and (ignored == 0 or ignored == count):
        return True
    text = "lists of attrs must have an item for each of %lld features, and ignored none or one"
    refuse(creation, INVALID_ARGUMENT, text, count)
    return False


@jit
def _are_counts_right(creation: Creation, constants: CrossConstants, count: int) -> bool:
    """Whether numbers of features add up, and there are no negative buckets."""
    features, total = attr_count(creation, constants.Tvalues), int64(0)
    for index in range(count):
        own = attr_item(creation, constants.feature_counts, int64(index))
        buckets = attr_item(creation, constants.num_buckets, int64(index))
        if own < 1 or own > MAX_CROSSED:
            text = "feature_counts must be from 1 to %lld, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, int64(MAX_CROSSED), own)
            return False
        if buckets < 0:
            refuse(creation, INVALID_ARGUMENT, "num_buckets must be at least 0, not %lld", buckets)
            return False
        total += own
    if total != features:
        text = "feature_counts must add up to the %lld features that there are, not to %lld"
        refuse(creation, INVALID_ARGUMENT, text, features, total)
    return total == features


@jit
def _are_features_right(creation: Creation, constants: CrossConstants) -> bool:
    """Whether features of form sparse are as many as there are inputs for."""
    sparse, expected = int64(0), attr_word(creation, constants.num_sparse)
    for index in range(attr_count(creation, constants.feature_forms)):
        if attr_item(creation, constants.feature_forms, int64(index)) == SPARSE:
            sparse += 1
    if sparse != expected:
        text = "num_sparse must be the number of features of form sparse, %lld, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, sparse, expected)
    return sparse == expected


@jit
def _hash_of(kind: int, form: int, dtype: int) -> int:
    """How values of a feature become words; -1: stock has no such words."""
    if dtype != _INT32 and dtype != _INT64:
        return KEYED_TEXT if kind == _STRONG else TEXT
    if kind == _SEEDED or (kind == _PLAIN and form >= DENSE):
        return INT32 if dtype == _INT32 else INT64
    if form >= DENSE:
        return int64(-1)
    return HALF if kind == _PLAIN else KEYED_HALF


@jit
def _set_feature(
    creation: Creation, constants: CrossConstants, feature: CrossFeature, index: int, kind: int
) -> None:
    """Sets a feature of a cross whose hash is of this kind."""
    dtype = attr_item(creation, constants.Tvalues, index)
    feature.form = attr_item(creation, constants.feature_forms, index)
    feature.hash = _hash_of(kind, feature.form, dtype)
    feature.item_bytes = 4 if dtype == _INT32 else 8 if dtype == _INT64 else STRING_BYTES
    if attr_count(creation, constants.ignored) != 0:
        feature.ignored = attr_item(creation, constants.ignored, index)
    if feature.hash < 0:
        text = "feature %lld is a dense one of integers, which have no strong hash"
        refuse(creation, INVALID_ARGUMENT, text, index)


@jit
def _set_cross(creation: Creation, constants: CrossConstants, cross: Cross, index: int) -> None:
    """Sets what is known of a cross without its features."""
    kind = attr_item(creation, constants.hashes, index)
    cross.is_seeded = 1 if kind == _SEEDED else 0
    for k in range(_KEY):
        cross.key[k] = attr_item(creation, constants.keys, _KEY * index + k)
    cross.seed = cross.key[0]
    buckets = attr_item(creation, constants.num_buckets, index)
    cross.buckets = buckets if buckets != 0 else int64(_NO_BUCKETS)
    cross.reciprocal = signed(Word(_ALL) // unsigned(cross.buckets))
    cross.form = attr_item(creation, constants.forms, index)


@jit
def _check_matrix(creation: Creation, cross: Cross, index: int) -> None:
    """A cross whose result is a matrix has no feature but matrices."""
    for k in range(cross.feature_count):
        if cross.form == MATRIX and cross.features[k].form < DENSE:
            text = "cross %lld gives a matrix, but its feature %lld is not dense"
            refuse(creation, INVALID_ARGUMENT, text, index, int64(k))


@jit
def _set_crosses(creation: Creation, constants: CrossConstants, state: CrossState) -> None:
    """Sets all crosses, with their features and keys behind them."""
    features = state + 8 * (CrossState.SIZE + Cross.SIZE * state.cross_count)
    keys = features + 8 * CrossFeature.SIZE * state.feature_count
    first = int64(0)
    for index in range(state.cross_count):
        cross = state.crosses[index]
        cross.features = as_record(CrossFeature, features + 8 * CrossFeature.SIZE * first)
        cross.key = as_words(keys + 8 * _KEY * index)
        cross.feature_count = attr_item(creation, constants.feature_counts, int64(index))
        _set_cross(creation, constants, cross, int64(index))
        kind = attr_item(creation, constants.hashes, int64(index))
        for k in range(cross.feature_count):
            _set_feature(creation, constants, cross.features[k], first + k, kind)
        _check_matrix(creation, cross, int64(index))
        first += cross.feature_count


def build_cross_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(CrossConstants, constants_of(creation))
    pool = pool_of(creation)
    if constants == 0:
        return
    count = attr_word(creation, constants.num_crosses)
    features = attr_count(creation, constants.Tvalues)
    if not _are_cross_lists_whole(creation, constants, count):
        return
    if not _are_feature_lists_whole(creation, constants, features):
        return
    if not _are_counts_right(creation, constants, count):
        return
    if not _are_features_right(creation, constants):
        return
    size = CrossState.SIZE + (Cross.SIZE + _KEY) * count + CrossFeature.SIZE * features
    state = as_record(CrossState, begin_state(creation, size))
    if state == 0:
        return
    state.pool = pool
    state.cross_count = count
    state.feature_count = features
    state.sparse_count = attr_word(creation, constants.num_sparse)
    _set_crosses(creation, constants, state)

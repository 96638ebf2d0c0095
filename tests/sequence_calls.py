"""Calls of FusedParseSequenceExample beside those of stock's ParseSequenceExampleV2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from fusion import ops
from tests.parse_calls import Arrays, Asked, Form, Result, ascii_text, difference, keys, result_of

#: The forms of features of the context, and of lists: those that are required, and those that have
#: no rows where they are missing.
CONTEXT_FORMS: tuple[Form, ...] = ("fixed", "default", "sparse", "ragged")
LIST_FORMS: tuple[Form, ...] = ("fixed", "padded", "sparse", "ragged")


@dataclass(frozen=True)
class SequenceCall:
    """SequenceExamples, and what is asked of them.

    Attributes:
        context: what is asked for of the context.
        lists: what is asked for of feature lists; shapes are those of a row.
        examples: serialized.
        is_single: whether the first one is parsed alone, without a batch.
        names: of Examples.
    """

    context: tuple[Asked, ...]
    lists: tuple[Asked, ...]
    examples: tuple[bytes, ...]
    is_single: bool = False
    names: tuple[bytes, ...] = ()

    @property
    def serialized(self) -> tf.Tensor:
        """The input of both ops."""
        if self.is_single:
            return tf.constant((*self.examples, b"")[0])
        return tf.constant(self.examples, tf.string, [len(self.examples)])


def _groups(asked: Sequence[Asked]) -> tuple[list[Asked], list[Asked], list[Asked]]:
    """Those that are sparse, dense and ragged."""
    sparse = [one for one in asked if one.form == "sparse"]
    ragged = [one for one in asked if one.form == "ragged"]
    return sparse, [one for one in asked if one.is_dense], ragged


def _strings(values: Sequence[bytes]) -> tf.Tensor:
    return tf.constant(values, tf.string, [len(values)])


def _types(asked: Sequence[Asked]) -> list[tf.DType]:
    return [tf.as_dtype(one.dtype) for one in asked]


def _splits(asked: Sequence[Asked]) -> list[tf.DType]:
    return [tf.as_dtype(one.splits) for one in asked]


def stock_outputs(call: SequenceCall) -> Any:
    """The outputs of stock's op."""
    sparse, dense, ragged = _groups(call.context)
    sparse_lists, dense_lists, ragged_lists = _groups(call.lists)
    return tf.raw_ops.ParseSequenceExampleV2(
        serialized=call.serialized,
        debug_name=_strings(call.names),
        context_sparse_keys=_strings(keys(sparse)),
        context_dense_keys=_strings(keys(dense)),
        context_ragged_keys=_strings(keys(ragged)),
        feature_list_sparse_keys=_strings(keys(sparse_lists)),
        feature_list_dense_keys=_strings(keys(dense_lists)),
        feature_list_ragged_keys=_strings(keys(ragged_lists)),
        feature_list_dense_missing_assumed_empty=tf.constant(
            [one.form == "padded" for one in dense_lists], tf.bool, [len(dense_lists)]
        ),
        context_dense_defaults=[one.default for one in dense],
        Ncontext_sparse=len(sparse),
        context_sparse_types=_types(sparse),
        context_ragged_value_types=_types(ragged),
        context_ragged_split_types=_splits(ragged),
        context_dense_shapes=[one.shape for one in dense],
        Nfeature_list_sparse=len(sparse_lists),
        Nfeature_list_dense=len(dense_lists),
        feature_list_dense_types=_types(dense_lists),
        feature_list_sparse_types=_types(sparse_lists),
        feature_list_ragged_value_types=_types(ragged_lists),
        feature_list_ragged_split_types=_splits(ragged_lists),
        feature_list_dense_shapes=[one.shape for one in dense_lists],
    )


def stock(call: SequenceCall) -> Result:
    """What TensorFlow makes of a call."""
    return _without_garbage(call, result_of(lambda: stock_outputs(call)))


def arguments(call: SequenceCall) -> dict[str, Any]:
    """The arguments of the fused op."""
    sparse, dense, ragged = _groups(call.context)
    sparse_lists, dense_lists, ragged_lists = _groups(call.lists)
    return {
        "serialized": call.serialized,
        "names": _strings(call.names),
        "context_dense_defaults": [one.default for one in dense if not one.is_required],
        "num_context_sparse": len(sparse),
        "context_sparse_keys": keys(sparse),
        "context_sparse_types": [one.dtype for one in sparse],
        "context_dense_keys": keys(dense),
        "Tcontext_dense": [one.dtype for one in dense],
        "context_dense_ranks": [len(one.shape) for one in dense],
        "context_dense_dims": [size for one in dense for size in one.shape],
        "context_required": [one.is_required for one in dense],
        "context_ragged_keys": keys(ragged),
        "context_ragged_value_types": [one.dtype for one in ragged],
        "context_ragged_split_types": [one.splits for one in ragged],
        "num_feature_list_sparse": len(sparse_lists),
        "feature_list_sparse_keys": keys(sparse_lists),
        "feature_list_sparse_types": [one.dtype for one in sparse_lists],
        "num_feature_list_dense": len(dense_lists),
        "feature_list_dense_keys": keys(dense_lists),
        "Tfeature_list_dense": [one.dtype for one in dense_lists],
        "feature_list_dense_ranks": [1 + len(one.shape) for one in dense_lists],
        "feature_list_dense_dims": [size for one in dense_lists for size in (-1, *one.shape)],
        "feature_list_required": [one.form != "padded" for one in dense_lists],
        "feature_list_ragged_keys": keys(ragged_lists),
        "feature_list_ragged_value_types": [one.dtype for one in ragged_lists],
        "feature_list_ragged_split_types": [one.splits for one in ragged_lists],
    }


def fused(call: SequenceCall, **changes: Any) -> Result:
    """What the fused op makes of a call; `changes` of its arguments."""
    found = result_of(lambda: ops.fused_parse_sequence_example(**{**arguments(call), **changes}))
    return _without_garbage(call, found)


def _without_garbage(call: SequenceCall, found: Result) -> Result:
    """Leaves out the row splits of a single Example, which stock does not initialise."""
    if isinstance(found, str) or not call.is_single:
        return found
    sparse, dense, ragged = map(len, _groups(call.context))
    sparse_lists, dense_lists, ragged_lists = map(len, _groups(call.lists))
    first = 3 * sparse + dense + ragged
    lists = first + ragged + 3 * sparse_lists + 2 * dense_lists + ragged_lists
    kept: Arrays = []
    for index, array in enumerate(found):
        if first <= index < first + ragged or lists <= index < lists + ragged_lists:
            assert array.shape == ()
        else:
            kept.append(array)
    return kept


#: What an error says while values are counted: of a feature of the context, or of a list.
_COUNTED = (
    re.compile(r"Context feature: (.*)\.  Data types don't match"),
    re.compile(r"Feature list: (.*), Index: \d+\.  Data types don't match"),
    re.compile("Error in sequence feature (.*) in example "),
)


def of_one(call: SequenceCall, text: str) -> SequenceCall | None:
    """A call for the one feature alone that an error is of; None if it is not one of counting.

    Which feature stock counts first is the order of a hash table.
    """
    for pattern in _COUNTED:
        if (match := pattern.search(text)) is not None:
            of_context = pattern is _COUNTED[0]
            asked = call.context if of_context else call.lists
            found = tuple(one for one in asked if ascii_text(one.key) == match[1])
            empty: tuple[Asked, ...] = ()
            return replace(
                call,
                context=found if of_context else empty,
                lists=empty if of_context else found,
            )
    return None


def mismatch(call: SequenceCall, found: Result) -> str | None:
    """How what the op gives differs from stock's; None if it does not."""
    expected = stock(call)
    text = difference(found, expected)
    if text is None or not (isinstance(found, str) and isinstance(expected, str)):
        return text
    for said in (found, expected):
        one = of_one(call, said)
        if one is None or one == call or fused(one) != said or stock(one) != said:
            return text
    return None


def check(call: SequenceCall) -> Result:
    """Compares the op with stock's; returns what both give."""
    found = fused(call)
    assert (text := mismatch(call, found)) is None, f"{text}\n{call}"
    return found

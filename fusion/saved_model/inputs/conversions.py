"""Ops that copy or convert values of an input; and the inverses of conversions.

A table of words has the words that are looked up, which need not be those that an input holds:
these may have been put into lower case, stripped, or split into words before. So where values of an
input go through such ops, the ops are noted, and undone for each word of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ALL = -2
"""As an input index below: every input."""

# op -> pairs (input, output) along which values travel unchanged.
CARRIED: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(
        (
            "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Snapshot",
            "PreventGradient", "PlaceholderWithDefault", "EnsureShape", "GatherNd", "StridedSlice",
            "Slice", "Unique", "UniqueV2", "UniqueWithCountsV3", "Tile", "Transpose", "Enter",
            "Exit", "NextIteration", "ReadVariableOp", "Gather", "GatherV2", "DynamicPartition",
            "BroadcastTo", "Pad", "PadV2", "Max", "Min", "ReverseV2", "TensorListFromTensor",
            "TensorListGetItem", "TensorListStack", "TensorListGather",
        ),
        ((0, 0),),
    ),
    **dict.fromkeys(("ConcatV2", "Pack", "Merge"), ((ALL, 0),)),
    **dict.fromkeys(("Select", "SelectV2"), ((1, 0), (2, 0))),
    **dict.fromkeys(("Maximum", "Minimum"), ((0, 0), (1, 0))),
    "Switch": ((0, 0), (0, 1)),
    "SparseFillEmptyRows": ((0, 0), (1, 1)),
    "SparseReshape": ((0, 0), (1, 1)),
    "SparseReorder": ((0, 0), (1, 1)),
    "SparseToDense": ((2, 0),),
    "TensorListSetItem": ((0, 0), (2, 0)),
    "RaggedFillEmptyRows": ((0, 0), (1, 1)),
    "RaggedTensorToTensor": ((1, 0),),
    "RaggedTensorToSparse": ((-1, 1),),
    "PruneInvalidAndFillEmptyRows": ((0, 0), (1, 1)),
}  # fmt: skip

# Of these, ops whose output is their input, whole and whenever the graph runs.
WHOLE = frozenset(
    [
        "Identity", "Cast", "StopGradient", "Snapshot", "PreventGradient", "EnsureShape",
        "PlaceholderWithDefault",
    ]
)  # fmt: skip

# ops that carry each of their inputs to the output of the same index.
EACH = frozenset(["IdentityN", "ReadEmbeddingTables"])

#: op -> the input from which each element of an output is computed, and that output.
COMPUTED: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            "StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket", "AsString",
            "StringToNumber", "StringLower", "StringUpper", "StringStrip", "StaticRegexReplace",
            "RegexReplace", "Bucketize", "FloorMod", "FloorDiv", "Mod", "AddV2", "Add", "Sub",
            "Mul", "Neg", "Abs", "Log", "Log1p", "RealDiv",
        ),
        (0, 0),
    ),
    "LookupTableFind": (1, 0),
    "LookupTableFindV2": (1, 0),
    "StringSplit": (0, 1),
    "StringSplitV2": (0, 1),
}  # fmt: skip

SPLITS = frozenset(["StringSplit", "StringSplitV2"])
_LONGEST = 4
"""Of more conversions than this, as in a loop, nothing is known."""


class Conversion(NamedTuple):
    """An op with an inverse.

    Attributes:
        op: what it is.
        separator: of one that splits, what it splits at.
    """

    op: str
    separator: bytes = b""


Conversions = tuple[Conversion, ...] | None
"""What values went through, the first first; None if that cannot be undone."""


def converted(before: Conversions, op: str, separators: Sequence[bytes]) -> Conversions:
    """Returns the conversions of values, with those of one more op.

    Args:
        before: those before that op.
        op: the op.
        separators: its constant input 1, if it is one that splits.
    """
    if before is None or op not in _UNDONE or len(before) == _LONGEST:
        return None
    separator = b""
    if op in SPLITS:
        # Without a separator the newer op splits at white space, and the older one nowhere.
        if len(separators) != 1:
            return None
        separator = separators[0] if op == "StringSplitV2" else separators[0][:1]
        separator = separator or b" "
    return (*before, Conversion(op, separator))


def undone(conversions: Sequence[Conversion], words: Iterable[Any]) -> list[Any]:
    """Returns the values that are converted to these words, of words that have one.

    Args:
        conversions: of values, in order.
        words: of a table: bytes or integers.
    """
    result = list(words)
    for conversion in reversed(conversions):
        undo = _UNDONE[conversion.op]
        result = [old for word in result if (old := undo(word, conversion.separator)) is not None]
    return result


def separator_of(conversions: Sequence[Conversion]) -> bytes | None:
    """Returns what stands between the words of one input, None if each input is one word."""
    return next((c.separator for c in conversions if c.op in SPLITS), None)


def _lower(word: Any, _: bytes) -> Any:
    return word if word == word.lower() else None


def _upper(word: Any, _: bytes) -> Any:
    return word if word == word.upper() else None


def _stripped(word: Any, _: bytes) -> Any:
    return word if word == word.strip() else None


def _same(word: Any, _: bytes) -> Any:
    # A pattern that finds something in a word of its own results would be unusual.
    return word


def _number(word: Any, _: bytes) -> Any:
    try:
        return int(word) if b"%d" % int(word) == word else None
    except ValueError:
        return None


def _text(word: Any, _: bytes) -> Any:
    return f"{word}".encode()


def _whole(word: Any, separator: bytes) -> Any:
    pieces = word.split() if separator == b" " else word.split(separator)
    return word if word and pieces == [word] else None


_UNDONE: dict[str, Callable[[Any, bytes], Any]] = {
    "StringLower": _lower,
    "StringUpper": _upper,
    "StringStrip": _stripped,
    "StaticRegexReplace": _same,
    "RegexReplace": _same,
    "AsString": _number,
    "StringToNumber": _text,
    "StringSplit": _whole,
    "StringSplitV2": _whole,
}

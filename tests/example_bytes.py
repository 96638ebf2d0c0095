"""Serialized tf.Examples and SequenceExamples of any bytes, also those that no library writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tests.saved_model.wire import message, varint

_WORD = (1 << 64) - 1


def ints(values: Iterable[int], packed: bool = True) -> bytes:
    """A Feature of integers."""
    each = [varint(value & _WORD) for value in values]
    return message(3, message(1, b"".join(each)) if packed else b"".join(b"\x08" + v for v in each))


def floats(values: Sequence[float], packed: bool = True) -> bytes:
    """A Feature of floats."""
    array = np.asarray(values, "<f4")
    each = [b"\x0d" + value.tobytes() for value in array]
    return message(2, message(1, array.tobytes()) if packed else b"".join(each))


def strings(values: Iterable[bytes]) -> bytes:
    """A Feature of strings."""
    return message(1, b"".join(message(1, value) for value in values))


def entry(key: bytes, feature: bytes) -> bytes:
    """An entry of Features."""
    return message(1, message(1, key) + message(2, feature))


def example(*entries: bytes) -> bytes:
    """An Example of entries."""
    return message(1, b"".join(entries))


def of(**features: bytes) -> bytes:
    """An Example of Features, by their names."""
    return example(*(entry(key.encode(), feature) for key, feature in features.items()))


def feature_list(*features: bytes) -> bytes:
    """A FeatureList of Features."""
    return b"".join(message(1, feature) for feature in features)


def sequence(context: Iterable[bytes] = (), lists: Iterable[bytes] = ()) -> bytes:
    """A SequenceExample of entries of its context, and of its feature lists."""
    return message(1, b"".join(context)) + message(2, b"".join(lists))


def sequence_of(
    context: Mapping[str, bytes] | None = None, lists: Mapping[str, Sequence[bytes]] | None = None
) -> bytes:
    """A SequenceExample of Features by their names, and of the Features of lists."""
    return sequence(
        [entry(key.encode(), feature) for key, feature in (context or {}).items()],
        [entry(key.encode(), feature_list(*each)) for key, each in (lists or {}).items()],
    )

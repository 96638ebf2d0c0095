"""Batches for signatures in which a request has one row: the same as of the original signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.signature import Signature

#: So many requests are in a batch, at most, and the share of candidates that each of them has.
_SHARES = (0.5, 0.0, 0.3, 0.2)


@dataclass(frozen=True)
class RequestCheck:
    """A signature in which a request has one row, and the one that it stands for.

    Attributes:
        name: its key.
        of: the key of the original, which takes a row of the request for each candidate.
        names: the inputs that describe the request.
        counts: the input that says how many candidates each request has; "": there is one request.
    """

    name: str
    of: str
    names: tuple[str, ...]
    counts: str = ""


def request_batch(
    check: RequestCheck, original: Signature, feeds: Mapping[str, Array], batch: int
) -> tuple[dict[str, Array], dict[str, Array]] | None:
    """Returns what both signatures are fed; None if a batch has no candidate.

    Args:
        check: the signatures.
        original: the original one.
        feeds: a batch of it, of which the first rows are taken as requests.
        batch: how many rows it has.
    """
    if not batch:
        return None
    counts = _counts(batch) if check.counts else np.array([batch])
    # What no candidate has may be refused, and the original is not fed it.
    requests = np.where(counts > 0, np.arange(len(counts)), 0)
    index = np.repeat(np.arange(len(counts)), counts)
    once, repeated = dict[str, Array](), dict[str, Array]()
    divided = {key for group in (*original.sparse, *original.ragged) for key in group}
    shapes = {spec.key: spec.shape for spec in original.inputs}
    for groups, take in ((original.sparse, _sparse_rows), (original.ragged, _ragged_rows)):
        for keys in groups:
            own = [feeds[key] for key in keys]
            of_request = keys[0].partition("/")[0] in check.names
            once |= zip(keys, take(own, requests) if of_request else own, strict=True)
            repeated |= zip(keys, take(own, index) if of_request else own, strict=True)
    for key, array in feeds.items():
        if key in divided:
            continue
        has_rows = key in check.names and shapes[key] != ()
        once[key] = array[requests] if has_rows else array
        repeated[key] = array[index] if has_rows else array
    if check.counts:
        once[check.counts] = counts.astype(np.int64)
    return repeated, once


def _counts(batch: int) -> NDArray[np.int64]:
    """Returns how many candidates each of some requests has, of which there are no more."""
    shares = _SHARES[: min(batch, len(_SHARES))]
    counts = np.array([int(batch * share) for share in shares])
    counts[0] += batch - counts.sum()
    return counts


def _sparse_rows(parts: Sequence[Array], numbers: NDArray[np.int64]) -> list[Array]:
    """Returns rows of a sparse tensor as another one."""
    indices, values, shape = parts
    found = [np.flatnonzero(indices[:, 0] == number) for number in numbers]
    places = np.concatenate([np.arange(0), *found]).astype(np.int64)
    new = indices[places]
    new[:, 0] = np.repeat(np.arange(len(numbers)), [len(one) for one in found])
    return [new, values[places], np.array([len(numbers), *shape[1:]], np.int64)]


def _ragged_rows(parts: Sequence[Array], numbers: NDArray[np.int64]) -> list[Array]:
    """Returns rows of a ragged tensor as another one."""
    values, splits = parts
    lengths = np.diff(splits)[numbers]
    places = [np.arange(splits[n], splits[n + 1]) for n in numbers]
    taken = np.concatenate([np.arange(0), *places]).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(splits.dtype)
    return [values[taken], ends]


def merged_examples(request: bytes, candidate: bytes, names: Sequence[str]) -> bytes:
    """Returns a tf.Example with some features of a request and the others of a candidate."""
    own, other = tf.train.Example.FromString(request), tf.train.Example.FromString(candidate)
    for name in names:
        other.features.feature.pop(name, None)
        if name in own.features.feature:
            other.features.feature[name].CopyFrom(own.features.feature[name])
    merged: bytes = other.SerializeToString(deterministic=True)
    return merged

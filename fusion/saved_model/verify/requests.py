"""Batches for signatures in which a request has one row: the same as of the original signature."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

from fusion.passes.requests.example_lists import MESSAGE, descriptors
from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.signature import Signature
from fusion.saved_model.model.source import MANIFEST_FILE, SourceModel

REQUEST_ROUNDING = 1e-5
"""What outputs may differ by where products are split, as a share of the largest element."""

_RECORDED = "request_signatures"
"""The field of `fusion.json`."""

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
        examples: the input of Examples of the original, of which `names` are features; "": none.
        inputs: those of the Examples of requests and of candidates in its place.
        lists: the input of ExampleListWithContexts in its place, one for each request; "": none.
    """

    name: str
    of: str
    names: tuple[str, ...]
    counts: str = ""
    examples: str = ""
    inputs: tuple[str, ...] = ()
    lists: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> RequestCheck:
        """Returns what gave `plain`, also after its way through JSON."""
        tuples = {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
        return RequestCheck(**{**plain, **tuples})


def recorded_checks(model: SourceModel) -> tuple[RequestCheck, ...]:
    """Returns the signatures that `fusion rewrite` has added to a model, by its record.

    There are none in what is no such record.
    """
    file = model.path / MANIFEST_FILE
    if model.is_frozen or not file.is_file():
        return ()
    try:
        plain = json.loads(file.read_bytes())
        return tuple(RequestCheck.from_dict(one) for one in plain.get(_RECORDED, ()))
    except (AttributeError, OSError, TypeError, ValueError):
        return ()


def record_of(checks: Sequence[RequestCheck]) -> dict[str, object]:
    """Returns the fields of `fusion.json` that `recorded_checks` reads."""
    return {_RECORDED: [check.to_dict() for check in checks]} if checks else {}


def request_batch(
    check: RequestCheck,
    original: Signature,
    feeds: Mapping[str, Array],
    counts: NDArray[np.int64],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns what both signatures are fed: repeated rows of requests, and each row once.

    Args:
        check: the signatures.
        original: the original one.
        feeds: a batch of it, with a row for each candidate; the first rows are the requests.
        counts: how many candidates each request has; one number of a signature that takes one
            request.
    """
    # What no candidate has may be refused, and the original is not fed it.
    requests = np.where(np.asarray(counts) > 0, np.arange(len(counts)), 0)
    index, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)[:-1]
    once, repeated = dict[str, Array](), dict[str, Array]()
    divided = {key for group in (*original.sparse, *original.ragged) for key in group}
    shapes = {spec.key: spec.shape for spec in original.inputs}
    for groups, take in ((original.sparse, _sparse_rows), (original.ragged, _ragged_rows)):
        for keys in groups:
            own = [feeds[key] for key in keys]
            of_request = original.input_of(keys[0]) in check.names
            once |= zip(keys, take(own, requests) if of_request else own, strict=True)
            repeated |= zip(keys, take(own, index) if of_request else own, strict=True)
    for key, array in feeds.items():
        if key in divided:
            continue
        if key == check.examples:
            if check.lists:
                once[check.lists] = _example_lists(array[requests], np.split(array, ends))
            else:
                once |= zip(check.inputs, (array[requests], array), strict=True)
            pairs = zip(array[index], array, strict=True)
            merged = [_merged(request, own, check.names) for request, own in pairs]
            repeated[key] = np.array(merged, dtype=object)
            continue
        has_rows = key in check.names and shapes[key] != ()
        once[key] = array[requests] if has_rows else array
        repeated[key] = array[index] if has_rows else array
    if check.counts:
        once[check.counts] = counts.astype(np.int64)
    return repeated, once


def unequal_counts(check: RequestCheck, batch: int) -> NDArray[np.int64]:
    """Returns how many candidates each of some requests has, of one request where one is taken."""
    if not check.counts and not check.lists:
        return np.array([batch])
    shares = _SHARES[: min(batch, len(_SHARES))]
    counts = np.array([int(batch * share) for share in shares])
    counts[0] += batch - counts.sum()
    return counts


def first_rows(signature: Signature, feeds: Mapping[str, Array], count: int) -> dict[str, Array]:
    """Returns the first rows of a batch of a signature."""
    result, numbers = dict[str, Array](), np.arange(count)
    for groups, take in ((signature.sparse, _sparse_rows), (signature.ragged, _ragged_rows)):
        for keys in groups:
            result |= zip(keys, take([feeds[key] for key in keys], numbers), strict=True)
    shapes = {spec.key: spec.shape for spec in signature.inputs}
    others = {key: array for key, array in feeds.items() if key not in result}
    return result | {k: a if shapes[k] == () else a[:count] for k, a in others.items()}


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


def _example_lists(contexts: Array, examples: Sequence[Array]) -> Array:
    """Returns ExampleListWithContexts."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))
    texts: list[bytes] = []
    for context, own in zip(contexts, examples, strict=True):
        message: Any = make()
        message.context.MergeFromString(context)
        for example in own:
            message.examples.add().MergeFromString(example)
        texts.append(message.SerializeToString(deterministic=True))
    return np.array([*texts, None], dtype=object)[:-1]


def _merged(request: bytes, candidate: bytes, names: Sequence[str]) -> bytes:
    """Returns a tf.Example with some features of a request and the others of a candidate."""
    own, other = tf.train.Example.FromString(request), tf.train.Example.FromString(candidate)
    for name in names:
        other.features.feature.pop(name, None)
        if name in own.features.feature:
            other.features.feature[name].CopyFrom(own.features.feature[name])
    merged: bytes = other.SerializeToString(deterministic=True)
    return merged

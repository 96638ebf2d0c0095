"""Which inputs of recorded batches have the same row throughout each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.parsers import features_of
from fusion.printable import counted
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.errors import ModelError
from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.generator import input_generators
from fusion.saved_model.inputs.recorded import DEFAULT_BATCH_SIZE, recorded_batches
from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.source import SourceModel, read_saved_model
from fusion.saved_model.requests.request_signatures import examples_input, graph_of, tensor_of

MIN_ROWS = 2
"""In a batch of fewer all inputs have the same row throughout."""


@dataclass(frozen=True)
class InputRows:
    """The rows of an input, or of a feature of Examples.

    Attributes:
        name: of the input or feature.
        different: how many different rows there are in each batch, all batches together.
        batches: in how many batches all rows are the same.
        bytes: of all rows.
        bytes_once: of the first row of each batch.
    """

    name: str
    different: int
    batches: int
    bytes: int
    bytes_once: int


@dataclass(frozen=True)
class Repeats:
    """What repeats in the batches of a file.

    Attributes:
        file: its path.
        signature: the title of the signature whose inputs it has.
        kind: "input", or "feature" of Examples.
        batches: how many rows each batch has; of those with `MIN_ROWS` or more.
        inputs: all that have a row for each example, by name.
    """

    file: str
    signature: str
    kind: str
    batches: tuple[int, ...]
    inputs: tuple[InputRows, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What has the same row throughout each batch."""
        return tuple(one.name for one in self.inputs if one.batches == len(self.batches))

    @property
    def seen(self) -> str:
        """How much was seen, for people."""
        rows = f"{sum(self.batches)} rows"
        return rows if len(self.batches) == 1 else f"{rows} of {len(self.batches)} batches"

    def request_inputs(self) -> tuple[str, ...]:
        """Returns what repeats.

        Raises:
            ModelError: nothing does, or everything.
        """
        names, what = self.names, f"of signature {self.signature!r}"
        if not names:
            raise ModelError(
                f"{self.file}: no {self.kind} {what} has the same row throughout each batch; "
                f"seen: {self.seen}"
            )
        if len(names) == len(self.inputs):
            raise ModelError(
                f"{self.file}: each {self.kind} {what} has the same row throughout each batch, so "
                f"that none describes candidates; seen: {self.seen}"
            )
        return names

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, ready for JSON."""
        return {**asdict(self), "repeat": list(self.names)}


def repeated_inputs(
    model: str | os.PathLike[str],
    file: str | os.PathLike[str],
    *,
    signature: str | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Repeats:
    """Returns which inputs of a model have the same row throughout each batch of a file.

    Args:
        model: a SavedModel.
        file: recorded inputs, see `compare_models`: an npz file, which has one batch, or a TFRecord
            file of Examples.
        signature: the key of a signature; by default the only one, or "serving_default".
        batch_size: how many Examples of a TFRecord file are a batch.

    Raises:
        ModelError: the model or the file cannot be read, or no batch has `MIN_ROWS` rows.
    """
    return repeats_of(read_saved_model(model), file, signature, batch_size)


def repeats_of(
    model: SourceModel, file: str | os.PathLike[str], name: str | None, batch_size: int
) -> Repeats:
    """Does what `repeated_inputs` says with a model that is read."""
    signature = choose_signature(model, name=name)
    meta = next(m for m in model.meta_graphs if tuple(m.meta_info_def.tags) == signature.tags)
    examples = examples_input(signature)
    features = () if examples is None else _features(meta, signature, model)
    known = [one for one in signatures(meta) if one.title != signature.title]
    generate = input_generators(model.path, meta, [signature])[signature.title]
    batches, seen = list[int](), dict[str, list[tuple[int, int, int, bool]]]()
    for owner, batch, feeds in recorded_batches(file, [signature, *known], batch_size):
        if owner.title != signature.title:
            continue
        if why := generate.violation(feeds):
            raise ModelError(f"{file}: {batch} of signature {signature.title!r}: {why}")
        size = generate.batch_size(feeds)
        if size < MIN_ROWS:
            continue
        batches.append(size)
        if examples is None:
            rows = _rows_of_inputs(signature, feeds, size)
        else:
            rows = _rows_of_features(file, feeds[examples], features)
        for key, own in rows:
            sizes = [*map(_bytes, own)]
            distinct = len({*own})
            seen.setdefault(key, []).append((distinct, sum(sizes), sizes[0], distinct == 1))
    if not batches:
        raise ModelError(
            f"{file}: no batch of signature {signature.title!r} has {MIN_ROWS} rows or more"
        )
    inputs = (
        InputRows(key, different, same, size, once)
        for key, found in sorted(seen.items())
        for different, size, once, same in [map(sum, zip(*found, strict=True))]
    )
    kind = "input" if examples is None else "feature"
    return Repeats(os.fspath(file), signature.title, kind, tuple(batches), tuple(inputs))


def _features(
    meta: meta_graph_pb2.MetaGraphDef, signature: Signature, model: SourceModel
) -> Sequence[str]:
    """Returns the features that a signature asks its Examples for."""
    view = GraphView.of_graph(graph_of(meta, signature))
    found = features_of(view, tensor_of(signature.inputs[0].tensor))
    if isinstance(found, NoMatch):
        raise ModelError(f"{model.path}: signature {signature.title!r}: {found.reason}")
    if not found:
        raise ModelError(f"{model.path}: signature {signature.title!r} parses no Examples")
    return sorted(found)


_Row = tuple[bytes, ...]


def _rows_of_inputs(
    signature: Signature, feeds: Mapping[str, Array], size: int
) -> Iterator[tuple[str, list[_Row]]]:
    """Yields what each row of the inputs has; of those that have a row for each example."""
    parts = {key for keys in (*signature.sparse, *signature.ragged) for key in keys}
    for indices, values, _ in signature.sparse:
        of_row = [np.flatnonzero(feeds[indices][:, 0] == row) for row in range(size)]
        rows = [(*_row(feeds[indices][one, 1:]), *_row(feeds[values][one])) for one in of_row]
        yield signature.input_of(values), rows
    for keys in signature.ragged:
        if len(keys) == 2:  # those of several dimensions are of no request
            flat, splits = (feeds[key] for key in keys)
            rows = [_row(flat[begin:end]) for begin, end in pairwise(splits)]
            yield signature.input_of(keys[0]), rows
    for spec in signature.inputs:
        array = feeds[spec.key]
        if spec.key not in parts and spec.shape and spec.shape[0] < 0 and len(array) == size:
            yield spec.key, [*map(_row, array)]


def _row(array: Array) -> _Row:
    """Returns what two rows have in common if all their bits are the same."""
    array = np.asarray(array)
    return tuple(array.ravel()) if array.dtype == object else (array.tobytes(),)


def _bytes(row: _Row) -> int:
    return sum(map(len, row))


def _rows_of_features(
    file: str | os.PathLike[str], records: Array, names: Sequence[str]
) -> Iterator[tuple[str, list[_Row]]]:
    """Yields what each Example has of the features."""
    try:
        parsed = [tf.train.Example.FromString(record).features.feature for record in records]
    except DecodeError as error:
        raise ModelError(f"{file}: an Example cannot be parsed: {error}") from error
    for name in names:
        found = (one[name].SerializeToString() if name in one else b"" for one in parsed)
        yield name, [(one,) for one in found]


def repeated_text(repeats: Repeats) -> str:
    """Returns what is saved where rows of requests are there once, for people."""
    if not repeats.names:
        return f"no {repeats.kind} repeats"
    own = [one for one in repeats.inputs if one.name in repeats.names]
    total = sum(one.bytes for one in repeats.inputs)
    saved = sum(one.bytes - one.bytes_once for one in own)
    return (
        f"{len(own)} of {counted(len(repeats.inputs), repeats.kind)} "
        f"{'repeats' if len(own) == 1 else 'repeat'}: {counted(len(repeats.batches), 'row')} would "
        f"do in place of {sum(repeats.batches):,}, {saved:,} of {total:,} bytes less"
    )

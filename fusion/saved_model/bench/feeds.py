"""The inputs that models are measured on: generated, or the user's own from a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.errors import ModelError
from fusion.saved_model.inputs.cases import Case
from fusion.saved_model.inputs.generator import InputGenerator, Unsupported, input_generators
from fusion.saved_model.inputs.recorded import (
    DEFAULT_BATCH_SIZE,
    recorded_batches,
    recording_advice,
)
from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.source import SourceModel

Feeds = Mapping[str, NDArray[Any]]


def generated_feeds(
    model: SourceModel, signature: Signature, batches: Iterable[int]
) -> dict[int, Feeds]:
    """Returns inputs for each batch size: ids inside their tables, bags of 0 to 11 of them.

    Raises:
        ModelError: no value can be generated for an input.
    """
    generate = _generator(model, signature)
    try:
        return {size: generate(Case(f"batch {size}", size)) for size in batches}
    except Unsupported as error:
        raise ModelError(
            f"signature {signature.title!r}: no inputs can be made up: {error}; "
            f"{recording_advice(signature)}"
        ) from error


def read_feeds(
    path: str | os.PathLike[str],
    model: SourceModel,
    signature: Signature,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> dict[int, Feeds]:
    """Returns the first batch of a file of recorded inputs, by its size; see `recorded_batches`.

    Strings may be arrays of str or bytes; those that end in zero bytes are not kept by NumPy.

    Raises:
        ModelError: the file cannot be read, does not fit the signature, or its inputs are not what
            belongs together has to be.
    """
    known = [s for s in signatures(_meta(model, signature)) if s.title != signature.title]
    for owner, name, feeds in recorded_batches(path, [signature, *known], batch_size):
        if owner.title != signature.title:
            continue
        generate = _generator(model, signature)
        if why := generate.violation(feeds):
            raise ModelError(f"{path}: {name} of signature {signature.title!r}: {why}")
        return {generate.batch_size(feeds): feeds}
    raise ModelError(f"{path}: holds no inputs of signature {signature.title!r}")


def _meta(model: SourceModel, signature: Signature) -> meta_graph_pb2.MetaGraphDef:
    """Returns the meta graph that the signature is of."""
    return next(m for m in model.meta_graphs if tuple(m.meta_info_def.tags) == signature.tags)


def _generator(model: SourceModel, signature: Signature) -> InputGenerator:
    meta = _meta(model, signature)
    return input_generators(model.path, meta, [signature])[signature.title]

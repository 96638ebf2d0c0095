"""The inputs that models are measured on: generated, or the user's own from a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.source import SourceModel
from fusion.saved_model.verify.dataflow import Meaning, input_meaning
from fusion.saved_model.verify.inputs import Case, InputGenerator, Unsupported, vocabulary
from fusion.saved_model.verify.signature import Signature, TensorSpec

Feeds = Mapping[str, NDArray[Any]]


def generated_feeds(
    model: SourceModel, signature: Signature, batches: Iterable[int]
) -> dict[int, Feeds]:
    """Returns inputs for each batch size: ids inside their tables, bags of 0 to 11 of them.

    Raises:
        ModelError: an input has a dtype of which no value can be made.
    """
    graph = _graph(model, signature)
    words = vocabulary(model.path, graph)
    generate = InputGenerator(signature, _meaning(graph, signature), words)
    try:
        return {size: generate(Case(f"batch {size}", size, True)) for size in batches}
    except Unsupported as error:
        raise ModelError(
            f"signature {signature.title!r}: no inputs can be made up: {error}; give them with "
            "--inputs"
        ) from error


def read_feeds(
    path: str | os.PathLike[str], model: SourceModel, signature: Signature
) -> dict[int, Feeds]:
    """Returns the inputs in an npz file, with an array for each key, by their batch size.

    Strings may be arrays of str or bytes; those that end in zero bytes are not kept by NumPy.

    Raises:
        ModelError: the file cannot be read, or its arrays do not fit the signature.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, BadZipFile) as error:
        raise ModelError(
            f"{path}: no npz file that can be read ({reason_of(error)}); write it with numpy.savez"
        ) from error
    keys = {spec.key for spec in signature.inputs}
    if keys != arrays.keys():
        raise ModelError(
            f"{path}: signature {signature.title!r} takes {', '.join(sorted(keys))}, the file has "
            f"{', '.join(sorted(arrays)) or 'nothing'}"
        )
    feeds = {spec.key: _fitting(path, spec, arrays[spec.key]) for spec in signature.inputs}
    meaning = _meaning(_graph(model, signature), signature)
    return {_batch_size(signature, meaning, feeds): feeds}


def _graph(model: SourceModel, signature: Signature) -> graph_pb2.GraphDef:
    """Returns the main graph that the signature is of."""
    meta = next(m for m in model.meta_graphs if tuple(m.meta_info_def.tags) == signature.tags)
    return meta.graph_def


def _meaning(graph: graph_pb2.GraphDef, signature: Signature) -> Meaning:
    return input_meaning(graph, {spec.key: spec.tensor for spec in signature.inputs})


def _fitting(path: str | os.PathLike[str], spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """Returns the array in the dtype of an input; raises ModelError if it does not fit."""
    dtype = tf.dtypes.as_dtype(spec.dtype) if spec.dtype else tf.dtypes.as_dtype(array.dtype)
    shape = tf.TensorShape(
        None if spec.shape is None else [None if d < 0 else d for d in spec.shape]
    )
    strings = dtype == tf.string
    fits = np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind")
    if not (array.dtype.kind in "SU" if strings else fits):
        raise ModelError(f"{path}: {spec.key!r} is {array.dtype}, and should be {dtype.name}")
    if not shape.is_compatible_with(array.shape):
        raise ModelError(f"{path}: {spec.key!r} has shape {list(array.shape)}, not {shape}")
    if strings:
        encoded = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
        return encoded.astype(object)
    return array.astype(dtype.as_numpy_dtype)


def _batch_size(signature: Signature, meaning: Meaning, feeds: Feeds) -> int:
    """Returns the number of examples: the rows of a sparse input, or of one of unknown length."""
    triples = [one for one in (*signature.sparse, *meaning.sparse) if feeds.keys() >= set(one)]
    parts = {key for triple in triples for key in triple}
    rows = [int(feeds[dense_shape][0]) for _, _, dense_shape in triples]
    rows += [
        len(feeds[spec.key])
        for spec in signature.inputs
        if spec.key not in parts and feeds[spec.key].ndim and (spec.shape or (-1,))[0] < 0
    ]
    return next(iter(rows), 1)

"""Recorded inputs: arrays of an npz file, or the Examples of a TFRecord file."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.example_inputs import ExampleInputs, UnfitExample
from fusion.saved_model.inputs.signature import Signature, TensorSpec

DEFAULT_BATCH_SIZE = 32

_RECORD_OVERHEAD = 16
"""The bytes of a record's length and checksums. TensorFlow takes a part of a length for the end."""
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


_Batches = Iterator[tuple[Signature, str, dict[str, Array]]]


def recorded_batches(
    file: str | os.PathLike[str], signatures: Sequence[Signature], batch_size: int
) -> _Batches:
    """Returns the batches of a file with the signature that each fits and a name.

    An npz file holds one batch: an array for each input of a signature, named as the input, or
    `signature/input`. Arrays without a signature's name are for every signature that has all of its
    inputs among them. Any other file is a TFRecord file of serialized tf.train.Examples, compressed
    if its name ends with `.gz`. They are for signatures whose only input is a vector of strings, or
    else for those whose inputs are called as features of the Examples.

    Args:
        file: the file.
        signatures: the signatures of a model.
        batch_size: how many Examples are a batch.

    Raises:
        ModelError: at once, or when a batch is read: the file cannot be read, is damaged, or
            fits no signature.
    """
    path = Path(file)
    try:
        with open(path, "rb") as opened:
            is_zip = opened.read(4) in _ZIP
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {reason_of(error)}") from error
    return _of_npz(path, signatures) if is_zip else _of_records(path, signatures, batch_size)


def recording_advice(signature: Signature) -> str:
    """Returns how to give inputs of a signature that are not generated."""
    names = ", ".join(_keys(signature))
    # Strings may be other records, too: lines of CSV, protocol buffers.
    records = ", or in a TFRecord file if they are Examples," if _takes_examples(signature) else ""
    return (
        "record inputs that it takes, in an npz file (numpy.savez) with the arrays "
        f"{names}{records} and give the file with --inputs FILE (inputs=)"
    )


def _of_npz(path: Path, signatures: Sequence[Signature]) -> _Batches:
    arrays = _load(path)
    own: dict[str, dict[str, Array]] = {s.title: {} for s in signatures}
    shared: dict[str, Array] = {}
    for key, array in arrays.items():
        owners = [s for s in signatures if key.startswith(f"{s.name}/")]
        owners = [s for s in owners if key.removeprefix(f"{s.name}/") in _keys(s)]
        for signature in owners:
            own[signature.title][key.removeprefix(f"{signature.name}/")] = array
        if not owners:
            shared[key] = array
    used: set[str] = set()
    for signature in signatures:
        inputs = {**{k: shared[k] for k in _keys(signature) if k in shared}, **own[signature.title]}
        missing = [key for key in _keys(signature) if key not in inputs]
        if missing and (own[signature.title] or len(signatures) == 1):
            raise ModelError(
                f"{path}: signature {signature.title!r} needs arrays called {', '.join(missing)}"
            )
        if not missing:
            used.update(inputs)
            checked = {s.key: _checked(path, signature, s, inputs[s.key]) for s in signature.inputs}
            yield signature, "the recorded batch", checked
    if unknown := sorted(shared.keys() - used):
        raise ModelError(
            f"{path}: no signature takes the arrays {', '.join(unknown)}; there are "
            + "; ".join(f"{s.title!r} with the inputs {', '.join(_keys(s))}" for s in signatures)
        )
    if not arrays:
        raise ModelError(f"{path}: holds no array; name them as the inputs of a signature")


def _keys(signature: Signature) -> list[str]:
    return [spec.key for spec in signature.inputs]


def _load(path: Path) -> dict[str, Array]:
    damages = (OSError, EOFError, KeyError, ValueError, NotImplementedError, MemoryError)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (*damages, zipfile.BadZipFile, zlib.error) as error:
        reason = reason_of(error)
        if "allow_pickle" in reason:
            reason = "it holds Python objects; save strings as an array of dtype S or U"
        raise ModelError(f"{path}: not a usable npz file: {reason}") from error


def _checked(path: Path, signature: Signature, spec: TensorSpec, array: Array) -> Array:
    """Returns the array as the input takes it: strings as bytes objects."""
    subject = f"{path}: input {spec.key!r} of signature {signature.title!r}"
    tf_dtype = tf.dtypes.as_dtype(spec.dtype) if spec.dtype else None
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    if array.dtype.kind == "S":
        array = array.astype(object)
    if tf_dtype is not None:
        dtype = np.dtype(tf_dtype.as_numpy_dtype)
        if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
            # npz files know no bfloat16.
            array = array.view(dtype)
        if not _fits(array, dtype):
            name = "string" if array.dtype == object else array.dtype.name
            raise ModelError(f"{subject} takes {tf_dtype.name}, and its array is {name}")
        array = array.astype(dtype)
    check_shape(subject, spec, array.shape)
    return array


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether numbers keep their kind, and integers their value, in another dtype."""
    if array.dtype == dtype:
        return True
    if object in (array.dtype, dtype) or not np.can_cast(array.dtype, dtype, "same_kind"):
        return False
    return dtype.kind not in "iu" or bool((array.astype(dtype) == array).all())


def check_shape(subject: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises ModelError if the input does not take an array of the shape."""
    declared = spec.shape
    if declared is None:
        return
    fits = len(declared) == len(shape) and all(
        declared_size in (-1, actual) for declared_size, actual in zip(declared, shape, strict=True)
    )
    if not fits:
        text = ", ".join("?" if size < 0 else str(size) for size in declared)
        raise ModelError(f"{subject} takes the shape [{text}], and its array is {list(shape)}")


def _of_records(path: Path, signatures: Sequence[Signature], batch_size: int) -> _Batches:
    takers = [s for s in signatures if _takes_examples(s)]
    makers = [] if takers else [m for s in signatures if (m := ExampleInputs.of(s)) is not None]
    if not takers and not makers:
        raise ModelError(
            f"{path}: no signature takes Examples, in one vector of strings or by the names of "
            "their features; record its inputs in an npz file"
        )
    start = 0
    for records in _batched(_records(path), batch_size):
        examples = [_parsed(path, start + i, record) for i, record in enumerate(records)]
        name = f"records {start} to {start + len(records) - 1}"
        vector = np.array([*records, None], dtype=object)[:-1]
        for signature in takers:
            (spec,) = signature.inputs
            subject = f"{path}: {name} for input {spec.key!r} of signature {signature.title!r}"
            check_shape(subject, spec, vector.shape)
            yield signature, name, {spec.key: vector}
        for maker in makers:
            try:
                arrays = maker(examples)
            except UnfitExample as error:
                where = f"record {start + error.index}"
                title = maker.signature.title
                raise ModelError(f"{path}: {where} for signature {title!r}: {error}") from error
            yield maker.signature, name, arrays
        start += len(records)
    if not start:
        raise ModelError(f"{path}: holds no record")


def _takes_examples(signature: Signature) -> bool:
    """Whether the only input is a vector of strings."""
    specs = signature.inputs
    return (
        len(specs) == 1
        and specs[0].dtype == tf.string.as_datatype_enum
        and (specs[0].shape is None or len(specs[0].shape) == 1)
    )


def _records(path: Path) -> Iterator[bytes]:
    compressed = path.name.endswith(".gz")
    count = size = 0
    try:
        dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if compressed else "")
        for record in dataset.as_numpy_iterator():
            yield record
            count += 1
            size += len(record) + _RECORD_OVERHEAD
        why = "" if compressed or size == path.stat().st_size else "the file ends within it"
    except tf.errors.OpError as error:
        why = reason_of(error)
    if why:
        raise ModelError(
            f"{path}: not a TFRecord file, nor an npz file, or damaged at record {count}: {why}"
        )


def _batched(records: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _parsed(path: Path, number: int, record: bytes) -> Mapping[str, Any]:
    """Returns the features of a serialized Example by name."""
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ModelError(f"{path}: record {number} is no tf.train.Example") from error
    return features

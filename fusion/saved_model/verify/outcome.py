"""What a model answered, on disk: JSON lines, and the tensors in their order in a second file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2

LOAD_FAILED = 3
"""A process's exit status when TensorFlow refuses its model; the messages end with the reason."""

MESSAGES = "stderr.txt"
"""The file with what a process says, beside its outcomes."""

_INDEX = "outcomes.jsonl"
_TENSORS = "tensors.bin"


@dataclass(frozen=True)
class Outcome:
    """One run of one signature on one case.

    Attributes:
        loader: how the model was loaded.
        signature: the signature's title.
        case: the case's name.
        outputs: the keys of the outputs, in the order of their tensors.
        error: the class of the error instead of outputs, or None.
        message: the error's text.
        varying: outputs that differed when the same inputs were run once more.
    """

    loader: str
    signature: str
    case: str
    outputs: tuple[str, ...] = ()
    error: str | None = None
    message: str = ""
    varying: tuple[str, ...] = ()


class OutcomeWriter:
    """Writes outcomes to a directory, each as soon as it is known."""

    def __init__(self, directory: Path) -> None:
        """Creates the files in `directory`."""
        self._index = open(directory / _INDEX, "w")  # noqa: SIM115
        self._tensors = open(directory / _TENSORS, "wb")  # noqa: SIM115

    def write(self, outcome: Outcome, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Appends an outcome with the values of its outputs."""
        for key in outcome.outputs:
            record = tf.make_tensor_proto(tensors[key]).SerializeToString()
            self._tensors.write(struct.pack("<Q", len(record)) + record)
        self._tensors.flush()
        print(json.dumps(asdict(outcome)), file=self._index, flush=True)

    def close(self) -> None:
        """Closes the files."""
        self._index.close()
        self._tensors.close()


def read_outcomes(directory: Path) -> Iterator[tuple[Outcome, dict[str, NDArray[Any]]]]:
    """Yields the outcomes in `directory` with their tensors, one at a time."""
    with open(directory / _INDEX) as lines, open(directory / _TENSORS, "rb") as records:
        for line in lines:
            facts = json.loads(line)
            facts["outputs"] = tuple(facts["outputs"])
            facts["varying"] = tuple(facts["varying"])
            outcome = Outcome(**facts)
            yield outcome, {key: _tensor(records) for key in outcome.outputs}


def _tensor(records: BinaryIO) -> NDArray[Any]:
    (length,) = struct.unpack("<Q", records.read(8))
    proto = tensor_pb2.TensorProto.FromString(records.read(length))
    array: NDArray[Any] = tf.make_ndarray(proto)
    return array


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns elementwise whether two arrays of one shape and dtype are equal to the bit.

    Any NaN equals any NaN; 0.0 and -0.0 differ.
    """
    if a.dtype == object:
        return np.asarray(a == b, dtype=bool)
    size = a.dtype.itemsize
    raw_a = np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, size)
    raw_b = np.ascontiguousarray(b).reshape(-1).view(np.uint8).reshape(-1, size)
    same = (raw_a == raw_b).all(axis=1).reshape(a.shape)
    if is_float(a):
        same |= np.isnan(a) & np.isnan(b)
    return np.asarray(same, dtype=bool)


def varying_outputs(
    first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> tuple[str, ...]:
    """Returns the outputs that differ between two runs of one model on the same inputs."""
    return tuple(
        key
        for key, value in first.items()
        if value.shape != second[key].shape or not same_bits(value, second[key]).all()
    )


def is_float(a: NDArray[Any]) -> bool:
    """Whether the elements are floating-point numbers, complex ones included."""
    # Kind V: bfloat16 and its relatives.
    return a.dtype.kind in "fcV"


def nearly_same(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """Returns elementwise whether numbers agree but for rounding.

    They may differ by `tolerance` times the largest finite magnitude in `a`, or by four units in
    the last place of that if their dtype is coarser. What is not finite has to be equal.
    """
    with np.errstate(all="ignore"):
        wide_a, wide_b = (one.astype(np.complex128) for one in (a, b))
        magnitudes = np.abs(wide_a)
        finite = magnitudes[np.isfinite(magnitudes)]
        largest = float(finite.max()) if finite.size else 0.0
        limit = max(tolerance, 4 * _unit(a.dtype)) * largest
        return np.asarray(np.abs(wide_a - wide_b) <= limit, dtype=bool)


def _unit(dtype: np.dtype[Any]) -> float:
    """The distance of 1 from the next number."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)

"""What a model answered, on disk: JSON lines, and the tensors in their order in a second file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2

LOAD_FAILED = 3
"""A process's exit status when TensorFlow refuses its model; the messages end with the reason."""

OS_FAILED = 64
"""What is added to the `errno` of an OSError for the exit status: the disk that is full may be that
of the messages."""

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
        may_raise: whether the inputs have something over which a model may well raise an error.
        violation: in what the inputs are not what belongs together has to be, or "".
    """

    loader: str
    signature: str
    case: str
    outputs: tuple[str, ...] = ()
    error: str | None = None
    message: str = ""
    varying: tuple[str, ...] = ()
    may_raise: bool = False
    violation: str = ""


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

"""One signature of a SavedModel, on NumPy arrays."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import fusion  # noqa: F401, registers the ops of fused models
from examples.serving.messages import Arrays

v1 = tf.compat.v1


class BadRequest(ValueError):
    """What the client can act on: an input is missing, unknown, or of another dtype or shape."""


class Model:
    """A signature that is called with an array for each input; any number of threads may.

    It runs in a Session, as in TensorFlow Serving: a call costs less than that of a function with
    many arguments.

    Attributes:
        directory: of the SavedModel.
        signature: the name of the signature.
        inputs: what it takes, by name.
    """

    def __init__(
        self, directory: str | os.PathLike[str], signature: str = "serving_default"
    ) -> None:
        """Loads the model.

        Raises:
            ValueError: it has no such signature, or one with sparse tensors as they are.
            OSError: there is no model.
            tf.errors.OpError: TensorFlow cannot load it.
        """
        self.directory, self.signature = os.fspath(directory), signature
        self._session = v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta = v1.saved_model.load(self._session, [tf.saved_model.SERVING], self.directory)
        if signature not in meta.signature_def:
            have = ", ".join(sorted(meta.signature_def))
            raise ValueError(f"{directory}: no signature {signature!r}, there are {have}")
        found = meta.signature_def[signature]
        self.inputs = {name: _spec(name, info) for name, info in sorted(found.inputs.items())}
        outputs = {name: _spec(name, info) for name, info in sorted(found.outputs.items())}
        self._outputs = tuple(outputs)
        self._by_row = all(map(_has_rows, (*self.inputs.values(), *outputs.values())))
        self._run = self._session.make_callable(
            [found.outputs[name].name for name in outputs],
            feed_list=[found.inputs[name].name for name in self.inputs],
        )

    def __call__(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Returns the outputs for inputs that `check` has seen.

        Raises:
            tf.errors.OpError: what the model raises.
        """
        results = self._run(*(inputs[name] for name in self.inputs))
        return dict(zip(self._outputs, results, strict=True))

    def check(self, inputs: Arrays) -> None:
        """Raises BadRequest unless `inputs` are those that the signature takes."""
        if inputs.keys() != self.inputs.keys():
            takes, got = (", ".join(sorted(names)) or "nothing" for names in (self.inputs, inputs))
            raise BadRequest(f"signature {self.signature!r} takes {takes}; the request has {got}")
        for name, spec in self.inputs.items():
            array = inputs[name]
            kind = tf.string if array.dtype.kind in "OSU" else tf.dtypes.as_dtype(array.dtype)
            if kind != spec.dtype or not spec.shape.is_compatible_with(array.shape):
                raise BadRequest(
                    f"input {name!r} is {kind.name} {list(array.shape)}, and should be "
                    f"{spec.dtype.name} {spec.shape}"
                )

    def rows(self, inputs: Arrays) -> int | None:
        """Returns how many rows a request has, or None if its arrays do not consist of as many."""
        lengths = {len(array) if array.ndim else None for array in inputs.values()}
        return lengths.pop() if self._by_row and len(lengths) == 1 else None

    def warm_up(self) -> None:
        """Runs one row of zeros, so that kernels are compiled before the first request.

        Raises:
            tf.errors.OpError: the model does not take such a row.
        """
        self({name: _zeros(spec) for name, spec in self.inputs.items()})

    def close(self) -> None:
        """Frees the tables."""
        self._session.close()


def _spec(name: str, info: Any) -> tf.TensorSpec:
    if info.WhichOneof("encoding") != "name":
        raise ValueError(f"{name!r} is a sparse tensor; only signatures of plain ones are served")
    return tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.dtypes.as_dtype(info.dtype), name)


def _has_rows(spec: tf.TensorSpec) -> bool:
    """Whether it may have any number of rows."""
    return spec.shape.rank is None or (spec.shape.rank > 0 and spec.shape[0] is None)


def _zeros(spec: tf.TensorSpec) -> NDArray[Any]:
    shape = [1] if spec.shape.rank is None else [1 if size is None else size for size in spec.shape]
    if spec.dtype == tf.string:
        return np.full(shape, b"", object)
    return np.zeros(shape, spec.dtype.as_numpy_dtype)

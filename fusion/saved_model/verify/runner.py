"""Loading a SavedModel the ways its users do, and calling its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.model.frozen import loadable

Arrays = Mapping[str, NDArray[Any]]


class Runner(Protocol):
    """A loaded model."""

    def run(self, signature: Signature, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Returns the outputs of `signature` by key; `feeds` has an array for each input key."""
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


class SessionRunner:
    """The meta graph in a Session, as servers written in C++ load it."""

    def __init__(self, model: Path, tags: Sequence[str]) -> None:
        """Loads the meta graph of `model`, or the frozen graph, that has exactly these tags."""
        self._session = tf.compat.v1.Session(
            graph=tf.Graph(), config=tf.compat.v1.ConfigProto(allow_soft_placement=True)
        )
        with self._session.graph.as_default(), loadable(model) as folder:
            tf.compat.v1.saved_model.load(self._session, list(tags), str(folder))

    def run(self, signature: Signature, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Feeds the input tensors and fetches the output tensors."""
        fetches = {spec.key: spec.tensor for spec in signature.outputs}
        fed = {spec.tensor: feeds[spec.key] for spec in signature.inputs}
        values = self._session.run(fetches, fed)
        return {key: np.asarray(value) for key, value in values.items()}

    def close(self) -> None:
        """Closes the session and with it the variables."""
        self._session.close()


class FunctionRunner:
    """The object graph's signatures as concrete functions, as Python programs load it."""

    def __init__(self, model: Path, tags: Sequence[str]) -> None:
        """Loads `model` with tf.saved_model.load."""
        self._model = tf.saved_model.load(str(model), tags=list(tags))

    def run(self, signature: Signature, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Calls the signature's function."""
        function = self._model.signatures[signature.name]
        values = function(**{spec.key: _constant(spec, feeds) for spec in signature.inputs})
        return {spec.key: np.asarray(values[spec.key]) for spec in signature.outputs}

    def close(self) -> None:
        """Drops the model."""
        del self._model


def _constant(spec: TensorSpec, feeds: Arrays) -> Any:
    return tf.constant(feeds[spec.key], dtype=tf.dtypes.as_dtype(spec.dtype))


def loaders(
    proto: saved_model_pb2.SavedModel,
) -> dict[str, Callable[[Path, Sequence[str]], Runner]]:
    """Returns by name the ways in which this model is meant to be loaded."""
    ways: dict[str, Callable[[Path, Sequence[str]], Runner]] = {"session": SessionRunner}
    if len(proto.meta_graphs) == 1 and proto.meta_graphs[0].object_graph_def.nodes:
        ways["function"] = FunctionRunner
    return ways

"""The dense model of a split model for Triton's Python backend, whose TensorFlow it runs in.

    embeddings  float32 [all elements]: those of the first lookup, of all rows, then those of the
                second, ... which are the lookup model's OUTPUT0
    ...         the other inputs and the outputs have the names of the SavedModel's signature

`python -m examples.serving.triton` puts this file into a model repository as `model.py`, and
beside it the SavedModel, `model.savedmodel`. It needs no other file of this example.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


class TritonPythonModel:
    """What Triton calls: it makes one of each instance of the model, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model.

        Args:
            args: "model_config" is the model's configuration as JSON. Its parameter "signature"
                names that of the SavedModel, "embeddings" is a list as JSON: the name and the
                shape of each embedding, but for the number of rows.
        """
        config = json.loads(args["model_config"])
        parameters = config["parameters"]
        self._embeddings = [
            (name, tuple(shape))
            for name, shape in json.loads(parameters["embeddings"]["string_value"])
        ]
        self._others = [one["name"] for one in config["input"] if one["name"] != "embeddings"]
        self._outputs = [one["name"] for one in config["output"]]
        # A signature keeps no reference to the variables, the model does.
        self._model = tf.saved_model.load(str(Path(__file__).parent / "model.savedmodel"))
        self._function = self._model.signatures[parameters["signature"]["string_value"]]
        self._inputs = self._function.structured_input_signature[1]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers requests, each by itself: in a larger batch products may round otherwise."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            names = ("embeddings", *self._others)
            given = {
                name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names
            }
            inputs = self._by_lookup(given.pop("embeddings").reshape(-1)) | given
            results = self._function(
                **{name: tf.constant(a, self._inputs[name].dtype) for name, a in inputs.items()}
            )
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            text = " ".join(str(error).split())
            error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        tensors = [pb_utils.Tensor(name, results[name].numpy()) for name in self._outputs]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _by_lookup(self, elements: NDArray[np.float32]) -> Arrays:
        """The embeddings of each lookup.

        Raises:
            ValueError: the elements are not those of whole rows.
        """
        sizes = [math.prod(shape) for _, shape in self._embeddings]
        rows, rest = divmod(len(elements), sum(sizes))
        if rest:
            raise ValueError(
                f"embeddings has {len(elements)} elements, and a row has {sum(sizes)} of them"
            )
        parts = np.split(elements, np.cumsum([rows * size for size in sizes])[:-1])
        return {
            name: part.reshape(rows, *shape)
            for (name, shape), part in zip(self._embeddings, parts, strict=True)
        }

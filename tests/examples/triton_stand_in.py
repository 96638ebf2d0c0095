"""What Triton does for models of its Python backend, as far as these use it: no Triton runs here.

The classes are those of `triton_python_backend_utils` in its documentation
(triton-inference-server/python_backend, README.md). `Repository` loads models as Triton does, and
checks tensors against `config.pbtxt`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.triton_config import MODEL_CONFIG, parse

Arrays = Mapping[str, np.ndarray]

DTYPES = {
    "TYPE_INT64": np.int64,
    "TYPE_INT32": np.int32,
    "TYPE_FP32": np.float32,
    "TYPE_STRING": np.object_,
}


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        assert isinstance(array, np.ndarray)
        self._name, self._array = name, array.copy()

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE = "INTERNAL", "INVALID_ARG", "UNAVAILABLE"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class InferenceRequest:
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = list(inputs)

    def inputs(self) -> list[Tensor]:
        return self._inputs


class InferenceResponse:
    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def error(self) -> TritonError | None:
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def module() -> types.ModuleType:
    """The module that models import."""
    found = types.ModuleType("triton_python_backend_utils")
    for one in (Tensor, TritonError, InferenceRequest, InferenceResponse, get_input_tensor_by_name):
        setattr(found, one.__name__, one)
    return found


class Refused(Exception):
    """A model answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


class Repository:
    """The models of a repository.

    Attributes:
        configs: of each model, by its name.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module())
        self._folder = folder
        self.configs = {
            file.parent.name: parse(file.read_text(), MODEL_CONFIG)
            for file in sorted(folder.glob("*/config.pbtxt"))
        }
        self._models: dict[str, Any] = {}
        for name, config in self.configs.items():
            assert config["name"] == name
            assert (folder / name / "1").is_dir()
            if config.get("backend") == "python":
                self._models[name] = self._load(name, config)

    def _load(self, name: str, config: Mapping[str, Any]) -> Any:
        path = self._folder / name / "1" / "model.py"
        spec = importlib.util.spec_from_file_location(f"triton_model_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        model = loaded.TritonPythonModel()
        parameters = {one["key"]: one["value"] for one in config["parameters"]}
        model.initialize({"model_config": json.dumps({**config, "parameters": parameters})})
        return model

    def execute(
        self, name: str, requests: Sequence[Arrays]
    ) -> list[dict[str, np.ndarray] | Refused]:
        """What a model of the Python backend answers to requests that come in one batch."""
        config = self.configs[name]
        for request in requests:
            _check(config["input"], request)
        sent = [InferenceRequest([Tensor(*item) for item in one.items()]) for one in requests]
        responses = self._models[name].execute(sent)
        assert len(responses) == len(sent)
        assert len({id(response) for response in responses}) == len(sent)
        for tensor in itertools.chain(*(one.inputs() for one in sent)):
            tensor.as_numpy().fill(0)  # Triton uses their memory again
        answers: list[dict[str, np.ndarray] | Refused] = []
        for response in responses:
            if (error := response.error()) is not None:
                answers.append(Refused(error.code(), error.message()))
                continue
            outputs = {one.name(): one.as_numpy() for one in response.output_tensors()}
            _check(config["output"], outputs)
            answers.append(outputs)
        return answers

    def infer(self, name: str, inputs: Arrays) -> dict[str, np.ndarray]:
        """What a model answers to a request; it may be an ensemble.

        Raises:
            Refused: a model answered with an error.
        """
        config = self.configs[name]
        _check(config["input"], inputs)
        if config.get("platform") != "ensemble":
            (answer,) = self.execute(name, [inputs])
            if isinstance(answer, Refused):
                raise answer
            return answer
        tensors = dict(inputs)
        for step in config["ensemble_scheduling"]["step"]:
            given = {one["key"]: tensors[one["value"]] for one in step["input_map"]}
            found = self.infer(step["model_name"], given)
            tensors |= {one["value"]: found[one["key"]] for one in step["output_map"]}
        outputs = {one["name"]: tensors[one["name"]] for one in config["output"]}
        _check(config["output"], outputs)
        return outputs

    def close(self) -> None:
        """Unloads the models."""
        for model in self._models.values():
            if hasattr(model, "finalize"):
                model.finalize()


def _check(wanted: Sequence[Mapping[str, Any]], arrays: Arrays) -> None:
    """Checks what Triton does: whether tensors are as configured."""
    assert {one["name"] for one in wanted} == arrays.keys()
    for one in wanted:
        array = arrays[one["name"]]
        assert array.dtype == DTYPES[one["data_type"]], one["name"]
        assert len(array.shape) == len(one["dims"]), one["name"]
        for size, dim in zip(array.shape, one["dims"], strict=True):
            assert dim in (-1, size), one["name"]

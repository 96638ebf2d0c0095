"""Rows of tables for Triton's Python backend, with the tensors of HPS's backend.

    KEYS     int64, of any shape: the keys of the first lookup, then those of the second, ...
    NUMKEYS  int32, of any shape: how many keys are of each lookup
    OUTPUT0  float32 [all elements of all rows], in the order of the keys

`python -m examples.serving.triton` puts this file into a model repository as `model.py`, and
beside it `store.json`, which is HPS's configuration. It needs no other file of this example.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from fusion.tables import StoreConfig, TableStore, TierError

_FOLDER = Path(__file__).parent

#: The keys of each lookup.
Parts = list[NDArray[np.int64]]


class TritonPythonModel:
    """What Triton calls: it makes one of each instance of the model, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Opens the tables.

        Args:
            args: "model_config" is the model's configuration as JSON. Its parameter "lookups" is a
                list as JSON: the table of each lookup, and how many keys an example has for it.

        Raises:
            KeyError, OSError, ValueError: there is no such table, or the configuration is wrong.
            TierError: a tier does not answer, or has no such table.
        """
        parameters = json.loads(args["model_config"])["parameters"]
        lookups = json.loads(parameters["lookups"]["string_value"])
        self._tables: list[str] = [table for table, _ in lookups]
        self._key_counts = np.array([count for _, count in lookups])
        self._store = TableStore.from_config(_configuration())
        for table in self._tables:
            self._store.lookup(table, np.zeros(0, np.int64))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers requests: all their keys are looked up together, once in each table."""
        responses: list[Any] = [None] * len(requests)
        parts: dict[int, Parts] = {}
        for number, request in enumerate(requests):
            try:
                parts[number] = self._parts(request)
            except ValueError as error:
                responses[number] = _refusal(error, pb_utils.TritonError.INVALID_ARG)
        try:
            for number, rows in self._rows(parts).items():
                output = pb_utils.Tensor("OUTPUT0", rows)
                responses[number] = pb_utils.InferenceResponse(output_tensors=[output])
        except TierError as error:
            for number in parts:
                responses[number] = _refusal(error, pb_utils.TritonError.UNAVAILABLE)
        return responses

    def finalize(self) -> None:
        """Closes the tables."""
        self._store.close()

    def _parts(self, request: Any) -> Parts:
        """The keys of a request.

        Raises:
            ValueError: there are not as many as NUMKEYS says.
        """
        keys, counts = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)
            for name in ("KEYS", "NUMKEYS")
        )
        rows = counts[0] // self._key_counts[0] if len(counts) else 0
        if counts.shape != self._key_counts.shape or (counts != rows * self._key_counts).any():
            wanted = ", ".join(
                f"{count} in {table}"
                for table, count in zip(self._tables, self._key_counts, strict=True)
            )
            raise ValueError(
                f"NUMKEYS must be one number for each lookup, of an example {wanted}; "
                f"it is {counts.tolist()}"
            )
        if counts.sum(dtype=np.int64) != len(keys):
            raise ValueError(f"KEYS has {len(keys)} keys, and NUMKEYS says {counts.tolist()}")
        return np.split(keys, np.cumsum(counts)[:-1])

    def _rows(self, requests: dict[int, Parts]) -> dict[int, NDArray[np.float32]]:
        """The elements of the rows of each request."""
        found: dict[tuple[int, int], NDArray[np.float32]] = {}
        for table in dict.fromkeys(self._tables):
            parts = {
                (number, lookup): keys
                for number, lookups in requests.items()
                for lookup, keys in enumerate(lookups)
                if self._tables[lookup] == table
            }
            if parts:
                rows = self._store.lookup(table, np.concatenate([*parts.values()]))
                ends = np.cumsum([len(keys) for keys in parts.values()])[:-1]
                found |= zip(parts, np.split(rows, ends), strict=True)
        return {
            number: np.concatenate([found[number, k].reshape(-1) for k in range(len(lookups))])
            for number, lookups in requests.items()
        }


def _configuration() -> StoreConfig:
    """What `store.json` says; folders in it may be relative to its own."""
    content = json.loads((_FOLDER / "store.json").read_text())
    for model in content["models"]:
        model["sparse_files"] = [str(_FOLDER / folder) for folder in model["sparse_files"]]
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # in Triton's log
        return StoreConfig.from_hps_json(content)


def _refusal(error: Exception, code: Any) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))

"""One signature of a SavedModel, or of a split model and its tables, on NumPy arrays."""

from __future__ import annotations

import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import meta_graph_pb2

import fusion  # noqa: F401, registers the ops of fused models
from examples.serving.messages import Arrays
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.requests import RequestCheck, recorded_checks
from fusion.tables import (
    TableConfig,
    TableDescription,
    TableStore,
    serve_from_store,
    split_tables,
)

v1 = tf.compat.v1

Specs = Mapping[str, tf.TensorSpec]

#: The input of a signature for several requests, of which `fusion rewrite --request-inputs` adds
#: one, that says how many candidates each request has.
COUNTS = "candidates_per_request"


class BadRequest(ValueError):
    """What the client can act on: an input is missing, unknown, or of another dtype or shape."""


class ServedModel(ABC):
    """A signature that is called with an array for each input; any number of threads may.

    Attributes:
        directory: of the model.
        signature: the name of the signature.
        inputs, outputs: what it takes and gives, by name.
    """

    def __init__(self, directory: str, signature: str, inputs: Specs, outputs: Specs) -> None:
        self.directory, self.signature = directory, signature
        self.inputs, self.outputs = inputs, outputs
        self._by_row = all(map(_has_rows, (*inputs.values(), *outputs.values())))

    @abstractmethod
    def __call__(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Returns the outputs for inputs that `check` has seen.

        Raises:
            tf.errors.OpError: what the model raises.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the tables."""

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

        Of requests it is one that has one candidate.

        Raises:
            tf.errors.OpError: the model does not take such a row.
        """
        row = {name: _zeros(spec) for name, spec in self.inputs.items()}
        if COUNTS in row:
            row[COUNTS] = np.ones_like(row[COUNTS])
        self(row)


class Model(ServedModel):
    """A signature of a SavedModel.

    It runs in a Session, as in TensorFlow Serving: a call costs less than that of a function with
    many arguments.
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
        self._session = v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta = v1.saved_model.load(
                self._session, [tf.saved_model.SERVING], os.fspath(directory)
            )
        if signature not in meta.signature_def:
            have = ", ".join(sorted(meta.signature_def))
            raise ValueError(f"{directory}: no signature {signature!r}, there are {have}")
        found = meta.signature_def[signature]
        inputs, outputs = (
            {name: _spec(name, info) for name, info in sorted(infos.items())}
            for infos in (found.inputs, found.outputs)
        )
        super().__init__(os.fspath(directory), signature, inputs, outputs)
        check = _request_check(directory, signature)
        self._once = None if check is None or not check.counts else _inputs_of_requests(check)
        self._is_joined = not _has_parts(meta, signature, check)
        self._run = self._session.make_callable(
            [found.outputs[name].name for name in outputs],
            feed_list=[found.inputs[name].name for name in inputs],
        )

    def rows(self, inputs: Arrays) -> int | None:
        """See `ServedModel`; those of requests are their candidates, and may be joined likewise."""
        if not self._is_joined:
            return None
        if self._once is None:
            return super().rows(inputs)
        counts = inputs[COUNTS]
        rows = int(counts.sum())
        fits = all(
            array.ndim and len(array) == (len(counts) if name in self._once else rows)
            for name, array in inputs.items()
        )
        return rows if fits and (counts >= 0).all() else None

    def __call__(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """See `ServedModel`."""
        results = self._run(*(inputs[name] for name in self.inputs))
        return dict(zip(self.outputs, results, strict=True))

    def close(self) -> None:
        """See `ServedModel`."""
        self._session.close()


class SplitModel(ServedModel):
    """A signature of what `fusion split` has made, with the rows of its tables from a store.

    The lookups and the dense model behind them run one after the other, on the same inputs and
    outputs as the model that was split, and with the same results. Ids that no tier has are no
    error here: they have the default row.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        store: TableStore,
        signature: str = "serving_default",
    ) -> None:
        """Loads the model.

        Args:
            directory: of the split model.
            store: has its tables, by their names; it is closed with the model.
            signature: the name of the signature.

        Raises:
            ValueError: the store has not these tables; and see `Model`.
            ModelError: it is no split model, or has a table that cannot be in a store.
            OSError, tf.errors.OpError: see `Model`.
        """
        check_tables(split_tables(directory), store.tables)
        name = f"serving {id(self)}"
        self._store = store.register(name)
        with tempfile.TemporaryDirectory() as folder:
            lookup = Path(folder) / "lookup"
            serve_from_store(directory, lookup, name)
            self._lookup = Model(lookup, signature)
        self._dense = Model(Path(directory) / "dense", signature)
        embeddings = self._lookup.outputs
        others = {n: spec for n, spec in self._dense.inputs.items() if n not in embeddings}
        inputs = dict(sorted({**self._lookup.inputs, **others}.items()))
        super().__init__(os.fspath(directory), signature, inputs, self._dense.outputs)

    def __call__(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """See `ServedModel`.

        Raises:
            tf.errors.UnavailableError: rows are waited for, and a tier does not answer.
        """
        try:
            rows = self._lookup(inputs)
        except tf.errors.InternalError as error:
            # TensorFlow keeps this code for its own network, and puts another in its place.
            if "originally returned UnavailableError" not in error.message:
                raise
            reason = re.search(r"Node: .*\n(.*)", error.message)
            text = error.message if reason is None else reason[1]
            raise tf.errors.UnavailableError(None, None, text) from error
        return self._dense({**inputs, **rows})

    def close(self) -> None:
        """See `ServedModel`."""
        self._lookup.close()
        self._dense.close()
        self._store.close()


def check_tables(wanted: Iterable[TableConfig], there: Iterable[TableDescription]) -> None:
    """Raises ValueError unless tables of a split model are in a store."""
    have = {table.name: table.dimension for table in there}
    for table in wanted:
        if have.get(table.name) != table.dimension:
            names = ", ".join(f"{name} of {dimension}" for name, dimension in have.items())
            raise ValueError(
                f"the store must have table {table.name} of dimension {table.dimension}; it has "
                f"{names}"
            )


def _request_check(directory: str | os.PathLike[str], signature: str) -> RequestCheck | None:
    """Returns what is recorded of a signature that takes requests once."""
    checks = recorded_checks(read_saved_model(directory))
    return next((check for check in checks if check.name == signature), None)


def _inputs_of_requests(check: RequestCheck) -> frozenset[str]:
    """Returns the inputs with a row for each request, of a signature that takes several."""
    return frozenset([check.counts, *(check.inputs[:1] if check.examples else check.names)])


def _has_parts(
    meta: meta_graph_pb2.MetaGraphDef, signature: str, check: RequestCheck | None
) -> bool:
    """Whether inputs are of rows of any length: parts of sparse or ragged tensors, or lists."""
    names = {signature, *([] if check is None else [check.of])}
    known = [one for one in signatures(meta) if one.name in names]
    has_lists = check is not None and bool(check.lists)
    return has_lists or any(one.sparse or one.ragged for one in known)


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

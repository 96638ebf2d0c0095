"""Inputs of a signature made of the features of Examples that are called as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.signature import Signature, TensorSpec

_LISTS = {tf.int64: "int64_list", tf.float32: "float_list", tf.string: "bytes_list"}

Features = Mapping[str, Any]
"""The features of an Example by name."""


class UnfitExample(Exception):
    """An Example of which an input cannot be made; `index` is its number in the batch."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True)
class ExampleInputs:
    """How a batch of Examples becomes the inputs of a signature.

    A dense input [B, ...] has a feature of its name with as many values as a row; a sparse one of
    rank 2, or a ragged one, any number of them, or no such feature. Integers are int64 in an
    Example, and become what the input takes.

    Attributes:
        signature: the signature.
        dense: inputs with a row for each Example.
        sparse: (indices, values, dense_shape) of sparse ones, by the feature's name.
        ragged: flat values and row splits of ragged ones, likewise.
    """

    signature: Signature
    dense: tuple[TensorSpec, ...]
    sparse: Mapping[str, tuple[TensorSpec, TensorSpec, TensorSpec]]
    ragged: Mapping[str, tuple[TensorSpec, TensorSpec]]

    @staticmethod
    def of(signature: Signature) -> ExampleInputs | None:
        """Returns how, or None if an input is not of a kind that features are."""
        specs = {spec.key: spec for spec in signature.inputs}
        sparse = {
            signature.input_of(values): (specs[indices], specs[values], specs[shape])
            for indices, values, shape in signature.sparse
        }
        if any(len(keys) != 2 for keys in signature.ragged):
            return None
        ragged = {
            signature.input_of(values): (specs[values], specs[splits])
            for values, splits in signature.ragged
        }
        parts = {key for keys in (*signature.sparse, *signature.ragged) for key in keys}
        dense = tuple(spec for spec in signature.inputs if spec.key not in parts)
        valued = [*dense, *(values for _, values, _ in sparse.values())]
        valued += [values for values, _ in ragged.values()]
        rows = all(spec.shape is not None and -1 not in spec.shape[1:] for spec in dense)
        vectors = all(shape.shape == (2,) for _, _, shape in sparse.values())
        vectors &= all(values.shape in (None, (-1,)) for values, _ in ragged.values())
        starts = all(spec.shape and spec.shape[0] == -1 for spec in dense)
        if not (valued and rows and vectors and starts and all(map(_list_of, valued))):
            return None
        return ExampleInputs(signature, dense, sparse, ragged)

    def __call__(self, examples: Sequence[Features]) -> dict[str, Array]:
        """Returns the input arrays by key.

        Raises:
            UnfitExample: an Example has not the features that the inputs take.
        """
        arrays: dict[str, Array] = {}
        for spec in self.dense:
            assert spec.shape is not None
            size = int(np.prod(spec.shape[1:]))
            rows = [_values(i, example, spec, spec.key) for i, example in enumerate(examples)]
            for index, row in enumerate(rows):
                if len(row) != size:
                    text = f"feature {spec.key!r} has {len(row)} values, and the input takes {size}"
                    raise UnfitExample(index, text)
            flat = _array(spec, [value for row in rows for value in row])
            arrays[spec.key] = flat.reshape(len(examples), *spec.shape[1:])
        for name, (indices, values, shape) in self.sparse.items():
            bags = [_values(i, example, values, name) for i, example in enumerate(examples)]
            coordinates = [(row, i) for row, bag in enumerate(bags) for i in range(len(bag))]
            arrays[indices.key] = np.array(coordinates, np.int64).reshape(-1, 2)
            arrays[values.key] = _array(values, [value for bag in bags for value in bag])
            arrays[shape.key] = np.array([len(bags), max(map(len, bags))], np.int64)
        for name, (flat_values, splits) in self.ragged.items():
            bags = [_values(i, example, flat_values, name) for i, example in enumerate(examples)]
            arrays[flat_values.key] = _array(flat_values, [value for bag in bags for value in bag])
            dtype = tf.dtypes.as_dtype(splits.dtype or tf.int64).as_numpy_dtype
            arrays[splits.key] = np.cumsum([0, *map(len, bags)]).astype(dtype)
        return arrays


def _list_of(spec: TensorSpec) -> str | None:
    """Returns the list of a feature that holds the input's values, or None."""
    dtype = tf.dtypes.as_dtype(spec.dtype or tf.float32)
    return _LISTS.get(tf.int64 if dtype.is_integer and not dtype.is_quantized else dtype)


def _values(index: int, features: Features, spec: TensorSpec, name: str) -> Sequence[Any]:
    field = _list_of(spec)
    assert field is not None
    kind = features[name].WhichOneof("kind") if name in features else None
    if kind not in (None, field):
        raise UnfitExample(index, f"feature {name!r} is a {kind}, and the input takes a {field}")
    return getattr(features[name], field).value if kind is not None else ()


def _array(spec: TensorSpec, values: Sequence[Any]) -> Array:
    dtype = tf.dtypes.as_dtype(spec.dtype or tf.float32)
    array: Array = np.array([*values, None], dtype=object)[:-1]
    return array if dtype == tf.string else array.astype(dtype.as_numpy_dtype)

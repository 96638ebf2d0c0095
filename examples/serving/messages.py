"""The messages of TensorFlow Serving's Predict and of gRPC's health check, made without protoc.

Their fields have the names, numbers and types of `tensorflow_serving/apis/predict.proto` and
`grpc/health/v1/health.proto`: on the wire they are the same messages, so the clients of both work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2

Arrays = Mapping[str, NDArray[Any]]

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
HEALTH_SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
"""What a health check answers."""

_PACKAGE = "fusion.examples.serving"
_TENSOR = tensor_pb2.TensorProto.DESCRIPTOR
_MAX_BYTES = 1 << 28
_FIELD = descriptor_pb2.FieldDescriptorProto
_STRING, _INT32 = (_FIELD.TYPE_STRING, None), (_FIELD.TYPE_INT32, None)
_MODEL_SPEC = (_FIELD.TYPE_MESSAGE, f".{_PACKAGE}.ModelSpec")
_TENSORS = "map<string, TensorProto>"
#: The fields of each message: number, name and type.
_MESSAGES: dict[str, list[tuple[int, str, Any]]] = {
    "ModelSpec": [(1, "name", _STRING), (3, "signature_name", _STRING)],
    "PredictRequest": [
        (1, "model_spec", _MODEL_SPEC),
        (2, "inputs", _TENSORS),
    ],
    "PredictResponse": [
        (2, "model_spec", _MODEL_SPEC),
        (1, "outputs", _TENSORS),
    ],
    "HealthCheckRequest": [(1, "service", _STRING)],
    "HealthCheckResponse": [(1, "status", _INT32)],  # an enum, which looks the same
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="examples/serving/messages.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[_TENSOR.file.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            if kind == _TENSORS:
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                _add(entry, 1, "key", _STRING)
                _add(entry, 2, "value", (_FIELD.TYPE_MESSAGE, f".{_TENSOR.full_name}"))
                entries = (_FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{name}.{entry.name}")
                _add(message, number, field, entries, _FIELD.LABEL_REPEATED)
            else:
                _add(message, number, field, kind)
    return file


def _add(
    message: descriptor_pb2.DescriptorProto,
    number: int,
    name: str,
    kind: tuple[Any, str | None],
    label: Any = _FIELD.LABEL_OPTIONAL,
) -> None:
    number_of_type, type_name = kind
    message.field.add(
        name=name, number=number, label=label, type=number_of_type, type_name=type_name
    )


def _message(name: str) -> Any:
    pool = descriptor_pool.Default()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


descriptor_pool.Default().Add(_described())
PredictRequest = _message("PredictRequest")
PredictResponse = _message("PredictResponse")
HealthCheckRequest = _message("HealthCheckRequest")
HealthCheckResponse = _message("HealthCheckResponse")


def write_arrays(tensors: Any, arrays: Arrays) -> None:
    """Puts arrays into a map of tensors, `inputs` of a request or `outputs` of a response."""
    for name, array in arrays.items():
        tensors[name].CopyFrom(tf.make_tensor_proto(array))


def read_arrays(tensors: Any) -> dict[str, NDArray[Any]]:
    """Returns the arrays in a map of tensors; strings are arrays of objects.

    Raises:
        ValueError: one is no tensor, or of more than 256 MiB.
    """
    return {name: _array(name, tensor) for name, tensor in tensors.items()}


def _array(name: str, tensor: tensor_pb2.TensorProto) -> NDArray[Any]:
    try:
        shape = [dimension.size for dimension in tensor.tensor_shape.dim]
        size = tf.dtypes.as_dtype(tensor.dtype).size or 1
        # One value may stand for as many as the shape says.
        if min(shape, default=0) < 0 or math.prod(shape) * size > _MAX_BYTES:
            raise ValueError(f"its shape is {shape}")
        array: NDArray[Any] = np.asarray(tf.make_ndarray(tensor))
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"input {name!r} cannot be read: {error}") from error
    return array

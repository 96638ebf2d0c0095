"""A client of the server; it works with TensorFlow Serving too."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import grpc
from numpy.typing import NDArray

from examples.serving import messages
from examples.serving.messages import Arrays


class Client:
    """A connection of its own to a server; one thread at a time uses it.

    Args:
        address: `host:port`.
        timeout: seconds for one request.

    What the server refuses raises `grpc.RpcError`, with `code()` and `details()`.
    """

    def __init__(self, address: str, timeout: float = 30.0) -> None:
        self._timeout = timeout
        # Else the clients of a process share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options=options)
        # Bytes go as they are: a load test does not pay for reading answers.
        self._predict = self._channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/Predict")
        self._check = self._channel.unary_unary(f"/{messages.HEALTH_SERVICE}/Check")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def predict(self, inputs: Arrays, signature: str = "") -> dict[str, NDArray[Any]]:
        """Returns the outputs for an array for each input; "" is the signature by default."""
        return read_response(self.send(request(inputs, signature)))

    def send(self, content: bytes) -> bytes:
        """Sends what `request` made; returns the serialized response."""
        answer: bytes = self._predict(content, timeout=self._timeout)
        return answer

    def is_healthy(self, service: str = "") -> bool:
        """Whether the server takes requests."""
        asked = messages.HealthCheckRequest(service=service)
        answer = self._check(asked.SerializeToString(), timeout=self._timeout)
        status: int = messages.HealthCheckResponse.FromString(answer).status
        return status == messages.SERVING


def request(inputs: Arrays, signature: str = "", model: str = "default") -> bytes:
    """Returns the serialized request; the server of this folder ignores the model's name."""
    message = messages.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    messages.write_arrays(message.inputs, inputs)
    content: bytes = message.SerializeToString()
    return content


def read_response(content: bytes) -> dict[str, NDArray[Any]]:
    """Returns the outputs in a serialized response."""
    return messages.read_arrays(messages.PredictResponse.FromString(content).outputs)

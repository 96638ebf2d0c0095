"""A client of the server in C, with the interface of that of examples.serving."""

from __future__ import annotations

import http.client
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from examples.serving.client import read_response, request
from examples.serving.messages import Arrays

#: Of an address.
SCHEME = "http://"

_PREDICT = "/v1/models/default:predict"
_HEALTH = "/healthz"


class Refused(Exception):
    """What the server does not answer.

    Attributes:
        status: of HTTP.
        text: one line.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class Client:
    """A connection of its own to a server; one thread at a time uses it.

    Args:
        address: `http://host:port`.
        timeout: seconds for one request.

    What the server refuses raises `Refused`.
    """

    def __init__(self, address: str, timeout: float = 30.0) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix(SCHEME), timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def predict(self, inputs: Arrays, signature: str = "") -> dict[str, NDArray[Any]]:
        """Returns the outputs for an array for each input; "" is the signature by default."""
        return read_response(self.send(request(inputs, signature)))

    def send(self, content: bytes) -> bytes:
        """Sends what `request` made; returns the serialized response."""
        return self._answer("POST", _PREDICT, content)

    def is_healthy(self) -> bool:
        """Whether the server takes requests."""
        return self._answer("GET", _HEALTH) == b"ok\n"

    def _answer(self, method: str, path: str, content: bytes | None = None) -> bytes:
        self._connection.request(method, path, content)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise Refused(response.status, answer.decode(errors="replace").rstrip("\n"))
        return answer

"""A gRPC server of one model: TensorFlow Serving's `Predict`, and gRPC's health check."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
import tensorflow as tf

from examples.serving import messages
from examples.serving.batching import Batcher, Results
from examples.serving.messages import Arrays
from examples.serving.metrics import Requests
from examples.serving.model import ServedModel

_THREADS = 64
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
"""gRPC's statuses by number; TensorFlow's errors have the same numbers."""


class Server:
    """Serves a model until it is stopped.

    Attributes:
        port: where.
    """

    def __init__(
        self,
        model: ServedModel,
        address: str,
        max_rows: int = 1,
        max_wait: float = 0.002,
        requests: Requests | None = None,
    ) -> None:
        """Binds the address and begins to serve.

        Args:
            model: what is served.
            address: `host:port`; port 0 is any that is free.
            max_rows: of requests that are computed together; 1 computes each alone.
            max_wait: seconds that a request waits for others.
            requests: counts them; None: nobody does.

        Raises:
            RuntimeError: the address cannot be had.
        """
        self._model, self._requests = model, requests or Requests()
        self._stopping = threading.Event()
        self._batcher = Batcher(model, max_rows, max_wait) if max_rows > 1 else None
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS),
            # Two servers must not share a port unawares.
            options=[("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_THREADS,
        )
        self._server.add_generic_rpc_handlers((self._prediction(), self._health()))
        self.port = int(self._server.add_insecure_port(address))
        self._server.start()

    def stop(self, grace: float) -> None:
        """Lets requests end that have come, for at most so many seconds; takes no others."""
        self._stopping.set()
        self._server.stop(grace).wait()
        if self._batcher is not None:
            self._batcher.close()

    def _prediction(self) -> Any:
        predict = grpc.unary_unary_rpc_method_handler(
            self._predict,
            messages.PredictRequest.FromString,
            messages.PredictResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            messages.PREDICTION_SERVICE, {"Predict": predict}
        )

    def _health(self) -> Any:
        check = grpc.unary_unary_rpc_method_handler(
            self._check_health,
            messages.HealthCheckRequest.FromString,
            messages.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(messages.HEALTH_SERVICE, {"Check": check})

    def _predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        begun, code, rows = time.monotonic(), grpc.StatusCode.UNKNOWN, 0
        try:
            inputs = self._inputs(request, context)
            rows = self._model.rows(inputs) or 0
            response = messages.PredictResponse()
            response.model_spec.signature_name = self._model.signature
            messages.write_arrays(response.outputs, self._computed(inputs, context))
            code = grpc.StatusCode.OK
            return response
        finally:
            # Of a request that was refused the context has the status.
            status = context.code() or code
            self._requests.add(status.name, rows, time.monotonic() - begun)

    def _inputs(self, request: Any, context: grpc.ServicerContext) -> Arrays:
        name = request.model_spec.signature_name or self._model.signature
        if name != self._model.signature:
            text = f"signature {name!r} is not served, but {self._model.signature!r}"
            _refuse(context, grpc.StatusCode.NOT_FOUND, text)
        try:
            inputs = messages.read_arrays(request.inputs)
            self._model.check(inputs)
        except ValueError as error:
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return inputs

    def _computed(self, inputs: Arrays, context: grpc.ServicerContext) -> Results:
        rows = self._model.rows(inputs)
        try:
            if self._batcher is None or rows is None:
                return self._model(inputs)
            result = self._batcher.submit(inputs, rows)
            # A request that its client gave up is not computed.
            context.add_callback(result.cancel)
            return result.result()
        except CancelledError:
            _refuse(context, grpc.StatusCode.CANCELLED, "the request was given up")
        except tf.errors.OpError as error:
            code = _STATUS.get(error.error_code, grpc.StatusCode.INTERNAL)
            _refuse(context, code, error.message)

    def _check_health(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.service not in ("", messages.PREDICTION_SERVICE):
            _refuse(context, grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        stopping = self._stopping.is_set()
        return messages.HealthCheckResponse(
            status=messages.NOT_SERVING if stopping else messages.SERVING
        )


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    """Ends a request with one line of text, by an exception."""
    context.abort(code, " ".join(text.split())[:500])
    raise AssertionError("abort raises")

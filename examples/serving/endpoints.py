"""Health and metrics of a server over HTTP."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fusion
from examples.serving.metrics import CONTENT_TYPE, Requests, store_lines
from examples.serving.store import Store
from fusion.version import __version__

LOADING, SERVING, STOPPING = "loading", "serving", "stopping"


class Status:
    """What can be told of a server.

    Attributes:
        model: what is served.
        state: loading, serving or stopping.
        store: the tables of a split model, once they are open.
        requests: what the server counts.
    """

    def __init__(self, model: str) -> None:
        self.model, self.state, self.requests = model, LOADING, Requests()
        self.store: Store | None = None

    def health(self) -> dict[str, Any]:
        """Returns what is told of health; "ready" says whether requests can be answered."""
        is_serving = self.state == SERVING
        tiers = self.store.problems() if is_serving and self.store is not None else {}
        return {
            "ready": is_serving and not any(tiers.values()),
            "state": self.state,
            "model": self.model,
            "version": __version__,
            "tiers": {name: problem or "ok" for name, problem in tiers.items()},
        }

    def metrics(self) -> str:
        """Returns what is counted."""
        lines = [*self.requests.lines()]
        if self.store is not None:
            lines += store_lines(self.store.counters())
        return "".join(f"{line}\n" for line in lines) + fusion.stats().prometheus()


class Endpoints:
    """Answers `GET /health`, `/health/live` and `/metrics` until it is closed.

    Attributes:
        port: where.
    """

    def __init__(self, host: str, port: int, status: Status) -> None:
        """Binds the address and begins to answer.

        Args:
            host: where.
            port: 0 is any that is free.
            status: what is told.

        Raises:
            OSError: the address cannot be had.
        """
        self._server = _Server((host, port), _Handler)
        self._server.status = status
        self.port = int(self._server.server_address[1])
        thread = threading.Thread(target=self._server.serve_forever, name="endpoints", daemon=True)
        thread.start()

    def __enter__(self) -> Endpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    status: Status


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answers a request."""
        status = self.server.status
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, status.metrics())
        elif path == "/health/live":
            self._answer(200, "application/json", json.dumps({"live": True}) + "\n")
        elif path == "/health":
            health = status.health()
            content = json.dumps(health, indent=1) + "\n"
            self._answer(200 if health["ready"] else 503, "application/json", content)
        else:
            self._answer(404, "text/plain", "there are /health, /health/live and /metrics\n")

    def log_message(self, format: str, *_: Any) -> None:
        """Nobody reads each line of a probe."""

    def _answer(self, status: int, kind: str, content: str) -> None:
        encoded = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

"""Serves a SavedModel, a fused or split one too, by gRPC: `python -m examples.serving MODEL`.

SIGTERM and Ctrl-C end it when the requests that have come are done.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.serving.model import ServedModel
    from examples.serving.store import Store

_USAGE = 2
_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.serving", description=__doc__)
    parser.add_argument("model", help="the directory of a SavedModel, or of a split one")
    parser.add_argument("--signature", default="serving_default", help="default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8500, help="0 is a free one; %(default)s")
    parser.add_argument(
        "--max-rows",
        type=int,
        default=1,
        help="of requests that are computed together; %(default)s computes each alone",
    )
    parser.add_argument(
        "--max-wait-ms", type=float, default=2.0, help="for others to come; default: %(default)s"
    )
    parser.add_argument("--grace", type=float, default=10.0, help="seconds to end; %(default)s")
    parser.add_argument(
        "--http-port", type=int, help="for health and metrics; 0 is a free one; default: none"
    )
    parser.add_argument(
        "--store",
        help="JSON of the tables of a split model, HPS's too; without it those beside the model",
    )
    parser.add_argument("--warm", help="a file of ids whose rows are cached before requests come")
    options = parser.parse_args()
    # Blocked in all threads and waited for: a handler would miss a signal that comes just before
    # the main thread begins to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        serve(options)
    except Exception as error:
        print(f"serving: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _USAGE
    return 0


def serve(options: argparse.Namespace) -> None:
    """Loads the model and serves it until a signal comes, which must be blocked.

    Raises:
        ImportError, ModelError, OSError, RuntimeError, TierError, ValueError, tf.errors.OpError:
            the model, its tables or the address cannot be had, see `Model`, `SplitModel`, `Store`
            and `Server`.
    """
    import tensorflow as tf

    from examples.serving.endpoints import SERVING, STOPPING, Endpoints, Status
    from examples.serving.server import Server

    tf.get_logger().setLevel("ERROR")
    start, status = time.monotonic(), Status(options.model)
    with ExitStack() as stack:
        if options.http_port is not None:
            endpoints = stack.enter_context(Endpoints(options.host, options.http_port, status))
            where = f"http://{options.host}:{endpoints.port}"
            print(f"health and metrics: {where}/health, {where}/metrics", flush=True)
        model, status.store = load(options)
        try:
            model.warm_up()
        except tf.errors.OpError as error:
            print(f"not warmed up: {' '.join(error.message.split())}", file=sys.stderr)
        address, wait = f"{options.host}:{options.port}", options.max_wait_ms / 1000
        server = Server(model, address, options.max_rows, wait, status.requests)
        seconds = time.monotonic() - start
        status.state = SERVING
        where = f"{options.host}:{server.port}"
        print(f"serving {options.model} on {where}, loaded in {seconds:.1f} s", flush=True)
        signal.sigwait(_SIGNALS)
        status.state = STOPPING
        server.stop(options.grace)
    model.close()
    print("stopped", flush=True)


def load(options: argparse.Namespace) -> tuple[ServedModel, Store | None]:
    """Loads the model, and the tables of one that is split.

    Raises: see `serve`.
    """
    from examples.serving.model import Model, SplitModel
    from examples.serving.store import open_store
    from fusion.saved_model.split.folder import is_split

    if not is_split(options.model):
        if options.store or options.warm:
            raise ValueError(f"{options.model}: --store and --warm are for a split model")
        return Model(options.model, options.signature), None
    store = open_store(options.model, options.store)
    model = SplitModel(options.model, store.tables, options.signature)
    if options.warm:
        for table, count in store.warm(options.warm).items():
            print(f"warmed up: {count} rows of {table}", flush=True)
    return model, store


if __name__ == "__main__":
    sys.exit(main())

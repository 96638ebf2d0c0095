"""Serves a SavedModel, a fused one too, by gRPC: `python -m examples.serving MODEL`.

SIGTERM and Ctrl-C end it when the requests that have come are done.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

_USAGE = 2
_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.serving", description=__doc__)
    parser.add_argument("model", help="the directory of a SavedModel")
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
        OSError, RuntimeError, ValueError, tf.errors.OpError: the model or the address cannot be
            had, see `Model` and `Server`.
    """
    import tensorflow as tf

    from examples.serving.model import Model
    from examples.serving.server import Server

    tf.get_logger().setLevel("ERROR")
    start = time.monotonic()
    model = Model(options.model, options.signature)
    try:
        model.warm_up()
    except tf.errors.OpError as error:
        print(f"not warmed up: {' '.join(error.message.split())}", file=sys.stderr)
    address = f"{options.host}:{options.port}"
    server = Server(model, address, options.max_rows, options.max_wait_ms / 1000)
    seconds = time.monotonic() - start
    where = f"{options.host}:{server.port}"
    print(f"serving {options.model} on {where}, loaded in {seconds:.1f} s", flush=True)
    signal.sigwait(_SIGNALS)
    server.stop(options.grace)
    model.close()
    print("stopped", flush=True)


if __name__ == "__main__":
    sys.exit(main())

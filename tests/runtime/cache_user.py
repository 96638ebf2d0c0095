"""A process that needs a kernel: `python cache_user.py FOLDER SECONDS [fork]`.

It prints what it does, and takes the kernel's code from its standard input when it compiles.
"""

import logging
import os
import signal
import sys
import types
from pathlib import Path

# Without TensorFlow.
package = types.ModuleType("fusion")
package.__path__ = [str(Path(__file__).parents[2] / "fusion")]
sys.modules["fusion"] = package

from fusion.runtime.cache import kernel_cache  # noqa: E402


class Printer(logging.Handler):
    """Prints what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), flush=True)


def compile_it() -> bytes:
    """Waits for the code; with `fork` a child lives on meanwhile."""
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        print("child", child, flush=True)
    print("compiling", flush=True)
    return sys.stdin.readline().strip().encode()


if __name__ == "__main__":
    logger = logging.getLogger("fusion")
    logger.setLevel(logging.INFO)
    logger.addHandler(Printer())
    kernel_cache.IDLE_SECONDS = float(sys.argv[2])
    kept = kernel_cache.KernelCache(sys.argv[1])
    print("got", kept.get("kernel.o", compile_it).decode(), flush=True)

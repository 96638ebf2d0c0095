"""Loads a model into session after session, on several threads: is memory given back?

    sessions.py MODEL SESSIONS THREADS [LIBRARY]

Prints the resident bytes of the process at twenty times.
"""

from __future__ import annotations

import gc
import json
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
_SAMPLES = 20


def once(model: str, seed: int) -> float:
    """Loads the model, runs it and closes its session; returns the sum of what it computes."""
    rng = np.random.default_rng(seed)
    with v1.Session(graph=tf.Graph()) as session:
        meta = v1.saved_model.load(session, [tf.saved_model.SERVING], model)
        signature = meta.signature_def["serving_default"]
        feeds = {one.name: rng.integers(0, 50, (64, 5)) for one in signature.inputs.values()}
        (fetch,) = (one.name for one in signature.outputs.values())
        return float(np.sum(session.run(fetch, feeds), dtype=np.float64))


def resident() -> int:
    """Bytes of the process that are in memory."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def main(model: str, sessions: str, threads: str, *libraries: str) -> None:
    """The program."""
    for library in libraries:
        tf.load_op_library(library)
    samples, each = [], int(sessions) // _SAMPLES
    expected = once(model, 0)
    with ThreadPoolExecutor(int(threads)) as pool:
        for _ in range(_SAMPLES):
            found = [*pool.map(partial(once, model), [0] * each)]
            if {*found} != {expected}:
                raise AssertionError(f"{len(found)} sessions, results {sorted({*found})}")
            samples.append(resident())
    json.dump(samples, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs all programs of a kind: `python -m tests.grappler.worker KIND OUT COLUMNS [--fused]`.

COLUMNS are numbers of columns, with commas between them.

OUT gets a pickle: by program and number of columns, the bits of the outputs and what ran; and
"failures", the number of graphs that fusion could not cope with.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from tests.grappler.executed import lookups
from tests.grappler.programs import PROGRAMS, Columns, Result


def main() -> None:
    """Runs the programs; one that raises gives its traceback."""
    kind, out, sizes, *options = sys.argv[1:]
    if kind == "legacy":
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    if options == ["--fused"]:
        fusion.enable()
    outcomes: dict[Any, Any] = {}
    for program in PROGRAMS[kind]:
        for size in map(int, sizes.split(",")):
            try:
                outcomes[program.__name__, size] = _plain(program(Columns(size)))
            except Exception:
                outcomes[program.__name__, size] = traceback.format_exc()
    outcomes["failures"] = fusion.stats().failures
    Path(out).write_bytes(pickle.dumps(outcomes))


def _plain(result: Result) -> tuple[list[bytes], dict[str, int]]:
    arrays, ran = result
    if any(not np.any(np.asarray(array)) for array in arrays):
        raise AssertionError("an output of zeros shows nothing")
    return [np.asarray(array).tobytes() for array in arrays], lookups(ran)


if __name__ == "__main__":
    main()

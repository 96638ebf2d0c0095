"""The GPU workloads in TensorFlow: stock's lookups and the fused op, on the same device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.case import Value
from benchmarks.measure import in_turns, single

if TYPE_CHECKING:
    from benchmarks.gpu.memory import Workload

STOCK, FUSED = "stock TensorFlow, ms", "fused op, ms"

#: The numbers on the GPU may differ by so much from those of the CPU.
_TOLERANCE = 1e-5
#: Stock's graphs of more columns take minutes to build.
_MAX_COLUMNS = 100


def gpu() -> str:
    """The name of the first GPU if TensorFlow sees one and the ops have kernels for it, else ''."""
    try:
        import tensorflow as tf
    except ImportError:
        return ""
    from fusion.ops.registered import DEVICES

    gpus = tf.config.list_physical_devices("GPU")
    is_there = "GPU" in DEVICES.types and gpus
    for one in gpus:
        # Else TensorFlow takes nearly all memory, beside torch or cupy.
        tf.config.experimental.set_memory_growth(one, True)
    return "/GPU:0" if is_there else ""


def compared(workload: Workload, device: str, seed: int, repeats: int) -> dict[str, Value]:
    """Milliseconds of calls, stock's and the fused op's, in turns; nothing without a device.

    Of more than `_MAX_COLUMNS` columns the fused op's alone.

    Raises:
        RuntimeError: the numbers are not those of the op on the CPU, or not stock's.
    """
    if not device:
        return {}
    import tensorflow as tf

    with tf.device("/CPU:0"):
        _, on_cpu = _calls(workload, np.random.default_rng(seed))
        wanted = on_cpu().numpy()
    with tf.device(device):
        stock, fused = _calls(workload, np.random.default_rng(seed))
        calls = {FUSED: fused}
        if len(workload.columns) <= _MAX_COLUMNS:
            calls[STOCK] = stock
        found = {name: call().numpy() for name, call in calls.items()}
        whose = {FUSED: "the CPU's", STOCK: "stock TensorFlow's"}
        for name, array in found.items():
            if not np.allclose(array, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise RuntimeError(f"{workload.name}: not {whose[name]} numbers on {device}")
        # What is copied to the host waits for the device.
        timers = {name: single(_first_row(call)) for name, call in calls.items()}
        times = in_turns(timers, 0.0, repeats)
    medians = {name: 1e3 * float(np.median(each)) for name, each in times.items()}
    is_same = found[FUSED].tobytes() == wanted.tobytes()
    return {**medians, "bits of the CPU's": "yes" if is_same else "no"}


def _first_row(call: Callable[[], Any]) -> Callable[[], Any]:
    def found() -> Any:
        return call()[:1].numpy()

    return found


def _calls(
    workload: Workload, draw: np.random.Generator
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import tensorflow as tf

    from benchmarks.grouped import grouped

    tables, ids, splits = list[Any](), list[Any](), list[Any]()
    for column in workload.columns:
        lengths = draw.integers(column.ids[0], column.ids[1] + 1, workload.batch)
        values: npt.NDArray[Any] = draw.integers(0, column.rows, int(lengths.sum()))
        tables.append(tf.constant(draw.standard_normal((column.rows, column.dim), np.float32)))
        ids.append(tf.constant(values))
        splits.append(tf.constant(np.concatenate([[0], np.cumsum(lengths)])))
    combiners = [column.combiner for column in workload.columns]

    # What functions capture is passed in less time than their arguments are: there are thousands.
    @tf.function(autograph=False)
    def stock() -> Any:
        found = []
        for table, values, ends, combiner in zip(tables, ids, splits, combiners, strict=True):
            sparse = tf.RaggedTensor.from_row_splits(values, ends, validate=False).to_sparse()
            looked_up = tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner=combiner)
            found.append(looked_up)
        return tf.concat(found, 1)

    @tf.function(autograph=False)
    def fused() -> Any:
        return grouped(tables, ids, splits, combiners, prunes=True)

    return stock, fused

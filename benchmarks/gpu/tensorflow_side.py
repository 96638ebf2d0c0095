"""The GPU workloads in TensorFlow: stock's lookups and the fused op, on the same device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from benchmarks.gpu.memory import Workload

#: The numbers on the GPU may differ by so much from those of the CPU.
_TOLERANCE = 1e-5
_COMBINERS = ("sum", "mean")
#: Stock's graphs of more columns take minutes to build.
_MOST_COLUMNS = 100


def gpu() -> str:
    """The name of the first GPU if TensorFlow sees one and the ops have kernels for it, else ''."""
    try:
        import tensorflow as tf
    except ImportError:
        return ""
    from fusion import ops

    gpus = tf.config.list_physical_devices("GPU")
    is_there = "GPU" in ops.DEVICES.types and gpus
    for one in gpus:
        # Else TensorFlow takes nearly all memory, beside torch or cupy.
        tf.config.experimental.set_memory_growth(one, True)
    return "/GPU:0" if is_there else ""


def compared(workload: Workload, device: str, seed: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of calls, stock's and the fused op's, in turns; nothing without a device.

    Of more than `_MOST_COLUMNS` columns the fused op's alone. `same_bits` says whether the op has
    the bits that it has on the CPU.

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
        calls = {"fused_ms": fused}
        if len(workload.columns) <= _MOST_COLUMNS:
            calls["stock_ms"] = stock
        found = {name: call().numpy() for name, call in calls.items()}
        whose = {"fused_ms": "the CPU's", "stock_ms": "stock TensorFlow's"}
        for name, array in found.items():
            if not np.allclose(array, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise RuntimeError(f"{workload.name}: not {whose[name]} numbers on {device}")
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                start = time.perf_counter()
                call()[:1].numpy()  # waits for the device
                times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {**medians, "same_bits": found["fused_ms"].tobytes() == wanted.tobytes()}


def _calls(
    workload: Workload, draw: np.random.Generator
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import tensorflow as tf

    tables, ids, splits = list[Any](), list[Any](), list[Any]()
    for column in workload.columns:
        lengths = draw.integers(column.ids[0], column.ids[1] + 1, workload.batch)
        values: npt.NDArray[Any] = draw.integers(0, column.rows, int(lengths.sum()))
        tables.append(tf.constant(draw.standard_normal((column.rows, column.dim), np.float32)))
        ids.append(tf.constant(values))
        splits.append(tf.constant(np.concatenate([[0], np.cumsum(lengths)])))
    combiners = [_COMBINERS[column.combiner] for column in workload.columns]

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
        return _grouped(tables, ids, splits, combiners)

    return stock, fused


def _grouped(tables: Any, ids: Any, splits: Any, combiners: list[str]) -> Any:
    import tensorflow as tf

    from fusion import ops
    from fusion.schema.columns import COLUMN_ATTRS

    count = len(combiners)
    attrs: dict[str, Any] = {name: [attr.default] * count for name, attr in COLUMN_ATTRS.items()}
    attrs |= {
        "forms": ["row_splits"] * count,
        "combiners": combiners,
        "prunes": [True] * count,
        "boundaries": [],
        "boundary_counts": [0] * count,
    }
    shape, nothing = tf.constant([0, 0], tf.int64), tf.zeros([1])
    return ops.grouped_embedding_lookup(
        tables=tables,
        ids=ids,
        entry_rows=splits,
        dense_shapes=[shape] * count,
        weights=[nothing] * count,
        **attrs,
    )

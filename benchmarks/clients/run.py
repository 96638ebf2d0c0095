"""Runs one model: under `enable`, exported, rewritten, verified and measured.

python -m benchmarks.clients.run MODEL RESULT.json OPS_LIBRARY
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from benchmarks.clients.models import BATCH, CLIENTS, Arrays
from benchmarks.measure import in_turns
from fusion.passes.report.columns import distinct_columns
from fusion.saved_model import bench_models, compare_models, fuse_saved_model, split_saved_model
from fusion.saved_model.bench.report import IN_GRAPH

#: So long each of a pair is called.
_SECONDS = 4.0


def run(name: str, library: str) -> dict[str, Any]:
    """Returns what is said of a model.

    Args:
        name: of the model.
        library: what `fusion build-ops` wrote.
    """
    client = CLIENTS[name]
    model, embeddings = client.build()
    arrays = client.inputs(BATCH)
    found: dict[str, Any] = {"model": name, "library": client.library, "batch": BATCH}
    whole = _paired(_call_of(model), arrays)
    found["enable"] = whole
    found["saved_model"] = _rewritten(model, arrays, library)
    if embeddings is not None:
        found["embeddings"] = _rewritten(embeddings, arrays, library)
    return found


def _rewritten(model: Any, arrays: Arrays, library: str) -> dict[str, Any]:
    """Exports, rewrites, splits, verifies and measures a model; verifies a library of ops too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        _export(model, arrays, path / "model")
        # Verified with values that are generated after what the graph says of its inputs.
        report = fuse_saved_model(path / "model", path / "fused", verify=True)
        split = split_saved_model(path / "model", path / "split", verify=True)
        native = compare_models(path / "model", path / "fused", library=library)
        np.savez(path / "inputs.npz", **{key: _bytes(one) for key, one in arrays.items()})
        bench = bench_models(
            path / "model", path / "fused", batches=[BATCH], inputs=path / "inputs.npz", seconds=3.0
        )
        ratio = next(ratio for ratio in bench.ratios if ratio.way == IN_GRAPH)
        # Of a table that a function of its own gathers from, as one of a layer that nobody calls,
        # the copy in the model is what counts.
        columns = distinct_columns(report)
        stock = [one for one in columns if not any(copy.fused for copy in one.copies)]
    return {
        "columns": len(columns),
        "fused": len(columns) - len(stock),
        "reasons": sorted({str(copy.reason) for one in stock for copy in one.copies}),
        "ratio": ratio.median,
        "range": [ratio.low, ratio.high],
        "library_equal": native.same,
        "cuts": len(split.cuts),
    }


def _bytes(array: Any) -> Any:
    return array.astype("S") if array.dtype.kind == "U" else array


def _call_of(model: Any) -> Callable[[Any], Any]:
    return lambda features: model(features, training=False)


def _export(model: Any, arrays: Arrays, path: Path) -> None:
    """Saves a model, with a signature whose inputs have the names of the arrays."""
    specs = {
        name: tf.TensorSpec([None, *one.shape[1:]], tf.as_dtype(_bytes(one).dtype), name)
        for name, one in arrays.items()
    }
    call = _call_of(model)

    def serve(**features: Any) -> Any:
        results = tf.nest.flatten(call(features))
        return {f"result_{number}": one for number, one in enumerate(results)}

    module = tf.Module()
    # Saving tracks the models of tf_keras, but not the variables of Keras 3's.
    module.model = model
    module.held = [one if isinstance(one, tf.Variable) else one.value for one in model.variables]
    concrete = tf.function(serve, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, str(path), {"serving_default": concrete})


def _paired(call: Callable[[Any], Any], arrays: Arrays) -> dict[str, Any]:
    """Times a function of features as it is and under `enable`, in turn, after a comparison."""
    features = {name: tf.constant(one) for name, one in arrays.items()}
    specs = {
        name: tf.TensorSpec([None, *one.shape[1:]], one.dtype) for name, one in features.items()
    }

    def made() -> Any:
        return tf.function(call, autograph=False).get_concrete_function(specs)

    stock = made()
    expected = [np.asarray(one) for one in tf.nest.flatten(stock(features))]
    fusion.enable()
    try:
        fused = made()
        got = [np.asarray(one) for one in tf.nest.flatten(fused(features))]
        report = fusion.stats().last_report
    finally:
        fusion.disable()
    is_equal = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))
    difference = max(float(np.nanmax(abs(a - b))) for a, b in zip(got, expected, strict=True))
    times = _times(lambda: stock(features), lambda: fused(features))
    columns = () if report is None else report.columns
    ratios = times[0] / times[1]
    return {
        "columns": len(columns),
        "fused": sum(column.fused for column in columns),
        "reasons": sorted({str(column.reason) for column in columns if not column.fused}),
        "equal": is_equal,
        "difference": difference,
        "stock_ms": 1e3 * float(np.median(times[0])),
        "fused_ms": 1e3 * float(np.median(times[1])),
        "ratio": float(np.median(times[0]) / np.median(times[1])),
        "range": [float(np.quantile(ratios, q)) for q in (0.1, 0.9)],
    }


def _times(*calls: Callable[[], Any]) -> Any:
    """Seconds of calls in turn, until their results are arrays, [calls, rounds]."""

    def to_arrays(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: tf.nest.map_structure(lambda tensor: tensor.numpy(), call())

    return np.array(in_turns([to_arrays(call) for call in calls], len(calls) * _SECONDS))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(sys.argv[1], sys.argv[3]), indent=1) + "\n")

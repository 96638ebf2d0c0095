"""Models of client libraries: called, exported and rewritten, in the graph, and trained."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from benchmarks.case import Row, Value
from benchmarks.clients.models import BATCH, CLIENTS, TRAININGS, Arrays
from benchmarks.graphs import loop, net_of, reading, traced
from benchmarks.measure import calls_in_turns
from benchmarks.training.measure import control, in_milliseconds, paired, timed
from benchmarks.training.sides import FitSide
from fusion import build_ops
from fusion.passes.report.columns import distinct_columns
from fusion.saved_model import bench_models, compare_models, fuse_saved_model, split_saved_model
from fusion.saved_model.bench.report import IN_GRAPH

#: So many calls are one loop, in which Python has no part.
_CALLS = 20


Found = tuple[dict[str, Value], list[str]]
"""Values and notes of a row."""


def measure(model: str, way: str, seconds: float, library: str) -> Iterator[Row]:
    """Yields what is measured of a model, and of its embeddings where they can be told apart.

    Args:
        model: one of `CLIENTS`.
        way: "calls" from Python under `enable`, in the "graph" net of the inputs, or a "SavedModel"
            that is exported, rewritten, split, verified, also by a library of ops, and measured.
        seconds: of calls of each side.
        library: what `fusion build-ops` wrote; "" to have it built, which takes minutes.
    """
    client = CLIENTS[model]
    whole, embeddings = client.build()
    arrays = client.inputs(BATCH)
    rewritten = functools.partial(_rewritten, library=library)
    ways: dict[str, Callable[..., Found]] = {"calls": _called, "graph": _in_graph}
    ways["SavedModel"] = rewritten
    measured = ways[way]
    parts = {"whole": whole, "embeddings": None if way == "calls" else embeddings}
    for part, one in parts.items():
        if one is not None:
            key = {"model": model, "library": client.library, "part": part}
            values, notes = measured(one, arrays, seconds)
            yield Row(key, values, way, notes=notes)


def _called(model: Any, arrays: Arrays, seconds: float) -> Found:
    """Calls from Python, as the model is and under `enable`, after a comparison."""
    features = {name: tf.constant(one) for name, one in arrays.items()}
    specs = {
        name: tf.TensorSpec([None, *one.shape[1:]], one.dtype) for name, one in features.items()
    }
    call = _call_of(model)

    def made() -> Callable[[], Any]:
        function = tf.function(call, autograph=False).get_concrete_function(specs)
        return lambda: [np.asarray(one) for one in tf.nest.flatten(function(features))]

    stock = made()
    expected = stock()
    with fusion.fused():
        fused = made()
        got = fused()
        report = fusion.stats().last_report
    is_equal = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))
    gap = max(float(np.nanmax(abs(a - b))) for a, b in zip(got, expected, strict=True))
    columns = () if report is None else report.columns
    times = calls_in_turns({"stock": stock, "fused": fused}, 2 * seconds)
    fused_columns = f"{sum(column.fused for column in columns)} of {len(columns)}"
    values = {"lookups fused": fused_columns, "equal": "yes" if is_equal else f"to {gap:.0e}"}
    reasons = sorted({str(column.reason) for column in columns if not column.fused})
    return {**values, **in_milliseconds(times)}, reasons


def _in_graph(model: Any, arrays: Arrays, seconds: float) -> Found:
    """Calls in a graph, net of the inputs, which variables hold.

    Raises:
        AssertionError: the results are not the same.
    """
    held = {key: tf.Variable(one) for key, one in arrays.items()}

    def features() -> dict[str, tf.Tensor]:
        return {key: one.read_value() for key, one in held.items()}

    def call() -> list[tf.Tensor]:
        found: list[tf.Tensor] = tf.nest.flatten(model(features(), training=False))
        return found

    read = reading(lambda: [*features().values()])
    loops = {"stock": loop(call, _CALLS), "inputs": loop(read, _CALLS)}
    expected = traced(call)()
    with fusion.fused():
        got = traced(call)()
        loops["fused"] = loop(call, _CALLS)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)
    return {**net_of("inputs", calls_in_turns(loops, 2 * seconds), _CALLS)}, []


def _rewritten(model: Any, arrays: Arrays, seconds: float, library: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if not library:
            library = str(path / "libfusion_ops.so")
            build_ops(library, cpus=["native"])
        export(model, arrays, path / "model")
        # Verified with values that are generated after what the graph says of its inputs.
        report = fuse_saved_model(path / "model", path / "fused", verify=True)
        split = split_saved_model(path / "model", path / "split", verify=True)
        native = compare_models(path / "model", path / "fused", library=library)
        np.savez(path / "inputs.npz", **{key: _bytes(one) for key, one in arrays.items()})
        bench = bench_models(
            path / "model",
            path / "fused",
            batches=[BATCH],
            inputs=path / "inputs.npz",
            seconds=seconds,
        )
    ratio = next(ratio for ratio in bench.ratios if ratio.way == IN_GRAPH)
    # Of a table that a function of its own gathers from, as one of a layer that is not called,
    # the copy in the model is what counts.
    columns = distinct_columns(report)
    stock = [one for one in columns if not any(copy.fused for copy in one.copies)]
    values: dict[str, Value] = {
        "lookups fused": f"{len(columns) - len(stock)} of {len(columns)}",
        "over stock": {"median": ratio.median, "low": ratio.low, "high": ratio.high},
        "equal by a library of ops": "yes" if native.same else "no",
        "split: cuts": len(split.cuts),
    }
    return values, sorted({str(copy.reason) for one in stock for copy in one.copies})


def _bytes(array: Any) -> Any:
    return array.astype("S") if array.dtype.kind == "U" else array


def _call_of(model: Any) -> Callable[[Any], Any]:
    return lambda features: model(features, training=False)


def export(model: Any, arrays: Arrays, path: Path, with_layers: bool = True) -> None:
    """Saves a model, with a signature whose inputs have the names of the arrays.

    Args:
        model: it.
        arrays: a batch.
        path: where to.
        with_layers: whether tables of layers are saved, and how each layer is called, which takes a
            minute where there are hundreds.
    """
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
    module.model = model if with_layers else None
    module.held = [one if isinstance(one, tf.Variable) else one.value for one in model.variables]
    concrete = tf.function(serve, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, str(path), {"serving_default": concrete})


def train(model: str, steps: int, seconds: float) -> Iterator[Row]:
    """Yields what is measured of steps as `fit` takes them; see `benchmarks.training`.

    Args:
        model: one of `TRAININGS`.
        steps: before losses and variables are compared.
        seconds: of rounds.
    """
    training = TRAININGS[model]
    dataset = training.dataset()
    first = training.build()
    values = first.get_weights()

    def side() -> FitSide:
        made = training.build()
        # Not all of their initial values are seeded.
        made.set_weights(values)
        return FitSide(made, dataset)

    stock, fused = FitSide(first, dataset), side()
    found = paired(stock, fused, steps)
    notes = [*found.notes(), *([] if found.is_equal else [control(side, steps)])]
    times = timed({"stock": stock, "fused": fused}, seconds)
    yield Row(
        {"model": model, "library": training.library, "optimizer": training.optimizer},
        {**in_milliseconds(times), **found.values()},
        least={} if training.least is None else {"over stock": training.least},
        notes=notes,
        failure=found.failure(),
    )

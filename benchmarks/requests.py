"""Models that rank candidates for a request: a row of the request for each of them, or one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.calls import Arrays, Call, Held, call_of, deviation, held, hold
from benchmarks.case import Key, Row, Value
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from benchmarks.request_bound import own_part
from benchmarks.request_models import MODELS, Model
from fusion.saved_model import fuse_saved_model

TENSORS, EXAMPLES = "tensors", "Examples"
_ORIGINAL, _ONE, _SEVERAL = (f"serving_default{end}" for end in ("", "_request", "_requests"))
_COUNTS = "candidates_per_request"
_OUTPUT = "scores"


def measure(
    model: str, inputs: str, target: str, candidates: str, rows: int, seconds: float
) -> Iterator[Row]:
    """Yields milliseconds of each signature, and how many times as fast those of requests are.

    Args:
        model: its name.
        inputs: TENSORS or EXAMPLES.
        target: what lookups become.
        candidates: of the one request in a call; several numbers with commas between.
        rows: of each table.
        seconds: for each number of candidates.
    """
    built = MODELS[model](rows)
    of_request = [name for name in built.inputs if name.startswith("user")]
    numbers = [*map(int, candidates.split(","))]
    batches = [_batch(built, of_request, count, inputs) for count in numbers]
    with tempfile.TemporaryDirectory() as folder:
        source, rewritten = Path(folder) / "source", Path(folder) / "rewritten"
        _save(built, source, inputs)
        # All outputs are compared here.
        fuse_saved_model(source, rewritten, target, verify=False, request_inputs=of_request)
        before, after = (tf.saved_model.load(str(path)) for path in (source, rewritten))
    repeated, once = map(held, batches[0])
    calls = _calls(before.signatures, after.signatures, repeated, once, batches[0][1])
    for count, (all_rows, one_row) in zip(numbers, batches, strict=True):
        hold(repeated, all_rows)
        hold(once, one_row)
        share = deviation(calls)
        times = calls_in_turns(calls, seconds)
        values: dict[str, Value] = {
            "repeated, ms": milliseconds(times["stock"]),
            "one request, ms": milliseconds(times["request"]),
            "candidates alone, ms": milliseconds(times["bound"]),
            "times as fast": ratios(times["stock"], times["request"]),
            "several, times as fast": ratios(times["stock"], times["requests"]),
            "candidates alone, times as fast": ratios(times["stock"], times["bound"]),
            "bytes": _bytes(all_rows, one_row),
            "deviation": f"{share:.0e}",
        }
        key: Key = {"model": model, "inputs": inputs, "target": target, "candidates": count}
        yield Row(key, values, "A request with candidates, in the graph")


def _calls(before: Any, after: Any, repeated: Held, once: Held, batch: Arrays) -> dict[str, Call]:
    """The original signature, those of requests, and what their candidates cost alone."""
    one = {name: variable for name, variable in once.items() if name != _COUNTS}
    request = {name: array for name, array in batch.items() if name.startswith("user")}
    own = {name: variable for name, variable in one.items() if name not in request}
    return {
        "stock": call_of(before[_ORIGINAL], repeated, [_OUTPUT]),
        "request": call_of(after[_ONE], one, [_OUTPUT]),
        "requests": call_of(after[_SEVERAL], once, [_OUTPUT]),
        "bound": own_part(after[_ONE], request, own),
    }


def _save(model: Model, path: Path, inputs: str) -> None:
    """Writes a model of tensors, or of Examples."""

    @tf.function
    def serve(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        if inputs == EXAMPLES:
            given = tf.io.parse_example(given["examples"], _features(model))
        return {_OUTPUT: model.scores(given)}

    specs = {"examples": tf.TensorSpec([None], tf.string)} if inputs == EXAMPLES else model.inputs
    concrete = serve.get_concrete_function(**specs)
    tf.saved_model.save(model, str(path), signatures={_ORIGINAL: concrete})


def _features(model: Model) -> dict[str, Any]:
    return {
        name: tf.io.FixedLenFeature(spec.shape[1:], spec.dtype)
        for name, spec in model.inputs.items()
    }


def _batch(
    model: Model, of_request: list[str], candidates: int, inputs: str
) -> tuple[Arrays, Arrays]:
    """What the original signature takes, and what those of requests do, with their counts.

    The request is the same for all numbers of candidates.
    """
    user = _drawn({name: model.inputs[name] for name in of_request}, 1, model.rows, 1)
    items = {name: spec for name, spec in model.inputs.items() if name not in user}
    item = _drawn(items, candidates, model.rows, 2)
    repeated = {name: np.repeat(array, candidates, 0) for name, array in user.items()}
    counts = {_COUNTS: np.array([candidates], np.int64)}
    if inputs == TENSORS:
        return {**repeated, **item}, {**user, **item, **counts}
    once = {"user_examples": _examples(user), "candidate_examples": _examples(item)}
    return {"examples": _examples({**repeated, **item})}, {**once, **counts}


def _drawn(specs: dict[str, tf.TensorSpec], count: int, rows: int, seed: int) -> Arrays:
    """Random ids and numbers."""
    random, drawn = np.random.default_rng(seed), dict[str, npt.NDArray[Any]]()
    for name, spec in specs.items():
        shape = [count, *spec.shape[1:]]
        is_id = spec.dtype == tf.int64
        drawn[name] = random.integers(0, rows, shape) if is_id else random.random(shape, np.float32)
    return drawn


def _examples(arrays: Arrays) -> npt.NDArray[Any]:
    """Returns a serialized Example for each row."""
    made = []
    for row in range(len(next(iter(arrays.values())))):
        example = tf.train.Example()
        for name, array in arrays.items():
            values, feature = array[row].reshape(-1), example.features.feature[name]
            kind = feature.int64_list if array.dtype.kind == "i" else feature.float_list
            kind.value.extend(values.tolist())
        made.append(example.SerializeToString())
    return np.array(made, object)


def _bytes(repeated: Arrays, once: Arrays) -> str:
    """How many bytes the inputs of a call of one request have, before and after."""
    one = {name: array for name, array in once.items() if name != _COUNTS}
    before, after = _bytes_of(repeated), _bytes_of(one)
    return f"{before} -> {after}, {before / after:.1f}x"


def _bytes_of(arrays: Arrays) -> int:
    """Returns how many bytes a client sends."""
    return sum(
        sum(map(len, array)) if array.dtype == object else array.nbytes for array in arrays.values()
    )

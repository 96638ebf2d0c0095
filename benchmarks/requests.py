"""Models that rank candidates for a request: a row of the request for each of them, or one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from benchmarks.case import Key, Row, Value
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from benchmarks.request_models import MODELS, Model
from fusion.saved_model import fuse_saved_model

#: What outputs may differ by, as a share of the largest.
_ROUNDING = 1e-5

TENSORS, EXAMPLES = "tensors", "Examples"
_ORIGINAL, _ONE, _SEVERAL = (f"serving_default{end}" for end in ("", "_request", "_requests"))
_COUNTS = "candidates_per_request"
_OUTPUT = "scores"

Arrays = Mapping[str, npt.NDArray[Any]]
Call = Callable[[], tf.Tensor]


def measure(
    model: str, inputs: str, target: str, candidates: str, rows: int, seconds: float
) -> Iterator[Row]:
    """Yields milliseconds of each signature, and how many times as fast those of requests are.

    Inputs are variables, so that no call from Python has 29 tensors.

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
    with tempfile.TemporaryDirectory() as folder:
        source, rewritten = Path(folder) / "source", Path(folder) / "rewritten"
        _save(built, source, inputs)
        fuse_saved_model(source, rewritten, target, request_inputs=of_request)
        before, after = (tf.saved_model.load(str(path)) for path in (source, rewritten))
    for count in map(int, candidates.split(",")):
        drawn = _draw(built, of_request, count, rows)
        given = repeated = _repeated(drawn, of_request, count)
        if inputs == EXAMPLES:
            user = {name: drawn[name] for name in of_request}
            item = {name: drawn[name] for name in drawn if name not in user}
            once: Arrays = {"user_examples": _examples(user), "candidate_examples": _examples(item)}
            given = {"examples": _examples(repeated)}
        else:
            once = drawn
        calls = {
            "stock": _call(before.signatures[_ORIGINAL], given),
            "request": _call(after.signatures[_ONE], once),
            "requests": _call(
                after.signatures[_SEVERAL], {**once, _COUNTS: np.array([count], np.int64)}
            ),
        }
        if inputs == TENSORS and target == "stock":
            calls["bound"] = _own_part(after.signatures[_ONE], drawn, of_request)
        share = _deviation(calls)
        times = calls_in_turns(calls, seconds)
        values: dict[str, Value] = {
            "repeated, ms": milliseconds(times["stock"]),
            "one request, ms": milliseconds(times["request"]),
            "times as fast": ratios(times["stock"], times["request"]),
            "several, times as fast": ratios(times["stock"], times["requests"]),
            "bytes": _ratio(_bytes_of(given), _bytes_of(once)),
            "deviation": f"{share:.0e}",
        }
        if "bound" in times:
            values["candidates alone, ms"] = milliseconds(times["bound"])
        key: Key = {"model": model, "inputs": inputs, "target": target, "candidates": count}
        yield Row(key, values, "A request with candidates, in the graph")


def _deviation(calls: Mapping[str, Call]) -> float:
    """Returns by how much outputs differ from the first, as a share of the largest.

    Raises:
        AssertionError: by more than rounding.
    """
    expected, *others = (call().numpy() for call in calls.values())
    deviation = max(float(np.abs(one - expected).max()) for one in others)
    share = deviation / float(np.abs(expected).max())
    assert share <= _ROUNDING, f"outputs differ by {share:.1e} of the largest"
    return share


def _ratio(a: int, b: int) -> str:
    return f"{a} -> {b}, {a / b:.1f}x"


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


def _draw(model: Model, of_request: list[str], candidates: int, rows: int) -> Arrays:
    random = np.random.default_rng(1)
    drawn = dict[str, npt.NDArray[Any]]()
    for name, spec in model.inputs.items():
        shape = [1 if name in of_request else candidates, *spec.shape[1:]]
        is_id = spec.dtype == tf.int64
        drawn[name] = random.integers(0, rows, shape) if is_id else random.random(shape, np.float32)
    return drawn


def _repeated(drawn: Arrays, of_request: list[str], candidates: int) -> Arrays:
    return {
        name: np.repeat(value, candidates, 0) if name in of_request else value
        for name, value in drawn.items()
    }


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


def _bytes_of(arrays: Arrays) -> int:
    """Returns how many bytes a client sends."""
    return sum(
        sum(map(len, array)) if array.dtype == object else array.nbytes for array in arrays.values()
    )


def _own_part(signature: Any, drawn: Arrays, of_request: list[str]) -> Call:
    """A call of what the candidates' own part is: what depends on the request is a constant."""
    frozen = convert_to_constants.convert_variables_to_constants_v2(signature)
    names = [tensor.name.partition(":")[0] for tensor in frozen.inputs]
    user = {name: tf.constant(drawn[name]) for name in of_request}
    held = {
        name: tf.Variable(value, shape=[None, *value.shape[1:]])
        for name, value in drawn.items()
        if name not in user
    }

    @tf.function
    def call() -> tf.Tensor:
        given = user | {name: tf.convert_to_tensor(value) for name, value in held.items()}
        return tf.nest.flatten(frozen(*(given[name] for name in names)))[0]

    return call


def _call(signature: Callable[..., Mapping[str, tf.Tensor]], feeds: Arrays) -> Call:
    """A function of no inputs that calls a signature on what variables hold."""
    variables = {
        name: tf.Variable(value, shape=[None, *value.shape[1:]]) for name, value in feeds.items()
    }

    @tf.function
    def call() -> tf.Tensor:
        inputs = {name: tf.convert_to_tensor(value) for name, value in variables.items()}
        return signature(**inputs)[_OUTPUT]

    return call

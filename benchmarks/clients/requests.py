"""Models of client libraries that rank candidates for a request: rewritten, or why they are not.

Weights are random numbers, so that rows differ: with the libraries' initial zeros and small numbers
a fault would be within rounding.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.calls import Arrays, call_of, deviation, held
from benchmarks.case import Key, Row, Value
from benchmarks.clients.measure import export
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from fusion.saved_model import ModelError, fuse_saved_model

Sizes = Mapping[str, tuple[tuple[int, ...], bool]]
"""The sizes of a row of each input, and whether it has ids."""

_ROWS, _DIM, _HISTORY, _SESSION = 10_000, 16, 50, 10
_USERS, _ITEMS, _USER_NUMBERS, _ITEM_NUMBERS = 20, 6, 10, 3
_OF_REQUEST = ("user", "hist", "seq", "sess")
_ORIGINAL, _ONE, _SEVERAL = (f"serving_default{end}" for end in ("", "_request", "_requests"))
_COUNTS = "candidates_per_request"
#: What outputs differ by that are different, as a share of the largest: more than rounding.
_LEAST_STEP = 3e-5
#: Deviations of random weights, the largest first.
_SCALES = 0.2, 0.1, 0.05, 0.02


class Ranking(NamedTuple):
    """A model that ranks.

    Attributes:
        library: the package that it is made with.
        build: () -> the model.
        inputs: names of those of the request begin with one of `_OF_REQUEST`.
    """

    library: str
    build: Callable[[], Any]
    inputs: Sizes


_IDS: Sizes = {
    **{f"user{k}": ((1,), True) for k in range(_USERS)},
    **{f"item{k}": ((1,), True) for k in range(_ITEMS)},
}
_ALL: Sizes = {
    **_IDS,
    "user_numbers": ((_USER_NUMBERS,), False),
    "item_numbers": ((_ITEM_NUMBERS,), False),
}
_TAGS: Sizes = {"user_tags": ((_HISTORY,), True)}
_BEHAVIOUR: Sizes = {
    **{f"hist_item{k}": ((_HISTORY,), True) for k in range(2)},
    "seq_length": ((1,), True),
}
_SESSIONS: Sizes = {
    **{f"sess_{s}_item{k}": ((_SESSION,), True) for s in range(2) for k in range(2)},
    "sess_length": ((1,), True),
}


def _columns(inputs: Sizes, groups: int = 1) -> list[Any]:
    """DeepCTR's columns of inputs."""
    from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat

    found = []
    for number, (name, ((size,), is_id)) in enumerate(inputs.items()):
        own = name.split("_")[-1] if "_item" in name else name
        group = f"group{number % groups}" if groups > 1 else "default_group"
        if name.endswith("_length"):
            continue
        if not is_id:
            found.append(DenseFeat(name, size))
            continue
        feature = SparseFeat(name, _ROWS, embedding_dim=_DIM, embedding_name=own, group_name=group)
        if size == 1:
            found.append(feature)
        elif "_item" not in name:
            found.append(VarLenSparseFeat(feature, size, "mean"))
        else:
            length = "seq_length" if "hist_" in name else None
            found.append(VarLenSparseFeat(feature, size, length_name=length))
    return found


def _deepctr(name: str, inputs: Sizes, groups: int = 1, **options: Any) -> Ranking:
    def build() -> Any:
        import deepctr.models

        make, columns = getattr(deepctr.models, name), _columns(inputs, groups)
        asked = inspect.signature(make).parameters.keys()
        if asked & {"history_feature_list", "sess_feature_list"}:
            return make(columns, ["item0", "item1"], **options)
        return make(*[columns] * (1 + ("linear_feature_columns" in asked)), **options)

    return Ranking("deepctr", build, inputs)


def _towers() -> Any:
    """TFRS's two towers."""
    import tensorflow_recommenders as tfrs
    import tf_keras as keras

    sides = {side: _embedded(keras, side) for side in ("user", "item")}
    ends = [
        keras.layers.Dense(64)(keras.layers.Dense(128, "relu")(joined))
        for _, _, joined in sides.values()
    ]
    inputs = {name: one for made, _, _ in sides.values() for name, one in made.items()}
    network = keras.Model(inputs, keras.layers.Dot(1)(ends))

    class Towers(tfrs.Model):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.task = network, tfrs.tasks.Retrieval()

        def call(self, features: Any) -> Any:
            return self.network(features)

    return Towers()


def _embedded(keras: Any, side: str) -> tuple[dict[str, Any], list[Any], Any]:
    """Inputs of a side, their vectors, and all of it side by side."""
    inputs, vectors, parts = dict[str, Any](), [], []
    for name, ((size,), is_id) in _ALL.items():
        if not name.startswith(side):
            continue
        inputs[name] = keras.Input((size,), dtype="int64" if is_id else "float32", name=name)
        if is_id:
            vectors.append(
                keras.layers.Flatten()(keras.layers.Embedding(_ROWS, _DIM)(inputs[name]))
            )
        else:
            parts.append(inputs[name])
    return inputs, vectors, keras.layers.Concatenate()([*parts, *vectors])


def _joined(package: Callable[[], Any], make: Callable[[Any, list[Any], Any], Any]) -> Any:
    """A model of both sides, whose end a library's layer makes of vectors and of all inputs."""
    keras = package()
    sides = [_embedded(keras, side) for side in ("user", "item")]
    inputs = {name: one for made, _, _ in sides for name, one in made.items()}
    vectors = [one for _, found, _ in sides for one in found]
    joined = keras.layers.Concatenate()([joined for _, _, joined in sides])
    made = make(keras, vectors, joined)
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()([joined, made]))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def _tf_keras() -> Any:
    import tf_keras

    return tf_keras


def _keras() -> Any:
    import keras

    return keras


def _tfrs_cross(keras: Any, vectors: list[Any], joined: Any) -> Any:
    import tensorflow_recommenders as tfrs

    return tfrs.layers.dcn.Cross()(joined, joined)


def _tfrs_interaction(**options: bool) -> Callable[..., Any]:
    def make(keras: Any, vectors: list[Any], joined: Any) -> Any:
        import tensorflow_recommenders as tfrs

        return tfrs.layers.feature_interaction.DotInteraction(**options)(vectors)

    return make


def _rs_cross(keras: Any, vectors: list[Any], joined: Any) -> Any:
    import keras_rs

    return keras_rs.layers.FeatureCross()(joined, joined)


def _rs_interaction(**options: bool) -> Callable[..., Any]:
    def make(keras: Any, vectors: list[Any], joined: Any) -> Any:
        import keras_rs

        return keras_rs.layers.DotInteraction(**options)(vectors)

    return make


def _of_layer(library: str, package: Callable[[], Any], make: Callable[..., Any]) -> Ranking:
    return Ranking(library, lambda: _joined(package, make), _ALL)


_PLAIN = (
    *("AutoInt", "DCN", "DCNMix", "DeepFEFM", "DeepFM", "DIFM", "ESMM", "FiBiNET", "FNN", "FwFM"),
    *("IFM", "MLR", "MMOE", "NFM", "ONN", "PLE", "PNN", "SharedBottom", "WDL", "xDeepFM"),
)
_TFRS = "tensorflow-recommenders"

DEEPCTR = {
    **{name: _deepctr(name, {**_ALL, **_TAGS}) for name in _PLAIN},
    **{name: _deepctr(name, {**_IDS, **_TAGS}) for name in ("AFM", "CCPM", "EDCN")},
    "FGCNN": _deepctr("FGCNN", {**_ALL, **_TAGS}),
    "FLEN": _deepctr("FLEN", _ALL, groups=3),
    "DIN": _deepctr("DIN", {**_ALL, **_BEHAVIOUR}),
    "BST": _deepctr("BST", {**_ALL, **_BEHAVIOUR}, att_head_num=4),
    "DSIN": _deepctr("DSIN", {**_ALL, **_SESSIONS}, sess_max_count=2, att_embedding_size=4),
    "two towers": Ranking(_TFRS, _towers, _ALL),
    "Cross": _of_layer(_TFRS, _tf_keras, _tfrs_cross),
    "DotInteraction": _of_layer(_TFRS, _tf_keras, _tfrs_interaction()),
    "DotInteraction, itself too": _of_layer(
        _TFRS, _tf_keras, _tfrs_interaction(self_interaction=True)
    ),
}
KERAS_RS = {
    "FeatureCross": _of_layer("keras-rs", _keras, _rs_cross),
    "DotInteraction": _of_layer("keras-rs", _keras, _rs_interaction()),
    "DotInteraction, no gather": _of_layer("keras-rs", _keras, _rs_interaction(skip_gather=True)),
}


def measure(model: str, library: str, candidates: int, seconds: float) -> Iterator[Row]:
    """Yields how many times as fast a model is that takes a request once, or why it cannot.

    Args:
        model: one of `DEEPCTR` or `KERAS_RS`.
        library: "keras-rs" for the latter.
        candidates: of the request.
        seconds: of calls.

    Raises:
        AssertionError: outputs differ by more than rounding, or hardly from row to row.
    """
    ranking = (KERAS_RS if library == "keras-rs" else DEEPCTR)[model]
    tf.keras.utils.set_random_seed(1)
    built = ranking.build()
    repeated, once = _drawn(ranking, [candidates])
    _choose_weights(built, repeated)
    key: Key = {"model": model, "library": ranking.library, "candidates": candidates}
    of_request = [name for name in ranking.inputs if name.startswith(_OF_REQUEST)]
    with tempfile.TemporaryDirectory() as folder:
        source, rewritten = Path(folder) / "source", Path(folder) / "rewritten"
        export(built, dict(repeated), source, with_layers=False)
        try:
            # All outputs are compared here, of several requests, too.
            fuse_saved_model(source, rewritten, "stock", verify=False, request_inputs=of_request)
        except ModelError as why:
            yield Row(key, {"times as fast": "refused"}, notes=[_reason(why)])
            return
        loaded = tf.saved_model.load(str(rewritten))
    signatures = loaded.signatures
    outputs = [*signatures[_ORIGINAL].structured_outputs]
    calls = {
        name: call_of(signatures[name], held(given), outputs)
        for name, given in ((_ORIGINAL, repeated), (_ONE, once))
    }
    counts = [0, candidates - candidates // 3, candidates // 3]
    several = {
        name: call_of(signatures[name], held(given), outputs)
        for name, given in zip((_ORIGINAL, _SEVERAL), _drawn(ranking, counts), strict=True)
    }
    share = max(deviation(calls), deviation(several))
    times = calls_in_turns(calls, seconds)
    values: dict[str, Value] = {
        "repeated, ms": milliseconds(times[_ORIGINAL]),
        "one request, ms": milliseconds(times[_ONE]),
        "times as fast": ratios(times[_ORIGINAL], times[_ONE]),
        "deviation": f"{share:.0e}",
    }
    yield Row(key, values)


def _choose_weights(model: Any, batch: Arrays) -> None:
    """Gives a model the largest random weights of some with which scores differ from row to row.

    Raises:
        AssertionError: there are none. Where all scores are so large that their sigmoid is one, the
            row of another candidate would not be noticed.
    """
    given = {name: tf.constant(array) for name, array in batch.items()}
    model(given, training=False)  # Some weights are made by the first call.
    for scale in _SCALES:
        _set_weights(model, scale)
        outputs = tf.concat(tf.nest.flatten(model(given, training=False)), 1).numpy()
        count = different_rows(outputs)
        if count > len(outputs) / 2:
            return
    raise AssertionError(f"{count} of {len(outputs)} rows are different")


def different_rows(outputs: npt.NDArray[Any]) -> int:
    """Returns how many rows differ by more than rounding, in the column where the fewest do."""
    steps = np.diff(np.sort(outputs, 0), axis=0) > _LEAST_STEP * np.abs(outputs).max()
    return 1 + int(steps.sum(0).min())


def _reason(why: ModelError) -> str:
    return str(why).partition("cannot take a request once: ")[2] or str(why)


def _drawn(ranking: Ranking, counts: Sequence[int]) -> tuple[Arrays, Arrays]:
    """Inputs of requests with so many candidates: with requests repeated, and with them once."""
    rng, once = np.random.default_rng(len(counts)), dict[str, npt.NDArray[Any]]()
    for name, (shape, is_id) in ranking.inputs.items():
        sizes = (len(counts) if name.startswith(_OF_REQUEST) else sum(counts), *shape)
        most = {"seq_length": _HISTORY, "sess_length": 3}.get(name, _ROWS)
        once[name] = (
            rng.integers(1, most, sizes) if is_id else rng.normal(size=sizes).astype(np.float32)
        )
    repeated = {
        name: np.repeat(array, counts, 0) if name.startswith(_OF_REQUEST) else array
        for name, array in once.items()
    }
    numbers = {} if len(counts) == 1 else {_COUNTS: np.array(counts, np.int64)}
    return repeated, once | numbers


def _set_weights(model: Any, scale: float) -> None:
    rng = np.random.default_rng(2)
    for weight in model.weights:
        array = rng.normal(0, scale, weight.shape)
        if "variance" in getattr(weight, "path", weight.name):
            array = np.abs(array) + 0.5
        weight.assign(array.astype(np.dtype(tf.as_dtype(weight.dtype).as_numpy_dtype)))

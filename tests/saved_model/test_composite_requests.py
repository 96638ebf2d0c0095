"""Requests with sparse and ragged tensors whose parts TensorFlow has made inputs of a signature."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.saved_model import ModelError, bench_models, compare_models, fuse_saved_model
from fusion.saved_model.requests.repeats import repeated_inputs
from tests.saved_model.test_request_signatures import (
    COUNTS,
    ONE,
    ROUNDING,
    SERVING,
    SEVERAL,
    ByFunctions,
    BySession,
    infos_of,
)

DIM, ROWS = 8, 40
SPARSE, RAGGED = tf.SparseTensorSpec([None, None], tf.int64), tf.RaggedTensorSpec(None, tf.int64, 1)
ITEM = tf.TensorSpec([None], tf.int64)

Rows = Any
"""The rows of an input: of a sparse or ragged one a list for each row."""


@dataclass(frozen=True)
class Model:
    """A model to rewrite.

    Attributes:
        save: writes it to a folder.
        kinds: what the inputs are: sparse, ragged or dense; by the first of their parts, in the
            order of these where a name has the parts of several.
        request: the inputs that describe the request.
    """

    save: Callable[[Path], object]
    kinds: Mapping[str, str]
    request: tuple[str, ...]


def bags(table: Any, ids: Any) -> tf.Tensor:
    """The sum of the rows of each list of ids, or the row of each id."""
    if isinstance(ids, tf.SparseTensor):
        return tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="sum")
    if isinstance(ids, tf.RaggedTensor):
        return tf.reduce_sum(tf.gather(table, ids), 1)
    return tf.gather(table, ids)


class Scores(tf.Module):
    """What items are worth for users."""

    def __init__(self) -> None:
        normal = tf.random.stateless_normal
        self.table = tf.Variable(normal([ROWS, DIM], [1, 2]))
        self.kernel = tf.Variable(normal([3 * DIM, 1], [1, 3]))

    def score(self, inputs: Any) -> dict[str, tf.Tensor]:
        found = tf.concat([bags(self.table, one) for one in inputs], 1)
        return {"score": tf.sigmoid(found @ self.kernel)}


def of_function(*specs: Any, is_kept: bool = True) -> Callable[[Path], object]:
    """A function of `user`, `tags` and `item`."""

    def save(path: Path) -> None:
        model = Scores()
        function = tf.function(
            lambda user, tags, item: model.score([user, tags, item]), input_signature=specs
        )
        if is_kept:
            model.serve = function
        tf.saved_model.save(model, str(path), function)

    return save


def of_dictionary(path: Path) -> None:
    model = Scores()
    spec = {"a": SPARSE, "b": RAGGED, "c": ITEM}
    model.serve = tf.function(
        lambda inputs: model.score([inputs[key] for key in "abc"]), input_signature=[spec]
    )
    tf.saved_model.save(model, str(path), model.serve)


def of_keras(path: Path) -> None:
    """A model of Keras 3, exported with a signature of its own: `export` makes dense inputs."""

    class Sums(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(ROWS, DIM), initializer="normal")

        def call(self, ids: Any) -> Any:
            return bags(self.table.value, ids)

    sums, last = Sums(), keras.layers.Dense(1)
    sums.build(None)
    last.build((None, 3 * DIM))

    def serve(user: Any, tags: Any, item: Any) -> dict[str, Any]:
        return {"score": last(tf.concat([sums.call(one) for one in (user, tags, item)], 1))}

    archive = keras.export.ExportArchive()
    archive.track(sums)
    archive.track(last)
    function = tf.function(serve, input_signature=[SPARSE, RAGGED, ITEM])
    function.get_concrete_function()
    archive.add_endpoint("serving_default", function)
    archive.write_out(str(path), verbose=False)


def of_tf_keras(path: Path) -> None:
    class Sums(tf_keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight("table", (ROWS, DIM), initializer="normal")

        def call(self, ids: Any) -> Any:
            return bags(self.table, ids)

    layers, inputs = tf_keras.layers, []
    for name, kind in (("user", "sparse"), ("tags", "ragged"), ("words", "sparse")):
        inputs.append(tf_keras.Input((None,), name=name, dtype="int64", **{kind: True}))
    inputs.append(tf_keras.Input((), name="item", dtype="int64"))
    hidden = layers.Concatenate()([Sums()(one) for one in inputs])
    hidden = layers.Dense(6, "relu", bias_initializer="glorot_normal")(hidden)
    tf.saved_model.save(tf_keras.Model(inputs, layers.Dense(1)(hidden)), str(path))


def of_feature_columns(path: Path) -> None:
    made = tf.feature_column
    tags = made.categorical_column_with_identity("tags", ROWS)
    words = made.categorical_column_with_hash_bucket("words", ROWS, tf.int64)
    columns = [made.embedding_column(tags, DIM), made.embedding_column(words, DIM)]
    deep, last = tf_keras.layers.DenseFeatures(columns), tf_keras.layers.Dense(1)
    module = tf.Module()
    module.parts = [deep, last]
    module.serve = tf.function(
        lambda tags, words: {"score": last(deep({"tags": tags, "words": words}))},
        input_signature=[SPARSE, SPARSE],
    )
    module.serve.get_concrete_function()
    tf.saved_model.save(module, str(path), module.serve)


THREE = {"user": "sparse", "tags": "ragged", "item": "dense"}
MODELS = {
    "sparse and ragged of users": Model(of_function(SPARSE, RAGGED, ITEM), THREE, ("user", "tags")),
    "sparse of users, ragged of candidates": Model(
        of_function(SPARSE, RAGGED, ITEM), THREE, ("user",)
    ),
    "ragged of users, sparse of candidates": Model(
        of_function(SPARSE, RAGGED, ITEM), THREE, ("tags",)
    ),
    "sparse and ragged of candidates": Model(of_function(SPARSE, RAGGED, ITEM), THREE, ("item",)),
    "a function that is not kept": Model(
        of_function(SPARSE, RAGGED, ITEM, is_kept=False), THREE, ("user", "tags")
    ),
    "two sparse ones": Model(
        of_function(SPARSE, SPARSE, ITEM), {**THREE, "tags": "sparse"}, ("tags",)
    ),
    "two ragged ones": Model(
        of_function(RAGGED, RAGGED, ITEM), {**THREE, "user": "ragged"}, ("user",)
    ),
    "a dictionary": Model(
        of_dictionary,
        {"inputs": "sparse", "inputs_3": "ragged", "inputs_5": "dense"},
        ("inputs", "inputs_5"),
    ),
    "Keras": Model(of_keras, THREE, ("user", "tags")),
    "tf_keras": Model(
        of_tf_keras,
        {"args_0": "sparse", "args_0_3": "ragged", "args_0_5": "sparse", "args_0_8": "dense"},
        ("args_0_3", "args_0_5"),
    ),
    "feature columns": Model(of_feature_columns, {"tags": "sparse", "words": "sparse"}, ("tags",)),
}


def drawn(kind: str, rows: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    if kind == "dense":
        return rng.integers(0, ROWS, rows)
    return [rng.integers(0, ROWS, (k + seed) % 4).tolist() for k in range(rows)]


def taken(rows: Rows, numbers: Any) -> Rows:
    return [rows[k] for k in numbers] if isinstance(rows, list) else rows[numbers]


def parts(name: str, kind: str, rows: Rows) -> dict[str, Any]:
    """What the inputs of a signature are given for one of the model."""
    if kind == "dense":
        return {name: rows}
    stem = next((one for one in ("args_0", "inputs") if name.startswith(one)), name)
    first = int(name.removeprefix(stem).strip("_") or 0)
    values = np.array([one for row in rows for one in row], np.int64)
    lengths = [*map(len, rows)]
    if kind == "ragged":
        arrays = [values, np.cumsum([0, *lengths])]
    else:
        pairs = [[k, j] for k, length in enumerate(lengths) for j in range(length)]
        shape = [len(rows), max(lengths, default=0)]
        arrays = [np.reshape(np.array(pairs, np.int64), (-1, 2)), values, np.array(shape)]
    names = [name, *(f"{stem}_{first + k}" for k in range(1, len(arrays)))]
    return dict(zip(names, arrays, strict=True))


def fed(model: Model, inputs: Mapping[str, Rows]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rows in inputs.items():
        found |= parts(name, model.kinds[name], rows)
    return found


def batches(model: Model) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yields the key of a signature, what it is fed, and what the original one is for the same."""
    for counts in ([5], [1], [3, 0, 2], [2, 2], [1, 1, 1, 1]):
        number = np.repeat(np.arange(len(counts)), counts)
        once, repeated = dict[str, Rows](), dict[str, Rows]()
        for seed, (name, kind) in enumerate(model.kinds.items()):
            is_own = name in model.request
            once[name] = drawn(kind, len(counts) if is_own else sum(counts), seed)
            repeated[name] = taken(once[name], number) if is_own else once[name]
        if len(counts) == 1:
            yield ONE, fed(model, once), fed(model, repeated)
        yield (
            SEVERAL,
            {**fed(model, once), COUNTS: np.array(counts, np.int64)},
            fed(model, repeated),
        )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the model of a name."""
    folder = tmp_path_factory.mktemp("composites")

    def saved(name: str) -> Path:
        if not (folder / name).exists():
            MODELS[name].save(folder / name)
        return folder / name

    return saved


def rewrite(src: Path, dst: Path, *names: str, verify: bool = False, **options: Any) -> Path:
    fuse_saved_model(src, dst, verify=verify, request_inputs=names, **options)
    return dst


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("name", MODELS)
def test_a_request_is_answered_as_repeated_rows_are(
    source: Callable[[str], Path], tmp_path: Path, name: str, exact: bool
) -> None:
    model = MODELS[name]
    changed = rewrite(
        source(name),
        tmp_path / "dst",
        *model.request,
        target="stock",
        exact=exact,
        signature=SERVING,
    )
    for loader in (ByFunctions, BySession):
        original, new = loader(source(name)), loader(changed)
        for key, once, repeated in batches(model):
            expected, found = original(SERVING, repeated), new(key, once)
            assert found.keys() == expected.keys()
            for output, wanted in expected.items():
                if exact and len(wanted) > 1 and loader is ByFunctions:
                    np.testing.assert_array_equal(found[output], wanted)
                np.testing.assert_allclose(found[output], wanted, ROUNDING, ROUNDING)


def recorded_names(path: Path) -> list[list[str]]:
    record = json.loads((path / "fusion.json").read_text())
    return [one["names"] for one in record["request_signatures"]]


@pytest.mark.parametrize("name", ["sparse and ragged of users", "tf_keras"])
def test_verify_compares_them(source: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    dst = rewrite(source(name), tmp_path / "dst", *model.request, verify=True)
    result = compare_models(source(name), dst)
    assert {ONE, SEVERAL} <= {*result.signatures}
    assert recorded_names(dst) == [[*model.request]] * 2


def test_the_shapes_of_parts_are_theirs(source: Callable[[str], Path], tmp_path: Path) -> None:
    name = "sparse and ragged of users"
    dst = rewrite(source(name), tmp_path / "dst", "user", "tags", target="stock")
    before, after = infos_of(source(name))[SERVING], infos_of(dst)[ONE]
    assert after.inputs.keys() == before.inputs.keys()
    for key, info in before.inputs.items():
        assert after.inputs[key].tensor_shape == info.tensor_shape


def test_what_repeats_is_found(source: Callable[[str], Path], tmp_path: Path) -> None:
    name = "sparse and ragged of users"
    model = MODELS[name]
    rows = {"user": [[3, 4]] * 3, "tags": [[7]] * 3, "item": np.array([1, 2, 3])}
    np.savez(tmp_path / "some.npz", **fed(model, rows))
    assert repeated_inputs(source(name), tmp_path / "some.npz").names == ("tags", "user")
    np.savez(tmp_path / "other.npz", **fed(model, {**rows, "tags": [[7], [7, 7], []]}))
    assert repeated_inputs(source(name), tmp_path / "other.npz").names == ("user",)
    fuse_saved_model(
        source(name),
        tmp_path / "dst",
        verify=False,
        target="stock",
        request_inputs="auto",
        inputs=tmp_path / "some.npz",
    )
    assert recorded_names(tmp_path / "dst") == [["tags", "user"]] * 2


def test_features_of_recorded_examples_are_inputs(
    source: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = {"user": [3, 4], "tags": [7]}
    file = str(tmp_path / "some.tfrecord")
    with tf.io.TFRecordWriter(file) as writer:
        for item in (1, 2, 3):
            example = tf.train.Example()
            for name, values in {**rows, "item": [item]}.items():
                example.features.feature[name].int64_list.value.extend(values)
            writer.write(example.SerializeToString())
    found = repeated_inputs(source("sparse and ragged of users"), file)
    assert found.kind == "input"
    assert {one.name: one.different for one in found.inputs} == {"item": 3, "tags": 1, "user": 1}


def test_they_are_measured(source: Callable[[str], Path], tmp_path: Path) -> None:
    name = "sparse and ragged of users"
    dst = rewrite(source(name), tmp_path / "dst", "user", "tags", target="stock")
    report = bench_models(source(name), dst, requests=[(1, 6), (3, 4)], seconds=0.01)
    assert report.request_inputs == ("user", "tags")
    assert {one.signature for one in report.measurements} == {SERVING, ONE, SEVERAL}


def test_a_part_is_no_input(source: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        rewrite(source("sparse and ragged of users"), tmp_path / "dst", "user_1")
    assert "no input 'user_1', which is a part of 'user'; it has item, tags, user" in str(
        caught.value
    )


def test_several_ragged_dimensions_are_refused(tmp_path: Path) -> None:
    nested = tf.RaggedTensorSpec([None, None, None], tf.int64)
    function = tf.function(
        lambda user, item: {"sum": tf.reduce_sum(user, [1, 2]) + item},
        input_signature=[nested, ITEM],
    )
    tf.saved_model.save(tf.Module(), str(tmp_path / "src"), function)
    with pytest.raises(ModelError, match="input 'user' is ragged in several dimensions"):
        rewrite(tmp_path / "src", tmp_path / "dst", "user")


def test_two_plain_inputs_of_such_names(tmp_path: Path) -> None:
    """`a` and `a_1` are two inputs: one may be of the request, and the other of candidates."""
    function = tf.function(
        lambda a, a_1: {"sum": a * 10 + a_1},
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(tf.Module(), str(tmp_path / "src"), function)
    dst = rewrite(tmp_path / "src", tmp_path / "dst", "a", target="stock", verify=True)
    found = ByFunctions(dst)(ONE, {"a": np.array([4]), "a_1": np.array([1, 2])})
    assert found["sum"].tolist() == [41, 42]


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_rows_of_parts_that_mix_are_refused(tmp_path: Path, kind: str) -> None:
    def score(user: Any, item: tf.Tensor) -> dict[str, tf.Tensor]:
        values = user.values if kind == "sparse" else user.flat_values
        return {"score": item + tf.reduce_sum(values)}

    module = tf.Module()
    spec = SPARSE if kind == "sparse" else RAGGED
    module.serve = tf.function(score, input_signature=[spec, ITEM])
    tf.saved_model.save(module, str(tmp_path / "src"), module.serve)
    with pytest.raises(ModelError, match="cannot take a request once"):
        rewrite(tmp_path / "src", tmp_path / "dst", "user")

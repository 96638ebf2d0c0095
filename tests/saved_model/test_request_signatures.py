"""Signatures in which a request has one row answer as the original does for repeated rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model import ModelError, fuse_saved_model
from fusion.saved_model.model.meta_graph import node_name
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests.cli.test_app import command

v1 = tf.compat.v1

DIM, ROWS = 8, 40
SERVING, ONE, SEVERAL = "serving_default", "serving_default_request", "serving_default_requests"
COUNTS = "candidates_per_request"
WORDS = [f"word{k}" for k in range(ROWS)]
ROUNDING = 1e-5

Rows = Any
"""The rows of an input: of a sparse or ragged one a list for each row."""


@dataclass(frozen=True)
class Model:
    """A model to rewrite.

    Attributes:
        save: writes it to a folder.
        request: the inputs that describe the request.
        draw: (inputs, rows) -> rows of each input.
    """

    save: Callable[[Path], None]
    request: tuple[str, ...]
    draw: Callable[[int], dict[str, Rows]]


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def ids(rows: int, *shape: int) -> Any:
    return generator().integers(0, ROWS, (rows, *shape))


def numbers(rows: int, *shape: int) -> Any:
    return generator().normal(size=(rows, *shape)).astype(np.float32)


def words(rows: int) -> Any:
    return np.array([[f"word{k}".encode()] for k in generator().integers(0, ROWS + 9, rows)])


def lists(rows: int) -> list[list[int]]:
    """Ids of each row; some have none."""
    rng = generator()
    return [[*map(int, rng.integers(0, ROWS, k % 4))] for k in range(rows)]


def deepfm(path: Path) -> None:
    """DeepFM of Keras 3 of ids and numbers."""
    layers, ops = keras.layers, keras.ops
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in "abcd"}
    inputs["age"], inputs["price"] = keras.Input((2,), name="age"), keras.Input((1,), name="price")
    found = [layers.Embedding(ROWS, DIM)(inputs[name]) for name in "abcd"]
    linear = layers.Add()([layers.Embedding(ROWS, 1)(inputs[name])[:, 0] for name in "abcd"])
    fields = layers.Concatenate(axis=1)(found)
    squares = ops.square(ops.sum(fields, 1)) - ops.sum(ops.square(fields), 1)
    hidden = layers.Concatenate()([layers.Flatten()(fields), inputs["age"], inputs["price"]])
    hidden = layers.Dense(16, "relu", bias_initializer="glorot_normal")(hidden)
    logit = layers.Dense(1)(hidden) + linear + 0.5 * ops.sum(squares, -1, keepdims=True)
    keras.Model(inputs, ops.sigmoid(logit)).export(str(path), verbose=False)


def towers(path: Path) -> None:
    """Two towers with vocabularies, of Keras 3, whose vectors are outputs as well."""
    layers, inputs, ends = keras.layers, {}, []
    for name in ("user", "movie"):
        inputs[name] = keras.Input((1,), dtype="string", name=name)
        found = layers.StringLookup(vocabulary=WORDS)(inputs[name])
        hidden = layers.Flatten()(layers.Embedding(ROWS + 1, DIM)(found))
        ends.append(layers.Dense(6, name=f"{name}_end")(layers.Dense(12, "relu")(hidden)))
    outputs = {"score": layers.Dot(-1)(ends), "user_vector": ends[0], "movie_vector": ends[1]}
    keras.Model(inputs, outputs).export(str(path), verbose=False)


def history(path: Path) -> None:
    """Attention of an item over a history with a mask, and layers that normalise, of tf_keras."""
    layers = tf_keras.layers
    inputs = [tf_keras.Input((5,), dtype="int64", name="history")]
    inputs += [tf_keras.Input((1,), dtype="int64", name="item"), tf_keras.Input((3,), name="age")]
    table = layers.Embedding(ROWS, DIM, mask_zero=True)
    keys, query = table(inputs[0]), table(inputs[1])
    found = layers.MultiHeadAttention(2, 4)(query, keys)
    mean = layers.GlobalAveragePooling1D()(keys)
    hidden = layers.Concatenate()(
        [layers.Flatten()(found), mean, layers.Flatten()(query), inputs[2]]
    )
    hidden = layers.BatchNormalization()(layers.Dense(16, "relu")(hidden))
    hidden = layers.Dropout(0.2)(layers.LayerNormalization()(hidden))
    tf.saved_model.save(tf_keras.Model(inputs, layers.Dense(1)(hidden)), str(path))


def columns(path: Path) -> None:
    """A linear model and a network of feature columns."""
    made = tf.feature_column
    hashed = made.categorical_column_with_hash_bucket
    user = made.categorical_column_with_vocabulary_list("country", WORDS)
    item = made.categorical_column_with_identity("item", ROWS)
    crossed = made.crossed_column(["country", "brand"], ROWS)
    deep = tf_keras.layers.DenseFeatures(
        [
            *(made.embedding_column(one, DIM) for one in (user, item, crossed)),
            made.embedding_column(hashed("brand", ROWS), DIM),
            made.bucketized_column(made.numeric_column("age"), [0.0, 1.0]),
        ]
    )
    wide = tf_keras.layers.DenseFeatures(made.indicator_column(user))
    hidden, last = tf_keras.layers.Dense(16, "relu"), tf_keras.layers.Dense(1)

    def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        logit = last(hidden(deep(inputs))) + tf.reduce_sum(wide(inputs), 1, keepdims=True)
        return {"logit": logit, "click": tf.sigmoid(logit)}

    specs = {"country": tf.string, "brand": tf.string, "item": tf.int64, "age": tf.float32}
    function = tf.function(serve, autograph=False).get_concrete_function(
        **{name: tf.TensorSpec([None, 1], dtype, name) for name, dtype in specs.items()}
    )
    module = tf.Module()
    module.parts = [deep, wide, hidden, last]
    tf.saved_model.save(module, str(path), {SERVING: function})


TAGS = ("tags", "words")


def of_bags(kind: str) -> Callable[[Path], None]:
    """Sums of the rows of sparse or ragged ids, in a graph of TensorFlow 1."""

    def save(path: Path) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            tables = [v1.get_variable(f"table_{k}", [ROWS, DIM]) for k in range(2)]
            weights = v1.get_variable("weights", [3 * DIM, 1])
            if kind == "sparse":
                made = [v1.sparse_placeholder(tf.int64, [None, None], name) for name in TAGS]
                bags = made
            else:
                made = [v1.ragged.placeholder(tf.int64, 1, [], name) for name in TAGS]
                bags = [one.to_sparse() for one in made]
            inputs = dict(zip(TAGS, made, strict=True))
            combine = v1.nn.safe_embedding_lookup_sparse
            found = [combine(table, one) for table, one in zip(tables, bags, strict=True)]
            inputs["item"] = v1.placeholder(tf.int64, [None], name="item")
            found.append(tf.gather(tables[0], inputs["item"]))
            outputs = {"score": tf.concat(found, 1) @ weights}
            session.run(v1.global_variables_initializer())
            infos = [
                {key: v1.saved_model.build_tensor_info(one) for key, one in each.items()}
                for each in (inputs, outputs)
            ]
            builder = v1.saved_model.Builder(str(path))
            signature = v1.saved_model.build_signature_def(*infos, "tensorflow/serving/predict")
            builder.add_meta_graph_and_variables(session, ["serve"], {SERVING: signature})
            builder.save()

    return save


def plain(
    call: Callable[[tf.Tensor, tf.Tensor], Any], rows: int | None = None
) -> Callable[[Path], None]:
    """A function of two matrices as a model."""

    def save(path: Path) -> None:
        spec = tf.TensorSpec([rows, 4], tf.float32)
        function = tf.function(lambda user, item: {"score": call(user, item)}, autograph=False)
        concrete = function.get_concrete_function(user=spec, item=spec)
        tf.saved_model.save(tf.Module(), str(path), {SERVING: concrete})

    return save


MODELS = {
    "DeepFM": Model(
        deepfm,
        ("a", "b", "age"),
        lambda n: {**{k: ids(n, 1) for k in "abcd"}, "age": numbers(n, 2), "price": numbers(n, 1)},
    ),
    "towers": Model(towers, ("user",), lambda n: {"user": words(n), "movie": words(n)[::-1]}),
    "history": Model(
        history,
        ("history", "age"),
        lambda n: {"history": ids(n, 5), "item": ids(n, 1), "age": numbers(n, 3)},
    ),
    "columns": Model(
        columns,
        ("country", "age"),
        lambda n: {
            "country": words(n),
            "brand": words(n)[::-1],
            "item": ids(n, 1),
            "age": numbers(n, 1),
        },
    ),
    **{
        kind: Model(
            of_bags(kind),
            ("tags",),
            lambda n: {"tags": lists(n), "words": lists(n)[::-1], "item": ids(n)},
        )
        for kind in ("sparse", "ragged")
    },
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the model of a name."""
    folder = tmp_path_factory.mktemp("requests")

    def saved(name: str) -> Path:
        if not (folder / name).exists():
            MODELS[name].save(folder / name)
        return folder / name

    return saved


def feeds(infos: Mapping[str, meta_graph_pb2.TensorInfo], inputs: Mapping[str, Rows]) -> Any:
    """What a session is fed."""
    result: dict[str, Any] = {}
    for key, info in infos.items():
        rows = inputs[key]
        if info.WhichOneof("encoding") == "name":
            result[info.name] = rows
            continue
        values = np.array([one for row in rows for one in row], np.int64)
        lengths = [*map(len, rows)]
        if info.WhichOneof("encoding") == "coo_sparse":
            pairs = [[k, j] for k, length in enumerate(lengths) for j in range(length)]
            result[info.coo_sparse.indices_tensor_name] = np.reshape(pairs, (-1, 2))
            result[info.coo_sparse.values_tensor_name] = values
            result[info.coo_sparse.dense_shape_tensor_name] = [len(rows), max(lengths)]
        else:
            parts = [part.name for part in info.composite_tensor.components]
            result |= zip(parts, (values, np.cumsum([0, *lengths])), strict=True)
    return result


class ByFunctions:
    """Runs signatures as `tf.saved_model.load` has them."""

    def __init__(self, path: Path) -> None:
        self._model = tf.saved_model.load(str(path))

    def __call__(self, key: str, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        function = self._model.signatures[key]
        specs = function.structured_input_signature[1]
        args = {name: tf.constant(inputs[name], spec.dtype) for name, spec in specs.items()}
        return {name: one.numpy() for name, one in function(**args).items()}


class BySession:
    """Runs signatures in a session."""

    def __init__(self, path: Path) -> None:
        self._session = v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta = v1.saved_model.load(self._session, ["serve"], str(path))
        self._signatures = meta.signature_def

    def __call__(self, key: str, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        signature = self._signatures[key]
        fetches = {name: info.name for name, info in signature.outputs.items()}
        found: dict[str, Any] = self._session.run(fetches, feeds(signature.inputs, inputs))
        return found


def taken(rows: Rows, numbers: Sequence[int]) -> Rows:
    return [rows[k] for k in numbers] if isinstance(rows, list) else rows[[*numbers]]


def batches(model: Model) -> Iterator[tuple[str, dict[str, Rows], dict[str, Rows]]]:
    """Yields the key of a signature, what it is fed, and what the original one is for the same."""
    for counts in ([7], [1], [3, 0, 2], [2, 2], [1, 1, 1, 1], [6]):
        drawn = model.draw(sum(counts))
        number = [k for k, count in enumerate(counts) for _ in range(count)]
        own = {key: key in model.request for key in drawn}
        drawn |= {key: model.draw(len(counts) + 2)[key] for key in model.request}
        once = {
            key: taken(rows, range(len(counts))) if own[key] else rows
            for key, rows in drawn.items()
        }
        repeated = {key: taken(rows, number) if own[key] else rows for key, rows in drawn.items()}
        if len(counts) == 1:
            yield ONE, once, repeated
        yield SEVERAL, {**once, COUNTS: np.array(counts, np.int64)}, repeated


def loaders(name: str) -> list[Any]:
    return [BySession] if name in ("sparse", "ragged") else [ByFunctions, BySession]


def rewrite(src: Path, dst: Path, *names: str, **options: Any) -> Path:
    fuse_saved_model(src, dst, verify=False, request_inputs=names, **options)
    return dst


@pytest.mark.parametrize("target", ["stock", "fused"])
@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("name", MODELS)
def test_a_request_is_answered_as_repeated_rows_are(
    source: Callable[[str], Path], tmp_path: Path, name: str, exact: bool, target: str
) -> None:
    model = MODELS[name]
    changed = rewrite(source(name), tmp_path / "dst", *model.request, exact=exact, target=target)
    for loader in loaders(name):
        original, new = loader(source(name)), loader(changed)
        for key, once, repeated in batches(model):
            expected, found = original(SERVING, repeated), new(key, once)
            assert found.keys() == expected.keys()
            again = new(SERVING, repeated)
            for output, wanted in expected.items():
                np.testing.assert_array_equal(again[output], wanted)
                # A session optimizes the graphs of whole models, and may round otherwise.
                if exact and len(wanted) > 1 and loader is ByFunctions:
                    np.testing.assert_array_equal(found[output], wanted)
                np.testing.assert_allclose(found[output], wanted, ROUNDING, ROUNDING)


def infos_of(path: Path) -> Mapping[str, meta_graph_pb2.SignatureDef]:
    found: Mapping[str, meta_graph_pb2.SignatureDef]
    found = read_saved_model(path).meta_graphs[0].signature_def
    return found


def ops_of(path: Path, key: str) -> list[str]:
    """The ops of the function that a signature calls."""
    meta = read_saved_model(path).meta_graphs[0]
    (called,) = {node_name(info.name) for info in meta.signature_def[key].outputs.values()}
    (call,) = (node for node in meta.graph_def.node if node.name == called)
    functions = {one.signature.name: one for one in meta.graph_def.library.function}
    return [node.op for node in functions[call.attr["f"].func.name].node_def]


@pytest.mark.parametrize("name", ["columns", "sparse", "ragged"])
def test_lookups_of_the_new_signatures_are_fused(
    source: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    model = MODELS[name]
    changed = rewrite(source(name), tmp_path / "dst", *model.request, exact=True)
    stock = rewrite(source(name), tmp_path / "stock", *model.request, target="stock")
    for key in (ONE, SEVERAL):
        assert set(OP_NAMES) & {*ops_of(changed, key)}
        assert not set(OP_NAMES) & {*ops_of(stock, key)}


@pytest.mark.parametrize("name", ["DeepFM", "sparse"])
def test_signatures_say_what_they_take(
    source: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    model = MODELS[name]
    before = infos_of(source(name))
    after = infos_of(rewrite(source(name), tmp_path / "dst", *model.request, target="stock"))
    assert after.keys() - before.keys() == {ONE, SEVERAL}
    assert {key: after[key].inputs.keys() for key in before} == {
        key: before[key].inputs.keys() for key in before
    }
    original = before[SERVING]
    for key, others in ((ONE, set()), (SEVERAL, {COUNTS})):
        assert after[key].inputs.keys() == original.inputs.keys() | others
        assert after[key].method_name == original.method_name
        assert after[key].outputs.keys() == original.outputs.keys()
        for one, info in original.inputs.items():
            new = after[key].inputs[one]
            assert new.dtype == info.dtype
            if info.WhichOneof("encoding") == "name":
                sizes = [dim.size for dim in info.tensor_shape.dim]
                is_one = key == ONE and one in model.request
                assert [dim.size for dim in new.tensor_shape.dim] == [
                    1 if is_one else sizes[0],
                    *sizes[1:],
                ]


def test_a_second_run_writes_the_same_bytes(source: Callable[[str], Path], tmp_path: Path) -> None:
    model = MODELS["DeepFM"]
    some, others = (
        (rewrite(source("DeepFM"), tmp_path / name, *model.request) / "saved_model.pb").read_bytes()
        for name in ("some", "others")
    )
    assert some == others


def test_the_command_compares_and_says_so(source: Callable[[str], Path], tmp_path: Path) -> None:
    model, dst = MODELS["towers"], tmp_path / "dst"
    names = ",".join(model.request)
    options = ("--target", "stock", "--request-inputs", names, "--exact")
    done = command("rewrite", source("towers"), dst, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "outputs equal to the bit" in done.stdout
    assert {ONE, SEVERAL} < infos_of(dst).keys()
    wrong = command("rewrite", source("towers"), tmp_path / "no", "--request-inputs", "actor")
    assert wrong.returncode == 2
    assert "has no input 'actor'; it has movie, user" in wrong.stderr
    assert not (tmp_path / "no").exists()


def test_counts_that_do_not_fit_are_an_error(source: Callable[[str], Path], tmp_path: Path) -> None:
    model = MODELS["towers"]
    run = ByFunctions(rewrite(source("towers"), tmp_path / "dst", *model.request, target="stock"))
    inputs = {"user": words(2), "movie": words(5)}
    for counts in ([2, 2], [6, -1], [5], [2, 2, 1], [3, 3]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="candidates_per_request has to"):
            run(SEVERAL, {**inputs, COUNTS: np.array(counts, np.int64)})
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError, ValueError)):
        run(ONE, inputs)


def test_assertions_stay_and_an_output_may_be_of_the_request(tmp_path: Path) -> None:
    def scores(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(user, 10.0)
        return tf.reduce_sum(user * item, 1)

    spec = tf.TensorSpec([None, 4], tf.float32)
    function = tf.function(lambda user, item: {"score": scores(user, item), "user": user * 2.0})
    concrete = function.get_concrete_function(user=spec, item=spec)
    tf.saved_model.save(tf.Module(), str(tmp_path / "src"), {SERVING: concrete})
    dst = rewrite(tmp_path / "src", tmp_path / "dst", "user", target="stock")
    signature = tf.saved_model.load(str(dst)).signatures[ONE]
    user, item = tf.constant([[1.0, 2.0, 3.0, 4.0]]), tf.reshape(tf.range(12.0), [3, 4])
    found = signature(user=user, item=item)
    np.testing.assert_allclose(found["score"], [20.0, 60.0, 100.0])
    np.testing.assert_array_equal(found["user"], np.repeat(user * 2.0, 3, 0))
    for refused in (user * 4.0, tf.repeat(user, 2, 0)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            signature(user=refused, item=item)


def normalised(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Batch normalisation in training mode."""
    mean, variance = tf.nn.moments(tf.concat([user, item], 1), [0])
    return (tf.concat([user, item], 1) - mean) * tf.math.rsqrt(variance + 1e-3)


def fused_normalised(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    both = tf.concat([user, item], 1)[:, None, None, :]
    return v1.nn.fused_batch_norm(both, tf.ones(8), tf.zeros(8), is_training=True)[0]


REFUSED = {
    "moments of the batch": (normalised, "Mean goes over the rows"),
    "a fused layer in training mode": (fused_normalised, "it is in training mode"),
    "softmax over candidates": (
        lambda user, item: tf.nn.softmax(tf.reduce_sum(user * item, 1)),
        "Softmax goes over the rows",
    ),
    "softmax along the first axis": (
        lambda user, item: tf.nn.softmax(tf.reduce_sum(user * item, 1, keepdims=True), 0),
        "Softmax goes over the rows",
    ),
    "in-batch negatives": (
        lambda user, item: tf.reduce_sum(tf.matmul(user, item, transpose_b=True), 1),
        "MatMul multiplies rows with each other",
    ),
    "the mean of candidates": (
        lambda user, item: user * item - tf.reduce_mean(item),
        "Mean goes over the rows",
    ),
    "the number of candidates": (
        lambda user, item: user * item / tf.cast(tf.shape(item)[0], tf.float32),
        "Cast has integers that depend on the number of rows",
    ),
    "a row for all": (lambda user, item: user * item[0], "StridedSlice picks a row"),
    "rows in another order": (lambda user, item: user * item[::-1], "StridedSlice takes some"),
    "the first rows of two": (
        lambda user, item: tf.concat([user, item], 0)[: tf.shape(user)[0]],
        "StridedSlice takes some of the rows",
    ),
    "a sum of all": (lambda user, item: tf.reduce_sum(user * item), "Sum goes over the rows"),
    "ranks": (lambda user, item: tf.argsort(user * item, axis=0), "TopKV2 depends on rows"),
    "a loop": (
        lambda user, item: tf.map_fn(tf.reduce_sum, user) * item[:, 0],
        "StatelessWhile goes on by",
    ),
    "a branch": (
        lambda user, item: tf.cond(tf.reduce_sum(user) > 0, lambda: item, lambda: -item),
        "over the rows|If decides by",
    ),
    "noise": (
        lambda user, item: user * item + tf.random.normal(tf.shape(user)),
        "there is no rule for RandomStandardNormal",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_depend_on_each_other_are_refused(tmp_path: Path, name: str) -> None:
    call, why = REFUSED[name]
    plain(call)(tmp_path / "src")
    with pytest.raises(ModelError, match=f"cannot take a request once: .*({why}).*node '"):
        rewrite(tmp_path / "src", tmp_path / "dst", "user")
    assert not (tmp_path / "dst").exists()


def test_inputs_and_models_that_are_none(source: Callable[[str], Path], tmp_path: Path) -> None:
    def error(*names: str, model: Path | None = None, **options: Any) -> str:
        with pytest.raises(ModelError) as caught:
            rewrite(model or source("towers"), tmp_path / "dst", *names, **options)
        assert not (tmp_path / "dst").exists()
        return str(caught.value)

    assert "has no input 'age'; it has movie, user" in error("age")
    assert "has no input of candidates" in error("user", "movie")
    assert "it has no signature 'rank'" in error("user", signature="rank")
    plain(lambda user, item: user * item, 6)(tmp_path / "fixed")
    assert "has a fixed number of rows, 6" in error("user", model=tmp_path / "fixed")
    rewritten = rewrite(source("towers"), tmp_path / "again", "user", target="stock")
    assert "the model has one of this name" in error("user", model=rewritten)
    with tf.Graph().as_default() as graph:
        user, item = (v1.placeholder(tf.float32, [None, 4], name=name) for name in ("user", "item"))
        tf.multiply(user, item, name="score")
    (tmp_path / "frozen.pb").write_bytes(graph.as_graph_def().SerializeToString())
    assert "a frozen graph gets no signature" in error("user", model=tmp_path / "frozen.pb")
    with pytest.raises(ValueError, match="request_inputs must name inputs"):
        fuse_saved_model(source("towers"), tmp_path / "dst", exact=True)

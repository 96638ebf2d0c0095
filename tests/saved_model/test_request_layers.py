"""Layers of Keras 3 and of tf_keras, in models whose user is taken once per request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.saved_model import ModelError, fuse_saved_model

ONE, SEVERAL = "serving_default_request", "serving_default_requests"
COUNTS = "candidates_per_request"
WORDS = [f"w{k}" for k in range(8)]
LENGTH, DIM, IDS = 6, 4, 12

#: What inputs are made of: types and sizes of a row.
INPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "numbers": ("float32", (DIM,)),
    "matrix": ("float32", (LENGTH, DIM)),
    "ids": ("int64", (1,)),
    "history": ("int64", (LENGTH,)),
    "word": ("string", (1,)),
    "words": ("string", (LENGTH,)),
    "text": ("string", (1,)),
    "age": ("float32", (1,)),
}


class Inputs:
    """Inputs of one side of a Keras model, made when they are read; see `INPUTS`."""

    def __init__(self, library: Any, prefix: str) -> None:
        self._library, self._prefix = library, prefix
        self.made: dict[str, Any] = {}

    def __getattr__(self, key: str) -> Any:
        name = f"{self._prefix}_{key}"
        if name not in self.made:
            dtype, shape = INPUTS[key]
            self.made[name] = self._library.Input(shape, dtype=dtype, name=name)
        return self.made[name]


def drawn(name: str, rows: int) -> Any:
    """Rows of an input: histories have zeros at their ends, texts some words."""
    kind = name.partition("_")[2]
    rng = np.random.default_rng([rows, len(name), sum(map(ord, name))])
    dtype, shape = INPUTS[kind]
    if kind == "text":
        texts = [" ".join(rng.choice([*WORDS, "no"], rng.integers(0, 6))) for _ in range(rows)]
        return np.array(texts, object)[:, None]
    if dtype == "string":
        return rng.choice(np.array([*WORDS, "no", ""], object), (rows, *shape))
    if kind == "history":
        found = rng.integers(1, IDS, (rows, *shape))
        return np.where(np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (rows, 1)), found, 0)
    if dtype == "int64":
        return rng.integers(0, IDS, (rows, *shape))
    return rng.normal(size=(rows, *shape)).astype(np.float32)


Build = Callable[[Any, Inputs, Inputs], Any]


def table(k: Any, ids: Any, **options: Any) -> Any:
    """The embeddings of ids."""
    return k.layers.Embedding(IDS, DIM, **options)(ids)


def meet(k: Any, *parts: Any) -> Any:
    """A layer of what is of users and of candidates."""
    flat = [k.layers.Flatten()(part) for part in parts]
    return k.layers.Dense(3, "tanh")(k.layers.Concatenate()(flat))


def encoded(name: str, source: str, **options: Any) -> Build:
    """Of a layer that makes numbers of words or ids, of a user and of a candidate."""

    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        layer = getattr(k.layers, name)(**options)
        found = [layer(getattr(side, source)) for side in (user, item)]
        is_ids = options.get("output_mode", "int") == "int" and name != "CategoryEncoding"
        if is_ids:
            found = [table(k, one) for one in found]
            if options.get("ragged"):
                found = [k.layers.Lambda(lambda t: tf.reduce_mean(t, 1))(one) for one in found]
            elif source == "text":
                found = [k.layers.GlobalMaxPooling1D()(one) for one in found]
        else:
            found = [
                k.ops.cast(o, "float32") if k is keras else tf.cast(o, tf.float32) for o in found
            ]
        return meet(k, *found)

    return build


def layer(name: str, source: str = "matrix", *args: Any, **options: Any) -> Build:
    """Of a layer of a user and a candidate together, and of each of them."""

    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        one, other = getattr(user, source), getattr(item, source)
        both = k.layers.Add()([one, other])
        found = [getattr(k.layers, name)(*args, **options)(x) for x in (one, other, both)]
        return meet(k, *found)

    return build


def merged(name: str, source: str = "matrix", **options: Any) -> Build:
    """Of a layer of two inputs."""
    return lambda k, user, item: meet(
        k,
        getattr(k.layers, name)(**options)([getattr(user, source), getattr(item, source)]),
        item.numbers,
    )


def attention(name: str, is_causal: bool = False, **options: Any) -> Build:
    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        keys = table(k, user.history, mask_zero=True)
        query = table(k, item.history, mask_zero=True)
        if name == "MultiHeadAttention":
            found = k.layers.MultiHeadAttention(2, 3, **options)(
                query, keys, use_causal_mask=is_causal
            )
            own = k.layers.MultiHeadAttention(2, 3, **options)(keys, keys)
        else:
            kind = getattr(k.layers, name)
            found = kind(**options)([query, keys], use_causal_mask=is_causal)
            own = kind(**options)([keys, keys])
        return meet(k, found, own)

    return build


def pooled(name: str) -> Build:
    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        pool = getattr(k.layers, name)()
        found = [pool(table(k, one.history, mask_zero=True)) for one in (user, item)]
        return meet(k, *found)

    return build


def vocabulary(name: str, **options: Any) -> Build:
    source = {"StringLookup": "words", "IntegerLookup": "history", "TextVectorization": "text"}
    words: list[Any] = [*range(2, 10)] if name == "IntegerLookup" else WORDS
    if options.get("output_mode") == "tf_idf":
        options["idf_weights"] = [0.5 + k for k in range(8)]
    return encoded(name, options.pop("source", source[name]), vocabulary=words, **options)


def crossed(**options: Any) -> Build:
    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        cross = k.layers.HashedCrossing(IDS, **options)
        found = [cross((user.word, item.ids)), cross((user.word, user.ids))]
        if options.get("output_mode", "int") == "int":
            found = [table(k, one) for one in found]
        return meet(k, *found)

    return build


EVERYWHERE: dict[str, Build] = {
    "StringLookup int": vocabulary("StringLookup"),
    "StringLookup int mask": vocabulary("StringLookup", mask_token=""),
    "StringLookup oov": vocabulary("StringLookup", num_oov_indices=3),
    "StringLookup one_hot": vocabulary("StringLookup", output_mode="one_hot", source="word"),
    "StringLookup multi_hot": vocabulary("StringLookup", output_mode="multi_hot"),
    "StringLookup count": vocabulary("StringLookup", output_mode="count"),
    "StringLookup tf_idf": vocabulary("StringLookup", output_mode="tf_idf"),
    "IntegerLookup int": vocabulary("IntegerLookup"),
    "IntegerLookup one_hot": vocabulary("IntegerLookup", output_mode="one_hot", source="ids"),
    "IntegerLookup multi_hot": vocabulary("IntegerLookup", output_mode="multi_hot"),
    "IntegerLookup count": vocabulary("IntegerLookup", output_mode="count"),
    "TextVectorization int": vocabulary("TextVectorization"),
    "TextVectorization int length": vocabulary("TextVectorization", output_sequence_length=5),
    "TextVectorization ngrams": vocabulary("TextVectorization", ngrams=2),
    "TextVectorization multi_hot": vocabulary("TextVectorization", output_mode="multi_hot"),
    "TextVectorization count": vocabulary("TextVectorization", output_mode="count"),
    "TextVectorization tf_idf": vocabulary("TextVectorization", output_mode="tf_idf"),
    "TextVectorization ragged": vocabulary("TextVectorization", ragged=True),
    "Hashing": encoded("Hashing", "words", num_bins=IDS),
    "Hashing salt": encoded("Hashing", "words", num_bins=IDS, salt=5, mask_value=""),
    "Hashing multi_hot": encoded("Hashing", "words", num_bins=IDS, output_mode="multi_hot"),
    "Hashing of ids": encoded("Hashing", "history", num_bins=IDS),
    "HashedCrossing": crossed(),
    "HashedCrossing one_hot": crossed(output_mode="one_hot"),
    "CategoryEncoding one_hot": encoded(
        "CategoryEncoding", "ids", num_tokens=IDS, output_mode="one_hot"
    ),
    "CategoryEncoding multi_hot": encoded("CategoryEncoding", "history", num_tokens=IDS),
    "CategoryEncoding count": encoded(
        "CategoryEncoding", "history", num_tokens=IDS, output_mode="count"
    ),
    "Discretization": encoded("Discretization", "age", bin_boundaries=[-0.5, 0.0, 0.5]),
    "Discretization one_hot": encoded(
        "Discretization", "age", bin_boundaries=[-0.5, 0.0, 0.5], output_mode="one_hot"
    ),
    "Discretization multi_hot": encoded(
        "Discretization", "numbers", bin_boundaries=[-0.5, 0.0, 0.5], output_mode="multi_hot"
    ),
    "Normalization": layer(
        "Normalization", "numbers", mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 3.0, 4.0]
    ),
    "Rescaling": layer("Rescaling", "numbers", 0.5, 1.0),
    "LayerNormalization": layer("LayerNormalization"),
    "LayerNormalization flat": layer("LayerNormalization", "numbers"),
    "LayerNormalization axes": layer("LayerNormalization", axis=[1, 2]),
    "BatchNormalization": layer("BatchNormalization"),
    "BatchNormalization flat": layer("BatchNormalization", "numbers"),
    "BatchNormalization axis": layer("BatchNormalization", axis=1),
    "UnitNormalization": layer("UnitNormalization"),
    "GroupNormalization": layer("GroupNormalization", groups=2),
    "MultiHeadAttention": attention("MultiHeadAttention"),
    "MultiHeadAttention causal": attention("MultiHeadAttention", True),
    "Attention": attention("Attention", use_scale=True),
    "Attention causal": attention("Attention", True),
    "Attention concat": attention("Attention", score_mode="concat"),
    "AdditiveAttention": attention("AdditiveAttention"),
    "Dot": merged("Dot", axes=(2, 2)),
    "Dot flat": merged("Dot", "numbers", axes=1, normalize=True),
    "Dot one": merged("Dot", axes=1),
    **{
        name: merged(name)
        for name in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
    },
    "PReLU": layer("PReLU"),
    "PReLU shared": layer("PReLU", shared_axes=[1]),
    "LeakyReLU": layer("LeakyReLU"),
    "ELU": layer("ELU"),
    "ReLU": layer("ReLU"),
    "Softmax": layer("Softmax"),
    "Softmax axis": layer("Softmax", axis=1),
    "gelu": layer("Dense", "numbers", 5, "gelu"),
    "selu": layer("Dense", "numbers", 5, "selu"),
    "swish": layer("Dense", "numbers", 5, "swish"),
    "mish": layer("Dense", "numbers", 5, "mish"),
    "hard_sigmoid": layer("Dense", "numbers", 5, "hard_sigmoid"),
    "softplus": layer("Dense", "matrix", 5, "softplus"),
    "EinsumDense": layer("EinsumDense", "matrix", "abc,cd->abd", output_shape=(LENGTH, 5)),
    "GlobalAveragePooling1D": pooled("GlobalAveragePooling1D"),
    "GlobalMaxPooling1D": pooled("GlobalMaxPooling1D"),
    "MaxPooling1D": layer("MaxPooling1D", "matrix", 2),
    "AveragePooling1D": layer("AveragePooling1D", "matrix", 2, padding="same"),
    "Conv1D": layer("Conv1D", "matrix", 3, 2),
    "Conv1D causal": layer("Conv1D", "matrix", 3, 2, padding="causal", dilation_rate=2),
    "SeparableConv1D": layer("SeparableConv1D", "matrix", 3, 2),
    "DepthwiseConv1D": layer("DepthwiseConv1D", "matrix", 2),
    "Conv1DTranspose": layer("Conv1DTranspose", "matrix", 3, 2),
    "Masking": layer("Masking"),
    "Permute": layer("Permute", "matrix", (2, 1)),
    "RepeatVector": layer("RepeatVector", "numbers", 3),
    "Reshape": layer("Reshape", "matrix", (-1, 2)),
    "Flatten": layer("Flatten"),
    "Cropping1D": layer("Cropping1D", "matrix", 1),
    "ZeroPadding1D": layer("ZeroPadding1D"),
    "UpSampling1D": layer("UpSampling1D"),
    "Dropout": layer("Dropout", "matrix", 0.5),
    "SpatialDropout1D": layer("SpatialDropout1D", "matrix", 0.5),
    "GaussianNoise": layer("GaussianNoise", "matrix", 0.5),
}


#: Of these, TensorFlow's layers of tf_keras have no shape, or do not run.
KERAS_3 = {"StringLookup tf_idf", "TextVectorization tf_idf", "LayerNormalization axes"}
CASES = [
    (name, library)
    for name in EVERYWHERE
    for library in (keras, tf_keras)
    if library is keras or name not in KERAS_3
]


def saved(path: Path, k: Any, build: Build) -> list[str]:
    """Writes a model whose weights are all random, and returns the inputs of the user."""
    sides = [Inputs(k, side) for side in ("user", "item")]
    outputs = build(k, *sides)
    made = {**sides[0].made, **sides[1].made}
    model = k.Model(made, {"score": outputs})
    rng = np.random.default_rng(7)
    for weight in model.weights:
        name = str(getattr(weight, "path", weight.name))
        shape = tuple(weight.shape)
        if "float" in str(weight.dtype):
            drawn_weight = rng.normal(0.0, 0.7, shape)
            weight.assign(abs(drawn_weight) + 0.3 if "variance" in name else drawn_weight)
    if k is keras:
        model.export(str(path), verbose=False)
    else:
        tf.saved_model.save(model, str(path))
    return [*sides[0].made]


def check(path: Path, changed: Path, request: list[str], exact: bool) -> None:
    """Compares the signatures of a model with the original one on repeated rows."""
    original = tf.saved_model.load(str(path)).signatures["serving_default"]
    new = tf.saved_model.load(str(changed)).signatures
    specs = original.structured_input_signature[1]

    def run(function: Any, inputs: dict[str, Any]) -> Any:
        args = {name: tf.constant(one, specs[name].dtype) for name, one in inputs.items()}
        counts = {} if function is not new[SEVERAL] else {COUNTS: tf.constant(own, tf.int64)}
        (score,) = function(**args, **counts).values()
        return score.numpy()

    for own in ([5], [1], [3, 0, 2], [1, 1, 1]):
        rows = {name: drawn(name, len(own) if name in request else sum(own)) for name in specs}
        repeated = {
            name: np.repeat(one, own, 0) if name in request else one for name, one in rows.items()
        }
        wanted = run(original, repeated)
        assert len(own) == 1 or (wanted != wanted[:1]).any()
        for key in (ONE, SEVERAL) if len(own) == 1 else (SEVERAL,):
            found = run(new[key], rows)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, 2e-5, 2e-5)
            if exact and sum(own) > 1:
                np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def graphs_as_they_are() -> Iterator[None]:
    """No optimizer puts other nodes together in another graph, and rounds otherwise there."""
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


@pytest.mark.usefixtures("graphs_as_they_are")
@pytest.mark.parametrize(("name", "library"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_a_layer_keeps_rows_apart(tmp_path: Path, name: str, library: Any) -> None:
    src = tmp_path / "src"
    request = saved(src, library, EVERYWHERE[name])
    for exact in (False, True):
        dst = tmp_path / f"dst_{exact}"
        fuse_saved_model(
            src, dst, target="stock", verify=False, request_inputs=request, exact=exact
        )
        check(src, dst, request, exact)


def called(name: str, *args: Any, training: bool = True, **options: Any) -> Build:
    """Of a layer that is called as in training."""

    def build(k: Any, user: Inputs, item: Inputs) -> Any:
        both = k.layers.Add()([user.numbers, item.numbers])
        return meet(k, getattr(k.layers, name)(*args, **options)(both, training=training))

    return build


#: What mixes rows, or has no rule, and why it is refused.
REFUSED: dict[str, tuple[Build, str]] = {
    "BatchNormalization in training": (called("BatchNormalization"), "Mean goes over the rows"),
    "Dropout in training": (called("Dropout", 0.5), "there is no rule for "),
    "GaussianNoise in training": (called("GaussianNoise", 0.5), "there is no rule for "),
    "Softmax over rows": (layer("Softmax", "numbers", axis=0), "goes over the rows"),
    "UnitNormalization over rows": (
        layer("UnitNormalization", "numbers", axis=0),
        "Sum goes over the rows",
    ),
    "TextVectorization of characters": (
        vocabulary("TextVectorization", split="character"),
        "ExpandDims has values of a sparse or ragged tensor",
    ),
}


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_mixes_rows_is_refused(tmp_path: Path, name: str, library: Any) -> None:
    build, why = REFUSED[name]
    request = saved(tmp_path / "src", library, build)
    with pytest.raises(ModelError, match=f"cannot take a request once: .*{why}"):
        fuse_saved_model(tmp_path / "src", tmp_path / "dst", request_inputs=request)

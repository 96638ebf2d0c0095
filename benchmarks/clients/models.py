"""The models: synthetic ids of the sizes of Criteo's, and sequences of 20.

Those that are trained are compiled as their libraries' examples compile them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

SPARSE, DENSE, SEQUENCES = 26, 13, 4
ROWS, DIM, LENGTH = 100_000, 16, 20
BATCH = 512


@dataclass(frozen=True)
class Client:
    """A model of a library.

    Attributes:
        library: the package that it is made with.
        build: () -> the model, and its part that ends with what the first dense layers read; None
            where that is not to be had.
        inputs: (rows of the batch) -> arrays by the names of its inputs.
    """

    library: str
    build: Callable[[], tuple[Any, Any]]
    inputs: Callable[[int], Arrays]


def criteo(batch: int) -> Arrays:
    """Ids, numbers and sequences of ids, in the shape of Criteo's."""
    rng = np.random.default_rng(batch)
    found: Arrays = {}
    for k in range(SPARSE):
        found[f"C{k}"] = rng.integers(0, ROWS, (batch, 1)).astype(np.int32)
    for k in range(DENSE):
        found[f"I{k}"] = rng.normal(size=(batch, 1)).astype(np.float32)
    for k in range(SEQUENCES):
        ids = rng.integers(1, ROWS, (batch, LENGTH)).astype(np.int32)
        ids[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, (batch, 1))] = 0
        found[f"S{k}"] = ids
    return found


def _criteo_columns() -> list[Any]:
    """DeepCTR's columns of them."""
    from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat

    def sparse(name: str) -> Any:
        return SparseFeat(name, ROWS, embedding_dim=DIM)

    return [
        *(sparse(f"C{k}") for k in range(SPARSE)),
        *(DenseFeat(f"I{k}", 1) for k in range(DENSE)),
        *(VarLenSparseFeat(sparse(f"S{k}"), LENGTH, "mean") for k in range(SEQUENCES)),
    ]


def _deepctr(name: str) -> Callable[[], tuple[Any, Any]]:
    def build() -> tuple[Any, Any]:
        import deepctr.models
        import tf_keras

        columns = _criteo_columns()
        model = getattr(deepctr.models, name)(columns, columns, task="binary")
        layer = next(layer for layer in model.layers if type(layer).__name__ == "DNN")
        return model, tf_keras.Model(model.inputs, layer.input)

    return build


def _behaviour(batch: int) -> Arrays:
    found = criteo(batch)
    rng = np.random.default_rng(batch)
    for name in ("item", "cate"):
        found[name] = rng.integers(1, ROWS, (batch, 1)).astype(np.int32)
        found[f"hist_{name}"] = rng.integers(1, ROWS, (batch, LENGTH)).astype(np.int32)
    found["seq_length"] = rng.integers(1, LENGTH + 1, (batch, 1)).astype(np.int32)
    return found


def _of_behaviour(name: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def build() -> tuple[Any, Any]:
        import deepctr.models
        import tf_keras
        from deepctr.feature_column import SparseFeat, VarLenSparseFeat

        columns = _criteo_columns()
        for key in ("item", "cate"):
            columns.append(SparseFeat(key, ROWS, embedding_dim=DIM))
            history = SparseFeat(f"hist_{key}", ROWS, embedding_dim=DIM, embedding_name=key)
            columns.append(VarLenSparseFeat(history, LENGTH, length_name="seq_length"))
        model = getattr(deepctr.models, name)(columns, ["item", "cate"], **options)
        if name != "DIN":
            return model, None
        kinds = [type(layer).__name__ for layer in model.layers]
        attention = model.layers[kinds.index("AttentionSequencePoolingLayer")]
        # What is joined with what the attention makes of its inputs.
        found = [
            one
            for layer in model.layers
            if type(layer).__name__ == "Concat"
            and any(one is attention.output for one in layer.input)
            for one in layer.input
            if one is not attention.output
        ]
        return model, tf_keras.Model(model.inputs, [*attention.input, *found])

    return build


WORDS = 50_000


def _words(prefix: str, count: int = WORDS) -> list[str]:
    return [f"{prefix}{k}" for k in range(count)]


def ratings(batch: int, words: int = WORDS) -> Arrays:
    """Users of `words` known ones and 5,000 others, and movies, by their names."""
    rng = np.random.default_rng(batch)
    return {
        "user": np.array([[f"u{k}"] for k in rng.integers(0, words + 5_000, batch)]),
        "country": np.array([[f"c{k}"] for k in rng.integers(0, 220, batch)]),
        "age": rng.uniform(10, 90, (batch, 1)).astype(np.float32),
        "movie": np.array([[f"m{k}"] for k in rng.integers(0, words, batch)]),
        "genre": np.array([[f"g{k}"] for k in rng.integers(0, 40, batch)]),
    }


def _tower(keras: Any, names: Mapping[str, tuple[str, int]], ages: bool) -> tuple[list[Any], Any]:
    """Inputs, and the embeddings of words, and of ages if there are any, side by side."""
    inputs, parts = [], []
    for name, (prefix, count) in names.items():
        inputs.append(keras.Input((1,), dtype="string", name=name))
        ids = keras.layers.StringLookup(vocabulary=_words(prefix, count))(inputs[-1])
        rows = keras.layers.Embedding(count + 1, 32)(ids)
        parts.append(keras.layers.Flatten()(rows))
    if ages:
        inputs.append(keras.Input((1,), name="age"))
        bins = keras.layers.Discretization(list(np.linspace(10, 90, 17)))(inputs[-1])
        parts.append(keras.layers.Flatten()(keras.layers.Embedding(18, 32)(bins)))
    return inputs, keras.layers.Concatenate()(parts)


def _user(words: int = WORDS) -> dict[str, tuple[str, int]]:
    return {"user": ("u", words), "country": ("c", 200)}


def _movie(words: int = WORDS) -> dict[str, tuple[str, int]]:
    return {"movie": ("m", words), "genre": ("g", 40)}


def ranking(words: int = WORDS) -> tuple[Any, Any]:
    """A TFRS model: embeddings of a user and a movie, rated by a ranking task."""
    import tensorflow_recommenders as tfrs
    import tf_keras as keras

    user, of_user = _tower(keras, _user(words), ages=True)
    movie, of_movie = _tower(keras, _movie(words), ages=False)
    joined = keras.layers.Concatenate()([of_user, of_movie])
    hidden = keras.layers.Dense(64, "relu")(joined)
    network = keras.Model([*user, *movie], keras.layers.Dense(1)(hidden))

    class Ranking(tfrs.Model):
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.task = tfrs.tasks.Ranking(loss=keras.losses.MeanSquaredError())

        def call(self, features: Any) -> Any:
            return self.network(features)

        def compute_loss(self, features: Any, training: bool = False) -> Any:
            features = dict(features)
            labels = features.pop("rating")
            return self.task(labels=labels, predictions=self.network(features))

    return Ranking(), keras.Model([*user, *movie], joined)


def _retrieval() -> tuple[Any, Any]:
    """A TFRS model of two towers, whose scores are products."""
    import tensorflow as tf
    import tensorflow_recommenders as tfrs
    import tf_keras as keras

    user, of_user = _tower(keras, _user(), ages=True)
    movie, of_movie = _tower(keras, _movie(), ages=False)
    query = keras.Model(user, keras.layers.Dense(32)(of_user))
    candidate = keras.Model(movie, keras.layers.Dense(32)(of_movie))

    class Retrieval(tfrs.Model):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.candidate = query, candidate
            self.task = tfrs.tasks.Retrieval()

        def call(self, features: Any) -> Any:
            queries = self.query({name: features[name] for name in ("user", "country", "age")})
            found = self.candidate({name: features[name] for name in ("movie", "genre")})
            return tf.reduce_sum(queries * found, 1, keepdims=True)

    return Retrieval(), None


def _baskets(batch: int) -> Arrays:
    rng = np.random.default_rng(batch)
    found: Arrays = {f"F{k}": rng.integers(0, ROWS, (batch, LENGTH)) for k in range(8)}
    return found | {f"D{k}": rng.integers(0, ROWS, (batch, 1)) for k in range(8)}


def _embed_reduce() -> tuple[Any, Any]:
    """A keras-rs model: bags by EmbedReduce, and single ids, crossed."""
    import keras
    import keras_rs

    inputs = {
        name: keras.Input(one.shape[1:], dtype="int64", name=name)
        for name, one in _baskets(1).items()
    }
    parts = [
        keras_rs.layers.EmbedReduce(ROWS, DIM, combiner=("mean", "sum", "sqrtn")[k % 3])(one)
        for k, one in enumerate(inputs.values())
    ]
    joined = keras.layers.Concatenate()(parts)
    crossed = keras_rs.layers.FeatureCross(projection_dim=16)(joined)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, "relu")(crossed)))
    return model, keras.Model(inputs, joined)


CLIENTS = {
    **{
        name: Client("deepctr", _deepctr(name), criteo)
        for name in ("DeepFM", "WDL", "DCN", "xDeepFM")
    },
    "DIN": Client("deepctr", _of_behaviour("DIN"), _behaviour),
    "BST": Client("deepctr", _of_behaviour("BST", att_head_num=8), _behaviour),
    "ranking": Client("tensorflow-recommenders", ranking, ratings),
    "retrieval": Client("tensorflow-recommenders", _retrieval, ratings),
    "EmbedReduce": Client("keras-rs", _embed_reduce, _baskets),
}

#: How many different batches there are.
_BATCHES = 60


@dataclass(frozen=True)
class Training:
    """A model of a library that is trained by `fit`, all with tf_keras.

    Attributes:
        library: the package that it is made with.
        optimizer: tf_keras's, by its name.
        build: () -> the compiled model.
        samples: (how many) -> what `fit` is given: features, and labels unless they are features.
        least: what stock's time over the fused one's should be, or None.
    """

    library: str
    optimizer: str
    build: Callable[[], Any]
    samples: Callable[[int], tuple[Any, ...]]
    least: float | None = None

    def dataset(self) -> Any:
        """The batches, which end."""
        import tensorflow as tf

        samples = self.samples(_BATCHES * BATCH)
        whole = samples if len(samples) > 1 else samples[0]
        batches = tf.data.Dataset.from_tensor_slices(whole).batch(BATCH).cache()
        # Fills the cache.
        batches.reduce(0, lambda count, *_: count + 1)
        return batches


def _deepfm(regularization: float) -> Any:
    import deepctr.models

    columns = _criteo_columns()
    weights = {"l2_reg_linear": regularization, "l2_reg_embedding": regularization}
    model = deepctr.models.DeepFM(columns, columns, task="binary", **weights)
    model.compile("adam", "binary_crossentropy")
    return model


def _clicks(count: int) -> tuple[Any, ...]:
    labels = np.random.default_rng(0).integers(0, 2, (count, 1)).astype(np.float32)
    return criteo(count), labels


def _ranking() -> Any:
    import tf_keras

    model, _ = ranking(ROWS)
    model.compile(optimizer=tf_keras.optimizers.Adagrad(0.1))
    return model


def _rated(count: int) -> tuple[Any, ...]:
    stars = np.random.default_rng(0).integers(1, 6, (count, 1)).astype(np.float32)
    return ({**ratings(count, ROWS), "rating": stars},)


#: DeepCTR adds the squares of all tables to the loss, unless it is told otherwise.
_DEEPCTR_L2 = 1e-5

TRAININGS = {
    "DeepFM-fit": Training("deepctr", "adam", partial(_deepfm, _DEEPCTR_L2), _clicks, 1.5),
    "DeepFM-fit-without-l2": Training("deepctr", "adam", partial(_deepfm, 0.0), _clicks),
    "ranking-fit": Training("tensorflow-recommenders", "adagrad", _ranking, _rated, 1.5),
}

"""Small SavedModels as a user of stock TensorFlow makes them; nothing of fusion is used here.

Each builder writes one model to the directory given. `python -m tests.saved_model.models FOLDER`
builds one of each kind; a process of its own, because tf_keras asks for an environment variable
before TensorFlow is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

ROWS = 40
DIM = 8
WORDS = ("red", "green", "blue", "cyan", "black")

v1 = tf.compat.v1


def _columns(vocabulary: str) -> list[object]:
    """Identity, hash and vocabulary-file columns with the three combiners and a default."""
    fc = tf.feature_column
    return [
        fc.embedding_column(fc.categorical_column_with_identity("item", ROWS), DIM, "mean"),
        fc.embedding_column(
            fc.categorical_column_with_identity("shop", 2 * ROWS, default_value=0), DIM, "sum"
        ),
        fc.embedding_column(
            fc.categorical_column_with_hash_bucket("city", ROWS, tf.string), 2 * DIM, "sqrtn"
        ),
        fc.embedding_column(
            fc.categorical_column_with_vocabulary_file("color", vocabulary, len(WORDS)), DIM
        ),
    ]


def v1_input_layer(directory: Path, resource: bool) -> None:
    """A compat.v1 Session model with sparse inputs, a vocabulary asset and a dense feature."""
    vocabulary = directory.parent / f"{directory.name}.colors.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        with v1.variable_scope("model", use_resource=resource):
            features = {
                "item": v1.sparse_placeholder(tf.int64, [None, None], name="item"),
                "shop": v1.sparse_placeholder(tf.int64, [None, None], name="shop"),
                "city": v1.sparse_placeholder(tf.string, [None, None], name="city"),
                "color": v1.sparse_placeholder(tf.string, [None, None], name="color"),
                "price": v1.placeholder(tf.float32, [None, 1], name="price"),
            }
            columns = [*_columns(str(vocabulary)), tf.feature_column.numeric_column("price")]
            layer = v1.feature_column.input_layer(features, columns)
            weights = v1.get_variable("weights", [layer.shape[1], 1])
            score = tf.sigmoid(tf.matmul(layer, weights))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.builder.SavedModelBuilder(str(directory))
        signature = v1.saved_model.predict_signature_def(features, {"score": score, "layer": layer})
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {"serving_default": signature},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
        )
        builder.save()


class Ranker(tf.Module):
    """Lookups in nested functions, with a trainable table."""

    def __init__(self, dtype: tf.DType = tf.float32) -> None:
        super().__init__()

        def variable(name: str, rows: int, columns: int, *seed: int) -> tf.Variable:
            values = tf.random.stateless_normal([rows, columns], seed)
            return tf.Variable(tf.cast(values, dtype), name=name)

        self.items = variable("items", ROWS, DIM, 1, 2)
        self.shops = variable("shops", 2 * ROWS, DIM, 3, 4)
        self.weights = variable("weights", 2 * DIM, 1, 5, 6)

    @tf.function
    def embed(self, items: tf.SparseTensor, shops: tf.SparseTensor) -> tf.Tensor:
        parts = [
            tf.nn.safe_embedding_lookup_sparse(self.items, items, combiner="mean"),
            tf.nn.safe_embedding_lookup_sparse(
                self.shops, shops, combiner="sqrtn", default_id=3, allow_fast_lookup=True
            ),
        ]
        return tf.concat(parts, axis=1)

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.SparseTensorSpec([None, None], tf.int64),
        ]
    )
    def rank(self, items: tf.SparseTensor, shops: tf.SparseTensor) -> dict[str, tf.Tensor]:
        return {"score": tf.sigmoid(self.embed(items, shops) @ self.weights)}

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.SparseTensorSpec([None, None], tf.int64),
        ]
    )
    def embedding(self, items: tf.SparseTensor, shops: tf.SparseTensor) -> dict[str, tf.Tensor]:
        return {"embedding": self.embed(items, shops)}


def tf2_module(directory: Path, dtype: tf.DType = tf.float32) -> None:
    """A TensorFlow 2 model with two named signatures."""
    module = Ranker(dtype)
    tf.saved_model.save(
        module, str(directory), {"serving_default": module.rank, "embedding": module.embedding}
    )


def parse_example(directory: Path) -> None:
    """A TensorFlow 2 model whose signature takes serialized Examples."""
    module = Ranker()
    spec = {
        "item": tf.io.VarLenFeature(tf.int64),
        "shop": tf.io.VarLenFeature(tf.int64),
        "price": tf.io.FixedLenFeature([2], tf.float32),
    }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, spec)
        scores = module.rank(parsed["item"], parsed["shop"])["score"]
        return {"score": scores + parsed["price"]}

    tf.saved_model.save(module, str(directory), {"serving_default": serve})


def plain(directory: Path) -> None:
    """A model without any embedding."""
    module = tf.Module()
    module.scale = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * module.scale}

    tf.saved_model.save(module, str(directory), {"serving_default": serve})


def keras_dense_features(directory: Path) -> None:
    """A tf_keras functional model; needs TF_USE_LEGACY_KERAS=1."""
    vocabulary = directory.parent / f"{directory.name}.colors.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    keras = tf.keras
    keras.utils.set_random_seed(7)
    inputs = {
        name: keras.Input([None], name=name, dtype=dtype, sparse=True)
        for name, dtype in (
            ("item", tf.int64),
            ("shop", tf.int64),
            ("city", tf.string),
            ("color", tf.string),
        )
    }
    hidden = keras.layers.DenseFeatures(_columns(str(vocabulary)))(inputs)
    outputs = keras.layers.Dense(1, activation="sigmoid", name="score")(hidden)
    model = keras.Model(inputs, outputs)
    model.save(str(directory), save_format="tf")


KINDS = {
    "v1_ref": lambda directory: v1_input_layer(directory, resource=False),
    "v1_resource": lambda directory: v1_input_layer(directory, resource=True),
    "tf2": tf2_module,
    "keras": keras_dense_features,
    "example": parse_example,
    "plain": plain,
}
COLUMNS = {"v1_ref": 4, "v1_resource": 4, "tf2": 2, "keras": 4, "example": 2, "plain": 0}
"""How many embedding columns a model of each kind has."""


def build_all(folder: Path) -> Path:
    """Builds a model of each kind below `folder`, in a process without fusion."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tests.saved_model.models", str(folder)]
    subprocess.run(command, cwd=root, env=env, check=True, capture_output=True)
    return folder


if __name__ == "__main__":
    for kind, builder in KINDS.items():
        builder(Path(sys.argv[1]) / kind)

"""SavedModels of kinds that `models.py` has not: each builder writes one to the directory given.

`python -m tests.saved_model.kinds FOLDER` builds one of each, in a process without fusion.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf

from tests.saved_model.models import DIM, ROWS, WORDS

v1 = tf.compat.v1
IDS = tf.SparseTensorSpec([None, None], tf.int64)


class Branching(tf.Module):
    """Lookups in the bodies of If, Case and While and of functions called by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.items = tf.Variable(tf.random.stateless_normal([ROWS, DIM], [1, 2]), name="items")
        self.shops = tf.Variable(tf.random.stateless_normal([ROWS, DIM], [3, 4]), name="shops")

    @tf.function
    def inner(self, ids: tf.SparseTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(self.items, ids, combiner="sum")

    @tf.function
    def outer(self, ids: tf.SparseTensor) -> tf.Tensor:
        return 2.0 * self.inner(ids)

    @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int32)])
    def branch(self, ids: tf.SparseTensor, which: tf.Tensor) -> dict[str, tf.Tensor]:
        def shops() -> tf.Tensor:
            return tf.nn.safe_embedding_lookup_sparse(self.shops, ids, combiner="mean")

        chosen = tf.cond(which > 3, lambda: self.outer(ids), shops)
        switched = tf.switch_case(which, [lambda: self.inner(ids), shops, lambda: shops() + 1.0])
        return {"chosen": chosen, "switched": switched}

    @tf.function(input_signature=[IDS])
    def loop(self, ids: tf.SparseTensor) -> dict[str, tf.Tensor]:
        total = tf.zeros([ids.dense_shape[0], DIM])
        for _ in tf.range(3):
            total += self.inner(ids)
        return {"total": total}

    @tf.function(input_signature=[IDS])
    def nested(self, ids: tf.SparseTensor) -> dict[str, tf.Tensor]:
        return {"nested": self.outer(ids)}


def branching(directory: Path) -> None:
    model = Branching()
    names = ("branch", "loop", "nested")
    tf.saved_model.save(model, str(directory), {name: getattr(model, name) for name in names})


class Words(tf.Module):
    """Ids from a hash table, from a vocabulary file and from hashing, of serialized Examples."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__()
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(WORDS), tf.range(len(WORDS), dtype=tf.int64)
            ),
            default_value=-1,
        )
        self.words = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                vocabulary,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=3,
        )
        self.rows = [
            tf.Variable(tf.random.stateless_normal([ROWS, DIM], [5, seed]), name=f"table_{seed}")
            for seed in range(3)
        ]

    def embed(self, index: int, texts: tf.SparseTensor, ids: tf.Tensor) -> tf.Tensor:
        sparse = tf.SparseTensor(texts.indices, ids, texts.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(self.rows[index], sparse)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = tf.io.VarLenFeature(tf.string)
        parsed = tf.io.parse_example(examples, {"color": texts, "shade": texts, "city": texts})
        color, shade, city = parsed["color"], parsed["shade"], parsed["city"]
        hashed = tf.strings.to_hash_bucket_fast(tf.strings.lower(city.values), ROWS)
        parts = [
            self.embed(0, color, self.table.lookup(color.values)),
            self.embed(1, shade, self.words.lookup(shade.values)),
            self.embed(2, city, hashed),
        ]
        return {"row": tf.concat(parts, axis=1)}


def words(directory: Path) -> None:
    vocabulary = directory.parent / f"{directory.name}.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    model = Words(str(vocabulary))
    tf.saved_model.save(model, str(directory), {"serving_default": model.serve})


def _keras_model() -> object:
    """A Keras 3 model with a bag of words per row, through a plain Keras embedding and a lookup."""
    import keras

    class Bag(keras.layers.Layer):
        def build(self, _: object) -> None:
            self.table = self.add_weight(shape=(ROWS, DIM), name="table")

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            sparse = tf.sparse.from_dense(ids)
            return tf.nn.safe_embedding_lookup_sparse(self.table.value, sparse, combiner="mean")

    keras.utils.set_random_seed(7)
    ids = keras.Input([4], dtype="int64", name="ids")
    return keras.Model(ids, keras.layers.Dense(1, name="score")(Bag()(ids)))


def keras3_export(directory: Path) -> None:
    _keras_model().export(str(directory), verbose=False)  # type: ignore[attr-defined]


def keras3_save(directory: Path) -> None:
    """tf.saved_model.save of a Keras 3 model."""
    model = _keras_model()
    serve = tf.function(model, input_signature=[tf.TensorSpec([None, 4], tf.int64)])
    tf.saved_model.save(model, str(directory), {"serving_default": serve})


def meta_graphs(directory: Path) -> None:
    """A compat.v1 model with two meta graphs, of two and of one signatures."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        table = v1.get_variable("table", [ROWS, DIM])
        rows = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="sum")
        score = tf.reduce_sum(rows, 1)
        session.run(v1.global_variables_initializer())

        def signature(name: str, out: tf.Tensor) -> object:
            return v1.saved_model.predict_signature_def({"ids": ids}, {name: out})

        builder = v1.saved_model.builder.SavedModelBuilder(str(directory))
        both = {"rows": signature("rows", rows), "serving_default": signature("score", score)}
        builder.add_meta_graph_and_variables(session, ["serve"], both)
        builder.add_meta_graph(["serve", "fast"], {"rows": signature("rows", rows)})
        builder.save()


KINDS = (branching, words, keras3_export, keras3_save, meta_graphs)

if __name__ == "__main__":
    for kind in KINDS:
        kind(Path(sys.argv[1]) / kind.__name__)

"""The columns in stock hosts, against the stock column."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.feature_column import serialization

from fusion.feature_column import FusedEmbeddingColumn, embedding_column
from fusion.ops import OP_NAMES

fc = tf.feature_column
ROWS = 5


def sparse(values: Any, indices: Any, columns: int = 3) -> tf.SparseTensor:
    return tf.SparseTensor(np.array(indices, np.int64), values, [ROWS, columns])


PLACES = [[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2], [4, 0]]


def features() -> dict[str, tf.SparseTensor]:
    """One batch; made anew in each graph."""
    return {
        "ids": sparse(tf.constant([1, 4, 0, 4, 4, 9, 2], tf.int64), PLACES),
        "small": sparse(tf.constant([1, 4, 0, 4, 4, -1, 20], tf.int32), PLACES),
        "words": sparse(["a", "b", "", "c", "a", "zebra", "b"], PLACES),
        "importance": sparse([0.5, 2.0, 1.0, -1.0, 3.0, 0.0, 0.25], PLACES),
        "dense": tf.constant([[3], [-1], [0], [7], [3]], tf.int64),
        "number": tf.constant([[1.0], [2.0], [3.0], [4.0], [5.0]]),
    }


CATEGORICAL = {
    "identity": lambda: fc.categorical_column_with_identity("ids", 10),
    "identity with default": lambda: fc.categorical_column_with_identity("small", 10, 3),
    "hash": lambda: fc.categorical_column_with_hash_bucket("words", 20),
    "hash of integers": lambda: fc.categorical_column_with_hash_bucket("ids", 20, tf.int64),
    "vocabulary": lambda: fc.categorical_column_with_vocabulary_list("words", ["a", "b", "c"]),
    "out of vocabulary": lambda: fc.categorical_column_with_vocabulary_list(
        "words", ["a", "b"], num_oov_buckets=2
    ),
    "dense input": lambda: fc.categorical_column_with_identity("dense", 10),
    "weighted": lambda: fc.weighted_categorical_column(
        fc.categorical_column_with_identity("ids", 10), "importance"
    ),
    "weighted words": lambda: fc.weighted_categorical_column(
        fc.categorical_column_with_hash_bucket("words", 8), "importance"
    ),
}


def seeded() -> Any:
    return tf.compat.v1.random_normal_initializer(seed=3)


def input_layer(make_columns: Any, partitioner: Any = None) -> tuple[Any, Any, Any, Any]:
    """(output, tables after a step, names of variables, op types) in a v1 session."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        with tf.compat.v1.variable_scope("model", partitioner=partitioner):
            out = tf.compat.v1.feature_column.input_layer(features(), make_columns())
        variables = tf.compat.v1.global_variables()
        trained = tf.compat.v1.trainable_variables()
        step = tf.no_op()
        if trained:
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
            step = optimizer.minimize(tf.reduce_sum(tf.sin(out)))
        init = tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()
        session.run(init)
        before = session.run(out)
        session.run(step)
        types = {op.type for op in graph.get_operations()}
        return before, session.run(variables), [v.name for v in variables], types


def assert_close(actual: Any, expected: Any, exact: bool) -> None:
    if exact:
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def compare(make: Any, exact: bool = True) -> None:
    """Runs columns made by `make(do_fusion)` fused and stock."""
    fused = input_layer(lambda: make("v2"))
    stock = input_layer(lambda: make(None))
    assert fused[2] == stock[2]
    assert "FusedEmbeddingSparsePostLookUpV2" in fused[3]
    assert not set(OP_NAMES) & stock[3]
    assert_close(fused[0], stock[0], exact)
    for ours, theirs in zip(fused[1], stock[1], strict=True):
        assert_close(ours, theirs, exact)


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_input_layer(name, combiner):
    def make(do_fusion):
        column = CATEGORICAL[name]()
        return [embedding_column(column, 4, combiner, seeded(), do_fusion=do_fusion)]

    compare(make, exact=not name.startswith("weighted"))


def test_mixed_with_stock_columns():
    def make(do_fusion):
        ids, words = CATEGORICAL["identity"](), CATEGORICAL["hash"]()
        return [
            fc.numeric_column("number"),
            embedding_column(ids, 3, initializer=seeded(), do_fusion=do_fusion),
            fc.embedding_column(words, 2, initializer=seeded()),
            embedding_column(CATEGORICAL["dense input"](), 5, "sum", seeded(), do_fusion=do_fusion),
            fc.indicator_column(CATEGORICAL["vocabulary"]()),
        ]

    compare(make)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_max_norm(max_norm):
    def make(do_fusion):
        column = CATEGORICAL["identity"]()
        options = {"initializer": seeded(), "max_norm": max_norm, "do_fusion": do_fusion}
        return [embedding_column(column, 4, **options)]

    compare(make, exact=False)


def test_not_trainable():
    def make(do_fusion):
        column = CATEGORICAL["identity"]()
        return [
            embedding_column(column, 4, trainable=False, initializer=seeded(), do_fusion=do_fusion)
        ]

    compare(make)
    with tf.Graph().as_default():
        tf.compat.v1.feature_column.input_layer(features(), make("v2"))
        assert not tf.compat.v1.trainable_variables()


@pytest.mark.parametrize("name", ["hash of integers", "weighted", "dense input"])
def test_without_safe_lookup(name):
    # The last row of the batch has an entry, else stock's result would be too short.
    def make(do_fusion):
        return [
            embedding_column(
                CATEGORICAL[name](),
                4,
                initializer=seeded(),
                use_safe_embedding_lookup=False,
                do_fusion=do_fusion,
            )
        ]

    compare(make, exact=name != "weighted")
    types = input_layer(lambda: make("v2"))[3]
    assert "PruneInvalidAndFillEmptyRows" not in types
    assert "UniqueWithCountsV3" in types


def test_partitioned_table():
    def make(do_fusion):
        column = CATEGORICAL["identity"]()
        initializer = tf.compat.v1.constant_initializer(0.25)
        return [embedding_column(column, 4, initializer=initializer, do_fusion=do_fusion)]

    partitioner = tf.compat.v1.fixed_size_partitioner(3)
    fused, stock = (input_layer(lambda v=v: make(v), partitioner) for v in ("v2", None))
    assert fused[2] == stock[2]
    assert len(fused[2]) == 3
    assert "PartitionWithPermutation" in fused[3]
    np.testing.assert_array_equal(fused[0], stock[0])
    for ours, theirs in zip(fused[1], stock[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("do_fusion", [None, "v2"])
def test_the_table_comes_from_a_checkpoint(do_fusion, tmp_path):
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saved = tf.compat.v1.get_variable("old/name", initializer=table)
        session.run(saved.initializer)
        path = tf.compat.v1.train.Saver([saved]).save(session, str(tmp_path / "model"))

    def make():
        return [
            embedding_column(
                CATEGORICAL["identity"](),
                4,
                "sum",
                ckpt_to_load_from=path,
                tensor_name_in_ckpt="old/name",
                do_fusion=do_fusion,
            )
        ]

    out = input_layer(make)[0]
    np.testing.assert_array_equal(out[0], table[1] + table[4])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CATEGORICAL)
def test_dense_features(name, compiled):
    layers = {}
    for do_fusion in (None, "v2"):
        column = CATEGORICAL[name]()
        initializer = tf.keras.initializers.RandomNormal(seed=3)
        fused = embedding_column(column, 4, initializer=initializer, do_fusion=do_fusion)
        mixed = [fc.numeric_column("number"), fused]
        layers[do_fusion] = tf_keras.layers.DenseFeatures(mixed, name="inputs")
    results = []
    for layer in layers.values():
        call = tf.function(layer) if compiled else layer
        with tf.GradientTape() as tape:
            out = call(features())
            loss = tf.reduce_sum(tf.sin(out))
        gradient = tf.convert_to_tensor(tape.gradient(loss, layer.variables[0]))
        results.append((out.numpy(), gradient.numpy(), [v.name for v in layer.variables]))
    assert results[0][2] == results[1][2]
    exact = not name.startswith("weighted")
    assert_close(results[1][0], results[0][0], exact)
    assert_close(results[1][1], results[0][1], exact)


def test_a_model_with_dense_features_trains_and_is_saved(tmp_path):
    def model():
        column = CATEGORICAL["dense input"]()
        initializer = tf_keras.initializers.Constant(0.1)
        fused = embedding_column(column, 4, initializer=initializer, do_fusion="v2")
        return tf_keras.Sequential(
            [tf_keras.layers.DenseFeatures([fused]), tf_keras.layers.Dense(1, "sigmoid")]
        )

    inputs = {"dense": np.array([[3], [1], [0], [7]])}
    trained = model()
    trained.compile("adam", "binary_crossentropy")
    trained.fit(inputs, np.array([[0], [1], [0], [1]]), epochs=2, verbose=0)
    expected = trained.predict(inputs, verbose=0)
    trained.save(tmp_path / "model", save_format="tf")
    loaded = tf_keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)


def train_example(do_fusion: str | None) -> list[Any]:
    """A column of ones, trained three steps by FTRL, as DeepRec's guide shows it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        column = fc.categorical_column_with_identity("col_emb", 100)
        embedding = embedding_column(
            column, 3, initializer=tf.compat.v1.ones_initializer(), do_fusion=do_fusion
        )
        indices = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]  # column 4 of 4 is outside
        values = tf.constant([1, 2, 3, 4, 5], tf.int64)
        ids = {"col_emb": tf.SparseTensor(indices, values, [5, 4])}
        emb = tf.compat.v1.feature_column.input_layer(ids, [embedding])
        loss = tf.reduce_sum(tf.multiply(emb, 2.0))
        optimizer = tf.compat.v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
        )
        train = optimizer.apply_gradients(optimizer.compute_gradients(loss))
        session.run(tf.compat.v1.global_variables_initializer())
        steps = [session.run([emb, train, loss]) for _ in range(3)]
        return [(step[0].tolist(), step[2]) for step in steps] + [
            table.tolist() for table in session.run(tf.compat.v1.global_variables())
        ]


def test_the_guides_example_gives_the_numbers_of_stock():
    fused = train_example("v2")
    assert fused == train_example(None)
    assert fused[0] == ([[1.0] * 3] * 5, 30.0)
    assert fused[1] != fused[0]


def fused_column(**changes: Any) -> Any:
    column = fc.categorical_column_with_identity("ids", 10)
    arguments = {"combiner": "sum", "initializer": tf_keras.initializers.Zeros(), "do_fusion": "v2"}
    return embedding_column(column, 4, **{**arguments, **changes})


def test_without_fusion_it_is_the_stock_column():
    column = fused_column(do_fusion=None)
    assert type(column) is type(fc.embedding_column(CATEGORICAL["identity"](), 4))
    assert not isinstance(column, FusedEmbeddingColumn)


@pytest.mark.parametrize("bad", ["v1", "v3", "", True, 2])
def test_unknown_do_fusion(bad):
    with pytest.raises(ValueError, match=f"do_fusion .*{bad!r}"):
        fused_column(do_fusion=bad)


@pytest.mark.parametrize("do_fusion", [None, "v2"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dimension": 0}, "Invalid dimension 0"),
        ({"initializer": 3}, "initializer must be callable"),
        ({"ckpt_to_load_from": "path"}, "Must specify both"),
    ],
)
def test_bad_arguments_are_those_of_stock(do_fusion, bad, message):
    arguments = {"categorical_column": CATEGORICAL["identity"](), "dimension": 4, **bad}
    with pytest.raises(ValueError, match=message):
        embedding_column(**arguments, do_fusion=do_fusion)


def test_an_unknown_combiner_raises_when_it_is_used():
    column = fused_column(combiner="max")
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"combiner .*'max'"):
        tf.compat.v1.feature_column.input_layer(features(), [column])


def test_equality_and_hash():
    initializer = tf_keras.initializers.Zeros()
    one, same = fused_column(initializer=initializer), fused_column(initializer=initializer)
    assert one == same
    assert hash(one) == hash(same)
    assert one != fused_column(initializer=initializer, combiner="mean")
    stock = fused_column(initializer=initializer, do_fusion=None)
    assert one != stock
    assert len({one, same, stock}) == 2


def test_copies_and_pickles():
    column = fused_column()
    for other in (copy.copy(column), pickle.loads(pickle.dumps(column))):
        assert type(other) is FusedEmbeddingColumn
        assert other.do_fusion == "v2"
        assert other.categorical_column == column.categorical_column
        assert other.dimension == 4


def test_repr_and_fields():
    column = fused_column()
    assert repr(column).startswith("FusedEmbeddingColumn(categorical_column=")
    assert repr(column).endswith("do_fusion='v2')")
    assert column._asdict()["do_fusion"] == "v2"
    assert column.name == fused_column(do_fusion=None).name
    assert column.variable_shape == (4,)


def test_replace():
    column = fused_column()
    other = column._replace(dimension=7)
    assert (type(other), other.dimension, other.do_fusion) == (FusedEmbeddingColumn, 7, "v2")
    assert column._replace(do_fusion="v2") == column
    with pytest.raises(ValueError, match="dimensions"):
        column._replace(dimensions=7)


def test_config_round_trips():
    column = fused_column()
    config = column.get_config()
    assert config["do_fusion"] == "v2"
    again = FusedEmbeddingColumn.from_config(config)
    assert again._replace(initializer=column.initializer) == column


def test_serialized_columns_come_back_as_they_were():
    # A stock and a fused column of one feature have the same name, but are two columns.
    columns = [fused_column(), fused_column(do_fusion=None)]
    again = serialization.deserialize_feature_columns(
        serialization.serialize_feature_columns(columns)
    )
    assert [type(column) for column in again] == [type(column) for column in columns]
    assert again[0].do_fusion == "v2"

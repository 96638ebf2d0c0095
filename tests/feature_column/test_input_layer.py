"""compat.v1 hosts: `input_layer`, `linear_model`, templates, collections, checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.feature_column import embedding_column, shared_embedding_columns
from fusion.lookup import VERSIONS
from tests import zygote
from tests.feature_column.compare import (
    FUSED,
    assert_fused,
    assert_same,
    both,
    compare,
    raised,
    stock_ops,
)
from tests.feature_column.hosts import input_layer, loss, placeholders, run_session
from tests.feature_column.kinds import (
    KINDS,
    SOME,
    Batch,
    Column,
    build,
    initializer,
    of_each_combiner,
)

v1 = tf.compat.v1
fc = tf.feature_column

#: Stock and fused lookups of a program of TensorFlow 1, where sizes of shapes are `Dimension`s.
TENSORFLOW_1 = """
import numpy as np, tensorflow as tf
tf.compat.v1.disable_v2_behavior()
import fusion
v1, fc = tf.compat.v1, tf.feature_column
TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)

def column(safe, do_fusion):
    ids = fc.categorical_column_with_identity("a", 10)
    return fusion.feature_column.embedding_column(
        ids, 2, do_fusion=do_fusion, use_safe_embedding_lookup=safe,
        initializer=v1.constant_initializer(TABLE))

def lookup(safe, do_fusion):
    if do_fusion is None:
        return lambda ids: tf.nn.safe_embedding_lookup_sparse(TABLE, ids)
    return lambda ids: fusion.fused_safe_embedding_lookup_sparse(
        TABLE, ids, fusion_version=do_fusion)

for rank in (1, 2, 3):
    for safe in (True, False):
        for shape in (None, [None] * rank):
            results = []
            for do_fusion in (None, "v1", "v2"):
                with tf.Graph().as_default(), v1.Session() as session:
                    ids = v1.sparse_placeholder(tf.int64, shape)
                    fused = [lookup(safe, do_fusion)(ids)]
                    if rank == 2:
                        columns = [column(safe, do_fusion)]
                        fused.append(v1.feature_column.input_layer({"a": ids}, columns))
                    session.run(v1.global_variables_initializer())
                    places = [[0] * rank, [1] * rank]
                    feed = {ids: v1.SparseTensorValue(places, [1, 2], [3] * rank)}
                    results.append([[f.shape.as_list() if f.shape.ndims else None, r.tolist()]
                                    for f, r in zip(fused, session.run(fused, feed))])
            assert results[1] == results[2] == results[0], (rank, safe, shape, results)
print("equal")
"""
FEATURES = Batch().features()
FUSION = pytest.mark.parametrize("do_fusion", VERSIONS)


@pytest.mark.parity("several columns at once")
@pytest.mark.parity("compat.v1 input_layer")
@FUSION
def test_several_columns_at_once(do_fusion):
    compare(SOME, FEATURES, do_fusion, input_layer)


@FUSION
def test_reference_variables(do_fusion):
    def layer(features: Any, columns: Any) -> Any:
        with v1.variable_scope("ref", use_resource=False):
            return v1.feature_column.input_layer(features, columns)

    fused = compare(SOME, FEATURES, do_fusion, partial(input_layer, layer=layer))
    assert "GatherV2" in fused.ran
    assert "ResourceGather" not in fused.ran


@pytest.mark.parity("columns of partitioned tables")
@pytest.mark.parametrize("shards", [2, 3, 12])
@FUSION
def test_partitioned_tables(do_fusion, shards):
    columns = partial(build, [*of_each_combiner("identity"), Column("hash of words")])
    partitioner = v1.fixed_size_partitioner(shards)
    fused, stock = both(columns, FEATURES, do_fusion, input_layer, partitioner=partitioner)
    assert_fused(fused.ran, do_fusion)
    assert_same(fused, stock)
    assert len(fused.variables) == 3 * min(shards, 10) + min(shards, 6)


@FUSION
def test_what_the_layer_reports(do_fusion):
    """cols_to_vars and cols_to_output_tensors are filled as in stock, by column."""

    def run(version: str | None) -> Any:
        columns = build(SOME, version)
        variables: dict[Any, Any] = {}
        outputs: dict[Any, Any] = {}
        with tf.Graph().as_default():
            tensors, _ = placeholders(FEATURES)
            v1.feature_column.input_layer(
                tensors, columns, cols_to_vars=variables, cols_to_output_tensors=outputs
            )
        assert set(columns) == variables.keys() == outputs.keys()
        return [
            (column.name, [v.name for v in variables[column]], outputs[column].shape.as_list())
            for column in columns
        ]

    assert run(do_fusion) == run(None)


@pytest.mark.parametrize("trainable", [True, False])
@FUSION
def test_collections(do_fusion, trainable):
    options = {"weight_collections": ["mine"], "trainable": trainable}
    columns = partial(build, SOME[:3])
    fused, stock = both(columns, FEATURES, do_fusion, input_layer, **options)
    assert_same(fused, stock)
    assert len(fused.collections["mine"]) == 3
    assert len(fused.collections.get("trainable_variables", [])) == (3 if trainable else 0)


@FUSION
def test_a_template_is_called_twice(do_fusion):
    def layer(features: Any, columns: Any) -> Any:
        template = v1.make_template("once", v1.feature_column.input_layer, feature_columns=columns)
        return tf.concat([template(features), template(features)], 1)

    columns = partial(build, SOME[:3])
    fused, stock = both(columns, FEATURES, do_fusion, input_layer, layer=layer)
    assert_fused(fused.ran, do_fusion)
    assert_same(fused, stock)
    assert len(fused.variables) == 3


@FUSION
def test_variables_are_reused(do_fusion):
    def layer(features: Any, columns: Any) -> Any:
        results = []
        for reuse in (False, True):
            with v1.variable_scope("tower", reuse=reuse):
                results.append(v1.feature_column.input_layer(features, columns))
        return tf.concat(results, 1)

    columns = partial(build, SOME[:3])
    fused, stock = both(columns, FEATURES, do_fusion, input_layer, layer=layer)
    assert_same(fused, stock)
    assert len(fused.variables) == 3


@FUSION
def test_beside_stock_columns(do_fusion):
    def columns(version: str | None) -> list[Any]:
        return [
            *build(SOME[:2], version),
            *build([Column("hash of ids", "z", "sqrtn")], None),
            fc.numeric_column("x_numbers", 2),
            fc.indicator_column(KINDS["vocabulary list"]("x")),
        ]

    mixed, stock = both(columns, FEATURES, do_fusion, input_layer)
    assert FUSED[do_fusion] in mixed.ran
    assert stock_ops(mixed.ran)
    assert_same(mixed, stock)


def train(
    make_columns: Callable[[], Any],
    optimizer: Any,
    layer: Callable[..., Any] = v1.feature_column.input_layer,
    restored: str | None = None,
    saved: str | None = None,
) -> tuple[list[Any], set[str]]:
    """Three steps: what is trained, after each, and the types of the ops that ran."""
    with tf.Graph().as_default(), v1.Session() as session:
        tensors, feed = placeholders(FEATURES)
        output = layer(tensors, make_columns())
        step = optimizer().minimize(loss(tf.sin(output)))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        saver = v1.train.Saver()
        if restored:
            saver.restore(session, restored)
        trained = []
        for _ in range(3):
            _, ran = run_session(session, step, feed)
            trained.append(session.run([output, *v1.trainable_variables()], feed))
        if saved:
            saver.save(session, saved)
        return trained, ran


def assert_trained_alike(ours: list[Any], theirs: list[Any]) -> None:
    for step, expected in zip(ours, theirs, strict=True):
        for value, other in zip(step, expected, strict=True):
            np.testing.assert_array_equal(value, other)


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.5),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.5),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.5, l1_regularization_strength=0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@FUSION
def test_training(do_fusion, name):
    columns = partial(build, SOME[:3])
    fused, stock = (train(partial(columns, v), OPTIMIZERS[name]) for v in (do_fusion, None))
    assert_fused(fused[1], do_fusion)
    assert_trained_alike(fused[0], stock[0])
    assert not np.array_equal(stock[0][0][0], stock[0][2][0])


@FUSION
def test_checkpoints_go_both_ways(do_fusion, tmp_path):
    def go(first: str | None, second: str | None) -> Any:
        path = str(tmp_path / f"{first}-{second}")
        train(partial(build, SOME[:3], first), OPTIMIZERS["adagrad"], saved=path)
        return train(partial(build, SOME[:3], second), OPTIMIZERS["adagrad"], restored=path)[0]

    expected = go(None, None)
    assert_trained_alike(go(None, do_fusion), expected)
    assert_trained_alike(go(do_fusion, None), expected)


def test_programs_of_tensorflow_1() -> None:
    command, server = [sys.executable, "-c", TENSORFLOW_1], zygote.without_fusion()
    done = zygote.run(command, capture_output=True, text=True, check=False, server=server)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


@pytest.mark.parity("compat.v1 linear_model")
@FUSION
def test_linear_model(do_fusion):
    def columns(version: str | None) -> list[Any]:
        categorical = [fc.categorical_column_with_identity(f"{key}_ids", 10) for key in "xy"]
        return [
            KINDS["hash of words"]("x"),
            KINDS["weighted ids"]("y"),
            fc.numeric_column("x_numbers", 2),
            *build([Column("hash of ids", "z", "sqrtn")], version),
            *shared_embedding_columns(categorical, 3, initializer=initializer, do_fusion=version),
        ]

    layer = v1.feature_column.linear_model
    fused, stock = (train(partial(columns, v), OPTIMIZERS["sgd"], layer) for v in (do_fusion, None))
    assert FUSED[do_fusion] in fused[1]
    assert_trained_alike(fused[0], stock[0])


@FUSION
def test_parsed_examples(do_fusion):
    """Columns say how they are parsed, and take what comes out."""

    def example(ids: list[int], words: list[bytes]) -> bytes:
        feature = {
            "x_ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
            "y_words": tf.train.Feature(bytes_list=tf.train.BytesList(value=words)),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    examples = [example([1, 2], [b"a"]), example([], []), example([3, 3, -1], [b"b", b"a"])]
    columns = (SOME[0], SOME[1])

    def layer(features: Any, columns: Any) -> Any:
        spec = fc.make_parse_example_spec(columns)
        assert spec == v1.feature_column.make_parse_example_spec(columns)
        parsed = tf.io.parse_example(features["examples"], spec)
        return v1.feature_column.input_layer(parsed, columns)

    assert fc.make_parse_example_spec(build(SOME, do_fusion)) == fc.make_parse_example_spec(
        build(SOME, None)
    )
    features = {"examples": np.array(examples, object)}
    fused, stock = both(partial(build, columns), features, do_fusion, input_layer, layer=layer)
    assert_fused(fused.ran, do_fusion)
    assert_same(fused, stock)
    assert fused.output.shape == (3, 7)
    assert not fused.output[1].any()


@FUSION
def test_sequence_columns_are_refused_as_in_stock(do_fusion):
    sequence = fc.sequence_categorical_column_with_identity("x_ids", 10)
    for version in (None, do_fusion):
        column = embedding_column(sequence, 4, do_fusion=version)
        with pytest.raises(ValueError, match="must not be of type _SequenceCategoricalColumn"):
            input_layer([column].copy, FEATURES)


@FUSION
def test_ids_of_rank_3_fail_as_in_stock(do_fusion):
    features = {"x_ids": np.ones((2, 3, 4), np.int64)}
    for version in (None, do_fusion):
        error = raised([Column("identity")], features, version, input_layer)
        assert type(error) is tf.errors.InvalidArgumentError
        assert "reshape" in str(error)


def train_example(do_fusion: str | None) -> list[Any]:
    """A column of ones, trained three steps by FTRL, as DeepRec's guide shows it."""
    with tf.Graph().as_default(), v1.Session() as session:
        column = fc.categorical_column_with_identity("col_emb", 100)
        embedding = embedding_column(
            column, 3, initializer=v1.ones_initializer(), do_fusion=do_fusion
        )
        indices = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]  # column 4 of 4 is outside
        values = tf.constant([1, 2, 3, 4, 5], tf.int64)
        ids = {"col_emb": tf.SparseTensor(indices, values, [5, 4])}
        emb = v1.feature_column.input_layer(ids, [embedding])
        loss = tf.reduce_sum(tf.multiply(emb, 2.0))
        optimizer = v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
        )
        train = optimizer.apply_gradients(optimizer.compute_gradients(loss))
        session.run(v1.global_variables_initializer())
        steps = [session.run([emb, train, loss]) for _ in range(3)]
        return [(step[0].tolist(), step[2]) for step in steps] + [
            table.tolist() for table in session.run(v1.global_variables())
        ]


@FUSION
def test_the_guides_example_gives_the_numbers_of_stock(do_fusion):
    fused = train_example(do_fusion)
    assert fused == train_example(None)
    assert fused[0] == ([[1.0] * 3] * 5, 30.0)
    assert fused[1] != fused[0]

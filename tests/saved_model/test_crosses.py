"""SavedModels whose columns are crosses of features of tf.Examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import GROUPED_CROSS
from tests.example_bytes import floats, ints, of, strings

fc = tf.feature_column
v1 = tf.compat.v1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of crosses of two sparse features, and of one with the bucket of a price."""
    path = tmp_path_factory.mktemp("crosses") / "model"
    price = fc.bucketized_column(fc.numeric_column("price"), [1.0, 2.0])
    item = fc.categorical_column_with_identity("item", 100)
    crosses = [
        fc.crossed_column(["word", "tag"], 50),
        fc.crossed_column(["word", price], 60, hash_key=3),
        fc.crossed_column([item, price, "tag"], 70),
    ]
    columns = [
        fc.embedding_column(one, 4, initializer=v1.random_normal_initializer(seed=1))
        for one in crosses
    ]
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], name="examples")
        parsed = v1.io.parse_example(examples, fc.make_parse_example_spec(columns))
        score = tf.reduce_sum(v1.feature_column.input_layer(parsed, columns), 1)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"examples": examples}, {"score": score})
    return path


def ops(path: Path) -> set[str]:
    return {op for meta in read_saved_model(path).meta_graphs for op in used_ops(meta)}


def answers(path: Path) -> list[Any]:
    """What a model answers to Examples with no, one and several values of features."""
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    rows = [
        of(
            word=strings([b"w%d" % k for k in range(n)]),
            tag=strings([b"t"] * (n % 3)),
            price=floats([n / 2]),
            item=ints([n, 7]),
        )
        for n in range(6)
    ]
    return [serve(examples=tf.constant(rows[:n], tf.string))["score"].numpy() for n in (0, 1, 6)]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_there_and_back(model: Path, tmp_path: Path) -> None:
    fused, stock = tmp_path / "fused", tmp_path / "stock"
    done = rewrite_saved_model(model, fused, RewriteOptions())
    assert done.verification is not None
    assert done.verification.same
    assert [one.crosses for one in done.report.crosses] == [3]
    assert GROUPED_CROSS in ops(fused)
    assert "SparseCross" not in ops(fused)
    assert_equal(answers(fused), answers(model))
    back = rewrite_saved_model(fused, stock, RewriteOptions("stock"))
    assert back.verification is not None
    assert back.verification.same
    assert "SparseCross" in ops(stock)
    assert GROUPED_CROSS not in ops(stock)
    assert_equal(answers(stock), answers(model))

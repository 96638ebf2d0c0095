"""`embedding_column` as an object: its arguments, fields and serialization."""

from __future__ import annotations

import copy
import inspect
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.feature_column import serialization

from fusion.feature_column import (
    FusedEmbeddingColumn,
    embedding_column,
    shared_embedding_columns,
    shared_embeddings,
)
from fusion.lookup import VERSIONS
from tests.feature_column.compare import assert_fused
from tests.feature_column.hosts import input_layer
from tests.feature_column.kinds import Batch

v1 = tf.compat.v1
fc = tf.feature_column
FUSION = pytest.mark.parametrize("do_fusion", VERSIONS)
ZEROS = tf_keras.initializers.Zeros()


def identity() -> Any:
    return fc.categorical_column_with_identity("x_ids", 10)


def make(do_fusion: str | None, **changes: Any) -> Any:
    arguments = {"combiner": "sum", "initializer": ZEROS, "do_fusion": do_fusion, **changes}
    return embedding_column(identity(), 4, **arguments)


@pytest.mark.parametrize(
    ("ours", "stock"),
    [
        (embedding_column, fc.embedding_column),
        (shared_embeddings, fc.shared_embeddings),
        (shared_embedding_columns, v1.feature_column.shared_embedding_columns),
    ],
)
def test_the_signature_is_that_of_stock_and_do_fusion(ours, stock):
    parameters = inspect.signature(ours).parameters
    expected = inspect.signature(stock).parameters
    assert [(name, p.default) for name, p in parameters.items()] == [
        *((name, p.default) for name, p in expected.items()),
        ("do_fusion", None),
    ]


def test_without_fusion_it_is_the_stock_column():
    column = make(None)
    assert type(column) is type(fc.embedding_column(identity(), 4))
    assert not isinstance(column, FusedEmbeddingColumn)


@pytest.mark.parametrize("bad", ["v3", "", "V2", True, 2, b"v2"])
def test_unknown_do_fusion(bad):
    with pytest.raises(ValueError, match=f"do_fusion must be None or one of .*{bad!r}"):
        make(bad)


@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dimension": 0}, "Invalid dimension 0"),
        ({"initializer": 3}, "initializer must be callable"),
        ({"ckpt_to_load_from": "path"}, "Must specify both"),
    ],
)
def test_bad_arguments_are_those_of_stock(do_fusion, bad, message):
    arguments = {"categorical_column": identity(), "dimension": 4, **bad}
    with pytest.raises(ValueError, match=message):
        embedding_column(**arguments, do_fusion=do_fusion)


@pytest.mark.parity("columns with ckpt_to_load_from")
@FUSION
def test_the_table_comes_from_a_checkpoint(do_fusion, tmp_path):
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        saved = v1.get_variable("old/name", initializer=table)
        session.run(saved.initializer)
        path = v1.train.Saver([saved]).save(session, str(tmp_path / "model"))

    features = Batch((1, 2), ids=(0, 9)).features()
    options = {"ckpt_to_load_from": path, "tensor_name_in_ckpt": "old/name"}
    for partitioner in (None, v1.fixed_size_partitioner(3)):
        run = input_layer(lambda: [make(do_fusion, **options)], features, partitioner=partitioner)
        assert_fused(run.ran, do_fusion)
        first, *second = features["x_ids"].values
        np.testing.assert_array_equal(run.output, [table[first], table[second].sum(0)])


@FUSION
def test_equality_and_hash(do_fusion):
    one, same = make(do_fusion), make(do_fusion)
    assert one == same
    assert hash(one) == hash(same)
    assert one != make(do_fusion, combiner="mean")
    stock = make(None)
    assert one != stock
    assert len({one, same, stock}) == 2
    assert len({make(version) for version in VERSIONS}) == len(VERSIONS)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@FUSION
def test_pickles(do_fusion, protocol):
    column = make(do_fusion, initializer=None)
    again = pickle.loads(pickle.dumps(column, protocol))
    assert type(again) is FusedEmbeddingColumn
    assert again.do_fusion == do_fusion
    assert again.categorical_column == column.categorical_column
    assert again.dimension == 4


@FUSION
def test_copies(do_fusion):
    column = make(do_fusion)
    assert type(copy.copy(column)) is FusedEmbeddingColumn
    assert copy.copy(column) == column
    assert copy.deepcopy(column)._replace(initializer=ZEROS) == column
    assert FusedEmbeddingColumn._make(column) == column


@FUSION
def test_fields(do_fusion):
    column = make(do_fusion)
    assert column._fields == (*make(None)._fields, "do_fusion")
    assert column._asdict()["do_fusion"] == column.do_fusion == do_fusion
    assert column.name == make(None).name
    assert column.variable_shape == (4,)
    assert repr(column).startswith("FusedEmbeddingColumn(categorical_column=")
    assert repr(column).endswith(f"do_fusion={do_fusion!r})")


@FUSION
def test_replace(do_fusion):
    column = make(do_fusion)
    other = column._replace(dimension=7)
    assert (type(other), other.dimension, other.do_fusion) == (FusedEmbeddingColumn, 7, do_fusion)
    assert column._replace(do_fusion=do_fusion) == column
    assert column.__replace__(dimension=7) == other
    with pytest.raises(ValueError, match="dimensions"):
        column._replace(dimensions=7)
    with pytest.raises(ValueError, match=r"do_fusion .* got None"):
        column._replace(do_fusion=None)


@FUSION
def test_config_round_trips(do_fusion):
    column = make(do_fusion)
    config = column.get_config()
    assert config["do_fusion"] == do_fusion
    again = FusedEmbeddingColumn.from_config(config)
    assert again._replace(initializer=ZEROS) == column
    with pytest.raises(ValueError, match=r"do_fusion .* got 'v9'"):
        FusedEmbeddingColumn.from_config(config | {"do_fusion": "v9"})


@FUSION
def test_serialized_columns_come_back_as_they_were(do_fusion):
    # A stock and a fused column of one feature have the same name, but are two columns.
    columns = [make(do_fusion), make(None)]
    again = serialization.deserialize_feature_columns(
        serialization.serialize_feature_columns(columns)
    )
    assert [type(column) for column in again] == [type(column) for column in columns]
    assert again[0].do_fusion == do_fusion


@FUSION
def test_a_fused_and_a_stock_column_of_one_feature_are_refused_as_duplicates(do_fusion):
    columns = partial(map, make, [do_fusion, None])
    with pytest.raises(ValueError, match="Duplicate feature column name"):
        input_layer(lambda: list(columns()), Batch().features())

"""Columns that share a table."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.feature_column import serialization

from fusion.feature_column import (
    FusedSharedEmbeddingColumn,
    FusedSharedEmbeddingColumnV1,
    shared_embedding_columns,
    shared_embeddings,
)
from fusion.lookup import VERSIONS
from tests.feature_column.compare import assert_fused, assert_same, both, compare, stock_ops
from tests.feature_column.hosts import Outcome, input_layer
from tests.feature_column.kinds import KINDS, Batch, Column, initializer

v1 = tf.compat.v1
fc = tf.feature_column
FEATURES = Batch().features()


def keras_layer(features: Any, columns: Any) -> Any:
    return tf_keras.layers.DenseFeatures(columns)(features)


#: Where columns of each function work.
HOSTS: dict[Any, Callable[..., Outcome]] = {
    shared_embeddings: partial(input_layer, layer=keras_layer),
    shared_embedding_columns: input_layer,
}
CLASSES = {
    shared_embeddings: FusedSharedEmbeddingColumn,
    shared_embedding_columns: FusedSharedEmbeddingColumnV1,
}
SHARING = pytest.mark.parametrize("sharing", HOSTS, ids=lambda function: function.__name__)
FUSION = pytest.mark.parametrize("do_fusion", VERSIONS)


def identities(rows: int = 10) -> list[Any]:
    return [fc.categorical_column_with_identity(f"{key}_ids", rows) for key in "xy"]


@pytest.mark.parity("{sharing.__name__}")
@pytest.mark.parametrize("kind", KINDS)
@SHARING
@FUSION
def test_kinds(do_fusion, sharing, kind):
    columns = [Column(kind, key, sharing=sharing) for key in "xy"]
    fused = compare(columns, FEATURES, do_fusion, HOSTS[sharing])
    assert len(fused.variables) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"combiner": "sum", "dimension": 1},
        {"combiner": "sqrtn", "max_norm": 0.8},
        {"trainable": False},
        {"safe": False, "max_norm": 0.8},
    ],
    ids=str,
)
@SHARING
@FUSION
def test_options(do_fusion, sharing, options):
    features = Batch((3, 1, 12, 2), ids=(0, 9), weights=(0.5, 2.0)).features()
    columns = [
        Column(kind, key, sharing=sharing, **options)
        for kind, key in [("identity", "x"), ("weighted ids", "y"), ("identity of dense ids", "z")]
    ]
    compare(columns, features, do_fusion, HOSTS[sharing])


@SHARING
@FUSION
def test_beside_columns_with_tables_of_their_own(do_fusion, sharing):
    columns = [
        Column("vocabulary list", "z", "sqrtn", 3),
        *(Column("hash of words", key, "sum", sharing=sharing) for key in "xy"),
    ]
    assert len(compare(columns, FEATURES, do_fusion, HOSTS[sharing]).variables) == 2


@pytest.mark.parity("columns of partitioned tables")
@SHARING
@FUSION
def test_partitioned_table(do_fusion, sharing):
    def columns(version: str | None) -> list[Any]:
        return sharing(identities(), 4, "sum", initializer, do_fusion=version)

    partitioner = v1.fixed_size_partitioner(3)
    fused, stock = both(columns, FEATURES, do_fusion, HOSTS[sharing], partitioner=partitioner)
    assert_fused(fused.ran, do_fusion)
    assert_same(fused, stock)
    assert [shape for _, shape, _, _ in fused.variables] == [(4, 4), (3, 4), (3, 4)]


@SHARING
@FUSION
def test_names_and_collections(do_fusion, sharing):
    def columns(version: str | None) -> list[Any]:
        return sharing(identities(), 4, do_fusion=version)

    fused, stock = both(columns, FEATURES, do_fusion, HOSTS[sharing])
    assert fused.variables == stock.variables
    assert fused.collections == stock.collections
    assert "x_ids_y_ids_shared_embedding" in fused.variables[0][0]


@FUSION
def test_a_layer_that_is_not_trained(do_fusion):
    def columns(version: str | None) -> list[Any]:
        return shared_embedding_columns(identities(), 4, initializer=initializer, do_fusion=version)

    options = {"trainable": False, "weight_collections": ["mine"]}
    fused, stock = both(columns, FEATURES, do_fusion, input_layer, **options)
    assert_same(fused, stock)
    assert len(fused.collections["mine"]) == 1
    assert not fused.gradients


@FUSION
def test_a_fused_and_a_stock_column_share_a_table(do_fusion):
    def columns(*versions: str | None) -> list[Any]:
        x, y = identities()
        name = "x_ids_y_ids_shared_embedding"
        return [
            column
            for categorical, version in zip((x, y), versions, strict=True)
            for column in shared_embedding_columns(
                [categorical], 4, "sum", initializer, name, do_fusion=version
            )
        ]

    mixed = input_layer(lambda: columns(do_fusion, None), FEATURES)
    stock = input_layer(lambda: columns(None, None), FEATURES)
    assert len(mixed.variables) == 1
    assert stock_ops(mixed.ran)
    assert any(op.startswith("FusedEmbedding") for op in mixed.ran)
    assert_same(mixed, stock)


@FUSION
def test_columns_of_one_creator_share_a_table_fused_or_not(do_fusion):
    def columns() -> list[Any]:
        x, y = shared_embeddings(identities(), 4, "sum", initializer)
        return [FusedSharedEmbeddingColumn.of(x, do_fusion), y]

    mixed = HOSTS[shared_embeddings](columns, FEATURES)
    assert len(mixed.variables) == 1
    assert stock_ops(mixed.ran)


@pytest.mark.parity("columns with ckpt_to_load_from")
@SHARING
@FUSION
def test_the_table_comes_from_a_checkpoint(do_fusion, sharing, tmp_path):
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        saved = v1.get_variable("old/name", initializer=table)
        session.run(saved.initializer)
        path = v1.train.Saver([saved]).save(session, str(tmp_path / "model"))

    def columns(version: str | None) -> list[Any]:
        options = {"ckpt_to_load_from": path, "tensor_name_in_ckpt": "old/name"}
        return sharing(identities(), 4, **options, do_fusion=version)

    fused, stock = both(columns, FEATURES, do_fusion, HOSTS[sharing])
    assert_same(fused, stock)
    ids = FEATURES["x_ids"]
    first = ids.values[ids.indices[:, 0] == 1]
    assert len(first) == 1
    np.testing.assert_array_equal(fused.output[1, :4], table[first[0]] if first[0] >= 0 else 0)


@SHARING
def test_without_fusion_they_are_the_stock_columns(sharing):
    with tf.Graph().as_default():
        (column, _) = sharing(identities(), 4)
    stock = CLASSES[sharing].__mro__[2]
    assert type(column) is stock
    assert stock.__module__.startswith("tensorflow.")


@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
@SHARING
def test_eagerly_they_raise_as_in_stock(sharing, do_fusion):
    with pytest.raises(RuntimeError, match="not supported when eager"):
        sharing(identities(), 4, do_fusion=do_fusion)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dimension": 0}, "Invalid dimension 0"),
        ({"initializer": 3}, "initializer must be callable"),
        ({"ckpt_to_load_from": "path"}, "Must specify both"),
        ({"categorical_columns": [*identities(), *identities(9)]}, "same number of buckets"),
        (
            {"categorical_columns": [*identities(), KINDS["hash of ids"]("z")]},
            "must have the same type",
        ),
        ({"do_fusion": "v3"}, "do_fusion must be .* got 'v3'"),
        ({"do_fusion": True}, "do_fusion must be .* got True"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
@SHARING
@FUSION
def test_bad_arguments(do_fusion, sharing, bad, message):
    arguments = {"categorical_columns": identities(), "dimension": 4, "do_fusion": do_fusion, **bad}
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        sharing(**arguments)


@pytest.mark.parametrize(
    ("sharing", "host", "message"),
    [
        (shared_embeddings, input_layer, "not supported in `linear_model` or `input_layer`"),
        (
            shared_embeddings,
            partial(input_layer, layer=v1.feature_column.linear_model),
            "not supported in `linear_model` or `input_layer`",
        ),
        (shared_embedding_columns, HOSTS[shared_embeddings], "must be a FeatureColumn"),
    ],
)
@FUSION
def test_hosts_refuse_what_they_refuse_of_stock(do_fusion, sharing, host, message):
    for version in (None, do_fusion):
        with pytest.raises(ValueError, match=message):
            host(partial(sharing, identities(), 4, do_fusion=version), FEATURES)


@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
@pytest.mark.parametrize("shapes", [[(10, 4), (10, 4)], [(10, 3)]])
def test_a_collection_that_cannot_be_the_table(do_fusion, shapes):
    def layer(features: Any, columns: Any) -> Any:
        for number, shape in enumerate(shapes):
            v1.add_to_collection("taken", v1.get_variable(f"v{number}", shape))
        return v1.feature_column.input_layer(features, columns)

    make = partial(
        shared_embedding_columns,
        identities(),
        4,
        shared_embedding_collection_name="taken",
        do_fusion=do_fusion,
    )
    with pytest.raises(ValueError, match=r"(?s)ollection.*(one variable|shape)"):
        input_layer(make, FEATURES, layer=layer)


@SHARING
@FUSION
def test_fields(do_fusion, sharing):
    with tf.Graph().as_default():
        columns = sharing(identities(), 4, do_fusion=do_fusion)
        assert sharing(identities(), 4)[0] != columns[0]
    first, second = columns
    assert first != second
    assert first == copy.copy(first) == first._replace(do_fusion=do_fusion)
    assert first.do_fusion == first._asdict()["do_fusion"] == do_fusion
    assert first._replace(combiner="sum").combiner == "sum"
    assert first.name == "x_ids_shared_embedding"
    assert repr(first).startswith(f"{CLASSES[sharing].__name__}(categorical_column=")


@FUSION
def test_serialization_is_what_it_is_in_stock(do_fusion):
    for version in (None, do_fusion):
        with tf.Graph().as_default():
            column, _ = shared_embeddings(identities(), 4, do_fusion=version)
        with pytest.raises(NotImplementedError):
            serialization.serialize_feature_column(column)

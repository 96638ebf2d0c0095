from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import fusion
from fusion.saved_model.inputs import dataflow
from fusion.saved_model.inputs.constraints import Key
from fusion.saved_model.inputs.dataflow import Meaning, input_meaning
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import read_saved_model
from tests.saved_model.models import ROWS


def _meaning(model: Path, name: str = "serving_default") -> Meaning:
    meta = read_saved_model(model).meta_graphs[0]
    signature = next(s for s in signatures(meta) if s.name == name)
    return input_meaning(meta.graph_def, {spec.key: spec.tensor for spec in signature.inputs})


def test_sparse_placeholders_of_input_layer(models: Path):
    for kind in ("v1_ref", "v1_resource"):
        meaning = _meaning(models / kind)
        assert meaning.rows == {Key("item/values"): ROWS, Key("shop/values"): 2 * ROWS}
        assert meaning.sparse == {
            (f"{name}/indices", f"{name}/values", f"{name}/dense_shape")
            for name in ("item", "shop", "city", "color")
        }


def test_flattened_sparse_tensors_through_nested_functions(models: Path):
    meaning = _meaning(models / "tf2")
    assert meaning.sparse == {("items", "items_1", "items_2"), ("shops", "shops_1", "shops_2")}
    assert meaning.rows == {Key("items_1"): ROWS, Key("shops_1"): 2 * ROWS}


def test_hashed_and_looked_up_strings_keep_their_place_but_index_no_table(models: Path):
    meaning = _meaning(models / "keras")
    assert len(meaning.sparse) == 4
    assert sorted(meaning.rows.values()) == [ROWS, 2 * ROWS]


def test_features_of_examples(models: Path):
    meaning = _meaning(models / "example")
    features = {f.key: (f.dtype, f.shape) for f in meaning.records[Key("examples")].features}
    assert features == {
        "item": (tf.int64.as_datatype_enum, None),
        "shop": (tf.int64.as_datatype_enum, None),
        "price": (tf.float32.as_datatype_enum, (2,)),
    }
    assert meaning.rows == {
        Key("examples", ("item",)): ROWS,
        Key("examples", ("shop",)): 2 * ROWS,
    }


def test_the_smallest_table_bounds_an_input_and_arithmetic_hides_it():
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        other = tf.compat.v1.placeholder(tf.int64, [None], name="other")
        for rows in (9, 5, 7):
            tf.gather(tf.zeros([rows, 2]), tf.reshape(ids, [-1]))
        tf.gather(tf.zeros([3, 2]), other // 2)
    meaning = input_meaning(graph.as_graph_def(), {"ids": "ids:0", "other": "other:0"})
    assert meaning.rows == {Key("ids"): 5}


def test_branches_and_loops_are_followed():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.bool)])
    def branching(ids: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        table = tf.zeros([6, 2])
        return tf.cond(flag, lambda: tf.gather(table, ids), lambda: tf.zeros([1, 2]))

    concrete = branching.get_concrete_function()
    names = {"ids": concrete.inputs[0].name, "flag": concrete.inputs[1].name}
    meaning = input_meaning(concrete.graph.as_graph_def(), names)
    assert meaning.rows == {Key("ids"): 6}
    assert meaning.sparse == set()


def test_nan_is_found_once(monkeypatch: pytest.MonkeyPatch):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x) + inner(tf.constant([math.nan]))

    sweeps: list[str] = []
    results = dataflow._Analysis._results

    def counted(self: dataflow._Analysis, name: str, *rest: Any) -> Any:
        sweeps.append(name)
        return results(self, name, *rest)

    monkeypatch.setattr(dataflow._Analysis, "_results", counted)
    concrete = outer.get_concrete_function()
    input_meaning(concrete.graph.as_graph_def(), {"x": concrete.inputs[0].name})
    # Once for each of the two arguments.
    assert len(sweeps) == 2


def test_version_one_parse_example_with_separate_keys():
    graph = tf.Graph()
    with graph.as_default():
        serialized = tf.compat.v1.placeholder(tf.string, [None], name="serialized")
        outputs = tf.raw_ops.ParseExample(
            serialized=serialized,
            names=[],
            sparse_keys=["ids", "words"],
            dense_keys=["dense"],
            dense_defaults=[tf.zeros([0], tf.int64)],
            sparse_types=[tf.int64, tf.string],
            dense_shapes=[[1]],
        )
        tf.gather(tf.zeros([11, 2]), outputs.sparse_values[0])
        tf.gather(tf.zeros([12, 2]), outputs.dense_values[0])
    meaning = input_meaning(graph.as_graph_def(), {"x": "serialized:0"})
    assert [f.key for f in meaning.records[Key("x")].features] == ["ids", "words", "dense"]
    assert meaning.rows == {Key("x", ("ids",)): 11, Key("x", ("dense",)): 12}


def test_keys_that_are_no_constants_say_nothing():
    graph = tf.Graph()
    with graph.as_default():
        serialized = tf.compat.v1.placeholder(tf.string, [None], name="serialized")
        keys = tf.compat.v1.placeholder(tf.string, [1], name="keys")
        tf.raw_ops.ParseExampleV2(
            serialized=serialized,
            names=[],
            sparse_keys=keys,
            dense_keys=tf.constant([], tf.string),
            ragged_keys=tf.constant([], tf.string),
            dense_defaults=[],
            num_sparse=1,
            sparse_types=[tf.int64],
            ragged_value_types=[],
            ragged_split_types=[],
            dense_shapes=[],
        )
    meaning = input_meaning(graph.as_graph_def(), {"x": "serialized:0"})
    assert meaning.records == {}
    assert meaning.opaque == {"x": "ParseExampleV2"}


@pytest.mark.parametrize("grouped", [False, True])
def test_columns_that_are_fused_already(grouped: bool):
    def build(first, second):
        parts = [
            tf.nn.safe_embedding_lookup_sparse(tf.zeros([rows, 2]), ids)
            for rows, ids in ((5, first), (7, second))
        ]
        return tf.concat(parts, 1) if grouped else parts[0] * parts[1]

    spec = tf.SparseTensorSpec([None, None], tf.int64)
    concrete = tf.function(build, autograph=False).get_concrete_function(spec, spec)
    names = dict(zip("ivsjwt", (tensor.name for tensor in concrete.inputs), strict=True))
    stock = concrete.graph.as_graph_def()
    result = fusion.fuse_graph(stock)
    assert {column.form for column in result.report.columns} == {"grouped" if grouped else "single"}
    meaning = input_meaning(result.graph_def, names)
    expected = input_meaning(stock, names)
    assert (meaning.rows, meaning.sparse) == (expected.rows, expected.sparse)
    assert {key.input for key in meaning.rows} == {"v", "w"}
    assert meaning.sparse == {("i", "v", "s"), ("j", "w", "t")}

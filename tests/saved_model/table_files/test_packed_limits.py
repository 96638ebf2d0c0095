"""Tables that are packed in models that are unlike others, or that stay as they are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.saved_model import ModelError, Rewrite, RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.table_files.keep import VARIABLES
from fusion.saved_model.table_files.tensor_bundle import read_bundle
from fusion.schema.names import READ_TABLES

v1 = tf.compat.v1


def packed_model(source: Path, destination: Path, **options: Any) -> Rewrite:
    return rewrite_saved_model(
        source, destination, RewriteOptions(**{"dtype": "int8", "least_table_bytes": 1, **options})
    )


def gathering_model(folder: Path, rows: Any) -> Path:
    model = tf.Module()
    model.table = tf.Variable(np.asarray(rows, np.float32), name="table")
    spec = tf.TensorSpec([None], tf.int64, name="ids")
    model.serve = tf.function(
        lambda ids: {"rows": tf.gather(model.table, ids % 7)}, input_signature=[spec]
    )
    tf.saved_model.save(model, str(folder), {"serving_default": model.serve})
    return folder


def v1_model(folder: Path, lookup: Callable[[tf.Tensor], dict[str, tf.Tensor]]) -> Path:
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int64, [None], name="ids")
        with v1.variable_scope("", use_resource=True):
            outputs = lookup(ids % 7)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder), {"ids": ids}, outputs)
    return folder


def table(name: str, dim: int) -> tf.Variable:
    return v1.get_variable(name, [7, dim], initializer=v1.random_normal_initializer(seed=1))


def test_a_caller_may_be_building_a_graph(tmp_path: Path) -> None:
    source = gathering_model(tmp_path / "source", np.ones((7, 8)))
    with tf.Graph().as_default():
        (done,) = packed_model(source, tmp_path / "packed").packed
    assert done.dtype == "int8"


def test_the_record_of_infinite_elements_is_json(tmp_path: Path) -> None:
    rows = np.full((7, 8), 2.5)
    rows[1, 2], rows[3, 4], rows[5] = np.inf, -np.inf, np.nan
    source = gathering_model(tmp_path / "source", rows)
    (done,) = packed_model(source, tmp_path / "packed", dtype="float16").packed
    assert (done.dtype, done.deviation, done.largest) == ("float16", 0.0, 2.5)
    text = (tmp_path / "packed/fusion.json").read_text()
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


@pytest.mark.parametrize(("dtype", "dim"), [("float16", 1), ("int8", 1), ("int8", 3), ("int4", 3)])
def test_rows_that_would_be_no_smaller_stay(tmp_path: Path, dtype: str, dim: int) -> None:
    source = gathering_model(tmp_path / "source", np.ones((7, dim)))
    (done,) = packed_model(source, tmp_path / "packed", dtype=dtype).packed
    assert (done.dtype, done.refusal) == ("float32", "its rows would be no smaller")
    with pytest.raises(ModelError, match=f"table 'table' cannot be {dtype}: its rows"):
        fusion.fuse_saved_model(source, tmp_path / "named", table_dtypes={"table": dtype})


@pytest.mark.parametrize("hands_on", [False, True])
def test_tables_that_are_outputs_stay(tmp_path: Path, hands_on: bool) -> None:
    def lookup(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        value = table("table", 8).read_value()
        rows = tf.gather(value, ids)
        return {"rows": rows, "table": tf.identity(value) if hands_on else value}

    source = v1_model(tmp_path / "source", lookup)
    (done,) = packed_model(source, tmp_path / "packed").packed
    assert done.refusal == "its value is an output"


def test_handles_side_by_side(tmp_path: Path) -> None:
    """Each output of an IdentityN is a table of its own."""

    def lookup(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        tables = [table("narrow", 8), table("wide", 16)]
        handles = tf.raw_ops.IdentityN(input=[one.handle for one in tables])
        values = tf.raw_ops.IdentityN(input=[one.read_value() for one in tables])
        return {
            f"{kind}_{number}": tf.gather(value, ids)
            if kind == "value"
            else tf.raw_ops.ResourceGather(resource=value, indices=ids, dtype=tf.float32)
            for kind, given in (("handle", handles), ("value", values))
            for number, value in enumerate(given)
        }

    source = v1_model(tmp_path / "source", lookup)
    done = packed_model(source, tmp_path / "both")
    assert [(one.dimension, one.dtype) for one in done.packed] == [(8, "int8"), (16, "int8")]
    done = packed_model(
        source, tmp_path / "one", dtype="float32", dtypes_by_name=(("wide", "int4"),)
    )
    assert [(one.dimension, one.dtype) for one in done.packed] == [(16, "int4")]


def test_optimizers_have_no_slots_of_packed_tables(tmp_path: Path) -> None:
    """A loader makes slots in the shape of their variables."""
    ids = tf_keras.Input([3], dtype="int64", name="ids")
    rows = tf_keras.layers.Flatten()(tf_keras.layers.Embedding(50, 8)(ids))
    model = tf_keras.Model(ids, tf_keras.layers.Dense(1)(rows))
    model.compile(tf_keras.optimizers.legacy.Adam(), "mse")
    model.fit(np.zeros((4, 3), np.int64), np.zeros((4, 1)), verbose=0)
    model.save(tmp_path / "source", save_format="tf")
    done = packed_model(tmp_path / "source", tmp_path / "packed")
    assert [one.dtype for one in done.packed] == ["int8"]
    assert done.verification is not None
    assert any(
        b".OPTIMIZER_SLOT" in name for name in read_bundle(tmp_path / "packed" / VARIABLES).entries
    )
    loaded = tf.saved_model.load(str(tmp_path / "packed"))
    (output,) = loaded.signatures["serving_default"](ids=tf.zeros([2, 3], tf.int64)).values()
    assert output.shape == (2, 1)


def test_tables_of_plain_gathers_can_be_files(tmp_path: Path) -> None:
    kinds = {"value", "handle"}

    def lookup(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        tables = {kind: table(kind, 8) for kind in kinds}
        return {
            "value": tf.gather(tables["value"].read_value(), ids),
            "handle": tf.gather(tables["handle"], ids),
        }

    source = v1_model(tmp_path / "source", lookup)
    done = packed_model(source, tmp_path / "packed", tables="mapped")
    assert {one.name: one.dtype for one in done.packed} == dict.fromkeys(kinds, "int8")
    assert {one.name for one in done.tables} == kinds
    (meta,) = read_saved_model(tmp_path / "packed").meta_graphs
    # A read of the whole variable would be a copy once rows of it are looked up.
    (read,) = (node for node in meta.graph_def.node if node.op == READ_TABLES)
    assert read.input[0] == "handle"


def test_a_bound_of_deviations_needs_the_comparison() -> None:
    with pytest.raises(ValueError, match="max_deviation needs verify"):
        RewriteOptions(dtype="int8", max_deviation=0.1, verify=False)

"""Models whose tables are stored in fewer bits than float32 has."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

import fusion
from fusion.cli.app import main
from fusion.saved_model import (
    ModelError,
    Rewrite,
    RewriteOptions,
    Verification,
    compare_models,
    rewrite_saved_model,
)
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.table_files.keep import VARIABLES
from fusion.saved_model.table_files.packed import PackedTable
from fusion.saved_model.table_files.tensor_bundle import read_bundle
from fusion.schema.names import GROUPED, SINGLE
from fusion.schema.row_formats import PACKED_FORMATS, pack_rows, packed_words, unpack_rows
from tests.saved_model import frozen_graphs

KINDS = {"v1_resource": 4, "tf2": 2, "keras": 4, "example": 2}


def packed_model(source: Path, destination: Path, dtype: str = "int8", **options: Any) -> Rewrite:
    chosen = RewriteOptions(dtype=dtype, least_table_bytes=1, **options)
    return rewrite_saved_model(source, destination, chosen)


def verification_of(done: Rewrite) -> Verification:
    assert done.verification is not None
    return done.verification


def rounded_model(source: Path, destination: Path, dtype: str, keys: set[str]) -> Path:
    """The model with tables that have the elements that packed ones stand for."""
    destination.mkdir()
    for file in source.rglob("*"):
        target = destination / file.relative_to(source)
        target.mkdir() if file.is_dir() else target.write_bytes(file.read_bytes())
    reader = tf.train.load_checkpoint(str(source / VARIABLES))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert keys <= values.keys()
    for key in keys:
        values[key] = unpack_rows(pack_rows(values[key], dtype), dtype, values[key].shape[1])
    for file in (destination / "variables").iterdir():
        file.unlink()
    tf.raw_ops.SaveV2(
        prefix=str(destination / VARIABLES),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    return destination


def stored_shapes(model: Path) -> dict[str, tuple[int, ...]]:
    bundle = read_bundle(model / VARIABLES)
    return {
        name.decode(errors="replace"): tuple(dim.size for dim in entry.shape.dim)
        for name, entry in bundle.entries.items()
    }


def formats_in(model: Path) -> set[str]:
    (meta,) = read_saved_model(model).meta_graphs
    bodies = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    found = set[str]()
    for node in (node for body in bodies for node in body):
        if node.op == GROUPED:
            found.update(text.decode() for text in node.attr["row_formats"].list.s)
        elif node.op == SINGLE:
            found.add(node.attr["row_format"].s.decode())
    return found


@pytest.mark.parametrize("dtype", PACKED_FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_rounded_tables(
    models: Path, tmp_path: Path, kind: str, dtype: str
) -> None:
    """To the bit: packing changes the numbers of tables, and nothing else."""
    done = packed_model(models / kind, tmp_path / "packed", dtype)
    assert [table.refusal for table in done.packed] == [""] * KINDS[kind]
    assert verification_of(done).same
    assert verification_of(done).tolerance == inf
    assert formats_in(tmp_path / "packed") >= {dtype}
    plain, stored = stored_shapes(models / kind), stored_shapes(tmp_path / "packed")
    changed = {name for name in plain if stored[name] != plain[name]}
    # Few words can be as many as elements.
    shapes = {(t.rows, packed_words(dtype, t.dimension)) for t in done.packed}
    assert {stored[name] for name in changed} <= shapes
    keys = {
        name
        for name, shape in plain.items()
        if shape in {(t.rows, t.dimension) for t in done.packed}
    }
    rounded = rounded_model(models / kind, tmp_path / "rounded", dtype, keys)
    assert compare_models(rounded, tmp_path / "packed").same


@pytest.mark.parametrize("tables", ["mapped", "memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_tables_can_be_files(models: Path, tmp_path: Path, kind: str, tables: str) -> None:
    done = packed_model(models / kind, tmp_path / "files", tables=tables)
    assert len(done.tables) == len(done.packed) == KINDS[kind]
    sizes = sorted(file.stat().st_size for file in (tmp_path / "files/assets/tables").iterdir())
    assert sizes == sorted(table.stored_bytes for table in done.packed)
    packed_model(models / kind, tmp_path / "variables")
    assert compare_models(tmp_path / "variables", tmp_path / "files").same


def gathering_model(folder: Path, lookup: Callable[..., Any]) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
            self.table = tf.Variable(rows, name="table")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="ids")])
        def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"out": lookup(self.table, ids % 50)}

    model = Model()
    tf.saved_model.save(model, str(folder), {"serving_default": model.serve})
    return folder


def gather_in_a_branch(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.reduce_sum(ids) > 0,
        lambda: tf.reduce_sum(tf.gather(table, ids), 1),
        lambda: tf.gather(table, ids[:, 0]),
    )


PACKABLE = {
    "a matrix of ids": tf.nn.embedding_lookup,
    "a vector of ids": lambda table, ids: tf.gather(table, ids[:, 0]),
    "one id": lambda table, ids: (
        tf.gather(table, ids[0, 0]) + tf.zeros_like(ids[:, :1], tf.float32)
    ),
    "int32": lambda table, ids: tf.gather(table, tf.cast(ids, tf.int32)),
    "a gather of what is read": lambda table, ids: tf.gather(table.read_value(), ids),
    "branches": gather_in_a_branch,
    "two lookups": lambda table, ids: tf.gather(table, ids) * tf.gather(table, ids + 1 - 1),
}


@pytest.mark.parametrize("how", PACKABLE)
def test_gathers_read_packed_rows(tmp_path: Path, how: str) -> None:
    source = gathering_model(tmp_path / "source", PACKABLE[how])
    done = packed_model(source, tmp_path / "packed")
    (table,) = done.packed
    assert not table.refusal
    assert (table.rows, table.dimension, table.stored_bytes) == (50, 6, 50 * 16)
    assert 0 < table.deviation <= (2 * table.largest) / 255
    (key,) = (name for name, shape in stored_shapes(source).items() if shape == (50, 6))
    rounded = rounded_model(source, tmp_path / "rounded", "int8", {key})
    assert compare_models(rounded, tmp_path / "packed").same


def test_exports_of_keras_have_each_table_twice(tmp_path: Path) -> None:
    """One of them initializes the other, in a graph that nobody runs."""
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = keras.layers.Embedding(40, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.export(tmp_path / "source", verbose=False)
    done = packed_model(tmp_path / "source", tmp_path / "packed")
    assert [table.dtype for table in done.packed] == ["int8"] * 2
    (name,) = {table.name for table in done.packed}
    assert name == model.layers[1].embeddings.path
    keys = {name for name, shape in stored_shapes(tmp_path / "source").items() if shape == (40, 4)}
    assert len(keys) == 2
    rounded = rounded_model(tmp_path / "source", tmp_path / "rounded", "int8", keys)
    assert compare_models(rounded, tmp_path / "packed", rounding=1e-6).same


def test_tables_are_called_what_they_are_called_in_reports(tmp_path: Path) -> None:
    """Nodes of exports of Keras have other names, and each table has two."""
    ids = keras.Input([3], dtype="int64", name="ids")
    layers = [keras.layers.Embedding(40, 8, name=name) for name in ("users", "items")]
    model = keras.Model(ids, keras.layers.Concatenate()([layer(ids) for layer in layers]))
    model.export(tmp_path / "source", verbose=False)
    named = {table.name for table in packed_model(tmp_path / "source", tmp_path / "all").packed}
    report = fusion.explain(tmp_path / "source", under="rewrite")
    assert named == {"users/embeddings", "items/embeddings"}
    assert named == {column.name for column in report.columns}
    done = packed_model(
        tmp_path / "source", tmp_path / "one", "float32", dtypes_by_name=(("users/*", "int8"),)
    )
    assert [table.name for table in done.packed] == ["users/embeddings"] * 2
    written = fusion.explain(tmp_path / "one").to_dict()["columns"]
    assert {(column["name"], column["table"]) for column in written} == {
        ("users/embeddings", "int8[40, 8]"),
        ("items/embeddings", "float[40, 8]"),
    }


REFUSED = {
    "Transpose": lambda table, ids: tf.gather(table, ids) @ tf.transpose(table),
    "limits the norms": lambda table, ids: fusion.fused_embedding_lookup_sparse(
        table, tf.sparse.from_dense(ids), max_norm=1.0
    ),
    "GatherV2": lambda table, ids: tf.gather(table, ids, axis=1, batch_dims=0),
    "ReduceSum|Sum": lambda table, ids: tf.gather(table, ids) + tf.reduce_sum(table),
    "VariableShape": lambda table, ids: (
        tf.gather(table, ids) * tf.cast(tf.raw_ops.VariableShape(input=table.handle)[0], tf.float32)
    ),
    "AssignAddVariableOp": lambda table, ids: tf.gather(table.assign_add(tf.ones_like(table)), ids),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_reads_a_table_otherwise_keeps_it_plain(tmp_path: Path, why: str) -> None:
    def lookup(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        # A lookup beside it, so that it is a table.
        rows = tf.reduce_sum(tf.gather(table, ids % 5), [1, 2])
        return {"rows": rows, "other": REFUSED[why](table, ids % 5)}

    class Model(tf.Module):
        def __init__(self) -> None:
            self.table = tf.Variable(tf.random.stateless_normal([50, 50], [1, 2]), name="table")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="ids")])
        def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            return lookup(self.table, ids)

    model, source = Model(), tmp_path / "source"
    tf.saved_model.save(model, str(source), {"serving_default": model.serve})
    done = packed_model(source, tmp_path / "packed", verify=False)
    (table,) = done.packed
    assert any(word in table.refusal for word in why.split("|")), table.refusal
    assert table.dtype == "float32"
    with pytest.raises(ModelError, match=r"table 'table' cannot be int8: "):
        packed_model(
            source, tmp_path / "named", "float32", verify=False, dtypes_by_name=(("tab*", "int8"),)
        )
    assert not (tmp_path / "named").exists()


def test_rows_that_are_not_finite_stay(tmp_path: Path) -> None:
    source = gathering_model(tmp_path / "source", tf.nn.embedding_lookup)
    loaded = tf.saved_model.load(str(source))
    loaded.table.scatter_nd_update([[7, 2]], [np.inf])
    tf.saved_model.save(loaded, str(tmp_path / "infinite"), loaded.signatures)
    done = packed_model(tmp_path / "infinite", tmp_path / "packed")
    (table,) = done.packed
    assert table.refusal.startswith("row 7: ")
    assert stored_shapes(tmp_path / "packed") == stored_shapes(tmp_path / "infinite")


def test_each_table_has_its_dtype(models: Path, tmp_path: Path) -> None:
    everything = packed_model(models / "tf2", tmp_path / "all")
    first, second = sorted(everything.packed, key=lambda table: table.plain_bytes)
    assert first.plain_bytes < second.plain_bytes
    by_size = RewriteOptions(dtype="int4", least_table_bytes=second.plain_bytes)
    (table,) = rewrite_saved_model(models / "tf2", tmp_path / "size", by_size).packed
    assert (table.name, table.dtype) == (second.name, "int4")
    names = (("*", "float16"), (first.name, "bfloat16"))
    by_name = RewriteOptions(dtypes_by_name=names)
    done = rewrite_saved_model(models / "tf2", tmp_path / "name", by_name)
    found = {table.name: table.dtype for table in done.packed}
    assert found == {first.name: "bfloat16", second.name: "float16"}
    record = json.loads((tmp_path / "name/fusion.json").read_text())
    assert {t["name"]: t["dtype"] for t in record["packed_tables"]} == found
    assert record["options"]["table_dtypes"] == [list(pair) for pair in names]
    assert all(one["max_abs"] > 0 for one in record["verification"]["deviations"])


def test_a_bound_of_deviations(models: Path, tmp_path: Path) -> None:
    done = packed_model(models / "tf2", tmp_path / "seen", "int4")
    worst = max(one.share or 0 for one in verification_of(done).deviations)
    assert 1e-4 < worst < 0.5
    packed_model(models / "tf2", tmp_path / "within", "int4", max_deviation=2 * worst)
    with pytest.raises(ModelError, match="verification failed"):
        packed_model(models / "tf2", tmp_path / "beyond", "int4", max_deviation=worst / 2)
    assert not (tmp_path / "beyond").exists()


def test_what_is_packed_stays_so(models: Path, tmp_path: Path) -> None:
    packed_model(models / "tf2", tmp_path / "packed")
    again = packed_model(tmp_path / "packed", tmp_path / "again", "int4")
    assert {"packed already" in table.refusal for table in again.packed} == {True}
    mapped = RewriteOptions(tables="mapped", least_table_bytes=1)
    done = rewrite_saved_model(tmp_path / "packed", tmp_path / "mapped", mapped)
    assert len(done.tables) == 2
    assert verification_of(done).same
    with pytest.raises(ModelError, match="cannot become stock ops"):
        rewrite_saved_model(tmp_path / "packed", tmp_path / "stock", RewriteOptions("stock"))
    with pytest.raises(ModelError, match="cannot become stock ops"):
        fusion.split_saved_model(tmp_path / "packed", tmp_path / "split")


def test_a_loaded_model_cannot_be_trained(models: Path, tmp_path: Path) -> None:
    packed_model(models / "tf2", tmp_path / "packed")
    loaded = tf.saved_model.load(str(tmp_path / "packed"))
    widths = {variable.shape[1] for variable in (loaded.items, loaded.shops)}
    assert widths <= {packed_words("int8", d) for d in range(1, 100)}
    ids = tf.sparse.from_dense(tf.constant([[1, 2], [3, 0]], tf.int64))
    assert loaded.embed(ids, ids).shape[0] == 2
    with tf.GradientTape() as tape, pytest.raises(LookupError, match="row_format int8"):
        tape.gradient(loaded.embed(ids, ids), loaded.items)


def test_what_cannot_be(models: Path, tmp_path: Path) -> None:
    source = models / "tf2"
    for wrong, message in (
        ({"dtype": "int2"}, r"dtype must be one of \('float32', .*\), not 'int2'"),
        ({"table_dtypes": {"a": "double"}}, "not 'double'"),
        ({"dtype": "int8", "target": "stock"}, 'dtype must be "float32" with target "stock"'),
        ({"max_deviation": -1.0}, "max_deviation must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            fusion.fuse_saved_model(source, tmp_path / "wrong", **wrong)
    with pytest.raises(ModelError, match=r"no table of the model is called 'none': "):
        fusion.fuse_saved_model(source, tmp_path / "wrong", table_dtypes={"none": "int8"})
    graph = frozen_graphs.write(frozen_graphs.v2_graph(), tmp_path / "graph.pb")
    with pytest.raises(ModelError, match="a frozen graph has no variables"):
        rewrite_saved_model(graph, tmp_path / "wrong", RewriteOptions(dtype="int8"))
    assert not (tmp_path / "wrong").exists()


def test_the_command_says_what_it_did(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> str:
        main(["rewrite", *map(str, arguments)])
        return "".join(capsys.readouterr())

    source = models / "tf2"
    text = run(source, tmp_path / "int8", "--dtype", "int8", "--table-bytes", "1")
    assert "largest deviation" in text
    assert "elements that differ" in text
    assert "outputs deviate by at most" in text
    assert text.count("int8") >= 2
    text = run(source, tmp_path / "none", "--dtype", "int8", "--table-bytes", "1000000000")
    assert "packed tables: no float32 table has --table-bytes (1000000000)" in text
    text = run(source, tmp_path / "no", "--table-dtype", "int8")
    assert "'int8' is not NAME=DTYPE" in text
    text = run(source, tmp_path / "no", "--table-dtype", "x=int9")
    assert "--table-dtype: 'int9' is not one of float32, float16" in text


class Halves(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = tf.Variable(tf.ones([20_000, 32], tf.float16), name="items")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.gather(self.items, ids)}


def test_a_table_of_another_dtype_is_reported_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = Halves()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    options = ["--dtype", "int8", "--no-verify"]
    assert main(["rewrite", str(tmp_path / "model"), str(tmp_path / "packed"), *options]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "20000 x 32" in line)
    assert " ".join(line.split()) == "items float16 20000 x 32 1.3 1.3 its elements are no float32"


def test_reports_are_plain_data() -> None:
    table = PackedTable("t", "int8", 3, 4, 36, 0.5, 2.0)
    assert json.loads(json.dumps(table.to_dict()))["float32_bytes"] == 48
    assert "deviation" not in PackedTable("t", "float32", 3, 4, 48, refusal="no").to_dict()


def test_the_graph_is_valid_for_importers(models: Path, tmp_path: Path) -> None:
    """Static shapes are those of packed tables wherever they are noted."""
    packed_model(models / "v1_resource", tmp_path / "packed")
    (meta,) = read_saved_model(tmp_path / "packed").meta_graphs
    assert isinstance(meta, meta_graph_pb2.MetaGraphDef)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(meta.graph_def, name="")

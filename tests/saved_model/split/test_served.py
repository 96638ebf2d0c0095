"""The lookups of split models, with their rows from a table store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import ModelError, split_saved_model
from fusion.saved_model.inputs.generator import input_generators
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.split import served
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.verify.runner import loaders
from fusion.schema.names import TABLE_STORE_GATHER
from fusion.stores.config import StoreConfig
from fusion.stores.table_store import TableStore
from fusion.tables import serve_from_store, split_tables

KINDS = ("v1_resource", "tf2", "keras", "example")

#: Errors of ids that a store has no row for, and a table refuses.
_OUTSIDE = (tf.errors.InvalidArgumentError,)


@contextlib.contextmanager
def opened(split: Path, **options: Any) -> Iterator[TableStore]:
    """A store of the tables of a split model."""
    options = {"hit_rate_threshold": 1.0} | options
    config = StoreConfig(split_tables(split, **options))
    with TableStore.from_config(config) as store, store.as_default():
        yield store


def compared(split: Path, served: Path) -> int:
    """How many runs of the lookups of a split model were equal to those of a served one."""
    source, count = read_saved_model(split / "lookup"), 0
    (meta,) = source.meta_graphs
    known = signatures(meta)
    generators = input_generators(source.path, meta, known)
    tags = tuple(meta.meta_info_def.tags)
    for name, load in loaders(source.proto).items():
        other = loaders(read_saved_model(served).proto)[name]
        with (
            contextlib.closing(load(source.path, tags)) as right,
            contextlib.closing(other(served, tags)) as ours,
        ):
            for signature in known:
                generate = generators[signature.title]
                for case in generate.cases():
                    inputs = generate(case)
                    try:
                        expected = right.run(signature, inputs)
                    except _OUTSIDE:
                        continue
                    found = ours.run(signature, inputs)
                    assert expected.keys() == found.keys()
                    for key, value in expected.items():
                        assert value.dtype == found[key].dtype
                        assert np.array_equal(value, found[key]), (signature.title, case, key)
                    count += 1
    return count


@pytest.fixture(scope="module")
def splits(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    for kind in KINDS:
        split_saved_model(models / kind, folder / kind, verify=False)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_equal_to_the_bit(splits: Path, tmp_path: Path, kind: str) -> None:
    serve_from_store(splits / kind, tmp_path / "served")
    (meta,) = read_saved_model(tmp_path / "served").meta_graphs
    ops = [node.op for node in meta.graph_def.node]
    assert ops.count(TABLE_STORE_GATHER) == len(meta.signature_def)  # one for all tables
    assert not {"ReadTableFile", "GatherV2", "ResourceGather"} & {*ops}
    assert not (tmp_path / "served" / "assets" / "tables").exists()
    with opened(splits / kind) as store:
        assert compared(splits / kind, tmp_path / "served") >= 2
        counters = store.counters()
    assert sum(table.hits + table.misses for table in counters.tables.values()) > 0


def test_the_same_bytes_each_time(splits: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        serve_from_store(splits / "keras", tmp_path / name)
    one, other = (tmp_path / name / "saved_model.pb" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


class Columns(tf.Module):
    """Lookups of many forms, of tables of several dtypes, one of which reads ids by another."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)

        def table(rows: int, width: int, dtype: str = "float32") -> tf.Variable:
            return tf.Variable(tf.cast(rng.normal(size=(rows, width)), dtype))

        self.bags, self.half, self.plain = table(50, 8), table(40, 4, "float16"), table(30, 16)
        self.other = table(20, 8)
        self.weights = tf.Variable(rng.normal(size=(8, 3)).astype(np.float32))
        spec = [
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.TensorSpec([None, 3], tf.int32),
            tf.TensorSpec([None, 2, 2], tf.int64),
        ]
        self.serve = tf.function(self._serve, input_signature=spec)
        self.short = tf.function(self._short, input_signature=spec[1:2])

    def _serve(self, sparse, ids, others):
        found = {
            "mean": tf.nn.safe_embedding_lookup_sparse(self.bags, sparse, combiner="mean"),
            "clipped": tf.nn.safe_embedding_lookup_sparse(
                self.bags, sparse, combiner="sum", max_norm=1.0, default_id=3
            ),
            "half": tf.reduce_sum(tf.nn.embedding_lookup(self.half, ids), 1),
            "plain": tf.gather(self.plain, others),
        }
        return {key: value + 0 for key, value in found.items()}

    def _short(self, ids):
        return {"other": tf.reduce_mean(tf.gather(self.other, ids), 1) @ self.weights}


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, module = tmp_path_factory.mktemp("columns"), Columns()
    signed = {"serving_default": module.serve, "short": module.short}
    tf.saved_model.save(module, str(folder / "model"), signed)
    split_saved_model(folder / "model", folder / "split", verify=False)
    return folder / "split"


def test_many_forms_of_lookups(columns: Path, tmp_path: Path) -> None:
    serve_from_store(columns, tmp_path / "served", "columns")
    ours = tf.saved_model.load(str(tmp_path / "served"))
    right = tf.saved_model.load(str(columns / "lookup"))
    rng = np.random.default_rng(1)
    for rows in (1, 7, 64):
        row = np.sort(rng.integers(0, rows, 3 * rows))
        indices = np.unique(np.stack([row, rng.integers(0, 9, 3 * rows)], 1), axis=0)
        sparse = {
            "sparse": indices,
            "sparse_1": rng.integers(-2, 50, len(indices)),
            "sparse_2": np.array([rows, 9]),
        }
        ids = {"ids": rng.integers(0, 20, (rows, 3)).astype(np.int32)}
        others = {"others": rng.integers(0, 30, (rows, 2, 2))}
        names = {"serving_default": {**sparse, **ids, **others}, "short": ids}
        with TableStore.from_config(
            StoreConfig(split_tables(columns, hit_rate_threshold=1.0, cache_share=0.5))
        ).register("columns"):
            for name, inputs in names.items():
                function, reference = ours.signatures[name], right.signatures[name]
                assert {*function.structured_input_signature[1]} == {*inputs}
                fed = {key: tf.constant(value) for key, value in inputs.items()}
                found = function(**fed)
                for key, value in reference(**fed).items():
                    assert value.dtype == found[key].dtype
                    assert value.shape == found[key].shape
                    assert np.array_equal(value, found[key]), key


def test_two_models_of_a_configuration_of_hps(splits: Path, tmp_path: Path) -> None:
    """Tables of the same names, of which each model has its own."""
    models = []
    for model, kind in (("a", "tf2"), ("b", "keras")):
        tables = split_tables(splits / kind)
        entry: dict[str, Any] = {"model": model, "hit_rate_threshold": 1.0}
        entry["sparse_files"] = [table.folder for table in tables]
        entry["embedding_table_names"] = [table.name for table in tables]
        entry["embedding_vecsize_per_table"] = [table.dimension for table in tables]
        entry["default_value_for_each_table"] = [0.0] * len(tables)
        models.append(entry)
        serve_from_store(splits / kind, tmp_path / model, "hps", model)
        named = split_tables(splits / kind, model, default=1.0)
        assert [table.name for table in named] == [f"{model}.{table.name}" for table in tables]
        assert {table.default for table in named} == {1.0}
    config = StoreConfig.from_hps_json({"supportlonglong": True, "models": models})
    with TableStore.from_config(config).register("hps") as store:
        for model, kind in (("a", "tf2"), ("b", "keras")):
            assert compared(splits / kind, tmp_path / model) >= 2
        assert {table.name.partition(".")[0] for table in store.tables} == {"a", "b"}
    serve_from_store(splits / "tf2", tmp_path / "unnamed", "hps")
    with (
        TableStore.from_config(config).register("hps"),
        pytest.raises(tf.errors.FailedPreconditionError, match="store hps has no such table"),
    ):
        compared(splits / "tf2", tmp_path / "unnamed")


def test_no_misses_once_rows_are_warm(splits: Path, tmp_path: Path) -> None:
    serve_from_store(splits / "tf2", tmp_path / "served")
    with opened(splits / "tf2", cache_share=1.0) as store:
        for table in store.tables:
            store.warm(table.name, np.arange(10_000))
        compared(splits / "tf2", tmp_path / "served")
        counters = store.counters().tables.values()
    assert all(table.hits > 0 for table in counters)


def test_without_a_store(splits: Path, tmp_path: Path) -> None:
    serve_from_store(splits / "tf2", tmp_path / "served", "absent")
    (meta,) = read_saved_model(tmp_path / "served").meta_graphs
    source = read_saved_model(splits / "tf2" / "lookup")
    signature = signatures(meta)[0]
    generate = input_generators(source.path, source.meta_graphs[0], [signature])[signature.title]
    load = next(iter(loaders(read_saved_model(tmp_path / "served").proto).values()))
    with (
        contextlib.closing(load(tmp_path / "served", tuple(meta.meta_info_def.tags))) as runner,
        pytest.raises(tf.errors.FailedPreconditionError, match="no table store absent is open"),
    ):
        runner.run(signature, generate(generate.cases()[0]))
    assert TABLE_STORE_GATHER in used_ops(meta)


class Doubles(tf.Module):
    """A table of another dtype."""

    def __init__(self, dtype: str) -> None:
        self.table = tf.Variable(tf.ones([50, 4], dtype))
        self.serve = tf.function(
            lambda ids: {"rows": tf.reduce_sum(tf.gather(self.table, ids), 1)},
            input_signature=[tf.TensorSpec([None, 2], tf.int64)],
        )


def test_tables_that_a_store_cannot_have(tmp_path: Path) -> None:
    module = Doubles("float64")
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    with pytest.raises(ModelError, match="is float64, which a store does not support"):
        serve_from_store(tmp_path / "split", tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_ids_that_count_from_the_end(tmp_path: Path) -> None:
    """Keras 3 adds the number of the table's rows to them, for which it reads the table."""
    inputs = keras.Input((5,), dtype="int32", name="ids")
    rows = keras.layers.Embedding(30, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(rows))
    model.export(str(tmp_path / "model"), verbose=False)
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    serve_from_store(tmp_path / "split", tmp_path / "served")
    with opened(tmp_path / "split"):
        assert compared(tmp_path / "split", tmp_path / "served") > 0
        ids = tf.constant([[1, 0, 29, -1, -30]])
        both = [tf.saved_model.load(str(tmp_path / name)) for name in ("split/lookup", "served")]
        (right,), (found,) = (one.signatures["serving_default"](ids=ids).values() for one in both)
        assert np.array_equal(found, right)


def test_a_table_that_is_needed_as_a_whole() -> None:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="handle", op="VarHandleOp")
    graph.node.add(name="argument", op="Identity", input=["handle"])
    graph.node.add(name="read", op="ReadVariableOp", input=["argument"])
    table = FileTable("", "handle", "songs", 3, 2, 1, PurePosixPath("tables/songs"))
    text = r"model: table songs cannot be in a store: read \(ReadVariableOp\) needs all of it"
    with pytest.raises(ModelError, match=text):
        served._check_handles(Path("model"), graph, {"handle": table})


@pytest.mark.parametrize(
    "tables", [None, "", "[]", "3", "[3]", '[{"name": "t"}]', '[{"name": "t", "dimension": "4"}]']
)
def test_a_manifest_that_was_changed_by_hand(tables: str | None, tmp_path: Path) -> None:
    content = '{"kind": "split"' + ("" if tables is None else f', "tables": {tables}') + "}"
    (tmp_path / "fusion.json").write_text(content)
    if tables == "[]":
        assert split_tables(tmp_path) == ()
        return
    wrong = "not what `fusion split` has made" if tables == "" else "fusion.json: damaged"
    for read in (split_tables, lambda path: serve_from_store(path, tmp_path / "served")):
        with pytest.raises(ModelError, match=wrong):
            read(tmp_path)


def test_what_is_no_split_model(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not what `fusion split` has made"):
        serve_from_store(models / "tf2", tmp_path / "served")
    with pytest.raises(ModelError, match="not what `fusion split` has made"):
        split_tables(models / "tf2")
    assert fusion.tables.serve_from_store is serve_from_store

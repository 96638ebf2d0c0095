"""Models whose tables become files that are mapped into memory when they are loaded."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import saved_model_pb2

import fusion
from fusion.cli.app import main
from fusion.saved_model import ModelError, RewriteOptions, compare_models, rewrite_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.rewriting import stored_tables
from fusion.saved_model.table_files.keep import VARIABLES
from fusion.saved_model.table_files.tensor_bundle import Bundle, read_bundle
from tests.saved_model import frozen_graphs

v1 = tf.compat.v1

#: The kinds of models with variables behind handles, and how many tables each has.
KINDS = {"v1_resource": 4, "tf2": 2, "keras": 4, "example": 2}
MAPPED = RewriteOptions(tables="mapped", least_table_bytes=1)


@pytest.fixture(scope="module")
def mapped(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model with its tables in files: verified to the bit in fresh processes."""
    folder = tmp_path_factory.mktemp("mapped")
    for kind in KINDS:
        done = rewrite_saved_model(models / kind, folder / kind, MAPPED)
        assert done.verification is not None
        assert done.verification.same
    return {kind: folder / kind for kind in KINDS}


def files_mapped_below(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split()[-1]).name for line in lines if f" {folder}/" in line}


@pytest.mark.parametrize("kind", KINDS)
def test_files_have_the_rows_and_the_checkpoint_the_rest(
    models: Path, mapped: dict[str, Path], kind: str
) -> None:
    before, after = (read_bundle(model / VARIABLES) for model in (models / kind, mapped[kind]))
    moved = before.entries.keys() - after.entries.keys()
    files = sorted((mapped[kind] / "assets" / "tables").iterdir())
    assert len(files) == len(moved) == KINDS[kind]
    reader = tf.train.load_checkpoint(str(models / kind / VARIABLES))
    rows = sorted(reader.get_tensor(name.decode()).tobytes() for name in moved)
    assert sorted(file.read_bytes() for file in files) == rows
    left = tf.train.load_checkpoint(str(mapped[kind] / VARIABLES))
    for name in left.get_variable_to_shape_map():
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            assert np.array_equal(left.get_tensor(name), reader.get_tensor(name))
    record = json.loads((mapped[kind] / "fusion.json").read_text())
    assert record["options"]["tables"] == "mapped"
    assert "ReadTableFile" in record["ops"]


@pytest.mark.parametrize("kind", ["v1_resource", "keras"])
def test_other_assets_stay(mapped: dict[str, Path], kind: str) -> None:
    """Once there is a list of files, nobody looks for them elsewhere."""
    (meta,) = read_saved_model(mapped[kind]).meta_graphs
    names = [asset.filename for asset in meta.asset_file_def]
    assert len(names) == KINDS[kind] + 1
    assert f"{kind}.colors.txt" in names


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_loads_it_too(models: Path, mapped: dict[str, Path], kind: str) -> None:
    def values(model: Path) -> dict[str, np.ndarray]:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            v1.saved_model.load(session, ["serve"], str(model))
            handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
            handles = [op for op in handles if op.get_attr("dtype").is_floating]
            reads = {
                op.name: tf.raw_ops.ReadVariableOp(
                    resource=op.outputs[0], dtype=op.get_attr("dtype")
                )
                for op in handles
            }
            return session.run(reads)

    one, other = values(models / kind), values(mapped[kind])
    assert one.keys() == other.keys()
    assert len(one) > KINDS[kind]
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


def test_tables_are_mapped_and_what_is_trained_is_not_in_the_file(
    mapped: dict[str, Path], tmp_path: Path
) -> None:
    model = shutil.copytree(mapped["tf2"], tmp_path / "model")
    files = {file.name: file.read_bytes() for file in (model / "assets" / "tables").iterdir()}
    assert not files_mapped_below(tmp_path)
    loaded = tf.saved_model.load(str(model))
    assert files_mapped_below(tmp_path) == files.keys()
    ids = tf.sparse.from_dense([[1, 2], [3, 0]])
    ids = tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64), ids.dense_shape)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.embed(ids, ids) ** 2)
    gradient = tape.gradient(loss, loaded.items)
    before = loaded.items.numpy()
    loaded.items.scatter_sub(gradient)
    assert not np.array_equal(loaded.items.numpy(), before)
    assert {file.name: file.read_bytes() for file in (model / "assets/tables").iterdir()} == files
    del loaded, tape, gradient, loss


def test_a_loaded_model_can_be_saved_again(mapped: dict[str, Path], tmp_path: Path) -> None:
    loaded = tf.saved_model.load(str(mapped["tf2"]))
    loaded.items.assign_add(tf.ones_like(loaded.items))
    tf.saved_model.save(loaded, str(tmp_path / "again"), loaded.signatures)
    again = tf.saved_model.load(str(tmp_path / "again"))
    assert np.array_equal(again.items, loaded.items)
    assert np.array_equal(again.shops, loaded.shops)


def test_memory_has_its_own_pages(models: Path, tmp_path: Path) -> None:
    fusion.fuse_saved_model(
        models / "tf2", tmp_path / "model", tables="memory", least_table_bytes=1
    )
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert not files_mapped_below(tmp_path)
    assert np.array_equal(loaded.items, tf.saved_model.load(str(models / "tf2")).items)


def test_small_tables_stay(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    least = 2 * 40 * 8 * 4  # the larger of two
    done = rewrite_saved_model(
        models / "tf2", tmp_path / "one", RewriteOptions(tables="mapped", least_table_bytes=least)
    )
    assert [table.name for table in done.tables] == ["shops"]
    done = rewrite_saved_model(models / "tf2", tmp_path / "none", RewriteOptions(tables="mapped"))
    assert not done.tables
    assert not (tmp_path / "none" / "assets" / "tables").exists()
    arguments = ["rewrite", str(models / "tf2"), str(tmp_path / "told"), "--tables", "mapped"]
    assert main([*arguments, "--no-verify"]) == 0
    assert "tables in files: none has --table-bytes (1048576)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["plain", "v1_ref"])
def test_models_without_such_tables_stay(models: Path, tmp_path: Path, kind: str) -> None:
    """No matrix that rows are read of; variables that are no resources."""
    done = rewrite_saved_model(models / kind, tmp_path / "model", MAPPED)
    assert not done.tables
    bundles = [read_bundle(model / VARIABLES) for model in (models / kind, tmp_path / "model")]
    assert bundles[0].entries == bundles[1].entries


def test_a_second_run_writes_the_same_bytes(
    models: Path, mapped: dict[str, Path], tmp_path: Path
) -> None:
    rewrite_saved_model(models / "tf2", tmp_path / "again", MAPPED)
    files = [file for file in sorted(mapped["tf2"].rglob("*")) if file.is_file()]
    for file in files:
        same = tmp_path / "again" / file.relative_to(mapped["tf2"])
        assert file.read_bytes() == same.read_bytes(), file


def test_a_rewrite_of_the_result_changes_nothing(mapped: dict[str, Path], tmp_path: Path) -> None:
    rewrite_saved_model(mapped["tf2"], tmp_path / "again", MAPPED)
    assert read_saved_model(tmp_path / "again").content == read_saved_model(mapped["tf2"]).content
    assert compare_models(mapped["tf2"], tmp_path / "again").same


def test_more_tables_become_files_later(
    models: Path, mapped: dict[str, Path], tmp_path: Path
) -> None:
    least = 2 * 40 * 8 * 4  # the larger of two
    some = RewriteOptions(tables="mapped", least_table_bytes=least)
    rewrite_saved_model(models / "tf2", tmp_path / "one", some)
    done = rewrite_saved_model(tmp_path / "one", tmp_path / "all", MAPPED)
    assert [table.name for table in done.tables] == ["items"]
    assert compare_models(mapped["tf2"], tmp_path / "all").same
    loaded, source = (tf.saved_model.load(str(m)) for m in (tmp_path / "all", models / "tf2"))
    assert np.array_equal(loaded.items, source.items)
    assert np.array_equal(loaded.shops, source.shops)


@pytest.mark.parametrize("name", ["tables/items", "tables"])
def test_assets_that_are_called_like_tables(models: Path, tmp_path: Path, name: str) -> None:
    source = shutil.copytree(models / "tf2", tmp_path / "source")
    asset = Path("assets", name)
    (source / asset).parent.mkdir(parents=True, exist_ok=True)
    (source / asset).write_text("mine")
    rewrite_saved_model(source, tmp_path / "model", MAPPED)
    assert (tmp_path / "model" / asset).read_text() == "mine"
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert np.array_equal(loaded.items, tf.saved_model.load(str(source)).items)


class Twins(tf.Module):
    """Tables of one name, of which stock gathers read rows, and a matrix that is no table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [
            tf.Variable(tf.random.stateless_normal([9, 2], [1, k]), name="same/table")
            for k in range(3)
        ]
        self.kernel = tf.Variable(tf.ones([6, 4]), name="kernel")
        self.state = tf.Variable(["a", "b"], name="words")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [tf.gather(table, ids[:, k]) for k, table in enumerate(self.tables)]
        return {"y": tf.concat(found, 1) @ self.kernel, "words": tf.identity(self.state)}


def test_tables_of_one_name_and_words(tmp_path: Path) -> None:
    module = Twins()
    tf.saved_model.save(module, str(tmp_path / "source"), module.serve)
    done = rewrite_saved_model(tmp_path / "source", tmp_path / "model", MAPPED)
    assert done.verification is not None
    assert done.verification.same
    assert len({table.file for table in done.tables}) == 3
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for one, other in zip(module.tables, loaded.tables, strict=True):
        assert np.array_equal(one, other)
    ids = tf.constant([[1, 2, 3], [8, 0, 4]])
    assert np.array_equal(module.serve(ids)["y"], loaded.serve(ids)["y"])


def reads(model: Path) -> list[Any]:
    """The nodes of a model that read tables from files."""
    (meta,) = read_saved_model(model).meta_graphs
    functions = (function.node_def for function in meta.graph_def.library.function)
    nodes = chain(meta.graph_def.node, *functions)
    return [node for node in nodes if node.op == "ReadTableFile"]


def test_tables_know_how_much_is_mapped(
    models: Path, mapped: dict[str, Path], tmp_path: Path
) -> None:
    for kind, folder in mapped.items():
        files = (folder / "assets/tables").iterdir()
        size = sum(file.stat().st_size for file in files)
        assert {node.attr["mapped_bytes"].i for node in reads(folder)} == {size}, kind
    least = 2 * 40 * 8 * 4  # the larger of two
    some = RewriteOptions(tables="memory", least_table_bytes=least)
    rewrite_saved_model(models / "tf2", tmp_path / "one", some)
    rewrite_saved_model(tmp_path / "one", tmp_path / "both", MAPPED)
    size = (tmp_path / "both/assets/tables/items").stat().st_size
    assert {node.attr["mapped_bytes"].i for node in reads(tmp_path / "both")} == {size}


@pytest.mark.parametrize("kind", ["tf2", "v1_resource"])
def test_models_without_optional_attributes(
    models: Path, mapped: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """As TensorFlow leaves out those that have their default value."""
    model = shutil.copytree(mapped[kind], tmp_path / "model")
    proto = saved_model_pb2.SavedModel.FromString((model / "saved_model.pb").read_bytes())
    graph = proto.meta_graphs[0].graph_def
    for node in chain(graph.node, *(function.node_def for function in graph.library.function)):
        if node.op == "ReadTableFile":
            del node.attr["mapped_bytes"], node.attr["in_memory"]
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    assert compare_models(models / kind, model).same
    rewrite_saved_model(model, tmp_path / "again", MAPPED)
    assert compare_models(models / kind, tmp_path / "again").same


def test_exports_of_keras_have_each_table_twice(tmp_path: Path) -> None:
    """The one that sessions read is not that of who loads objects; they share a file."""
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = keras.layers.Embedding(40, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.export(tmp_path / "source", verbose=False)
    done = rewrite_saved_model(tmp_path / "source", tmp_path / "model", MAPPED)
    assert len(done.tables) == 2
    (file,) = (tmp_path / "model/assets/tables").iterdir()
    assert file.stat().st_size == 40 * 4 * 4
    left = tf.train.list_variables(str(tmp_path / "model" / VARIABLES))
    assert not [name for name, shape in left if shape == [40, 4]]
    some = tf.constant([[1, 2, 3], [39, 0, 4]], tf.int64)
    source, loaded = (tf.saved_model.load(str(tmp_path / m)) for m in ("source", "model"))
    assert np.array_equal(loaded.serve(some), source.serve(some))


def test_equal_tables_share_a_file_and_not_what_is_trained(tmp_path: Path) -> None:
    module, ids = Twins(), tf.constant([[1, 2, 3], [8, 0, 4]])
    module.tables[2].assign(module.tables[0])
    tf.saved_model.save(module, str(tmp_path / "source"), module.serve)
    done = rewrite_saved_model(tmp_path / "source", tmp_path / "model", MAPPED)
    assert [table.file for table in done.tables].count(done.tables[0].file) == 2
    assert len(list((tmp_path / "model/assets/tables").iterdir())) == 2
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    shutil.rmtree(tmp_path / "model")
    loaded = tf.saved_model.load(str(tmp_path / "copy"))
    assert np.array_equal(module.serve(ids)["y"], loaded.serve(ids)["y"])
    for model in (module, loaded):
        model.tables[0].scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [3]))
    assert not np.array_equal(loaded.tables[0], loaded.tables[2])
    assert np.array_equal(module.serve(ids)["y"], loaded.serve(ids)["y"])


def test_tables_of_one_checksum_that_differ_have_two_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read_without_checksums(prefix: Path) -> Bundle:
        bundle = read_bundle(prefix)
        for entry in bundle.entries.values():
            entry.crc32c = 0 if entry.size == 9 * 2 * 4 else entry.crc32c
        return bundle

    monkeypatch.setattr(stored_tables, "read_bundle", read_without_checksums)
    module = Twins()
    tf.saved_model.save(module, str(tmp_path / "source"), module.serve)
    done = rewrite_saved_model(tmp_path / "source", tmp_path / "model", MAPPED)
    assert len({table.file for table in done.tables}) == 3


class Trained(tf.Module):
    """A table, and the rows of an optimizer's slot of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_normal([9, 2], [1, 2]), name="table")
        self.optimizer = tf_keras.optimizers.legacy.Adam(0.1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(self.table, ids) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])
        return {"loss": loss}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def momenta(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"m": tf.gather(self.optimizer.get_slot(self.table, "m"), ids)}


def test_slots_of_optimizers_stay(tmp_path: Path) -> None:
    module, ids = Trained(), tf.constant([1, 2], tf.int64)
    module.train(ids)
    signatures = {"train": module.train, "momenta": module.momenta}
    tf.saved_model.save(module, str(tmp_path / "source"), signatures)
    done = rewrite_saved_model(tmp_path / "source", tmp_path / "model", MAPPED)
    assert [table.name for table in done.tables] == ["table"]
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for _ in range(2):
        assert np.array_equal(loaded.momenta(ids)["m"], module.momenta(ids)["m"])
        assert np.array_equal(loaded.train(ids)["loss"], module.train(ids)["loss"])
    assert np.array_equal(loaded.table, module.table)


@pytest.mark.parametrize("change", ["shorter", "longer", "missing"])
def test_damaged_files_are_told(mapped: dict[str, Path], tmp_path: Path, change: str) -> None:
    model = shutil.copytree(mapped["tf2"], tmp_path / "model")
    file = next((model / "assets" / "tables").glob("items*"))
    content = file.read_bytes()
    if change == "missing":
        file.unlink()
        with pytest.raises(FileNotFoundError, match=f"file .*{file.name}: No such file"):
            tf.saved_model.load(str(model))
        return
    file.write_bytes(content[:-4] if change == "shorter" else content + b"1234")
    with pytest.raises(
        tf.errors.DataLossError, match=f"{file.name} has .* 40 rows of 8 elements has 1280"
    ):
        tf.saved_model.load(str(model))


def test_misuse(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tables must be one of .*, not 'disk'"):
        RewriteOptions(tables="disk")
    with pytest.raises(ValueError, match=r'must be "variables" with target "stock", not \'mapped'):
        RewriteOptions("stock", tables="mapped")
    frozen_graphs.write(frozen_graphs.v2_graph(), tmp_path / "graph.pb")
    with pytest.raises(ModelError, match="a frozen graph has no variables"):
        rewrite_saved_model(tmp_path / "graph.pb", tmp_path / "out.pb", MAPPED)
    broken = shutil.copytree(models / "tf2", tmp_path / "broken")
    index = broken / "variables" / "variables.index"
    index.write_bytes(index.read_bytes()[:-9])
    with pytest.raises(ModelError, match=r"variables.index: truncated or damaged"):
        rewrite_saved_model(broken, tmp_path / "model", MAPPED)
    assert not (tmp_path / "model").exists()

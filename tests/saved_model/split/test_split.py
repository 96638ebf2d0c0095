"""Models cut at their lookups, and joined again."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.cli.app import main
from fusion.saved_model import ModelError, VerificationError, compare, join_saved_model
from fusion.saved_model.model.copies import copy_range
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.split.folder import is_split
from fusion.saved_model.split.split import split_saved_model
from fusion.schema.names import OP_NAMES
from tests.saved_model import frozen_graphs

#: The kinds of models with tables behind handles: how many tables each has, and its signatures.
KINDS = {"v1_resource": (4, 1), "tf2": (2, 2), "keras": (4, 1), "example": (2, 1)}


@pytest.fixture(scope="module")
def splits(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model split: verified to the bit in fresh processes."""
    folder = tmp_path_factory.mktemp("splits")
    for kind, (tables, _) in KINDS.items():
        done = split_saved_model(models / kind, folder / kind)
        assert done.verification is not None
        assert done.verification.same
        assert done.verification.tolerance == 0
        assert len(done.tables) == tables
    return {kind: folder / kind for kind in KINDS}


def ops(path: Path) -> set[str]:
    return {op for meta in read_saved_model(path).meta_graphs for op in used_ops(meta)}


@pytest.mark.parametrize("kind", KINDS)
def test_parts(models: Path, splits: dict[str, Path], kind: str) -> None:
    dense, lookup = splits[kind] / "dense", splits[kind] / "lookup"
    assert not ops(dense) & {*OP_NAMES}
    assert ops(lookup) & {*OP_NAMES}
    assert not any("Gather" in op or "SparseSegment" in op for op in ops(dense))
    # Weights are in the one, tables in the other; vocabularies where words are looked up.
    tables, signatures = KINDS[kind]
    names = {name for name, _ in tf.train.list_variables(str(dense / "variables" / "variables"))}
    assert names
    assert not tf.train.list_variables(str(lookup / "variables" / "variables"))
    assert len([*(lookup / "assets" / "tables").iterdir()]) == tables
    assert not (dense / "assets").exists()
    words = [*(models / kind / "assets").glob("*.txt")] if kind != "plain" else []
    assert [f.name for f in (lookup / "assets").glob("*.txt")] == [f.name for f in words]
    facts = json.loads((splits[kind] / "fusion.json").read_text())
    assert len(facts["lookups"]) == tables * signatures
    assert len(facts["tables"]) == tables


@pytest.mark.parametrize("kind", KINDS)
def test_joined_again(models: Path, splits: dict[str, Path], tmp_path: Path, kind: str) -> None:
    assert compare(models / kind, splits[kind]).same
    join_saved_model(splits[kind], tmp_path / "joined", link=True)
    assert compare(splits[kind], tmp_path / "joined").same
    file = next((tmp_path / "joined" / "assets" / "tables").iterdir())
    assert file.stat().st_nlink == 3  # that of the tables, of the lookups, and this


def test_a_second_split_writes_the_same_bytes(
    models: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    split_saved_model(models / "keras", tmp_path / "again", verify=False)
    files = [file for file in sorted(splits["keras"].rglob("*")) if file.is_file()]
    for file in files:
        same = tmp_path / "again" / file.relative_to(splits["keras"])
        assert file.read_bytes() == same.read_bytes(), file


class Reshaped(tf.Module):
    """The model of NVIDIA's tutorial of a parameter server, without training."""

    rows, slots, dimension = 300, 3, 16

    def __init__(self) -> None:
        super().__init__()
        self.params = tf.Variable(tf.ones([self.rows, self.dimension]), name="params")
        widths = [self.slots * self.dimension, 256, 128, 1]
        self.kernels = [
            tf.Variable(tf.ones(shape), name="kernel") for shape in itertools.pairwise(widths)
        ]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    def serve(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.nn.embedding_lookup(self.params, keys)
        found = tf.reshape(found, [-1, self.slots * self.dimension])
        for kernel in self.kernels:
            found = found @ kernel
        return {"logit": found}


def test_the_tutorial_of_a_parameter_server(tmp_path: Path) -> None:
    module = Reshaped()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    dense = tf.saved_model.load(str(tmp_path / "split" / "dense"))
    lookup = tf.saved_model.load(str(tmp_path / "split" / "lookup"))
    keys = tf.constant([[1, 101, 201], [7, 107, 207]], tf.int64)
    vectors = lookup.signatures["serving_default"](keys=keys)["params"]
    assert vectors.shape == [2, 3, 16]
    logit = dense.signatures["flat"](embeddings=tf.reshape(vectors, [-1]))["logit"]
    assert logit.numpy().tolist() == [[1572864.0], [1572864.0]]
    assert dense.signatures["flat"](embeddings=tf.random.uniform([96]))["logit"].shape == [2, 1]
    # What the tutorial writes, byte for byte.
    table = tmp_path / "split" / "tables" / "params"
    assert (table / "key").read_bytes() == b"".join(struct.pack("q", key) for key in range(300))
    row = struct.pack("16f", *[1.0] * 16)
    assert (table / "emb_vector").read_bytes() == row * 300


class Mixed(tf.Module):
    """Lookups whose results are outputs, in half precision, of a table that is read whole too."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = tf.Variable(tf.cast(tf.reshape(tf.range(40.0), [10, 4]), tf.float16))
        self.tied = tf.Variable(tf.reshape(tf.range(30.0), [10, 3]), name="tied")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None, 4], tf.float16),
            tf.TensorSpec([None], tf.float32),
        ]
    )
    def serve(self, ids: tf.Tensor, price: tf.Tensor, idle: tf.Tensor) -> dict[str, tf.Tensor]:
        del idle
        sparse = tf.RaggedTensor.from_tensor(ids).to_sparse()
        bags = tf.nn.safe_embedding_lookup_sparse(self.halves, sparse, combiner="sum")
        rows = tf.gather(self.tied, ids[:, 0])
        return {"bags": bags, "sum": bags + price, "scores": rows @ tf.transpose(self.tied)}


def test_outputs_that_are_embeddings_and_tables_that_are_read_whole(tmp_path: Path) -> None:
    module = Mixed()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert done.verification is not None
    assert done.verification.same
    dense = tf.saved_model.load(str(tmp_path / "split" / "dense"))
    assert [*dense.signatures] == ["serving_default"]  # the price is an input, too
    _, inputs = dense.signatures["serving_default"].structured_input_signature
    assert {"price", "idle"} < inputs.keys()
    assert "ids" not in inputs
    facts = json.loads((tmp_path / "split" / "fusion.json").read_text())
    assert [lookup["combiner"] for lookup in facts["lookups"]] == ["sum", None]
    halves = next(table for table in done.tables if table.width == 4)
    floats = (tmp_path / "split" / "tables" / halves.file.name / "emb_vector").read_bytes()
    assert floats == module.halves.numpy().astype("float32").tobytes()


def test_models_with_variables_of_the_same_names(tmp_path: Path) -> None:
    """They do not meet, though their names are those by which TensorFlow 1 knows variables."""
    loaded = []
    for k in range(2):
        module = Reshaped()
        module.params.assign(tf.fill(module.params.shape, 1.0 + k))
        module.kernels[2].assign(tf.fill(module.kernels[2].shape, 2.0 + k))
        tf.saved_model.save(module, str(tmp_path / f"model{k}"), module.serve)
        split_saved_model(tmp_path / f"model{k}", tmp_path / f"split{k}", verify=False)
        parts = [tf.saved_model.load(str(tmp_path / f"split{k}" / p)) for p in ("lookup", "dense")]
        loaded.append((module, *parts))
    keys = tf.constant([[1, 2, 3]], tf.int64)
    for module, lookup, dense in loaded:
        vectors = lookup.signatures["serving_default"](keys=keys)
        logit = dense.signatures["serving_default"](**vectors)["logit"]
        assert np.array_equal(logit, module.serve(keys)["logit"])


def test_commands(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, split, joined = models / "tf2", tmp_path / "split", tmp_path / "joined"
    assert main(["split", str(model), f"{split}/", "--no-verify"]) == 0
    printed = capsys.readouterr().out
    assert f"before loading {split}/lookup" in " ".join(printed.split())
    assert "items [?, 8] from items" in printed
    assert "lookups: 4, in 2 tables of 0.0 MB" in printed
    assert main(["join", str(split), str(joined)]) == 0
    assert main(["verify", str(model), str(split)]) == 0
    assert "same: 2 signatures" in capsys.readouterr().out


def test_misuse(models: Path, splits: dict[str, Path], tmp_path: Path) -> None:
    frozen_graphs.write(frozen_graphs.v2_graph(), tmp_path / "graph.pb")
    with pytest.raises(ModelError, match="a frozen graph cannot be split"):
        split_saved_model(tmp_path / "graph.pb", tmp_path / "split")
    for kind in ("plain", "v1_ref"):
        with pytest.raises(ModelError, match="no lookup in a table that is a variable"):
            split_saved_model(models / kind, tmp_path / "split")
    with pytest.raises(ModelError, match="already exists"):
        split_saved_model(models / "tf2", splits["tf2"])
    with pytest.raises(ModelError, match="not what `fusion split` has made"):
        join_saved_model(models / "tf2", tmp_path / "joined")
    mixed = shutil.copytree(splits["tf2"], tmp_path / "mixed")
    shutil.rmtree(mixed / "dense")
    shutil.copytree(splits["keras"] / "dense", mixed / "dense")
    with pytest.raises(ModelError, match=r"its lookups do not give 'dense_features_\w+'"):
        join_saved_model(mixed, tmp_path / "joined")
    with pytest.raises(ModelError, match="name its lookup or dense, or `fusion join` both"):
        read_saved_model(splits["tf2"])
    shutil.rmtree(mixed)
    shutil.copytree(splits["tf2"], mixed)
    file = mixed / "lookup" / "assets" / "tables" / "items"
    content = file.read_bytes()
    file.unlink()  # else it is the file of other splits, too
    file.write_bytes(content[:-32])
    text = "items has 1248 bytes, but a table of 40 rows of 8 elements has 1280: only one"
    with pytest.raises(ModelError, match=text):
        join_saved_model(mixed, tmp_path / "joined")
    assert not is_split(models / "tf2")
    assert not (tmp_path / "split").exists()
    assert not (tmp_path / "joined").exists()


def test_what_differs_is_not_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(src: Path, start: int, size: int, target: BinaryIO) -> None:
        copy_range(src, start, size, target)
        target.seek(-size, 1)
        target.write(b"\1\2\3\4")
        target.seek(0, 2)

    monkeypatch.setattr("fusion.saved_model.split.split.copy_range", damaged)
    with pytest.raises(VerificationError, match="nothing written"):
        split_saved_model(models / "tf2", tmp_path / "split")
    assert [*tmp_path.iterdir()] == []


def test_names_of_the_package() -> None:
    assert fusion.split_saved_model is split_saved_model
    assert fusion.join_saved_model is join_saved_model

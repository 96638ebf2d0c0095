from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import EmbeddingVariable
from fusion.tables import files
from tests.embedding_variables.test_checkpoints import entries, rows_of, train


def test_the_files_are_those_of_hps(tmp_path: Path):
    variable = EmbeddingVariable("table", 2)
    train(variable, 3, 5)
    assert variable.export(tmp_path / "table") == 2
    keys = (tmp_path / "table" / "key").read_bytes()
    rows = (tmp_path / "table" / "emb_vector").read_bytes()
    written = {
        struct.unpack_from("<q", keys, 8 * k)[0]: struct.unpack_from("<2f", rows, 8 * k)
        for k in range(2)
    }
    table = rows_of(variable, 10)
    assert written == {key: tuple(table[key].tolist()) for key in (3, 5)}
    assert len(keys) == len(rows) == 16
    manifest = json.loads((tmp_path / "table" / "manifest.json").read_text())
    assert manifest == {"rows": 2, "dimension": 2, "dtype": "float32", "step": 1}
    assert [*tmp_path.iterdir()] == [tmp_path / "table"]


def test_import_gives_keys_their_rows_and_leaves_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_ROWS", 3)
    first = EmbeddingVariable("first", 2)
    train(first, *range(20))
    first.export(tmp_path / "table")
    second = EmbeddingVariable("second", 2, capacity=30)
    train(second, 4, 25)
    before = rows_of(second)
    assert second.import_from(tmp_path / "table") == 20
    assert (rows_of(second, 20) == rows_of(first, 20)).all()
    assert (rows_of(second)[20:] == before[20:]).all()
    assert entries(second)[25][0] >= 0


def test_a_delta_has_what_was_trained_since_a_step(tmp_path: Path):
    first, second = EmbeddingVariable("first", 2), EmbeddingVariable("second", 2)
    train(first, 1, 2)
    train(first, 3)
    first.export(tmp_path / "whole")
    second.import_from(tmp_path / "whole")
    train(first, 2, 4)
    assert first.delta(tmp_path / "delta", since_step=3) == 2
    manifest = json.loads((tmp_path / "delta" / "manifest.json").read_text())
    assert (manifest["since_step"], manifest["step"]) == (3, 3)
    assert second.apply_delta(tmp_path / "delta") == 2
    assert (rows_of(first) == rows_of(second)).all()


def test_an_empty_table(tmp_path: Path):
    variable = EmbeddingVariable("table", 2)
    assert variable.export(tmp_path / "table") == 0
    assert variable.import_from(tmp_path / "table") == 0


def test_files_without_a_manifest(tmp_path: Path):
    np.array([7, -9]).tofile(tmp_path / "key")
    np.array([[1, 2], [3, 4]], np.float32).tofile(tmp_path / "emb_vector")
    variable = EmbeddingVariable("table", 2)
    assert variable.import_from(tmp_path) == 2
    assert variable.embedding_lookup([-9, 7]).numpy().tolist() == [[3, 4], [1, 2]]


def test_what_is_there_stays(tmp_path: Path):
    variable = EmbeddingVariable("table", 2)
    (tmp_path / "table").mkdir()
    with pytest.raises(FileExistsError, match="already exists"):
        variable.export(tmp_path / "table")
    with pytest.raises(FileNotFoundError):
        variable.export(tmp_path / "missing" / "table")
    assert [*tmp_path.iterdir()] == [tmp_path / "table"]


def test_files_that_do_not_fit(tmp_path: Path):
    variable = EmbeddingVariable("table", 3)
    with pytest.raises(FileNotFoundError):
        variable.import_from(tmp_path)
    np.array([7]).tofile(tmp_path / "key")
    np.array([1, 2], np.float32).tofile(tmp_path / "emb_vector")
    with pytest.raises(ValueError, match=r"8 bytes of keys and 8 of rows, .* of dimension 3"):
        variable.import_from(tmp_path)
    with (tmp_path / "key").open("ab") as file:
        file.write(b"1")
    with pytest.raises(ValueError, match="of dimension 3"):
        variable.import_from(tmp_path)
    np.array([7]).tofile(tmp_path / "key")
    np.zeros(3, np.float32).tofile(tmp_path / "emb_vector")
    (tmp_path / "manifest.json").write_text('{"rows": 2, "dimension": 3}')
    with pytest.raises(ValueError, match="of 2 rows of dimension 3, but there are 1"):
        variable.import_from(tmp_path)
    assert not entries(variable)


def test_graphs_have_no_files(tmp_path: Path):
    with tf.Graph().as_default():
        variable = EmbeddingVariable("table", 2)
        with pytest.raises(RuntimeError, match="runs eagerly"):
            variable.export(tmp_path / "table")
        with pytest.raises(RuntimeError, match="runs eagerly"):
            variable.import_from(tmp_path)


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32, tf.string])
def test_frozen(key_dtype):
    keys = tf.constant(["a", "b"]) if key_dtype == tf.string else tf.constant([1, 2], key_dtype)
    others = tf.constant(["b", "c"]) if key_dtype == tf.string else tf.constant([2, 3], key_dtype)
    variable = EmbeddingVariable("table", 2, key_dtype=key_dtype, default_value=[1.0, 2.0])
    with tf.GradientTape():
        variable.embedding_lookup(keys)
    frozen = variable.freeze()
    assert frozen.table.shape == [3, 2]
    for some in (keys, others, tf.stack([keys, others])):
        expected = variable.embedding_lookup(some).numpy()
        assert (frozen.embedding_lookup(some).numpy() == expected).all()
    with pytest.raises(TypeError, match="keys of a frozen embedding must be"):
        frozen.embedding_lookup(tf.constant([1] if key_dtype == tf.string else ["a"]))

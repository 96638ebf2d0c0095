"""Files of indices of keys: the ops find in them what they find in an index in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.tables.cpu_kernels.layout import KeyIndex, index_bytes
from fusion.saved_model.errors import ModelError
from fusion.saved_model.table_files import key_index
from fusion.saved_model.table_files.key_index import (
    SavedKeys,
    SavedVector,
    count_rows,
    write_key_index,
)


def saved(folder: Path, keys: np.ndarray, counts: np.ndarray, steps: np.ndarray) -> SavedKeys:
    vectors, file = [], folder / "saved"
    content = b"something"
    for values, dtype in ((keys, "<i8"), (counts, "<i4"), (steps, "<i8")):
        vectors.append(SavedVector(file, len(content), len(keys), dtype))
        content += values.astype(dtype).tobytes()
    file.write_bytes(content)
    return SavedKeys(*vectors)


def empty_index(rows: int) -> tf.Tensor:
    return ops.embedding_key_index(
        capacity=tf.constant([rows], tf.int64), admission=1, seed=0, waits=False
    )


def written(folder: Path, keys: SavedKeys, rows: int) -> tf.Variable:
    """The index in the file that is written for keys, mapped."""
    head = empty_index(rows)[: KeyIndex.SIZE].numpy().view(np.int64)
    path, words = folder / "index", index_bytes(rows) // 8
    with open(path, "xb") as out:
        write_key_index(keys, rows, head, out)
    return tf.Variable(
        lambda: ops.read_table_file(file=str(path), T="float64", rows=words, width=1),
        shape=[words, 1],
        dtype=tf.float64,
    )


def entries(index: tf.Variable) -> dict[int, tuple[int, int, int]]:
    """The row, the count and the last step of each key."""
    found = ops.embedding_key_entries(index=index.handle)
    about = zip(*(v.numpy().tolist() for v in (found.rows, found.counts, found.steps)), strict=True)
    return dict(zip(found.keys.numpy().tolist(), about, strict=True))


@pytest.mark.parametrize("block", [1 << 20, 1000])
@pytest.mark.parametrize("count", [1, 7, 5000, 100_000])
def test_all_keys_have_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int, block: int
) -> None:
    monkeypatch.setattr(key_index, "BLOCK", block)
    random = np.random.default_rng(count)
    keys = random.choice(1 << 20, count, replace=False) - 5  # dense ones, and negative ones
    counts, steps = random.integers(1, 99, count), random.integers(0, 2**33, count)
    index = written(tmp_path, saved(tmp_path, keys, counts, steps), count)
    about = zip(range(count), counts, np.minimum(steps, 2**31 - 1), strict=True)
    assert entries(index) == dict(zip(keys.tolist(), about, strict=True))
    clock = ops.embedding_key_entries(index=index.handle).clock
    assert clock.numpy() == [min(steps.max(), 2**31 - 1)]


@pytest.mark.parametrize("block", [1 << 20, 10])
def test_keys_without_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int
) -> None:
    monkeypatch.setattr(key_index, "BLOCK", block)
    keys, steps = np.arange(100), np.where(np.arange(100) % 3, 4, -1)
    which = saved(tmp_path, keys, np.ones(100), steps)
    assert count_rows(which) == 66
    found = entries(written(tmp_path, which, 66))
    assert [key for key, _ in sorted(found.items(), key=lambda item: item[1])] == [
        key for key in range(100) if key % 3
    ]


def test_long_chains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys of one bucket, and a few of others."""
    many = np.arange(1 << 21)
    alike = many[key_index.bucket_numbers(many, 1024) == 77][:1000]
    keys = np.concatenate([alike, many[:10]])
    monkeypatch.setattr(key_index, "BLOCK", 300)
    index = written(tmp_path, saved(tmp_path, keys, np.ones(1010), np.ones(1010)), 1010)
    found = entries(index)
    assert [found[key][0] for key in keys.tolist()] == list(range(1010))


def test_an_index_that_is_filled_by_ops_is_the_same(tmp_path: Path) -> None:
    """The same buckets have the same keys, so that both can be changed alike."""
    keys = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 20_000)
    index = written(tmp_path, saved(tmp_path, keys, np.ones(20_000), np.ones(20_000)), 20_000)
    other, table = (tf.Variable(value) for value in (empty_index(20_000), tf.zeros([20_000, 1])))
    for one in (index, other):
        ops.add_embedding_keys(
            table=table.handle,
            index=one.handle,
            keys=keys,
            counts=tf.fill([20_000], 3),
            steps=tf.fill([20_000], tf.constant(9, tf.int64)),
            values=tf.zeros([0, 1]),
            dim=1,
        )
    assert entries(index) == entries(other)
    removed = ops.remove_embedding_keys(index=index.handle, keys=keys[::3], release=-1)
    assert np.array_equal(removed, range(0, 20_000, 3))
    left = [key for k, key in enumerate(keys.tolist()) if k % 3]
    assert sorted(entries(index)) == sorted(left)


def test_files_that_end_too_early(tmp_path: Path) -> None:
    which = saved(tmp_path, np.arange(9), np.ones(9), np.ones(9))
    which.keys.file.write_bytes(which.keys.file.read_bytes()[:-1])
    with pytest.raises(ModelError, match="saved: truncated or damaged"):
        count_rows(which)
    which.keys.file.unlink()
    with pytest.raises(ModelError, match="saved: cannot be read: no such file"):
        count_rows(which)

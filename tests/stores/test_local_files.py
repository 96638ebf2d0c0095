"""Tables in files, and the index beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from fusion.ops.tables.cpu_kernels.file_layout import FileHead, slots_offset
from fusion.stores import hash_index, local_files
from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.tier import TableDescription, TierError
from tests import zygote

FILES = ["emb_vector", "key", "key_index", "manifest.json"]
SPARSE = np.array([5, -3, 2**62, 0, -(2**63), 2**63 - 1, 77])


def write(folder, keys, dimension=4, version=1):
    rows = np.asarray(keys, np.float32)[:, None] + version * np.arange(dimension, dtype=np.float32)
    write_table(folder, [(np.asarray(keys, np.int64), rows)])
    return rows


def opened(folder, name="a", dimension=4):
    tier = LocalFiles(folder)
    tier.open_table(TableDescription(name, dimension))
    return tier


def check(tier, keys, rows, name="a"):
    out = np.zeros_like(rows)
    assert tier.fetch(name, np.asarray(keys, np.int64), out).all()
    np.testing.assert_array_equal(out, rows)


def index_of(folder):
    return np.fromfile(folder / "a" / "key_index", np.int64)


def test_the_index_is_beside_the_keys(tmp_path):
    rows = write(tmp_path / "a", SPARSE)
    check(opened(tmp_path), SPARSE, rows)
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == FILES
    head = index_of(tmp_path)
    assert head[FileHead.key_count] == len(SPARSE)
    assert head[FileHead.is_range] == 0


def test_keys_that_are_rows_need_no_slots(tmp_path):
    rows = write(tmp_path / "a", range(1000))
    tier = opened(tmp_path)
    check(tier, range(1000), rows)
    assert 8 * len(index_of(tmp_path)) == slots_offset(0)
    found = tier.fetch("a", np.array([-1, 1000, 2**40]), np.zeros((3, 4), np.float32))
    assert not found.any()


def test_an_index_is_made_once(tmp_path):
    write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    before = (tmp_path / "a" / "key_index").stat()
    check(opened(tmp_path), SPARSE, write(tmp_path / "again", SPARSE))
    assert (tmp_path / "a" / "key_index").stat() == before


def test_a_copy_keeps_its_index(tmp_path):
    rows = write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "copy", copy_function=shutil.copyfile)
    before = (tmp_path / "copy" / "a" / "key_index").stat().st_ino
    check(opened(tmp_path / "copy"), SPARSE, rows)
    assert (tmp_path / "copy" / "a" / "key_index").stat().st_ino == before


def test_an_index_of_other_keys_is_made_again(tmp_path, caplog):
    write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    opened(tmp_path)
    assert caplog.text == ""
    others = SPARSE + 1000 * (np.abs(SPARSE) < 1000)
    others.tofile(tmp_path / "a" / "key")
    tier = opened(tmp_path)
    assert "a/key_index: is damaged or of other keys" in caplog.text
    rows = np.zeros((len(SPARSE), 4), np.float32)
    assert tier.fetch("a", others, rows).all()
    assert tier.fetch("a", SPARSE, rows).tolist() == (others == SPARSE).tolist()


@pytest.mark.parametrize("field", range(FileHead.SIZE))
def test_a_damaged_head_is_found(tmp_path, field):
    rows = write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    whole = index_of(tmp_path)
    for damage in (1 << 63, 1 << 20, 1):
        damaged = whole.copy()
        damaged[field] ^= np.uint64(damage).astype(np.int64)
        damaged.tofile(tmp_path / "a" / "key_index")
        check(opened(tmp_path), SPARSE, rows)
        np.testing.assert_array_equal(index_of(tmp_path), whole)


@pytest.mark.parametrize("left", [0, 3, 80, 200, -8, None])
def test_an_index_of_another_size_is_made_again(tmp_path, left, caplog):
    rows = write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    whole = (tmp_path / "a" / "key_index").read_bytes()
    (tmp_path / "a" / "key_index").write_bytes(whole + b"more" if left is None else whole[:left])
    check(opened(tmp_path), SPARSE, rows)
    assert "a/key_index: is damaged or of other keys" in caplog.text
    assert (tmp_path / "a" / "key_index").read_bytes() == whole


SLOTS = slots_offset(0) // 8


def look_up_damaged(folder, index, keys=SPARSE):
    """What a lookup in a damaged index says: which keys have a row, and these."""
    index.tofile(folder / "a" / "key_index")
    rows = np.zeros((len(keys), 4), np.float32)
    return opened(folder).fetch("a", np.asarray(keys), rows), rows


@pytest.mark.parametrize("row", [2**62, -5, len(SPARSE) + 1])
def test_damaged_slots_lead_nowhere_else(tmp_path, row):
    write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    index = index_of(tmp_path)
    index[SLOTS + 1 :: 2] = row
    with pytest.raises(TierError, match=r"table a: .*a/key_index: is damaged, remove it"):
        look_up_damaged(tmp_path, index)


def test_damaged_slots_give_no_row_of_another_key(tmp_path):
    """Each bit of each slot: the row of a key, an error, or no row at all."""
    expected = write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    whole, errors = index_of(tmp_path), 0
    for word in range(SLOTS, len(whole)):
        for bit in (0, 1, 2, 3, 40, 63):
            damaged = whole.copy()
            damaged[word] ^= np.uint64(1 << bit).astype(np.int64)
            try:
                found, rows = look_up_damaged(tmp_path, damaged)
            except TierError:
                errors += 1
            else:
                np.testing.assert_array_equal(rows, np.where(found[:, None], expected, 0))
    assert errors > len(SPARSE)
    found, rows = look_up_damaged(tmp_path, whole)
    assert found.all()
    np.testing.assert_array_equal(rows, expected)


def test_a_slot_of_a_key_that_is_not_there(tmp_path):
    write(tmp_path / "a", SPARSE)
    opened(tmp_path)
    index = index_of(tmp_path)
    assert not look_up_damaged(tmp_path, index, [4711])[0].any()
    index[SLOTS::2], index[SLOTS + 1 :: 2] = 4711, 3
    with pytest.raises(TierError, match="is damaged"):
        look_up_damaged(tmp_path, index, [4711])


@pytest.mark.parametrize("file", ["key", "key_index"])
def test_files_that_are_truncated_while_the_table_is_open(tmp_path, file):
    rows = write(tmp_path / "a", SPARSE)
    tier = opened(tmp_path)
    content = (tmp_path / "a" / file).read_bytes()
    os.truncate(tmp_path / "a" / file, 16)
    with pytest.raises(TierError, match=f"{file}: has 16 bytes, but {len(content)} when"):
        tier.fetch("a", SPARSE, np.zeros_like(rows))
    (tmp_path / "a" / file).write_bytes(content)
    check(tier, SPARSE, rows)


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    rows = write(tmp_path / "a", SPARSE)
    (tmp_path / "a" / "key_index.new").mkdir()  # also for root nothing can be written there
    check(opened(tmp_path), SPARSE, rows)
    assert not (tmp_path / "a" / "key_index").exists()
    assert "no index can be kept, it is in memory" in caplog.text


def test_a_full_disk(tmp_path, caplog, monkeypatch):
    rows = write(tmp_path / "a", SPARSE)

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    check(opened(tmp_path), SPARSE, rows)
    assert "No space left on device" in caplog.text


def test_keys_that_come_twice(tmp_path):
    write(tmp_path / "a", [4, 9, 4711, 3, 4711])
    message = f"{re.escape(str(tmp_path))}.*table a.*has the key 4711 twice, again in row 4"
    with pytest.raises(TierError, match=message):
        opened(tmp_path)
    assert {file.name for file in (tmp_path / "a").iterdir()} == {*FILES} - {"key_index"}


@pytest.mark.parametrize(
    ("file", "size"), [("key", 55), ("key", 48), ("emb_vector", 111), ("emb_vector", 96)]
)
def test_truncated_files(tmp_path, file, size):
    write(tmp_path / "a", SPARSE)
    os.truncate(tmp_path / "a" / file, size)
    with pytest.raises(TierError, match=r"a: has \d+ bytes of keys and \d+ of rows"):
        opened(tmp_path)


@pytest.mark.parametrize("file", ["emb_vector", "key", "."])
def test_missing_files(tmp_path, file):
    write(tmp_path / "a", SPARSE)
    path = tmp_path / "a" / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(TierError, match=f"No such file.*{re.escape(str(path))}'"):
        opened(tmp_path)


def test_another_dimension(tmp_path):
    write(tmp_path / "a", SPARSE)
    with pytest.raises(TierError, match="not rows of dimension 5"):
        opened(tmp_path, dimension=5)


def test_rows_that_are_truncated_while_the_table_is_open(tmp_path):
    write(tmp_path / "a", SPARSE)
    tier = opened(tmp_path)
    os.truncate(tmp_path / "a" / "emb_vector", 16)
    with pytest.raises(TierError, match="emb_vector: has 16 bytes"):
        tier.fetch("a", SPARSE, np.zeros((len(SPARSE), 4), np.float32))
    with pytest.raises(TierError, match="emb_vector: truncated while it was read"):
        [*tier.blocks("a", 4)]


def test_tables_without_a_folder_have_no_rows(tmp_path):
    rows = write(tmp_path / "elsewhere", SPARSE)
    tier = LocalFiles({"a": tmp_path / "elsewhere"})
    for name in ("a", "b"):
        tier.open_table(TableDescription(name, 4))
    check(tier, SPARSE, rows)
    assert not tier.fetch("b", SPARSE, np.zeros((len(SPARSE), 4), np.float32)).any()
    assert tier.count("b") == 0
    assert [*tier.blocks("b", 4)] == []


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="no block"):
        write_table(tmp_path / "a", [])
    blocks = [(np.arange(2), np.zeros((2, d), np.float32)) for d in (3, 4)]
    with pytest.raises(ValueError, match=r"float32 of shape \(2, 3\)"):
        write_table(tmp_path / "a", blocks)
    with pytest.raises(TypeError, match="keys must be a NumPy array, got list"):
        write_table(tmp_path / "a", [([1], np.zeros((1, 4), np.float32))])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="rows must be float32"):
        write_table(tmp_path / "a", [(np.arange(1), np.array(1, np.float32))])
    assert [*tmp_path.iterdir()] == []
    write_table(tmp_path / "a", blocks[:1])
    with pytest.raises(FileExistsError):
        write_table(tmp_path / "a", blocks[:1])


def test_a_new_version_while_threads_look_up(tmp_path):
    """Each call sees one version: what a thread reads stays until it has read it."""
    keys = np.arange(0, 3000, 3)
    rows = [write(tmp_path / f"version_{k}", keys, version=k) for k in range(4)]
    link = tmp_path / "a"
    link.symlink_to(tmp_path / "version_0")
    tier, stop, failures = opened(tmp_path), threading.Event(), []

    def read():
        out, count = np.empty_like(rows[0]), 0
        while not stop.is_set() or not count:
            found = tier.fetch("a", keys, out)
            if not found.all() or not any((out == version).all() for version in rows):
                failures.append(out.copy())
            count += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for k in range(40):
        new = tmp_path / "new"
        new.symlink_to(tmp_path / f"version_{k % 4}")
        os.replace(new, link)
        tier.open_table(TableDescription("a", 4))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("rows", [7, 6])
def test_a_new_version_while_a_table_is_opened(tmp_path, monkeypatch, rows):
    """The keys of one version and the rows of another would be wrong, and nobody would see it."""
    write(tmp_path / "old", SPARSE)
    new = write(tmp_path / "new", SPARSE[:rows][::-1], version=2)
    link = tmp_path / "a"
    link.symlink_to(tmp_path / "old")
    open_keys = hash_index.KeyFile

    def replaced_meanwhile(path):
        file = open_keys(path)
        if link.readlink() != tmp_path / "new":
            link.unlink()
            link.symlink_to(tmp_path / "new")
        return file

    monkeypatch.setattr(local_files, "KeyFile", replaced_meanwhile)
    tier = opened(tmp_path)
    check(tier, SPARSE[:rows][::-1], new)
    assert tier.count("a") == rows


_OPENS = """
import sys
import numpy as np
from fusion.stores.local_files import LocalFiles
from fusion.stores.tier import TableDescription

tier, keys = LocalFiles(sys.argv[1]), np.fromfile(sys.argv[1] + "/a/key", np.int64)[::-1].copy()
print("ready", flush=True)
input()
tier.open_table(TableDescription("a", 4))
rows = np.zeros((len(keys), 4), np.float32)
assert tier.fetch("a", keys, rows).all()
assert (rows == keys.astype(np.float32)[:, None] + np.arange(4, dtype=np.float32)).all()
"""


def test_processes_that_make_an_index_at_once(tmp_path):
    write(tmp_path / "a", np.random.default_rng(1).permutation(300_000) * 7919)
    opened(tmp_path)  # kernels are compiled
    (tmp_path / "a" / "key_index").unlink()
    (tmp_path / "a" / "key_index.new").write_bytes(b"of a process that was killed")
    command, pipe = [sys.executable, "-c", _OPENS, str(tmp_path)], subprocess.PIPE
    processes = [zygote.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == FILES


def test_an_index_is_made_in_bounded_memory(tmp_path, monkeypatch):
    """In that of some keys and of one segment; here these are small, and keys have 8 MB."""
    monkeypatch.setattr(hash_index, "_KEYS_AT_ONCE", 1 << 13)
    monkeypatch.setattr(hash_index, "_SEGMENT_KEYS", 1 << 12)
    keys = np.random.default_rng(1).permutation(1 << 20) * 7919 - 2**40
    rows = write(tmp_path / "a", keys, 1)
    tracemalloc.start()
    tier = opened(tmp_path, dimension=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    check(tier, keys, rows)
    assert not tier.fetch("a", keys + 1, np.zeros_like(rows)).any()

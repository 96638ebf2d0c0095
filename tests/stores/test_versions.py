"""Versions of tables in folders."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusion.stores.local_files import LocalFiles
from fusion.stores.tier import TableDescription
from fusion.stores.versions import read_version, version_numbers, write_version
from fusion.tables import files
from tests import zygote
from tests.stores.racing import rows_of

TABLE = TableDescription("items", 4)


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_version_of_blocks_and_of_a_folder(tmp_path: Path) -> None:
    source, keys = tmp_path / "source", np.array([7, -3, 2**40])
    files.write_table(source, 2, iter(rows_of(5, [1, 2], 2)), {})
    blocks = rows_of(1, keys[:2], 4) + rows_of(2, keys[2:], 4)
    folder = write_version(tmp_path / "root", 12, {"items": blocks, "shops": source})

    assert folder == tmp_path / "root" / "12"
    assert version_numbers(tmp_path / "root") == [12]
    own = ("key", "emb_vector", "key_index", "manifest.json")
    expected = {f"{table}/{name}" for table in ("items", "shops") for name in own}
    assert names_below(folder) == expected | {"version.json"}
    assert (folder / "items" / "key").read_bytes() == keys.astype("<i8").tobytes()

    version = read_version(folder)
    assert version.base is None
    assert {name: (own.rows, own.dimension) for name, own in version.tables.items()} == {
        "items": (3, 4),
        "shops": (2, 2),
    }
    version.check([TABLE, TableDescription("shops", 2)])
    tier = LocalFiles(folder)
    tier.open_table(TABLE)
    rows = np.zeros((3, 4), np.float32)
    assert tier.fetch("items", keys, rows).all()
    assert rows[:, 0].tolist() == [1, 1, 2]


def test_a_delta_says_what_it_is_based_on(tmp_path: Path) -> None:
    folder = write_version(tmp_path, 3, {"items": rows_of(1, [], 4)}, base=1)
    assert read_version(folder).base == 1
    read_version(folder).check([TABLE, TableDescription("shops", 2)])  # it needs no other table


def test_a_split_model_is_a_whole_version(tmp_path: Path) -> None:
    files.write_table(tmp_path / "table", 4, iter(rows_of(1, range(6), 4)), {})
    own = tmp_path / "5" / "tables" / "items"
    own.mkdir(parents=True)
    for name in ("key", "emb_vector"):
        (own / name).write_bytes((tmp_path / "table" / name).read_bytes())
    facts = {"kind": "split", "tables": [{"name": "items", "rows": 6, "dimension": 4}]}
    (tmp_path / "5" / "fusion.json").write_text(json.dumps(facts))
    version = read_version(tmp_path / "5")
    assert version.base is None
    version.check([TABLE])
    (own / "key").write_bytes(b"")
    with pytest.raises(ValueError, match="key: has 0 bytes, not 48"):
        version.check([TABLE])


def test_numbers(tmp_path: Path) -> None:
    for name in ("3", "10", "007", "x", "-1", ".fusion-12", "1.5", "٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "4").write_text("a file")
    assert version_numbers(tmp_path) == [3, 10]
    with pytest.raises(FileNotFoundError):
        version_numbers(tmp_path / "missing")


@pytest.mark.parametrize(
    ("number", "base", "tables", "message"),
    [
        (-1, None, {"items": rows_of(1, [1], 4)}, "number and base must be at least 0"),
        (
            2,
            2,
            {"items": rows_of(1, [1], 4)},
            "2: the number of a version must be above its base, 2",
        ),
        (2, -1, {"items": rows_of(1, [1], 4)}, "base must be at least 0, got 2 and -1"),
        (2, None, {}, "tables must not be empty"),
        (2, None, {"items": []}, "table items: has no block"),
        (2, None, {"a/b": rows_of(1, [1], 4)}, "must be a file name"),
        (2, None, {"items": rows_of(1, [1], 4) + rows_of(1, [2], 3)}, r"of shape \(1, 4\)"),
        (2, None, {"items": rows_of(1, [1, 2, 1], 4)}, "has the key 1 twice"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, number, base, tables, message: str) -> None:
    root = tmp_path / "root"
    with pytest.raises(ValueError, match=message):
        write_version(root, number, tables, base)
    assert not root.exists() or [*root.iterdir()] == []


def test_blocks_are_of_arrays(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="rows must be a NumPy array, got list"):
        write_version(tmp_path, 1, {"items": [(np.arange(1), [[1.0]])]})  # type: ignore[list-item]
    assert [*tmp_path.iterdir()] == []


def test_a_version_is_written_once(tmp_path: Path) -> None:
    write_version(tmp_path, 1, {"items": rows_of(1, [1], 4)})
    with pytest.raises(FileExistsError, match="already exists"):
        write_version(tmp_path, 1, {"items": rows_of(2, [1], 4)})
    read_version(tmp_path / "1").check([TABLE])


def test_of_two_writers_one_fails(tmp_path: Path) -> None:
    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from rows_of(1, [1], 4)
        write_version(tmp_path, 1, {"items": rows_of(2, [2], 4)})  # the other one

    with pytest.raises(OSError, match=r"not empty|exists"):
        write_version(tmp_path, 1, {"items": blocks()})
    read_version(tmp_path / "1").check([TABLE])
    assert np.fromfile(tmp_path / "1" / "items" / "key", "<i8").tolist() == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


_FULL = """
import resource, signal, sys
import numpy as np
from fusion.stores.versions import write_version
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    write_version(sys.argv[1], 1, {"items": [(np.arange(10**5), np.zeros((10**5, 4), "f4"))]})
except OSError as error:
    print("refused:", error)
"""


def test_files_that_cannot_grow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FULL, str(tmp_path)]
    done = zygote.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused: ")
    assert [*tmp_path.iterdir()] == []


_KILLED = """
import os, signal, sys
import numpy as np
from fusion.stores.versions import write_version
def blocks():
    yield np.arange(9), np.zeros((9, 4), "f4")
    os.kill(os.getpid(), signal.SIGKILL)
write_version(sys.argv[1], 1, {"items": blocks()})
"""


def test_a_writer_that_is_killed_leaves_no_version(tmp_path: Path) -> None:
    done = zygote.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert version_numbers(tmp_path) == []
    write_version(tmp_path, 1, {"items": rows_of(1, [1], 4)})
    assert version_numbers(tmp_path) == [1]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"kind": "whole"}', "KeyError: 'tables'"),
        ('{"kind": "half", "base": 1, "tables": {}}', "kind 'half'"),
        ('{"kind": "delta", "tables": {}}', "KeyError: 'base'"),
        ('{"kind": "whole", "tables": {"t": {"rows": 1}}}', "KeyError: 'dimension'"),
        ('{"kind": "whole", "tables": {"../t": {"rows": 1, "dimension": 1}}}', "file name"),
        ('{"kind": "whole", "tables": {"t": {"rows": 1, "dimension": "1"}}}', "TypeError"),
        ('{"kind": "whole", "tables": {"t": {"rows": 1, "dimension": 1, "crc32": {}}}}', "'key'"),
        pytest.param("[" * 100_000, "RecursionError", id="nested"),
    ],
)
def test_what_is_no_version(tmp_path: Path, content: str, cause: str) -> None:
    (tmp_path / "version.json").write_text(content)
    with pytest.raises(ValueError, match=rf"version.json: does not say what it should .*{cause}"):
        read_version(tmp_path)


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no version.json, and is no split model"):
        read_version(tmp_path)

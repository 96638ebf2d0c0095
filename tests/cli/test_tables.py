"""`fusion tables push`, `pull` and `compare`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fusion import saved_model
from fusion.cli import main
from fusion.stores.local_files import write_table
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.tier import TableDescription, Tier
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import read_version
from tests import zygote
from tests.stores.redis_server import RedisServer

KEYS = np.array([5, -7, 2**40, 0, 11])
ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Two tables, the first of a name that no other test has: tests share a server."""
    (tmp_path / "tables").mkdir()
    name = re.sub(r"\W", "_", request.node.name)
    write_table(tmp_path / "tables" / name, [(KEYS, ROWS)])
    write_table(tmp_path / "tables" / "shops", [(KEYS[:2], ROWS[:2, :1])])
    return tmp_path / "tables"


def name_in(folder: Path) -> str:
    """The name of the first table."""
    (found,) = folder.glob("test_*")
    return found.name


def rows_in(tier: Tier, name: str, dimension: int = 3) -> dict[int, list[float]]:
    tier.open_table(TableDescription(name, dimension))
    blocks = tier.blocks(name, 100)
    found = {
        key: row.tolist()
        for keys, rows in blocks
        for key, row in zip(keys.tolist(), rows, strict=True)
    }
    tier.close()
    return found


EXPECTED = dict(zip(KEYS.tolist(), ROWS.tolist(), strict=True))


@pytest.mark.parametrize("batch", ["2", "100"])
def test_to_a_database_and_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: str
) -> None:
    name, database = name_in(folder), f"rocksdb:{tmp_path / 'database'}"
    assert main(["tables", "push", str(folder), database, "--batch", batch]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[\d.]+ s$", "? s", line) for line in lines] == [
        "shops: 2 rows, 0.0 MB, ? s",
        f"{name}: 5 rows, 0.0 MB, ? s",
    ]
    assert rows_in(RocksDB(RocksDBOptions(str(tmp_path / "database"))), name) == EXPECTED
    pulled = tmp_path / "versions" / "3"
    assert main(["tables", "pull", database, str(pulled), "--batch", batch]) == 0
    capsys.readouterr()
    read_version(pulled).check([TableDescription(name, 3), TableDescription("shops", 1)])
    for a, b in ((folder, pulled), (pulled, database), (database, folder)):
        assert main(["tables", "compare", str(a), str(b), "--batch", batch]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "same"


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_redis(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    where: str,
) -> None:
    name = name_in(folder)
    found = request.getfixturevalue(f"redis_{where}")
    nodes = [found] if isinstance(found, RedisServer) else found
    addresses = ",".join(node.address for node in nodes)
    redis = f"redis://{addresses}"
    arguments = ["tables", "push", str(folder), redis, "--table", name, "--partitions", "3"]
    assert main(arguments) == 0
    tier = Redis(RedisOptions(addresses))
    assert tier.dimensions()[name] == 3
    assert rows_in(tier, name) == EXPECTED
    assert main(["tables", "compare", redis, str(folder), "--table", name]) == 0
    assert main(["tables", "pull", redis, str(tmp_path / "1"), "--table", name]) == 0
    assert rows_in(VersionedFiles(tmp_path, [TableDescription(name, 3)]), name) == EXPECTED
    capsys.readouterr()


def test_a_password(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "redis").mkdir()
    options = ("--save", "", "--requirepass", "se:cr@t")
    server = RedisServer(tmp_path / "redis", *options, client={"password": "se:cr@t"})
    try:
        for address in ("redis://{}", "redis://:wrong@{}", "redis://default:wrong@{}"):
            assert main(["tables", "push", str(folder), address.format(server.address)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"fusion: error: redis at {server.address}: ")
            assert "wrong" not in line
        own = f"redis://default:se%3Acr%40t@{server.address}"
        assert main(["tables", "push", str(folder), own]) == 0
        assert main(["tables", "compare", str(folder), own, "--table", "absent"]) == 2
        assert "cr" not in capsys.readouterr().err
        monkeypatch.setenv("FUSION_REDIS_PASSWORD", "se:cr@t")
        assert main(["tables", "compare", f"redis://{server.address}/", str(folder)]) == 0
    finally:
        server.kill()


def test_a_push_replaces_rows_and_leaves_others(folder: Path, tmp_path: Path) -> None:
    database, name = f"rocksdb:{tmp_path / 'database'}", name_in(folder)
    assert main(["tables", "push", str(folder), database]) == 0
    other = tmp_path / "other"
    other.mkdir()
    write_table(other / name, [(np.array([0, 3]), np.full((2, 3), 9.0, np.float32))])
    assert main(["tables", "push", str(other), database]) == 0
    found = rows_in(RocksDB(RocksDBOptions(str(tmp_path / "database"))), name)
    assert found == {**EXPECTED, 0: [9.0] * 3, 3: [9.0] * 3}


def test_a_delta(folder: Path, tmp_path: Path) -> None:
    name = name_in(folder)
    (tmp_path / "new").mkdir()
    write_table(tmp_path / "new" / name, [(np.array([0, 3]), np.full((2, 3), 9.0, np.float32))])
    root = tmp_path / "root"
    assert main(["tables", "pull", str(folder), str(root / "1")]) == 0
    assert main(["tables", "pull", str(tmp_path / "new"), str(root / "2"), "--base", "1"]) == 0
    found = rows_in(VersionedFiles(root, [TableDescription(name, 3)]), name)
    assert found == {**EXPECTED, 0: [9.0] * 3, 3: [9.0] * 3}


class TestCompare:
    """What differs, and by how much."""

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        (tmp_path / "other").mkdir()
        rows = ROWS[:4] + np.array([[0], [0.25], [-0.5], [0]], np.float32)
        write_table(
            tmp_path / "other" / "items",
            [(np.append(KEYS[:4], [1, 2]), np.vstack([rows, rows[:2]]))],
        )
        return tmp_path / "other"

    @pytest.fixture
    def items(self, tmp_path: Path) -> Path:
        (tmp_path / "items").mkdir()
        write_table(tmp_path / "items" / "items", [(KEYS, ROWS)])
        return tmp_path / "items"

    @pytest.mark.parametrize(("tolerance", "different"), [("0", 2), ("0.3", 1), ("0.5", 0)])
    def test_rows(
        self,
        items: Path,
        other: Path,
        capsys: pytest.CaptureFixture[str],
        tolerance: str,
        different: int,
    ) -> None:
        assert main(["tables", "compare", str(items), str(other), "--tolerance", tolerance]) == 1
        line, last = capsys.readouterr().out.splitlines()
        expected = (
            f"items: 4 rows in both, {different} differ, by 0.5 at most; 1 only in A, 2 only in B; "
        )
        assert line.startswith(expected)
        assert last == "different"
        assert main(["tables", "compare", str(other), str(items)]) == 1
        assert "2 only in A, 1 only in B" in capsys.readouterr().out

    def test_a_tolerance_that_suffices(self, items: Path, tmp_path: Path) -> None:
        (tmp_path / "close").mkdir()
        write_table(tmp_path / "close" / "items", [(KEYS[::-1], ROWS[::-1] + np.float32(0.25))])
        arguments = ["tables", "compare", str(items), str(tmp_path / "close"), "--tolerance"]
        assert main([*arguments, "0.25"]) == 0
        assert main([*arguments, "0.2"]) == 1

    def test_what_is_no_number(
        self, items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, value in (("a", np.nan), ("b", np.nan), ("c", np.inf), ("d", -np.inf)):
            (tmp_path / name).mkdir()
            rows = np.where(ROWS == 4, value, ROWS).astype(np.float32)
            write_table(tmp_path / name / "items", [(KEYS, rows)])
        assert main(["tables", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
        for first, second in ((items, "a"), ("a", "c"), ("c", "d"), (items, "c")):
            capsys.readouterr()
            paths = [str(tmp_path / first), str(tmp_path / second)]
            assert main(["tables", "compare", *paths, "--tolerance", "1e30"]) == 1
            assert "1 differ, by inf at most" in capsys.readouterr().out

    def test_tables_that_are_missing(
        self, items: Path, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["tables", "compare", str(items), str(folder), "--table", "items"]) == 2
        assert f"{folder}: has no table items; it has shops, test_" in capsys.readouterr().err
        assert main(["tables", "compare", str(items), str(folder)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert f"items: not in {folder}" in lines
        assert f"shops: not in {items}" in lines


def test_a_split_model(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = tmp_path / "versions" / "1"
    split.parent.mkdir()
    saved_model.split_saved_model(models / "tf2", split, verify=False)
    database = f"rocksdb:{tmp_path / 'database'}"
    assert main(["tables", "push", str(split), database]) == 0
    for source in (split, split / "tables"):
        assert main(["tables", "compare", str(source), database]) == 0
    capsys.readouterr()
    tables = read_version(split).tables
    assert tables
    tier = VersionedFiles(
        split.parent, [TableDescription(n, t.dimension) for n, t in tables.items()]
    )
    assert tier.number == 1
    assert all(tier.count(name) == table.rows > 0 for name, table in tables.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push", "SRC", "DST"], "DST: is no database; `fusion tables pull` writes folders"),
        (["pull", "SRC", "rocksdb:db"], "rocksdb:db: is no folder; `fusion tables push` writes"),
        (["push", "missing", "rocksdb:db"], "missing: no such file or directory"),
        (["push", "EMPTY", "rocksdb:db"], "EMPTY: has no tables"),
        (["push", "SRC", "rocksdb:db", "--table", "x"], "SRC: has no table x; it has shops, test_"),
        (["compare", "SRC", "rocksdb:missing"], "rocksdb at missing: is not there"),
        (["push", "SRC", "redis://nowhere"], "address must be host:port"),
        (["push", "SRC", "redis://127.0.0.1:1"], "redis at 127.0.0.1:1: "),
        (["pull", "SRC", "SRC"], "SRC: already exists"),
        (["pull", "SRC", "5", "--base", "5"], "5: the number of a version must be above its base"),
        (["pull", "SRC", "DST", "--batch", "0"], "0 is not in the range x>=1"),
        (["push", "SRC", "rocksdb:SRC/shops/key"], "rocksdb at SRC/shops/key: "),
    ],
)
def test_errors_are_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    folder.rename(tmp_path / "SRC")
    (tmp_path / "EMPTY").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["tables", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("fusion: error: ")
    assert message in line


_KILLED = """
import os, signal, sys
from fusion.cli import main
from fusion.stores.rocksdb import RocksDB
put, puts = RocksDB.put, []
def killed(*arguments):
    put(*arguments)
    puts.append(1)
    if len(puts) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
RocksDB.put = killed
main(["tables", "push", *sys.argv[1:], "--batch", "1"])
"""


def test_a_push_that_was_killed_is_done_again(folder: Path, tmp_path: Path) -> None:
    name, path = name_in(folder), str(tmp_path / "database")
    arguments = [str(folder), f"rocksdb:{path}", "--table", name]
    done = zygote.run([sys.executable, "-c", _KILLED, *arguments], check=False)
    assert done.returncode == -9
    assert len(rows_in(RocksDB(RocksDBOptions(path)), name)) == 2
    assert main(["tables", "push", *arguments]) == 0
    assert rows_in(RocksDB(RocksDBOptions(path)), name) == EXPECTED


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A table of 13 MB."""
    (tmp_path / "large").mkdir()
    write_table(
        tmp_path / "large" / "items", [(np.arange(50_000), np.ones((50_000, 64), np.float32))]
    )
    return tmp_path / "large"


def test_a_redis_that_is_full(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", "--save", "", "--maxmemory", "8mb")
    try:
        assert (
            main(["tables", "push", str(large), f"redis://{server.address}", "--batch", "999"]) == 2
        )
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(f"fusion: error: redis at {server.address}, table items: .*maxmemory", line)
        server.client().config_set("maxmemory", "100mb")
        assert main(["tables", "push", str(large), f"redis://{server.address}"]) == 0
        assert main(["tables", "compare", str(large), f"redis://{server.address}"]) == 0
    finally:
        server.kill()


_FULL = """
import resource, signal, sys
from fusion.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
sys.exit(main(["tables", *sys.argv[1:]]))
"""


def test_files_that_cannot_grow(large: Path, tmp_path: Path) -> None:
    database = f"rocksdb:{tmp_path / 'database'}"
    for arguments, message in (
        (["push", str(large), database], r"rocksdb at \S+, table items: .*too large"),
        (["pull", str(large), str(tmp_path / "1")], "rows|written|too large"),
    ):
        command = [sys.executable, "-c", _FULL, *arguments]
        done = zygote.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert re.search(f"fusion: error: .*({message})", done.stderr, re.IGNORECASE)
    assert not (tmp_path / "1").exists()
    assert main(["tables", "push", str(large), database]) == 0
    assert main(["tables", "compare", str(large), database]) == 0

"""`embedding_sizes` against the sizes that NVTabular gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fusion.feature_column import embedding_sizes
from tests import zygote

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

#: Columns of Criteo as NVTabular encodes them, and the sizes that it prints if 16 is the most.
CRITEO = {"C1": 10_000_000, "C13": 11, "C14": 2209, "C17": 4, "C18": 954}


def test_of_cardinalities() -> None:
    sizes = embedding_sizes(CRITEO)
    assert sizes["C1"] == (10_000_000, 512)
    assert sizes["C14"] == (2209, round(1.6 * 2209**0.56)) == (2209, 119)
    assert sizes["C17"] == (4, 16)
    assert embedding_sizes(CRITEO, maximum=16) == {name: (n, 16) for name, n in CRITEO.items()}
    assert embedding_sizes({"C17": 4, "C18": 1}, minimum=1) == {"C17": (4, 3), "C18": (1, 2)}
    assert list(embedding_sizes({"b": 1, "a": 2})) == ["a", "b"]
    assert embedding_sizes({}) == {}


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_of_a_workflow(tmp_path: Path) -> None:
    categories = tmp_path / "workflow" / "categories"
    write(categories / "unique.C1.parquet", C1=[*range(100)], C1_size=[1] * 100)
    kinds = ["pad", "null", "oov", "unique"]
    write(categories / "meta.C1.parquet", kind=kinds, num_indices=[1, 1, 5, 100])
    write(categories / "unique.tag.s.parquet", **{"tag.s": [None, "a", "b"]})  # older: no meta
    for part in range(2):  # of a column that is split
        write(categories / "unique.C3.parquet" / f"part.{part}.parquet", C3=[*range(30)])
    expected = {"C1": (107, 22), "C3": (60, 16), "tag.s": (3, 16)}
    assert embedding_sizes(tmp_path / "workflow") == expected
    assert embedding_sizes(str(categories)) == expected


def test_of_the_statistics_of_files(tmp_path: Path) -> None:
    from fusion.data import cardinalities

    write(tmp_path / "a.parquet", C1=[3, 999], C2=[[1, 2], []])
    write(tmp_path / "b.parquet", C1=[7, 0], C2=[[], [40]])
    rows = cardinalities(tmp_path, ["C1", "C2"])
    assert embedding_sizes(rows) == {"C1": (1000, 77), "C2": (41, 16)}


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'a' must have at least one row, got 0"):
        embedding_sizes({"a": 0})
    with pytest.raises(ValueError, match="between 1 and maximum, got 16 and 8"):
        embedding_sizes({"a": 1}, maximum=8)
    with pytest.raises(ValueError, match="no file categories/unique"):
        embedding_sizes(tmp_path)
    categories = tmp_path / "categories"
    categories.mkdir()
    (categories / "unique.a.parquet").write_text("none")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        embedding_sizes(tmp_path)
    write(categories / "meta.a.parquet", kind=["pad"])
    with pytest.raises(ValueError, match=r"meta\.a\.parquet: no column num_indices"):
        embedding_sizes(tmp_path)


def test_without_pyarrow(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from fusion.feature_column.table_sizes import embedding_sizes\n"
        "print(embedding_sizes({'a': 4}))\n"
        "try:\n    embedding_sizes(sys.argv[1])\nexcept ImportError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    printed = zygote.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "{'a': (4, 16)}",
        f"{tmp_path}: reading it needs pyarrow: pip install 'tf-embedding-fusion[data]'",
    ]

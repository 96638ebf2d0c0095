"""Columns that have nulls alone in some files, and lists of one size that are null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from fusion.data import DataError, ParquetLoader, cardinalities, columns_of

NOTHING = pa.nulls(2)
PAIRS = pa.list_(pa.float32(), 2)
ROLES = {"id": "cat_names", "word": "cat_names", "ids": "cat_names", "x": "cont_names"}
KINDS: dict[str, tuple[pa.Array, Any]] = {
    "id": (pa.array([3, 4]), -1),
    "word": (pa.array(["a", "b"]), "none"),
    "x": (pa.array([0.5, 1.5], pa.float32()), -1.0),
    "pair": (pa.array([[1.0, 2.0], [3.0, 4.0]], PAIRS), -1.0),
}


def write(folder: Path, **columns: pa.Array) -> None:
    """Writes files a, b, ... with the arrays of a column each."""
    for file, array in columns.items():
        pq.write_table(pa.table({"c": array}), folder / f"{file}.parquet")


def load(folder: Path, role: str = "cont_names", **arguments: Any) -> ParquetLoader:
    arguments |= {role: ["c"]}
    return ParquetLoader(folder, 4, shuffle=False, **arguments)


def rows(loader: tf.data.Dataset) -> list[Any]:
    (batch,) = loader
    found: list[Any] = batch["c"].numpy().tolist()
    return found


@pytest.mark.parametrize("first", ["nulls", "values"])
@pytest.mark.parametrize("name", KINDS)
def test_files_with_nulls_alone(tmp_path: Path, name: str, first: str) -> None:
    """They are nulls of the type that other files have, wherever these are."""
    values, fill = KINDS[name]
    role = ROLES.get(name, "cont_names")
    nulls_are = "a" if first == "nulls" else "z"
    write(tmp_path, m=values, **{nulls_are: NOTHING})
    typed = tmp_path / "typed"
    typed.mkdir()
    write(typed, m=values, **{nulls_are: pa.nulls(2, values.type)})
    filled = load(tmp_path, role, fill_values={"c": fill})
    same = load(typed, role, fill_values={"c": fill})
    assert filled.columns == same.columns
    assert rows(filled) == rows(same)
    messages = []
    for loader in (load(tmp_path, role), load(typed, role)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"fill_values={'c': \.\.\.}") as e:
            rows(loader)
        messages.append(str(e.value).partition("[[")[0].replace("/typed", ""))
    assert f"{nulls_are}.parquet: column c: 2 of its " in messages[0]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("array", "form", "expected"),
    [
        (NOTHING, {}, [[], []]),
        (pa.array([[], None], pa.list_(pa.null())), {}, [[], []]),
        (pa.array([[None], []], pa.list_(pa.null())), {"ragged_names": ["c"]}, [[-1], []]),
    ],
)
def test_lists(tmp_path: Path, array: pa.Array, form: dict[str, Any], expected: Any) -> None:
    """Pandas writes a column of empty lists as one of lists of nulls."""
    write(tmp_path, a=array, b=pa.array([[7], [8, 9]]))
    (batch,) = load(tmp_path, "cat_names", fill_values={"c": -1}, **form)
    if form:
        found = batch["c"].to_list()
    else:
        ragged = tf.RaggedTensor.from_row_splits(batch["c__values"], batch["c__offsets"])
        found = ragged.to_list()
    assert found == [*expected, [7], [8, 9]]
    without = load(tmp_path, "cat_names", **form)
    if expected == [[], []]:
        assert len([*without]) == 1  # a list that is null has no values
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"a\.parquet: column c: 1 of its"):
            rows(without)


@pytest.mark.parametrize(
    ("nulls", "values"),
    [
        (pa.array([[], []], pa.list_(pa.null())), KINDS["x"][0]),
        (pa.array([[], []], pa.list_(pa.null())), KINDS["pair"][0]),
        (pa.array([None, None], pa.list_(pa.null(), 3)), KINDS["pair"][0]),
        (pa.array([None, None], pa.list_(pa.null(), 3)), pa.array([[0.5], [1.5]])),
    ],
)
@pytest.mark.parametrize("first", ["a", "z"])
def test_lists_of_nulls_are_lists(
    tmp_path: Path, nulls: pa.Array, values: pa.Array, first: str
) -> None:
    write(tmp_path, m=values, **{first: nulls})
    with pytest.raises(DataError, match=r"column c has .* but .* in"):
        load(tmp_path, fill_values={"c": 0.0})


def test_files_of_two_types_behind_one_with_nulls_alone(tmp_path: Path) -> None:
    write(tmp_path, a=NOTHING, b=pa.array([1, 2]), c=pa.array(["x", "y"]))
    with pytest.raises(DataError, match=r"c\.parquet: column c has string, but int64 in .*b\."):
        load(tmp_path, "cat_names")
    loader = load(tmp_path, "cat_names", fill_values={"c": 0}, on_error="skip")
    assert rows(loader) == [[0], [0], [1], [2]]
    assert [Path(one.path).name for one in loader.skipped] == ["c.parquet"]


def test_nulls_in_all_files(tmp_path: Path) -> None:
    write(tmp_path, a=NOTHING, b=NOTHING)
    with pytest.raises(DataError, match=r"a\.parquet: column c has null in all files: dtypes="):
        load(tmp_path, "cat_names", fill_values={"c": 0})
    assert rows(load(tmp_path, fill_values={"c": 7})) == [[7.0]] * 4
    words = load(tmp_path, "cat_names", fill_values={"c": "?"}, dtypes={"c": tf.string})
    assert rows(words) == [[b"?"]] * 4
    ragged = load(tmp_path, ragged_names=["c"])
    assert [batch["c"].to_list() for batch in ragged] == [[[]] * 4]
    (column,) = columns_of(tmp_path, cont_names=["c"])
    assert (column.dtype, column.width, column.form) == (tf.float32, 1, None)
    assert cardinalities(tmp_path, ["c"]) == {"c": 1}
    write(tmp_path, c=pa.array([[], [None]], pa.list_(pa.null())), d=pa.array([5, 6]))
    assert cardinalities(tmp_path, ["c"]) == {"c": 7}


@pytest.mark.parametrize("kind", [pa.float32(), pa.int64(), pa.string()])
def test_lists_of_one_size_that_are_null(tmp_path: Path, kind: pa.DataType) -> None:
    """As many fill values as they would have values; those in a list are filled as well."""
    values = pa.array([None, ["1", "2"], [None, "3"], None, ["4", "5"]], pa.list_(pa.string(), 2))
    write(tmp_path, a=values.cast(pa.list_(kind, 2)))
    fill = "9" if kind == pa.string() else 9
    role = "cont_names" if kind == pa.float32() else "cat_names"
    loader = load(tmp_path, role, fill_values={"c": fill}, buffer_size=3)
    batches = [batch["c"].numpy() for batch in loader]
    expected = [[9, 9], [1, 2], [9, 3], [9, 9], [4, 5]]
    assert np.concatenate(batches).astype(np.int64).tolist() == expected
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a\.parquet: column c: 2 of its lis"):
        [*load(tmp_path, role)]

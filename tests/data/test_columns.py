"""Which tensors come of which columns."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from fusion.data import DataError, ParquetLoader, cardinalities, columns_of
from tests import zygote

DAY = datetime.date(1970, 1, 3)


def load(folder: Path, array: pa.Array, role: str = "cat_names", **arguments: Any) -> Any:
    """The column as one batch of features."""
    path = folder / "a.parquet"
    pq.write_table(pa.table({"c": array}), path)
    told: dict[str, Any] = {role: ["c"], "shuffle": False, **arguments}
    return ParquetLoader(path, 100, **told).peek()


@pytest.mark.parametrize(
    ("array", "role", "dtype", "values"),
    [
        (pa.array([1, -2], pa.int8()), "cat_names", tf.int32, [1, -2]),
        (pa.array([1, 2], pa.int32()), "cat_names", tf.int32, [1, 2]),
        (pa.array([1, 2**32 - 1], pa.uint32()), "cat_names", tf.int64, [1, 2**32 - 1]),
        (pa.array([1, 2], pa.uint64()), "cat_names", tf.int64, [1, 2]),
        (pa.array([True, False]), "cat_names", tf.int32, [1, 0]),
        (pa.array(["a", "é"]), "cat_names", tf.string, [b"a", "é".encode()]),
        (pa.array([b"\xff", b""]), "cat_names", tf.string, [b"\xff", b""]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "cat_names", tf.string, [b"a", b"b", b"a"]),
        (pa.array([7, 8, 7]).dictionary_encode(), "cat_names", tf.int64, [7, 8, 7]),
        (pa.array([1.5, float("inf")]), "cont_names", tf.float32, [1.5, float("inf")]),
        (pa.array([1, 2**60]), "cont_names", tf.float32, [1, 2**60]),
        (pa.array(np.array([1.5, 2], np.float16)), "cont_names", tf.float32, [1.5, 2]),
        (pa.array([decimal.Decimal("1.25")]), "cont_names", tf.float32, [1.25]),
    ],
)
def test_single_values(tmp_path: Path, array: Any, role: str, dtype: Any, values: Any) -> None:
    found = load(tmp_path, array, role)["c"]
    assert found.dtype == dtype
    assert found.shape == (len(values), 1)
    assert found.numpy()[:, 0].tolist() == values


@pytest.mark.parametrize(
    ("array", "dtype", "values"),
    [
        (pa.array([1, 2], pa.int32()), tf.int64, [1, 2]),
        (pa.array([1, 2], pa.int64()), tf.float64, [1, 2]),
        (pa.array([1.0, 2.0]), tf.int32, [1, 2]),
        (pa.array([decimal.Decimal(7)]), tf.int64, [7]),
        (pa.array([DAY]), tf.int64, [2]),
        (pa.array([7], pa.timestamp("ms")), tf.int64, [7]),
        (pa.array([7], pa.time32("ms")), tf.float32, [7]),
    ],
)
def test_dtypes_that_are_asked_for(tmp_path: Path, array: Any, dtype: Any, values: Any) -> None:
    found = load(tmp_path, array, dtypes={"c": dtype})["c"]
    assert found.dtype == dtype
    assert found.numpy()[:, 0].tolist() == values


@pytest.mark.parametrize(
    ("array", "role", "arguments", "message"),
    [
        (pa.array(["a"]), "cont_names", {}, "has string, not numbers"),
        (pa.array(["a"]), "label_names", {}, "has string, not numbers"),
        (pa.array(["a"]), "cat_names", {"dtypes": {"c": tf.int64}}, "which is no int64"),
        (pa.array([1]), "cat_names", {"dtypes": {"c": tf.string}}, "which is no string"),
        (pa.array([1.5]), "cat_names", {}, "ids are integers or strings"),
        (pa.array([decimal.Decimal("1.25")]), "cat_names", {}, "ids are integers or strings"),
        (pa.array([DAY]), "cat_names", {}, r"dtypes=.* counted in its unit \(date32"),
        (pa.array([{"x": 1}]), "cat_names", {}, "which no tensor holds"),
        (pa.array([[[1]]]), "cat_names", {}, "which no tensor holds"),
        (pa.array([1]), "cat_names", {"ragged_names": ["c"]}, "no lists of any length"),
    ],
)
def test_columns_that_are_refused(
    tmp_path: Path, array: Any, role: str, arguments: Any, message: str
) -> None:
    with pytest.raises(DataError, match=rf"a\.parquet: column c .*{message}"):
        load(tmp_path, array, role, **arguments)


@pytest.mark.parametrize(
    ("array", "arguments", "message"),
    [
        (pa.array([1, None]), {}, r"1 of its values are null; fill_values=\{'c': \.\.\.\}"),
        (pa.array([[1], [None]]), {}, "1 of its values are null"),
        (pa.array([2**63], pa.uint64()), {}, "not in range"),
        (pa.array([1.5]), {"dtypes": {"c": tf.int32}}, "truncated"),
        (pa.array([1, None]), {"fill_values": {"c": "x"}}, "'x'"),
        (
            pa.array([[1, 2, 3]]),
            {"sparse_names": ["c"], "sparse_max": {"c": 2}},
            "a list of 3 values, more than sparse_max 2",
        ),
    ],
)
def test_values_that_are_refused(tmp_path: Path, array: Any, arguments: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"a\.parquet: column c: .*{message}"):
        load(tmp_path, array, **arguments)


def test_null_lists_of_one_size_are_refused(tmp_path: Path) -> None:
    array = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    # pyarrow 17 cannot read them.
    message = (
        r"a\.parquet: column c(: 1 of its lists of 2 are null| cannot be read in row groups 0 )"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        load(tmp_path, array)


def test_nulls_and_nans_are_filled(tmp_path: Path) -> None:
    found = load(tmp_path, pa.array([1.5, None, float("nan")]), "cont_names", fill_values={"c": -1})
    assert found["c"].numpy()[:, 0].tolist() == [1.5, -1, -1]
    found = load(tmp_path, pa.array([1.5, float("nan")]), "cont_names")
    np.testing.assert_array_equal(found["c"][:, 0], [1.5, np.nan])
    found = load(tmp_path, pa.array(["a", None]), fill_values={"c": ""})
    assert found["c"].numpy()[:, 0].tolist() == [b"a", b""]


def test_lists(tmp_path: Path) -> None:
    array = pa.array([[3, 4], None, [], [5]])
    found = load(tmp_path, array)
    assert found["c__values"].numpy().tolist() == [3, 4, 5]
    assert found["c__offsets"].numpy().tolist() == [0, 2, 2, 2, 3]
    ragged = load(tmp_path, array, ragged_names=["c"])["c"]
    assert ragged.to_list() == [[3, 4], [], [], [5]]
    sparse = load(tmp_path, array, sparse_names=["c"], sparse_max={"c": 7})["c"]
    assert sparse.dense_shape.numpy().tolist() == [4, 7]
    dense = load(tmp_path, array, sparse_names=["c"], sparse_as_dense=True)["c"]
    assert dense.numpy().tolist() == [[3, 4], [0, 0], [0, 0], [5, 0]]
    words = load(tmp_path, pa.array([["a"], ["b", "a"]]), ragged_names=["c"])["c"]
    assert words.to_list() == [[b"a"], [b"b", b"a"]]


def test_specs_say_what_batches_are(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "x": [0.5, 1.5, 2.5],
            "two": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "list": [[1], [], [2]],
            "a": [1, 0, 1],
            "b": [0, 0, 1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    loader = ParquetLoader(
        tmp_path, 2, ["a", "b"], ["id", "list"], ["x", "two"], drop_last=True, ragged_names=["list"]
    )
    assert loader.element_spec == (
        {
            "id": tf.TensorSpec([2, 1], tf.int64),
            "x": tf.TensorSpec([2, 1], tf.float32),
            "two": tf.TensorSpec([2, 2], tf.float32),
            "list": tf.RaggedTensorSpec([2, None], tf.int64),
        },
        (tf.TensorSpec([2, 1], tf.float32), tf.TensorSpec([2, 1], tf.float32)),
    )
    assert len(loader) == int(loader.cardinality()) == 1
    features, (a, b) = next(iter(loader.map(lambda features, labels: (features["id"], labels))))
    wanted = {1: (1, 0), 2: (0, 0), 3: (1, 1)}
    assert [wanted[one] for one in features.numpy()[:, 0]] == [
        *zip(a.numpy()[:, 0], b.numpy()[:, 0], strict=True)
    ]
    assert set(ParquetLoader(tmp_path, 2, cont_names=["x"]).element_spec) == {"x"}


def test_cardinalities(tmp_path: Path) -> None:
    for name, ids, lists in (("a", [1, 7], [[], [9]]), ("b", [None, 3], [[2], None])):
        pq.write_table(
            pa.table({"id": ids, "l": lists, "x": [1.5, 2]}), tmp_path / f"{name}.parquet"
        )
    assert cardinalities(tmp_path, ["id", "l"]) == {"id": 8, "l": 10}
    with pytest.raises(DataError, match=r"a\.parquet: no column z"):
        cardinalities(tmp_path, ["z"])
    with pytest.raises(DataError, match=r"a\.parquet: column x holds no integers"):
        cardinalities(tmp_path, ["x"])
    pq.write_table(pa.table({"id": [1]}), tmp_path / "c.parquet", write_statistics=False)
    with pytest.raises(DataError, match=r"c\.parquet: no statistics of id"):
        cardinalities(tmp_path, ["id"])


def test_columns_without_a_dataset(tmp_path: Path) -> None:
    """Those of the loader; TensorFlow's runtime has not begun, which strategies have to see."""
    path = tmp_path / "a.parquet"
    lists = pa.array([[1], [], [2, 3]])
    pq.write_table(pa.table({"y": [0, 1, 0], "c": lists, "x": [1.5, 2.5, 3.5]}), path)
    given: Any = (["y"], ["c"], ["x"])
    columns = columns_of(path, *given, dtypes={"c": tf.int64})
    assert columns == ParquetLoader(path, 2, *given, dtypes={"c": tf.int64}).columns
    assert [column.name for column in columns if column.form] == ["c"]
    program = (
        "import sys; from fusion.data import columns_of; columns_of(sys.argv[1], ['y']);"
        "from tensorflow.python.eager import context; sys.exit(context.context()._initialized)"
    )
    zygote.run([sys.executable, "-c", program, str(path)], check=True)
    with pytest.raises(DataError, match="column z"):
        columns_of(path, ["z"])

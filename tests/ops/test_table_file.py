"""ReadTableFile in TensorFlow."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.attributes import FLOATS


def written(folder: Path, values: np.ndarray, name: str = "table") -> str:
    (folder / name).write_bytes(values.tobytes())
    return str(folder / name)


def is_mapped(path: str) -> bool:
    return path in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, "int64"])
def test_rows(tmp_path: Path, dtype: str, in_memory: bool) -> None:
    values = tf.cast(tf.reshape(tf.range(15), [5, 3]), dtype)
    path = written(tmp_path, values.numpy())
    table = ops.read_table_file(file=path, T=dtype, rows=5, width=3, in_memory=in_memory)
    assert table.dtype == dtype
    assert np.array_equal(table, values)
    assert is_mapped(path) != in_memory
    del table
    gc.collect()
    assert not is_mapped(path)


def advice(path: str) -> set[str]:
    """The flags of the memory that a file is mapped to, as proc_pid_smaps(5) has them."""
    _, _, behind = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return set(behind.partition("VmFlags:")[2].partition("\n")[0].split())


@pytest.mark.parametrize(
    ("mapped_bytes", "is_random"), [(0, False), (1 << 20, False), (1 << 50, True)]
)
def test_nothing_is_read_ahead_where_memory_is_short(
    tmp_path: Path, mapped_bytes: int, is_random: bool
) -> None:
    path = written(tmp_path, np.ones([2, 4], "float32"))
    sizes = {"rows": 2, "width": 4, "mapped_bytes": mapped_bytes}
    table = ops.read_table_file(file=path, T="float32", **sizes)
    assert "rd" in advice(path)
    assert ("rr" in advice(path)) == is_random
    assert table.numpy().all()


@pytest.mark.parametrize("in_memory", [False, True])
def test_no_rows(tmp_path: Path, in_memory: bool) -> None:
    path = written(tmp_path, np.zeros(0))
    table = ops.read_table_file(file=path, T="float32", rows=0, width=3, in_memory=in_memory)
    assert table.shape == [0, 3]


def test_long_paths(tmp_path: Path) -> None:
    """TensorFlow keeps short strings elsewhere than long ones."""
    values = np.ones([2, 2], "float32")
    for length in (1, 22, 23, 24, 200):
        path = written(tmp_path, values, "x" * length)
        assert np.array_equal(ops.read_table_file(file=path, T="float32", rows=2, width=2), values)


@pytest.mark.parametrize("gather", [True, False])
def test_a_variable_has_it_without_a_copy(tmp_path: Path, gather: bool) -> None:
    """Also once rows are gathered or changed, and these changes are its own."""
    values = np.random.default_rng(1).normal(size=(1 << 16, 16)).astype("float32")
    path = written(tmp_path, values)
    table = tf.Variable(
        lambda: ops.read_table_file(file=path, T="float32", rows=1 << 16, width=16),
        shape=[1 << 16, 16],
        dtype=tf.float32,
    )
    anonymous = resident_anonymous_mib()
    if gather:
        assert np.array_equal(tf.gather(table, [5, 9]), values[[5, 9]])
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 16]), [7]))
    assert np.array_equal(tf.gather(table, [7, 8]), [values[7] + 1, values[8]])
    assert resident_anonymous_mib() - anonymous < 3  # of 4
    assert (tmp_path / "table").read_bytes() == values.tobytes()


def resident_anonymous_mib() -> float:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().split("\n") if "RssAnon" in line
    )
    return int(line.split()[1]) / 1024


def test_wrong_files(tmp_path: Path) -> None:
    path = written(tmp_path, np.zeros([4, 3], "float32"))
    for rows, width in ((5, 3), (3, 3), (4, 2), (0, 3)):
        with pytest.raises(
            tf.errors.DataLossError,
            match=f"{path} has 48 bytes, but a table of {rows} rows of {width} elements has",
        ):
            ops.read_table_file(file=path, T="float32", rows=rows, width=width)
    with pytest.raises(tf.errors.NotFoundError, match=r"file .*none: No such file or directory"):
        ops.read_table_file(file=str(tmp_path / "none"), T="float32", rows=4, width=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of 3 elements is too large"):
        ops.read_table_file(file=path, T="float32", rows=1 << 61, width=3)
    with pytest.raises(ValueError, match=r"file must have shape \[\]"):
        ops.read_table_file(file=[path], T="float32", rows=4, width=3)


def test_graphs_do_not_fold_it(tmp_path: Path) -> None:
    path = written(tmp_path, np.zeros([2, 1], "float32"))

    @tf.function
    def read() -> tf.Tensor:
        return ops.read_table_file(file=path, T="float32", rows=2, width=1) + 0.0

    assert not read().numpy().any()
    written(tmp_path, np.ones([2, 1], "float32"))
    assert read().numpy().all()

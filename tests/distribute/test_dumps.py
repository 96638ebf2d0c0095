"""Tables in files of HugeCTR and SparseOperationKit."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion import EmbeddingVariable
from fusion.distribute import ShardedTable, dump, load
from fusion.distribute.replicas import Replicas
from fusion.optimizers import keras3
from fusion.tables import PartitionedEmbeddingVariable, files

FORMATS = ["hugectr", "sok"]
ROWS, DIMENSION = 11, 3


def header(kind: int, state: str, dtype: int, name: str = "") -> bytes:
    """What is before an array of SparseOperationKit."""
    big_endian = [kind.to_bytes(4, "big"), dtype.to_bytes(4, "big")]
    made = name.rjust(256).encode() + big_endian[0] + state.rjust(32).encode() + big_endian[1]
    assert len(made) == 296
    return made


def sharded(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    mode: str = "distributed",
    here: range | None = None,
    seed: int = 0,
    **options: Any,
) -> ShardedTable:
    """A table of `count` replicas, of which this process has some."""
    with in_replicas(monkeypatch, count, here):
        return ShardedTable(ROWS, DIMENSION, mode, name="users", seed=seed, **options)


@contextlib.contextmanager
def in_replicas(
    monkeypatch: pytest.MonkeyPatch, count: int, here: range | None = None
) -> Iterator[None]:
    """A context of tables of `count` replicas, of which this process has some, or all."""
    replicas = Replicas(tf.distribute.get_strategy())
    replicas.count = count
    replicas.devices = dict.fromkeys(here or range(count))
    replicas.peers = None if here is None else object()  # type: ignore[assignment]
    with monkeypatch.context() as context:
        context.setattr(Replicas, "here", lambda: replicas)
        yield


def whole(table: Any) -> np.ndarray[Any, Any]:
    """The rows of a sharded table or of a variable."""
    if not isinstance(table, ShardedTable):
        return np.asarray(table.numpy(), np.float64)
    return np.asarray(table.saved_tensors()["table"].numpy(), np.float64)


def keyed(name: str, *keys: int, count: int = 0, seed: int = 5, **options: Any) -> Any:
    """An embedding variable, whose keys have rows; with `count` one of so many partitions."""
    options |= {"capacity": 100, "seed": seed}
    table = (
        PartitionedEmbeddingVariable(name, DIMENSION, count, **options)
        if count
        else EmbeddingVariable(name, DIMENSION, **options)
    )
    with tf.GradientTape():
        table.embedding_lookup(tf.constant(keys, table.key_dtype))
    return table


def rows_of(table: Any, *keys: int) -> list[list[float]]:
    return table.embedding_lookup(tf.constant(keys, table.key_dtype)).numpy().tolist()


def test_the_bytes_of_sparse_operation_kit(tmp_path: Path):
    users = tf.Variable([[1, 2], [3, 4], [5, 6]], dtype=tf.float32, name="model/users")
    optimizer = tf_keras.optimizers.legacy.Adagrad(0.5, initial_accumulator_value=7)
    optimizer.apply_gradients([(tf.zeros([3, 2]), users)])
    assert dump(tmp_path / "dumped", users, "sok", optimizer) == {"model_users_0": 3}
    written = {file.name: file.read_bytes() for file in (tmp_path / "dumped").iterdir()}
    assert written == {
        "model_users_0-key": header(0, "", 1) + struct.pack("<3q", 0, 1, 2),
        "model_users_0-weight": header(1, "", 5) + struct.pack("<6f", 1, 2, 3, 4, 5, 6),
        "model_users_0-Adagrad-accumulator": header(2, "accumulator", 5)
        + struct.pack("<6f", *[7] * 6),
    }
    assert [*tmp_path.iterdir()] == [tmp_path / "dumped"]


@pytest.mark.parametrize(("code", "letter"), [(0, "i"), (1, "q"), (2, "I"), (3, "Q")])
def test_files_of_sparse_operation_kit_are_read(code: int, letter: str, tmp_path: Path):
    # As two GPUs write them, whose rows are one after the other's.
    keys = header(0, "", code, "a name") + struct.pack(f"<4{letter}", 0, 2, 1, 3)
    (tmp_path / "users_0-key").write_bytes(keys)
    (tmp_path / "users_0-weight").write_bytes(header(1, "", 6) + struct.pack("<4d", 0, 2, 1, 3))
    table = tf.Variable(tf.ones([4, 1]), name="users")
    assert load(tmp_path, table) == {"users_0": 4}
    assert table.numpy().tolist() == [[0], [1], [2], [3]]
    ids = EmbeddingVariable("other", 1)
    assert load(tmp_path, {"users_0": ids}) == {"users_0": 4}
    assert rows_of(ids, 3, 2, 9) == [[3], [2], [0]]


def test_the_bytes_of_hugectr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = np.arange(ROWS * DIMENSION, dtype=np.float32).reshape(ROWS, DIMENSION)
    table = sharded(monkeypatch, 3, "localized:2", initializer=rows)
    assert dump(tmp_path / "dumped", {"0_sparse_9.model": table}) == {"0_sparse_9.model": ROWS}
    folder = tmp_path / "dumped" / "0_sparse_9.model"
    assert (folder / "key").read_bytes() == struct.pack(f"<{ROWS}q", *range(ROWS))
    assert (folder / "emb_vector").read_bytes() == rows.tobytes()
    assert (folder / "slot_id").read_bytes() == struct.pack(f"<{ROWS}Q", *[2] * ROWS)


def test_tables_that_are_distributed_have_no_slots(tmp_path: Path):
    dump(tmp_path / "dumped", [ShardedTable(4, 2, name="t"), keyed("u", 3)])
    for name in "tu":
        written = {file.name for file in (tmp_path / "dumped" / name).iterdir()}
        assert written == {"key", "emb_vector", "manifest.json"}


def test_files_of_hugectr_are_read(tmp_path: Path):
    folder = tmp_path / "0_sparse_9.model"
    folder.mkdir()
    (folder / "key").write_bytes(struct.pack("<3q", 8, 2, 5))
    (folder / "emb_vector").write_bytes(struct.pack("<6f", 1, 2, 3, 4, 5, 6))
    (folder / "slot_id").write_bytes(struct.pack("<3Q", 0, 1, 1))
    table = ShardedTable(9, 2, initializer=np.ones((9, 2)))
    assert load(tmp_path, {"0_sparse_9.model": table}) == {"0_sparse_9.model": 3}
    expected = np.ones((9, 2))
    expected[[8, 2, 5]] = [[1, 2], [3, 4], [5, 6]]
    assert (whole(table) == expected).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("count", "mode"), [(1, "distributed"), (2, "localized:1"), (3, "distributed")]
)
def test_files_have_no_replicas(
    format: str, count: int, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "CHUNK_ROWS", 4)
    table = sharded(monkeypatch, count, mode)
    (name,) = dump(tmp_path / "dumped", table, format)
    others = [
        *(sharded(monkeypatch, 3, f"localized:{k}", seed=1) for k in range(3)),
        *(sharded(monkeypatch, k, seed=1) for k in (1, 2, 4, ROWS + 1)),
        tf.Variable(tf.zeros([ROWS, DIMENSION]), name="users"),
    ]
    for other in others:
        assert not (whole(other) == whole(table)).any()
        assert load(tmp_path / "dumped", other) == {name: ROWS}
        assert (whole(other) == whole(table)).all()


def test_each_of_several_processes_reads_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = sharded(monkeypatch, 1)
    dump(tmp_path / "dumped", table)
    for mode, rows in [("distributed", range(1, ROWS, 3)), ("localized:0", range(0))]:
        part = sharded(monkeypatch, 3, mode, here=range(1, 2), seed=1)
        assert load(tmp_path / "dumped", part) == {"users": ROWS}
        assert (part.shards[1].numpy() == whole(table)[rows]).all()
        with pytest.raises(NotImplementedError, match=r"'users' has .* by tf\.train\.Checkpoint"):
            dump(tmp_path / "other", part)
    assert [*tmp_path.iterdir()] == [tmp_path / "dumped"]


def normal(dtype: Any, seed: int) -> Any:
    rows = tf.random.stateless_normal([ROWS, DIMENSION], [seed, 0], dtype=tf.float64)
    return tf.Variable(tf.cast(rows, dtype), name="users")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(format: str, dtype: str, tmp_path: Path):
    table, other = normal(dtype, 0), normal(dtype, 1)
    dump(tmp_path / "dumped", table, format)
    load(tmp_path / "dumped", other)
    expected = table.numpy()
    if format == "hugectr":
        expected = expected.astype(np.float32)
    assert (other.numpy() == expected).all()
    narrow = normal("float16", 1)
    load(tmp_path / "dumped", narrow)
    assert (narrow.numpy() == expected.astype(np.float16)).all()


def test_bfloat16(tmp_path: Path):
    table, other = normal("bfloat16", 0), normal("bfloat16", 1)
    with pytest.raises(TypeError, match=r"have float16, .* and 'users_0' is bfloat16"):
        dump(tmp_path / "dumped", table, "sok")
    assert not [*tmp_path.iterdir()]
    dump(tmp_path / "dumped", table, "hugectr")
    load(tmp_path / "dumped", other)
    assert (whole(other) == whole(table)).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32])
def test_embedding_variables(
    format: str, key_dtype: tf.DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "CHUNK_ROWS", 4)
    keys = [*range(-3, 12), 2**31 - 1]
    for number, count in enumerate((0, 3)):
        path = tmp_path / f"{number}"
        table = keyed("users", *keys, count=count, key_dtype=key_dtype)
        (name,) = dump(path, table, format)
        for other_count in (0, 2):
            other = keyed("users", 1, 50, count=other_count, seed=6, key_dtype=key_dtype)
            before = rows_of(other, 50)
            assert load(path, other) == {name: len(keys)}
            assert rows_of(other, *keys) == rows_of(table, *keys)
            assert rows_of(other, 50) == before


def test_what_is_exported_is_a_file_of_hugectr(tmp_path: Path):
    table, other, third = keyed("users", 3, 9), keyed("users", seed=6), keyed("users", seed=7)
    (tmp_path / "exported").mkdir()
    table.export(tmp_path / "exported" / "users")
    load(tmp_path / "exported", other)
    dump(tmp_path / "dumped", table)
    third.import_from(tmp_path / "dumped" / "users")
    assert rows_of(third, 3, 9) == rows_of(other, 3, 9) == rows_of(table, 3, 9)


OPTIMIZERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "keras.Adagrad": (lambda: keras.optimizers.Adagrad(0.5), ["Adagrad-accumulator"]),
    "keras.SGD": (lambda: keras.optimizers.SGD(0.5), []),
    "keras.SGD, momentum": (lambda: keras.optimizers.SGD(0.5, 0.9), ["SGD-momentum"]),
    "keras.Ftrl": (lambda: keras.optimizers.Ftrl(0.5), ["Ftrl-accumulator", "Ftrl-linear"]),
    "keras.Adadelta": (
        lambda: keras.optimizers.Adadelta(0.5),
        ["Adadelta-accum_grad", "Adadelta-accum_var"],
    ),
    "keras.Adamax": (lambda: keras.optimizers.Adamax(0.5), ["Adam-m", "Adam-v"]),
    "LazyAdam": (lambda: keras3.LazyAdam(0.5), ["Adam-m", "Adam-v"]),
    "tf_keras.Adam": (
        lambda: tf_keras.optimizers.Adam(0.5, amsgrad=True),
        ["Adam-m", "Adam-v", "Adam-vhat"],
    ),
    "legacy.Adam": (lambda: tf_keras.optimizers.legacy.Adam(0.5), ["Adam-m", "Adam-v"]),
    "v1.Adagrad": (lambda: tf.compat.v1.train.AdagradOptimizer(0.5), ["Adagrad-accumulator"]),
}


def trained(optimizer: Any, tables: list[Any], step: int) -> None:
    """Trains the rows of some ids."""
    variable, table, ids = tables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(variable, [step, 2]) ** 2)
        loss += tf.reduce_sum(ids.embedding_lookup([step, 2**40]) ** 2)
        for shard in table.shards.values():
            loss += tf.reduce_sum(tf.gather(shard, [step, 2]) ** 2)
    variables = [variable, *table.shards.values(), *(part.table for part in ids.partitions)]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_variables(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make, states = OPTIMIZERS[name]

    def tables(seed: int) -> list[Any]:
        rows = tf.random.stateless_normal([ROWS, DIMENSION], [seed, 0])
        ids = keyed("ids", count=2, seed=seed)
        replicas = 1 if name.startswith("v1.") else 2  # which TensorFlow 1's cannot train
        return [tf.Variable(rows, name="rows"), sharded(monkeypatch, replicas, seed=seed), ids]

    def contents(folder: Path) -> dict[str, list[tuple[float, ...]]]:
        """Files, with rows by keys, which embedding variables have in any order."""
        found = {}
        for file in folder.iterdir():
            table, _, kind = file.name.partition("-")
            keys = np.fromfile(folder / f"{table}-key", np.int64, offset=296)
            rows = np.fromfile(file, np.int64 if kind == "key" else np.float32, offset=296)
            found[file.name] = sorted(zip(keys, *rows.reshape(len(keys), -1).T, strict=True))
        return found

    first, optimizer = tables(0), make()
    for step in range(3):
        trained(optimizer, first, step)
    dump(tmp_path / "first", first, "sok", optimizer)
    kinds = {"key", "weight", *states}
    expected = {f"{table}_0-{kind}" for table in ("rows", "users", "ids") for kind in kinds}
    assert set(os.listdir(tmp_path / "first")) == expected
    second, other = tables(1), make()
    trained(other, second, 2)
    load(tmp_path / "first", second, optimizer=other)
    dump(tmp_path / "second", second, "sok", other)
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_optimizers_that_have_no_files(tmp_path: Path):
    table = tf.Variable(tf.zeros([3, 2]), name="users")
    adam = keras.optimizers.Adam()
    with pytest.raises(
        ValueError, match="Adam has no variables of table 'users_0': call its build"
    ):
        dump(tmp_path / "dumped", table, "sok", adam)
    with pytest.raises(ValueError, match="AdagradOptimizer has no variables of table"):
        dump(tmp_path / "dumped", table, "sok", tf.compat.v1.train.AdagradOptimizer(0.1))
    with pytest.raises(TypeError, match=r"optimizer must be one of SGD, .*, got RMSprop"):
        dump(tmp_path / "dumped", table, "sok", keras.optimizers.RMSprop())
    with pytest.raises(ValueError, match="optimizer must be None: files of format 'hugectr'"):
        dump(tmp_path / "dumped", table, optimizer=adam)
    dump(tmp_path / "dumped", table, "sok")
    adam.build([table])
    with pytest.raises(FileNotFoundError, match="users_0-Adam-m"):
        load(tmp_path / "dumped", table, optimizer=adam)


@pytest.mark.parametrize("format", FORMATS)
def test_variables_of_a_strategy(format: str, tmp_path: Path):
    strategy, rows = tf.distribute.MirroredStrategy(["CPU:0"]), tf.reshape(tf.range(6.0), [3, 2])
    with strategy.scope():
        copied = tf.Variable(rows, name="copied")
        table = ShardedTable(3, 2, initializer=rows, name="table")
    variables = [copied, *table.shards.values()]
    assert all(isinstance(one, tf.distribute.DistributedValues) for one in variables)
    dump(tmp_path / "dumped", [copied, table], format)
    for variable in variables:
        variable.assign(tf.zeros([3, 2]))
    load(tmp_path / "dumped", [copied, table])
    for variable in variables:
        assert variable.numpy().tolist() == rows.numpy().tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_there_stays(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tf.Variable([[1.0]], name="users")
    dump(tmp_path / "dumped", table, format)
    table.assign([[2.0]])
    with pytest.raises(FileExistsError, match="already exists"):
        dump(tmp_path / "dumped", table, format)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dump(tmp_path / "other", table, format)
    assert [*tmp_path.iterdir()] == [tmp_path / "dumped"]
    load(tmp_path / "dumped", table)
    assert table.numpy().tolist() == [[1]]


#: For each format, files of a table and of one that is damaged in some way, and what is said of it.
DAMAGED: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    ("hugectr", "key", lambda old: old[:-1], "23 bytes of keys and 24 of rows"),
    ("hugectr", "key", lambda old: old[8:], "16 bytes of keys and 24 of rows, .* dimension 2"),
    ("hugectr", "emb_vector", lambda old: old[:-4], "24 bytes of keys and 20 of rows"),
    ("hugectr", "emb_vector", lambda old: old * 2, "24 bytes of keys and 48 of rows"),
    ("hugectr", "slot_id", lambda old: b"1" * 16, "slot_id: has slots of 2 keys, but there are 3"),
    ("hugectr", "slot_id", lambda old: b"1" * 17, "slot_id: has 17 bytes"),
    ("hugectr", "key", lambda old: struct.pack("<3q", 0, 1, -1), "key: has key -1, .* 0 to 2"),
    ("hugectr", "key", lambda old: struct.pack("<3q", 0, 1, 3), "key: has key 3, .* 'b' .* 0 to 2"),
    ("hugectr", "key", lambda old: struct.pack("<3q", 0, 1, 1), "key: has a key more than once"),
    ("sok", "key", lambda old: old[:-1], "b_0-key: has 23 bytes behind its header, .* int64"),
    ("sok", "key", lambda old: old[:-8], r"b_0-weight: has 3 rows of dimension 2, but .* 2 keys"),
    ("sok", "key", lambda old: old[296:], "b_0-key: has 24 bytes, fewer than the 296 of a header"),
    ("sok", "key", lambda old: b"", "b_0-key: has 0 bytes"),
    ("sok", "key", lambda old: header(1, "", 1) + old[296:], "b_0-key: is no such .* kind 1"),
    (
        "sok",
        "key",
        lambda old: header(0, "", 5) + old[296:],
        "b_0-key: .* dtype 5, .* none of int32",
    ),
    ("sok", "key", lambda old: b"x" * 400, "b_0-key: is no such file of SparseOperationKit"),
    ("sok", "key", lambda old: header(0, "", 3) + b"\xff" * 24, "key: has key 1844674.* no int64"),
    ("sok", "key", lambda old: old[:296] + struct.pack("<3q", 0, 1, 3), "has key 3, .* 'b_0' .* 2"),
    ("sok", "key", lambda old: old[:296] + struct.pack("<3q", 0, 0, 1), "a key more than once"),
    ("sok", "weight", lambda old: old[:-4], "b_0-weight: has 20 bytes .* rows of 2 float32"),
    (
        "sok",
        "weight",
        lambda old: old + old[296:],
        "b_0-weight: has 6 rows .* but there are 3 keys",
    ),
    ("sok", "weight", lambda old: header(1, "m", 5) + old[296:], "b_0-weight: is no such .* b'm'"),
    (
        "sok",
        "weight",
        lambda old: header(1, "", 7) + old[296:],
        "b_0-weight: .* dtype 7, .* float16",
    ),
    (
        "sok",
        "weight",
        lambda old: header(1, "", 1) + old[296:],
        "b_0-weight: .* dtype 1, .* float16",
    ),
]


@pytest.mark.parametrize(("format", "name", "damage", "message"), DAMAGED)
def test_nothing_is_read_of_damaged_files(
    format: str, name: str, damage: Callable[[bytes], bytes], message: str, tmp_path: Path
):
    first, second = (tf.Variable(tf.ones([3, 2]), name=name) for name in "ab")
    dump(tmp_path / "dumped", [first, second], format)
    file = tmp_path / "dumped" / (f"b/{name}" if format == "hugectr" else f"b_0-{name}")
    old = file.read_bytes() if file.exists() else b""
    file.write_bytes(damage(old))
    if format == "hugectr":  # which others do not write
        (tmp_path / "dumped" / "b" / "manifest.json").unlink()
    first.assign(tf.zeros([3, 2]))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "dumped", [first, second])
    assert not first.numpy().any()


@pytest.mark.parametrize("format", FORMATS)
def test_tables_of_another_dimension(format: str, tmp_path: Path):
    dump(tmp_path / "dumped", {"t": tf.Variable(tf.ones([4, 6]))}, format)
    for dimension in (3, 4, 12):
        for table in (ShardedTable(8, dimension), keyed_of(dimension)):
            with pytest.raises(
                ValueError, match=f"rows of dimension {dimension}|rows of {dimension} f"
            ):
                load(tmp_path / "dumped", {"t": table})


def keyed_of(dimension: int) -> EmbeddingVariable:
    return EmbeddingVariable("t", dimension)


def test_keys_that_a_dtype_does_not_have(tmp_path: Path):
    dump(tmp_path / "dumped", keyed("ids", 1, 2**40))
    table = keyed("ids", key_dtype=tf.int32, seed=6)
    with pytest.raises(ValueError, match=f"key: has key {2**40}, .* 'ids' has int32 keys"):
        load(tmp_path / "dumped", table)
    assert table.statistics().keys == 0


def test_no_room_for_keys(tmp_path: Path):
    dump(tmp_path / "dumped", keyed("ids", *range(9)))
    with pytest.raises(tf.errors.ResourceExhaustedError):
        load(tmp_path / "dumped", EmbeddingVariable("ids", DIMENSION, capacity=4))


def test_files_that_are_not_there(tmp_path: Path):
    table = tf.Variable([[1.0]], name="a/users")
    with pytest.raises(FileNotFoundError, match=r"neither a_users/key, .* nor a_users_0-key"):
        load(tmp_path, table)
    for format in FORMATS:
        with pytest.raises(FileNotFoundError, match="a_users"):
            load(tmp_path, table, format)
        (name,) = dump(tmp_path / format, table, format)
        with pytest.raises(FileNotFoundError, match="other"):
            load(tmp_path / format, {name: table, "other": table})


def test_arguments(tmp_path: Path):
    table, ids = tf.Variable([[1.0]], name="users"), EmbeddingVariable("ids", 2)
    path = tmp_path / "dumped"
    with pytest.raises(ValueError, match=r"format must be one of \('hugectr', 'sok'\), got 'npz'"):
        dump(path, table, "npz")
    with pytest.raises(ValueError, match=r"format must be None or one of .*, got 'npz'"):
        load(path, table, "npz")
    nothing: list[Any] = [[], {}]
    for tables in nothing:
        with pytest.raises(ValueError, match="tables must be one or more, got none"):
            dump(path, tables)
    for name in ("", "..", "a/b", 3):
        with pytest.raises(ValueError, match=r"names of tables must be names of files, got "):
            dump(path, {name: table})
    with pytest.raises(ValueError, match="different names, got two of 'users': name them"):
        dump(path, [table, ShardedTable(2, 2, name="users")])
    with pytest.raises(TypeError, match="tables must be tables and variables, got 3"):
        dump(path, [3])
    with pytest.raises(
        TypeError, match=r"tables must be tables and variables \[rows, D\], got <tf.V"
    ):
        dump(path, tf.Variable([1.0]))
    for part in (ids.table, ShardedTable(2, 2).shard_0):
        with pytest.raises(TypeError, match="tables must have the whole table, not its variable"):
            dump(path, part)
    with tf.Graph().as_default():
        with pytest.raises(RuntimeError, match="dump runs eagerly"):
            dump(path, table)
        with pytest.raises(RuntimeError, match="load runs eagerly"):
            load(path, table)
    assert not [*tmp_path.iterdir()]

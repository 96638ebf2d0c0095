"""Models whose embedding variables are files: rows, and an index of keys, that are mapped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.cli.app import main
from fusion.saved_model import ModelError, RewriteOptions, keyed_tables, rewrite_saved_model
from fusion.saved_model.table_files.keep import VARIABLES
from fusion.saved_model.table_files.tensor_bundle import read_bundle
from fusion.tables import PartitionedEmbeddingVariable

v1 = tf.compat.v1

MAPPED = RewriteOptions(tables="mapped", least_table_bytes=1)

#: Keys that models have rows of, some that wait for theirs, and some that they do not know.
KNOWN = np.random.default_rng(1).integers(-(2**62), 2**62, 300)
WAITING, UNKNOWN = np.arange(20) + 2**40, np.arange(50) + 5


class Shop(tf.Module):
    """Keys of two kinds, and an ordinary variable."""

    def __init__(self) -> None:
        super().__init__()
        self.users = fusion.EmbeddingVariable("users", 8, admission=2, seed=3)
        self.items = fusion.EmbeddingVariable("items", 4, key_dtype=tf.string, capacity=900)
        self.kernel = tf.Variable(tf.ones([8, 1]), name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def rows(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        found = self.users.embedding_lookup(keys)
        items = self.items.embedding_lookup(tf.strings.as_string(keys))
        return {"rows": found, "items": items, "score": found @ self.kernel}


def train(table: fusion.EmbeddingVariable, keys: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.embedding_lookup(keys) ** 2)
    table.table.scatter_sub(tape.gradient(loss, table.table))


def save_tf2(path: Path) -> None:
    shop = Shop()
    for keys in (KNOWN, KNOWN, WAITING):
        train(shop.users, tf.constant(keys))
    train(shop.items, tf.strings.as_string(KNOWN[:100]))
    tf.saved_model.save(shop, str(path), shop.rows)


def save_v1(path: Path) -> None:
    trained, checkpoint = path.with_name("trained"), str(path.with_name("trained.ckpt"))
    with tf.Graph().as_default(), v1.Session() as session:
        users, keys, rows = lookup_v1()
        (gradient,) = tf.gradients(rows, users.table)
        session.run(v1.global_variables_initializer())
        session.run(gradient.values, {keys: KNOWN})
        v1.train.Saver().save(session, checkpoint)
        v1.saved_model.simple_save(session, str(trained), {"keys": keys}, {"rows": rows})
    with tf.Graph().as_default(), v1.Session() as session:
        _, keys, rows = lookup_v1()
        v1.train.Saver().restore(session, checkpoint)
        v1.saved_model.simple_save(session, str(path), {"keys": keys}, {"rows": rows})


def lookup_v1() -> Any:
    users = fusion.get_embedding_variable("scope/users", 8)
    keys = v1.placeholder(tf.int64, [None], "keys")
    return users, keys, users.embedding_lookup(keys)


def save_keras(path: Path) -> None:
    keys = keras.Input([3], dtype="int64", name="keys")
    rows = fusion.keras.layers.DynamicEmbedding(8)(keys)
    model = keras.Model(keys, keras.layers.Dense(2)(keras.layers.Flatten()(rows)))
    model.compile(fusion.optimizers.LazyAdam(0.1), "mse")
    model.fit(KNOWN.reshape(-1, 3), np.ones([100, 2]), verbose=0)
    model.export(path, verbose=False)


#: How models are made, and the files that each has.
KINDS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "tf2": (save_tf2, {"users", "users.keys", "items", "items.keys"}),
    "v1": (save_v1, {"scope_users", "scope_users.keys"}),
    "keras": (save_keras, {"dynamic_embedding_embeddings", "dynamic_embedding_embeddings.keys"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model, and it with files: verified to the bit in fresh processes."""
    folder = tmp_path_factory.mktemp("keyed")
    for kind, (save, files) in KINDS.items():
        save(folder / kind)
        done = rewrite_saved_model(folder / kind, folder / f"{kind}.mapped", MAPPED)
        assert done.verification is not None
        assert done.verification.same
        assert {table.file.name for table in done.tables} == files
    return folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def mapped_files(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [Path(line.split()[-1]).name for line in lines if f" {folder}/" in line]


def lookups(kind: str) -> np.ndarray:
    keys = np.concatenate([KNOWN, WAITING, UNKNOWN, KNOWN[:2]])
    return keys.reshape(-1, 3) if kind == "keras" else keys


def answers(model: Any, kind: str) -> dict[str, np.ndarray]:
    (name,) = (tensor.name for tensor in model.signatures["serving_default"].inputs[:1])
    given = {name.partition(":")[0].removeprefix("serving_default_"): tf.constant(lookups(kind))}
    return {k: v.numpy() for k, v in model.signatures["serving_default"](**given).items()}


def by_session(path: Path, kind: str) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve"], str(path))
        signature = meta.signature_def["serving_default"]
        (given,) = signature.inputs.values()
        fetches = {key: output.name for key, output in signature.outputs.items()}
        found: dict[str, np.ndarray] = session.run(fetches, {given.name: lookups(kind)})
        assert set(mapped_files(path)) == (KINDS[kind][1] if path.suffix else set())
    return found


def test_loaded_models_answer_the_same_from_files(folder: Path, kind: str) -> None:
    mapped, source = folder / f"{kind}.mapped", folder / kind
    expected = answers(tf.saved_model.load(str(source)), kind)
    loaded = tf.saved_model.load(str(mapped))
    for _ in range(2):
        found = answers(loaded, kind)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert np.unique(value).size > 90
            assert np.array_equal(found[name], value), name
        assert set(mapped_files(mapped)) == KINDS[kind][1]  # and no copies of them


def test_a_session_answers_the_same(folder: Path, kind: str) -> None:
    expected, found = (by_session(folder / name, kind) for name in (kind, f"{kind}.mapped"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_checkpoints_have_no_keys(folder: Path, kind: str) -> None:
    before, after = (read_bundle(folder / f / VARIABLES) for f in (kind, f"{kind}.mapped"))
    assert before.entries.keys() == after.entries.keys()
    emptied = {k for k, entry in after.entries.items() if entry.size < before.entries[k].size}
    names = {name.decode().rpartition("/")[2] for name in emptied}
    assert names == {"keys", "counts", "steps", "values"}
    reader = tf.train.load_checkpoint(str(folder / f"{kind}.mapped" / VARIABLES))
    assert all(reader.get_tensor(name.decode()).shape[0] == 0 for name in emptied)


def test_copies_are_models(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tf2.mapped", tmp_path / "copy")
    found = answers(tf.saved_model.load(str(tmp_path / "copy")), "tf2")
    expected = answers(tf.saved_model.load(str(folder / "tf2")), "tf2")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_second_run_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    rewrite_saved_model(folder / "tf2", tmp_path / "again", MAPPED)
    for file in sorted((folder / "tf2.mapped").rglob("*")):
        again = tmp_path / "again" / file.relative_to(folder / "tf2.mapped")
        assert file.is_dir() or file.read_bytes() == again.read_bytes(), file


def test_a_rewrite_of_the_result_changes_nothing(folder: Path, tmp_path: Path) -> None:
    done = rewrite_saved_model(folder / "tf2.mapped", tmp_path / "again", MAPPED)
    assert not done.tables
    found = answers(tf.saved_model.load(str(tmp_path / "again")), "tf2")
    expected = answers(tf.saved_model.load(str(folder / "tf2")), "tf2")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_they_can_be_read_into_memory(folder: Path, tmp_path: Path) -> None:
    options = RewriteOptions(tables="memory", least_table_bytes=1)
    rewrite_saved_model(folder / "tf2", tmp_path / "model", options)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert not mapped_files(tmp_path)
    expected = answers(tf.saved_model.load(str(folder / "tf2")), "tf2")
    assert np.array_equal(answers(loaded, "tf2")["rows"], expected["rows"])


def test_rows_can_be_trained_and_keys_not_added(folder: Path, tmp_path: Path) -> None:
    """What is trained is the process's own; there is no room for other keys."""
    model = shutil.copytree(folder / "tf2.mapped", tmp_path / "model")
    contents = {file: file.read_bytes() for file in (model / "assets/tables").iterdir()}
    loaded = tf.saved_model.load(str(model))

    def gather(keys: np.ndarray) -> Any:
        found = fusion.ops.keyed_embedding_gather(
            table=loaded.users.table.handle,
            index=loaded.users.index.handle,
            initial=loaded.users.initial.handle,
            keys=keys,
            counts=tf.zeros([0], tf.int32),
            step=-1,
            T=tf.float32,
            dim=8,
            is_training=True,
        )
        return found.rows

    rows = gather(KNOWN[:9])
    loaded.users.table.scatter_update(tf.IndexedSlices(tf.ones([9, 8]), rows))
    assert (loaded.rows(KNOWN)["rows"][:9] == 1).numpy().all()
    assert not (loaded.rows(KNOWN)["rows"][9:] == 1).numpy().any()
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=r"no room for 50 keys more than the capacity of 300 rows",
    ):
        gather(UNKNOWN)
    assert contents == {file: file.read_bytes() for file in contents}


def test_inspect_knows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items, users = keyed_tables(folder / "tf2.mapped")
    assert (items.name, items.rows, items.capacity) == ("items", 100, 100)
    assert (users.name, users.keys, users.rows, users.capacity) == ("users", 300, 300, 300)
    assert main(["inspect", str(folder / "tf2.mapped"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["embedding_variables"] == [items.to_dict(), users.to_dict()]


def test_those_of_a_model_that_trains_stay(folder: Path, tmp_path: Path) -> None:
    """The graph in which it was trained adds keys when it is served."""
    done = rewrite_saved_model(folder / "trained", tmp_path / "model", MAPPED)
    assert not done.tables


def test_many_keys_take_no_memory(tmp_path: Path) -> None:
    """A million of them, of which filling an embedding variable takes 200 MB and more."""
    shop, keys = Shop(), tf.range(10**6, dtype=tf.int64) * 977
    for _ in range(2):
        train(shop.users, keys)
    tf.saved_model.save(shop, str(tmp_path / "source"), shop.rows)
    some = keys[::1000]
    expected = shop.rows(some)["rows"].numpy()
    del shop
    options = RewriteOptions(tables="mapped", verify=False)
    rewrite_saved_model(tmp_path / "source", tmp_path / "model", options)
    shutil.rmtree(tmp_path / "source")
    before = own_memory()
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert np.array_equal(loaded.rows(some)["rows"], expected)
    assert own_memory() - before < 40e6


def own_memory() -> int:
    """The bytes of memory that no other process can have."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return 1024 * int(line.split()[1])


def test_small_ones_and_partitions_stay(folder: Path, tmp_path: Path) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = fusion.tables.PartitionedEmbeddingVariable("users", 8, 2)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def serve(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"rows": self.users.embedding_lookup(keys)}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "parts"), model.serve)
    assert not rewrite_saved_model(tmp_path / "parts", tmp_path / "same", MAPPED).tables
    least = RewriteOptions(tables="mapped", least_table_bytes=300 * 8 * 4, verify=False)
    done = rewrite_saved_model(folder / "tf2", tmp_path / "one", least)
    assert [table.name for table in done.tables] == ["users", "users.keys"]


class Partitions(tf.Module):
    """An embedding variable in partitions, and a plain table."""

    def __init__(self) -> None:
        super().__init__()
        self.users = PartitionedEmbeddingVariable("users", 8, 2)
        self.shops = tf.Variable(tf.ones([100, 16]), name="shops")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def rows(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"rows": self.users.embedding_lookup(keys), "shops": tf.gather(self.shops, keys % 9)}


class TestFewerBits:
    """Embedding variables stay float32, and say so."""

    WHY = "it is an embedding variable"

    def refusals(self, source: Path, path: Path, least: int = 1, **options: Any) -> dict[str, str]:
        asked = RewriteOptions(dtype="int8", least_table_bytes=least, **options)
        done = rewrite_saved_model(source, path, asked)
        assert {one.dtype for one in done.packed if one.refusal} <= {"float32"}
        return {one.name: one.refusal for one in done.packed}

    @pytest.mark.parametrize("tables", ["variables", "mapped"])
    def test_they_are_listed(self, tmp_path: Path, tables: str) -> None:
        save_tf2(tmp_path / "shop")
        found = self.refusals(tmp_path / "shop", tmp_path / "new", tables=tables)
        assert found == {"users": self.WHY, "items": self.WHY}
        assert (tmp_path / "new" / "assets" / "tables").is_dir() == (tables == "mapped")
        # Rows of items have 1600 bytes, those of users 9600.
        found = self.refusals(tmp_path / "shop", tmp_path / "large", 2000)
        assert found == {"users": self.WHY}

    def test_those_in_partitions_beside_a_plain_table(self, tmp_path: Path) -> None:
        model = Partitions()
        for table in model.users.partitions:
            train(table, tf.constant(KNOWN))
        tf.saved_model.save(model, str(tmp_path / "model"), model.rows)
        found = self.refusals(tmp_path / "model", tmp_path / "new", tables="mapped")
        assert found == {"users": self.WHY, "shops": ""}

    def test_tables_that_are_files_already(self, tmp_path: Path) -> None:
        model = Partitions()
        tf.saved_model.save(model, str(tmp_path / "model"), model.rows)
        rewrite_saved_model(tmp_path / "model", tmp_path / "mapped", MAPPED)
        found = self.refusals(tmp_path / "mapped", tmp_path / "new")
        assert found["shops"] == "it is a file already: rewrite the model that this one is from"
        save_tf2(tmp_path / "shop")
        rewrite_saved_model(tmp_path / "shop", tmp_path / "shop_mapped", MAPPED)
        found = self.refusals(tmp_path / "shop_mapped", tmp_path / "shop_new")
        assert found == {"users": self.WHY, "items": self.WHY}

    def test_to_name_one_is_an_error(self, tmp_path: Path) -> None:
        save_tf2(tmp_path / "shop")
        named = RewriteOptions(dtypes_by_name=(("us*", "int8"),))
        with pytest.raises(ModelError, match=f"table 'users' cannot be int8: {self.WHY}"):
            rewrite_saved_model(tmp_path / "shop", tmp_path / "new", named)
        assert not (tmp_path / "new").exists()
        spared = RewriteOptions(dtype="int8", dtypes_by_name=(("*", "float32"),))
        assert rewrite_saved_model(tmp_path / "shop", tmp_path / "new", spared).packed == ()

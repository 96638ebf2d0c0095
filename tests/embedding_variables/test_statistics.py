"""How full embedding variables are, in this process and in models on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf

import fusion
from fusion.cli import main
from fusion.saved_model import ModelError, keyed_tables
from fusion.tables import LeastFrequent, TableStatistics

Capture = pytest.CaptureFixture[str]


def train(variable: fusion.EmbeddingVariable, keys: list[object]) -> None:
    with tf.GradientTape() as tape:
        rows = variable.embedding_lookup(tf.constant(keys, variable.key_dtype))
    tape.gradient(rows, variable.table)


def test_keys_and_rows():
    variable = fusion.EmbeddingVariable(
        "t", 3, tf.float64, capacity=10, admission=2, eviction=LeastFrequent(2)
    )
    assert variable.statistics() == TableStatistics("t", 3, "float64", 0, 0, 10)
    train(variable, [1, 2, 3, 4, 5])
    assert variable.statistics() == TableStatistics("t", 3, "float64", 5, 0, 10)
    for _ in range(2):
        train(variable, [1, 2, 3, 4])
    found = variable.statistics()
    assert found == TableStatistics("t", 3, "float64", 5, 4, 10)
    assert found.load == 0.4
    assert found.bytes == 5 * 20 + 4 * 24
    assert variable.evict().numpy() == 2
    assert variable.statistics().rows == 2
    train(variable, [6, 6])
    assert variable.statistics().rows == 3


def test_of_a_default_capacity():
    variable = fusion.EmbeddingVariable("t", 1)
    train(variable, [7])
    assert variable.statistics() == TableStatistics("t", 1, "float32", 1, 1, variable.capacity)


def test_not_in_a_graph():
    with tf.Graph().as_default():
        variable = fusion.EmbeddingVariable("t", 3, capacity=10)
        with pytest.raises(RuntimeError, match="statistics runs eagerly"):
            variable.statistics()


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = {"of/users.Shop": fusion.EmbeddingVariable("u", 4, capacity=50, admission=2)}
        self.items = fusion.EmbeddingVariable("items", 2, key_dtype=tf.string, capacity=8)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)]
    )
    def serve(self, users: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
        found = self.tables["of/users.Shop"].embedding_lookup(users)
        return tf.concat([found, self.items.embedding_lookup(items)], 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    made = Model()
    train(made.tables["of/users.Shop"], [1, 1, 2])
    train(made.items, ["a", "b", "c"])
    tf.saved_model.save(made, str(path), signatures=made.serve)
    return path


ITEMS = TableStatistics("items", 2, "float32", 3, 3, 8)
USERS = TableStatistics("u", 4, "float32", 2, 1, 50)


def test_of_a_model(model: Path):
    assert keyed_tables(model) == (ITEMS, USERS)


def test_inspect(model: Path, capsys: Capture):
    assert main(["inspect", str(model)]) == 0
    *_, head, items, users = capsys.readouterr().out.splitlines()
    assert head.split() == ["embedding", "variable", *["keys", "rows", "capacity", "load", "bytes"]]
    assert items.split() == ["items", "3", "3", "8", "37.5%", "84"]
    assert users.split() == ["u", "2", "1", "50", "2.0%", "56"]
    assert main(["inspect", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["embedding_variables"] == [ITEMS.to_dict(), USERS.to_dict()]
    # Saving and restoring are no lookups.
    assert len(found["columns"]) == 0


def test_of_a_model_of_compat_v1(tmp_path: Path):
    path = str(tmp_path / "model")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = fusion.get_embedding_variable("scope/users", 8)
        keys = tf.compat.v1.placeholder(tf.int64, [None])
        rows = variable.embedding_lookup(keys)
        (gradient,) = tf.gradients(rows, variable.table)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(gradient.values, {keys: [1, 2, 3]})
        tf.compat.v1.saved_model.simple_save(session, path, {"keys": keys}, {"rows": rows})
    (found,) = keyed_tables(path)
    assert found == TableStatistics("scope/users", 8, "float32", 3, 3, variable.capacity)


def test_there_is_none(tmp_path: Path):
    module = tf.Module()
    module.table = tf.Variable(tf.zeros([3, 2]))
    tf.saved_model.save(module, str(tmp_path / "model"))
    assert keyed_tables(tmp_path / "model") == ()


def test_a_damaged_checkpoint(model: Path, tmp_path: Path):
    copy = tmp_path / "model"
    (copy / "variables").mkdir(parents=True)
    (copy / "saved_model.pb").write_bytes((model / "saved_model.pb").read_bytes())
    with pytest.raises(ModelError, match="its variables cannot be read"):
        keyed_tables(copy)
    (copy / "variables" / "variables.index").write_bytes(b"no checkpoint")
    with pytest.raises(ModelError, match="its variables cannot be read"):
        keyed_tables(copy)

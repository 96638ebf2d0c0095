"""`ShardedTable` in one process, and what is around it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.distribute import ShardedTable, saving
from fusion.distribute.exchange import _SIZES, _size
from fusion.keras.layers import SlotEmbedding
from tests.distribute.test_dumps import DIMENSION, ROWS, sharded

#: Of seed 002: tables, ids, and the sums that it prints.
TABLES = [np.arange(17 * 3).reshape(17, 3), np.arange(7 * 5).reshape(7, 5)]
IDS = [[[1, 1], [3, 4, 5]], [[1], [2, 3]]]
SUMS = [[[6, 8, 10], [36, 39, 42]], [[5, 6, 7, 8, 9], [25, 27, 29, 31, 33]]]


def tables() -> list[ShardedTable]:
    modes = ["distributed", "localized:0"]
    return [
        ShardedTable(*values.shape, mode, values, name=f"table_{k}")
        for k, (values, mode) in enumerate(zip(TABLES, modes, strict=True))
    ]


def ragged(ids: list[list[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(ids, tf.int64)


@pytest.mark.parametrize("as_function", [False, True])
def test_the_sums_of_the_seed(as_function: bool):
    made = tables()
    variables = [table.shards[0] for table in made]

    def step() -> tuple[list[tf.Tensor], list[tf.IndexedSlices]]:
        with tf.GradientTape() as tape:
            found = fusion.lookup_sparse(made, [*map(ragged, IDS)], combiners="sum")
            loss = tf.add_n([tf.reduce_sum(part) for part in found])
        return found, tape.gradient(loss, variables)

    found, gradients = (tf.function(step) if as_function else step)()
    for part, expected in zip(found, SUMS, strict=True):
        np.testing.assert_array_equal(part, expected)
    assert [gradient.values.shape for gradient in gradients] == [(4, 3), (3, 5)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_lookups_are_those_of_a_table(dtype: str):
    rng = np.random.default_rng(0)
    table = ShardedTable(40, 4, dtype=dtype)
    plain = tf.Variable(table.saved_tensors()["table"])
    ids = ragged([rng.integers(0, 40, n).tolist() for n in rng.integers(0, 5, 20)]).to_sparse()
    weights = ids.with_values(tf.cast(rng.random(ids.values.shape[0]) + 0.5, dtype))
    keys = tf.constant(rng.integers(-1, 40, (6, 3, 2)))
    for combiner in ("sum", "mean", "sqrtn"):
        found = fusion.lookup_sparse(table, ids, weights, combiner)
        expected = fusion.lookup_sparse(plain, ids, weights, combiner)
        np.testing.assert_array_equal(found, expected)
        found = fusion.slots_lookup(table, keys, combiner)
        np.testing.assert_array_equal(found, fusion.slots_lookup(plain, keys, combiner))


@pytest.mark.parametrize(
    ("mode", "count"), [("distributed", 1), ("distributed", 4), ("localized:2", 3)]
)
def test_shards_are_parts_of_what_is_saved(mode, count, monkeypatch):
    monkeypatch.setattr(saving, "BLOCK_ROWS", 2)
    values = np.arange(ROWS * DIMENSION).reshape(ROWS, DIMENSION)
    table = sharded(monkeypatch, count, mode, initializer=values)
    saved = table.saved_tensors()["table"]
    np.testing.assert_array_equal(saved, values)
    for replica, shard in table.shards.items():
        np.testing.assert_array_equal(shard, values[table.layout.rows_of(replica)])
        np.testing.assert_array_equal(shard, table.layout.shard(saved, replica))


def test_messages_are_not_much_larger_than_what_is_in_them():
    assert (np.diff(_SIZES) > 0).all()
    for size in [0, 1, 5, 63, 64, 65, 1000, 4097, 123_457, 2**30 + 1]:
        found, number = _size(tf.constant(size, tf.int64))
        assert max(size, 1) <= int(found) <= max(size, 1) * 33 / 32
        assert _SIZES[int(number)] == int(found)


@pytest.mark.parametrize("bad", [-1, 17, 2**40])
def test_an_id_outside_the_table(bad: int):
    (table, _) = tables()
    with pytest.raises(tf.errors.InvalidArgumentError, match="table_0 must be from 0 to 16"):
        fusion.lookup_sparse(table, ragged([[1, bad]]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": 0}, ValueError, "rows"),
        ({"dimension": 0}, ValueError, "dimension"),
        ({"rows": 2.5}, TypeError, "rows"),
        ({"mode": "elsewhere"}, ValueError, 'mode must be "distributed" or "localized:REPLICA"'),
        ({"mode": "localized:1"}, ValueError, "one of 1 replicas, got 'localized:1'"),
        ({"initializer": np.zeros([3, 4])}, ValueError, r"shape \[5, 2\], got \(3, 4\)"),
        ({"initializer": "zeros"}, TypeError, "an array or be called, got 'zeros'"),
        ({"dtype": "int32"}, (TypeError, ValueError), "dtype"),
    ],
)
def test_what_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        ShardedTable(**{"rows": 5, "dimension": 2} | arguments)


def test_tables_of_two_strategies():
    one = tables()[0]
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        other = tables()[1]
        with pytest.raises(ValueError, match=r"table_0.*another strategy than MirroredStrategy"):
            fusion.lookup_sparse(one, ragged(IDS[0]))
    with pytest.raises(ValueError, match="scopes of different strategies"):
        fusion.lookup_sparse([one, other], [*map(ragged, IDS)])


def test_a_strategy_without_replicas_that_share():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"])
    with strategy.scope(), pytest.raises(NotImplementedError, match="CentralStorageStrategy"):
        ShardedTable(5, 2)


def test_a_checkpoint_goes_into_a_plain_process(tmp_path):
    table = tables()[0]
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "save"))
    other = ShardedTable(17, 3, name="other")
    tf.train.Checkpoint(table=other).read(path).assert_consumed()
    np.testing.assert_array_equal(other.shards[0], TABLES[0])
    third = ShardedTable(16, 3)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"shape|rows"):
        tf.train.Checkpoint(table=third).read(path)


def test_saved_models_have_the_shards(tmp_path):
    class Module(tf.Module):
        def __init__(self) -> None:
            self.table = ShardedTable(17, 3, name="exported")
            self.optimizer = keras.optimizers.Adagrad(0.1)
            self.optimizer.build([*self.table.shards.values()])

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64, 1)])
        def sums(self, ids: tf.RaggedTensor) -> tf.Tensor:
            return fusion.lookup_sparse(self.table, ids)

    module = Module()
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    ids = ragged([[1, 2], [], [16]])
    np.testing.assert_array_equal(loaded.sums(ids), module.sums(ids))
    names = [name for name, _ in tf.train.list_variables(f"{tmp_path}/model/variables/variables")]
    assert "table/shard_0/.ATTRIBUTES/VARIABLE_VALUE" in names
    assert not [name for name in names if name.endswith("ATTRIBUTES/table")]  # no second copy


def test_keras_files(tmp_path):
    def made() -> keras.Model:
        layer = SlotEmbedding(30, 4, 2, mode="distributed")
        model = keras.Sequential(
            [keras.Input((2, 3), dtype="int64"), layer, keras.layers.Flatten()]
        )
        model.compile("adagrad", "mse")
        return model

    keys = np.random.default_rng(0).integers(0, 30, (8, 2, 3))
    model, other = made(), made()
    model.fit(keys, np.zeros((8, 8)), verbose=0)
    model.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(other.predict(keys, verbose=0), model.predict(keys, verbose=0))
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(loaded.predict(keys, verbose=0), model.predict(keys, verbose=0))
    assert loaded.layers[0].get_config()["mode"] == "distributed"
    model.export(tmp_path / "exported")
    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(served.serve(keys), model.predict(keys, verbose=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_dim": None}, "mode needs a table of input_dim rows"),
        ({"embeddings_regularizer": "l2"}, "embeddings_regularizer needs a whole table"),
    ],
)
def test_layers_that_cannot_be_sharded(arguments, message):
    with pytest.raises(ValueError, match=message):
        SlotEmbedding(**{"input_dim": 5, "output_dim": 2, "mode": "distributed"} | arguments)


def test_slots_of_shards_are_paired_by_optimizer_and_name(monkeypatch: pytest.MonkeyPatch):
    """Also if another optimizer has some of the shards alone, or is gone."""
    table = sharded(monkeypatch, 2)
    shards = [*table.shards.values()]
    keras.optimizers.Adagrad(0.1).build(shards[:1])  # and is gone
    some, every = keras.optimizers.Adagrad(0.1), keras.optimizers.Adam(0.1)
    some.build(shards[1:])
    every.build(shards)
    for number, slot in enumerate(every.variables[2:]):  # two of each shard
        slot.assign(tf.fill(slot.shape, float(number)))
    for first, name in ((0.0, "momentum"), (1.0, "velocity")):
        whole = table._slots[every][name].saved_tensors()["table"].numpy()
        np.testing.assert_array_equal(whole[0::2], first)
        np.testing.assert_array_equal(whole[1::2], first + 2)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_a_sharded_table_trains_as_a_plain_one(name: str):
    rng = np.random.default_rng(0)
    keys, labels = rng.integers(0, 50, (32, 3, 2)), rng.random((32, 12)).astype(np.float32)

    def losses(mode: str | None) -> list[float]:
        initializer = keras.initializers.RandomUniform(seed=3)
        layer = SlotEmbedding(50, 4, 3, mode=mode, embeddings_initializer=initializer)
        model = keras.Sequential(
            [keras.Input((3, 2), dtype="int64"), layer, keras.layers.Flatten()]
        )
        model.compile(getattr(keras.optimizers, name)(0.1), "mse")
        data = tf.data.Dataset.from_tensor_slices((keys, labels)).batch(8)
        found: list[float] = model.fit(data, epochs=3, verbose=0, shuffle=False).history["loss"]
        return found

    expected = losses(None)
    assert len(set(expected)) == 3
    assert losses("distributed") == expected

"""Layers whose rows come from a table store, in both Kerases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from tests.keras.releases import HAS_RAGGED_INPUTS
from tests.keras.slots import FAMILIES
from tests.stores.dictionary_tier import DictionaryTier

ROWS, DIM = 40, 4
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((ROWS, DIM)).astype(np.float32)
KEYS = RNG.integers(0, ROWS, (6, 3))
#: Keys [5, any], some rows of which have none.
INDICES = [[0, 0], [0, 1], [0, 4], [2, 0], [2, 1], [3, 2]]
VALUES = [7, 7, 1, 39, 0, 7]
WEIGHTS = [0.5, 2.0, -1.0, 1.5, 0.25, 3.0]


@pytest.fixture(autouse=True)
def store() -> Iterator[TableStore]:
    tier = DictionaryTier().fill("t", range(ROWS), TABLE)
    with TableStore([TableDescription("t", DIM, 0.5)], [tier], 30) as opened, opened.as_default():
        yield opened


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def layer_of(family: str, kind: str = "LookupLayer", **arguments: Any) -> Any:
    return getattr(FAMILIES[family][1], kind)("t", DIM, **arguments)


def sparse(values: Any = VALUES, dtype: tf.DType = tf.int64) -> tf.SparseTensor:
    return tf.SparseTensor(INDICES, tf.constant(values, dtype), [5, 6])


def ragged(values: Any = VALUES, dtype: tf.DType = tf.int64) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, dtype), [3, 0, 2, 1, 0])


class TestLookupLayer:
    """Rows of keys."""

    @pytest.mark.parametrize("shape", [(), (3,), (2, 0), (4, 2, 2)])
    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
    def test_keys_of_any_shape(self, family: str, shape: tuple[int, ...], dtype: str) -> None:
        keys = RNG.integers(0, ROWS, shape)
        layer = layer_of(family)
        found = layer(tf.constant(keys, dtype))
        assert np.array_equal(found, TABLE[keys])
        assert layer.weights == []

    def test_ragged_keys(self, family: str) -> None:
        found = layer_of(family)(ragged())
        assert np.array_equal(found.flat_values, TABLE[VALUES])
        assert found.shape.as_list() == [5, None, DIM]

    def test_keys_without_rows(self, family: str) -> None:
        assert layer_of(family)(tf.constant([-1, 1000])).numpy().tolist() == [[0.5] * DIM] * 2

    def test_in_a_function(self, family: str) -> None:
        layer = layer_of(family)
        function = tf.function(layer, input_signature=[tf.TensorSpec([None, 3], tf.int64)])
        assert function.get_concrete_function().output_shapes.as_list() == [None, 3, DIM]
        assert np.array_equal(function(tf.constant(KEYS)), TABLE[KEYS])

    def test_dtype(self, family: str) -> None:
        found = layer_of(family, dtype="mixed_float16")(tf.constant([1]))
        assert found.dtype == tf.float16
        assert np.array_equal(found, TABLE[[1]].astype(np.float16))

    def test_keys_that_are_no_integers(self, family: str) -> None:
        with pytest.raises(TypeError, match="keys must be int64, got float32"):
            layer_of(family)(tf.constant([1.0]))


class TestSparseLookupLayer:
    """Combined rows."""

    @pytest.mark.parametrize("max_norm", [None, 1.2])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
    @pytest.mark.parametrize("kind", ["sparse", "ragged"])
    def test_as_stock(
        self, family: str, kind: str, combiner: str, weighted: bool, max_norm: float | None
    ) -> None:
        make = sparse if kind == "sparse" else ragged
        weights = make(WEIGHTS, tf.float32) if weighted else None
        layer = layer_of(family, "SparseLookupLayer", combiner=combiner, max_norm=max_norm)
        found = layer(make(), weights) if weighted else layer(make())
        stock = tf.nn.embedding_lookup_sparse(
            TABLE,
            sparse(),
            sparse(WEIGHTS, tf.float32) if weighted else None,
            combiner=combiner,
            max_norm=max_norm,
        )
        np.testing.assert_allclose(found[:4], stock, rtol=1e-6, atol=1e-7)
        if not weighted and max_norm is None:
            assert np.array_equal(found[:4], stock)
        assert np.array_equal(found[4:], np.zeros((1, DIM)))  # stock stops before

    def test_as_the_safe_lookup_of_stock(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer")
        assert np.array_equal(
            layer(sparse()), tf.nn.safe_embedding_lookup_sparse(tf.Variable(TABLE), sparse())
        )

    def test_keys_are_asked_for_once(self, family: str, store: TableStore) -> None:
        layer_of(family, "SparseLookupLayer")(sparse())
        counters = store.counters().tables["t"]
        assert counters.hits + counters.misses == len({*VALUES})

    def test_keys_without_rows_and_none_at_all(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer", combiner="sum")
        found = layer(tf.SparseTensor([[0, 0], [0, 1]], tf.constant([-3, 1], tf.int64), [2, 2]))
        assert np.array_equal(found, [TABLE[1] + 0.5, np.zeros(DIM)])
        empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [3, 2])
        assert np.array_equal(layer(empty), np.zeros((3, DIM)))

    def test_weights_as_a_vector(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer", combiner="sum")
        found = layer(sparse(), tf.constant(WEIGHTS, tf.float64))
        assert np.array_equal(found, layer(sparse(), sparse(WEIGHTS, tf.float32)))

    def test_weights_have_gradients(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer", combiner="sum")
        weights = tf.Variable(WEIGHTS)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(sparse(), tf.convert_to_tensor(weights)))
        np.testing.assert_allclose(
            tape.gradient(loss, weights), TABLE[VALUES].sum(1), rtol=1e-5, atol=1e-6
        )

    def test_in_a_function(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer")
        function = tf.function(layer, input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
        assert function.get_concrete_function().output_shapes.as_list() == [None, DIM]
        assert np.array_equal(function(sparse()), layer(sparse()))

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("kind", ["sparse", "ragged"])
    def test_in_a_functional_model(
        self, family: str, kind: str, weighted: bool, tmp_path: Path
    ) -> None:
        package, _ = FAMILIES[family]
        if (family, kind) == ("keras3", "ragged") and not HAS_RAGGED_INPUTS:
            with pytest.raises(TypeError, match="ragged"):
                package.Input((None,), ragged=True)
            return
        dtypes = ["int64", "float32"] if weighted else ["int64"]
        inputs = [package.Input((None,), dtype=dtype, **{kind: True}) for dtype in dtypes]
        layer, make = layer_of(family, "SparseLookupLayer"), sparse if kind == "sparse" else ragged
        model = package.Model(inputs, layer(*inputs))
        assert [*model.output.shape] == [None, DIM]
        given = [make(), make(WEIGHTS, tf.float32)] if weighted else [make()]
        assert np.array_equal(model(given), layer(*given))
        model.save(str(tmp_path / "model.keras"))
        again = package.models.load_model(str(tmp_path / "model.keras"))
        assert np.array_equal(again(given), layer(*given))

    def test_keys_of_another_kind(self, family: str) -> None:
        layer = layer_of(family, "SparseLookupLayer")
        with pytest.raises(TypeError, match="keys must be sparse or ragged"):
            layer(tf.constant([[1]]))
        with pytest.raises(ValueError, match=r"keys must be \[B, any\]"):
            layer(tf.sparse.expand_dims(sparse(), 0))


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("LookupLayer", {"dimension": 0}, "dimension must be at least 1, got 0"),
        ("LookupLayer", {"table_name": ""}, "table_name must be a name, got ''"),
        ("LookupLayer", {"store": None}, "store must be a name, got None"),
        ("SparseLookupLayer", {"combiner": "max"}, "combiner must be one of"),
        ("SparseLookupLayer", {"max_norm": float("nan")}, "max_norm must be a number, got nan"),
    ],
)
def test_arguments_that_cannot_be(family: str, kind: str, arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        getattr(FAMILIES[family][1], kind)(**{"table_name": "t", "dimension": DIM} | arguments)


@pytest.mark.parametrize("kind", ["LookupLayer", "SparseLookupLayer"])
def test_configuration(family: str, kind: str) -> None:
    own = {} if kind == "LookupLayer" else {"combiner": "sqrtn", "max_norm": 2.0}
    layer = layer_of(family, kind, store="other", name="rows", **own)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert layer.get_config().items() >= {"table_name": "t", "store": "other", **own}.items()


def model_of(family: str) -> Any:
    """A dense part behind rows of a store."""
    package, _ = FAMILIES[family]
    inputs = package.Input((3,), dtype="int64")
    hidden = package.layers.Flatten()(layer_of(family, name="rows")(inputs))
    return package.Model(inputs, package.layers.Dense(1, name="dense")(hidden))


def test_the_dense_part_is_trained(family: str) -> None:
    model, stock = model_of(family), tf.Variable(tf.zeros([3 * DIM, 1]))
    model.get_layer("dense").set_weights([np.zeros((3 * DIM, 1)), np.zeros(1)])
    package, _ = FAMILIES[family]
    model.compile(package.optimizers.SGD(0.1), "mse")
    labels = KEYS.sum(1, keepdims=True).astype(np.float32)
    model.fit(KEYS, labels, batch_size=6, epochs=1, verbose=0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((labels - TABLE[KEYS].reshape(6, -1) @ stock) ** 2)
    stock.assign_sub(0.1 * tape.gradient(loss, stock))
    np.testing.assert_allclose(model.get_layer("dense").get_weights()[0], stock, rtol=1e-5)


def test_models_are_saved_loaded_and_exported(family: str, tmp_path: Path) -> None:
    package, _ = FAMILIES[family]
    model = model_of(family)
    right = model(tf.constant(KEYS)).numpy()
    model.save(str(tmp_path / "model.keras"))
    again = package.models.load_model(str(tmp_path / "model.keras"))
    assert np.array_equal(again(tf.constant(KEYS)), right)
    model.export(str(tmp_path / "exported"))
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    # From TensorFlow 2.22 on, a dense layer of one unit has other bits in a graph than eagerly.
    right = tf.function(model)(tf.constant(KEYS)).numpy()
    assert np.array_equal(exported.serve(tf.constant(KEYS)), right)


def test_public_names() -> None:
    assert fusion.tables.LookupLayer is fusion.keras.layers.LookupLayer
    assert fusion.tables.SparseLookupLayer is fusion.keras.layers.SparseLookupLayer
    assert fusion.tables.TableStore is TableStore
    assert {"LookupLayer", "TableStore"} <= {*dir(fusion.tables)}
    with pytest.raises(AttributeError, match=r"'fusion.tables' has no attribute 'Nothing'"):
        fusion.tables.Nothing  # noqa: B018

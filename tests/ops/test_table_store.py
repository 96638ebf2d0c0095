"""TableStoreGather in TensorFlow."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.stores import table_store
from fusion.stores.open_stores import open_stores
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from tests import zygote
from tests.stores.dictionary_tier import DictionaryTier, ManyTablesTier

A, B = TableDescription("a", 3, -1.0), TableDescription("b", 16)


def rows(keys, table: TableDescription) -> np.ndarray:
    keys = np.asarray(keys)
    return np.repeat(keys[..., np.newaxis].astype(np.float32), table.dimension, -1)


@pytest.fixture
def tier() -> ManyTablesTier:
    tier, keys = ManyTablesTier(), range(200)
    for table in (A, B):
        tier.fill(table.name, keys, rows(keys, table))
    return tier


@pytest.fixture
def store(tier: ManyTablesTier) -> Iterator[TableStore]:
    with TableStore([A, B], [tier], cache_rows=200) as opened, opened.as_default():
        yield opened


def gather(*keys, tables=("a", "b"), dims=(3, 16), **attrs):
    """The rows of keys of each table."""
    tensors = [tf.convert_to_tensor(one, tf.int64) for one in keys]
    return ops.table_store_gather(tensors, tables=list(tables), dims=list(dims), **attrs)


def test_keys_of_any_shape(store: TableStore) -> None:
    rng = np.random.default_rng(0)
    for first, second in [((), (3,)), ((0,), (2, 0)), ((2, 1, 3), (4,)), ((5,), (2, 2, 2, 2))]:
        keys = rng.integers(0, 200, first), rng.integers(0, 200, second)
        for one, table, own in zip(gather(*keys), (A, B), keys, strict=True):
            assert one.dtype == tf.float32
            assert np.array_equal(one, rows(own, table))


@pytest.mark.usefixtures("store")
def test_shapes_in_functions() -> None:
    @tf.function(
        input_signature=[tf.TensorSpec([None, 4], tf.int64), tf.TensorSpec(None, tf.int64)]
    )
    def function(first, second):
        found = gather(first, second)
        assert found[0].shape.as_list() == [None, 4, None]
        assert found[1].shape.rank is None
        return found

    found = function(tf.constant([[1, 2, 3, 4]], tf.int64), tf.constant(7, tf.int64))
    assert np.array_equal(found[0], rows([[1, 2, 3, 4]], A))
    assert np.array_equal(found[1], rows(7, B))


def test_misses_of_all_tables_are_fetched_in_one_round(
    store: TableStore, tier: ManyTablesTier
) -> None:
    found = gather([5, 1, 5], [[1, 900]], [5, 6], tables=["a", "b", "a"], dims=[3, 16, 3])
    assert tier.round_count == 1
    assert tier.requests == [("a", [1, 5, 6]), ("b", [1, 900])]
    assert np.array_equal(found[0], rows([5, 1, 5], A))
    assert np.array_equal(found[1], rows([[1, 0]], B))
    assert np.array_equal(found[2], rows([5, 6], A))
    gather([1, 5], [1], [6], tables=["a", "b", "a"], dims=[3, 16, 3])
    assert tier.round_count == 1
    counters = store.counters()
    assert counters.tables["a"].hits == 3
    assert counters.tables["a"].waits == 2  # once for each list of keys
    assert counters.latency.count == 2


def test_tables_in_another_order(store: TableStore) -> None:
    del store
    found = gather([1], [2], [3], tables=["b", "a", "b"], dims=[16, 3, 16])
    assert [one[0, 0].numpy() for one in found] == [1, 2, 3]


def test_many_keys_by_several_threads(store: TableStore) -> None:
    keys = np.random.default_rng(0).integers(0, 200, (2, 20_000))
    for _ in range(3):
        found = gather(*keys)
        assert np.array_equal(found[0], rows(keys[0], A))
        assert np.array_equal(found[1], rows(keys[1], B))


def test_no_wait_with_enough_hits(tier: ManyTablesTier) -> None:
    with TableStore([A], [tier], cache_rows=50, hit_rate_threshold=0.5) as store:
        store.register("other")
        store.warm("a", [1, 2])
        tier.gate.clear()
        (found,) = gather([1, 2, 3], tables=["a"], dims=[3], store="other")
        assert found[:, 0].numpy().tolist() == [1, 2, -1]
        tier.gate.set()


class TestErrors:
    """What is said where rows cannot be had."""

    def test_no_store(self) -> None:
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"no table store nobody is open in this process: open one \(fusion.tables",
        ):
            gather([1], tables=["a"], dims=[3], store="nobody")

    def test_a_store_that_is_closed(self, tier: ManyTablesTier) -> None:
        with TableStore([A], [tier], cache_rows=5) as store:
            store.register("short")
            gather([1], tables=["a"], dims=[3], store="short")
        with pytest.raises(tf.errors.FailedPreconditionError, match="no table store short is open"):
            gather([1], tables=["a"], dims=[3], store="short")
        with TableStore([A], [tier], cache_rows=5) as store:
            store.register("short")
            assert gather([1], tables=["a"], dims=[3], store="short")[0].shape == [1, 3]

    @pytest.mark.usefixtures("store")
    def test_tables_that_are_not_there(self) -> None:
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"column 1 \(c\): the table store default has no such table",
        ):
            gather([1], [1], tables=["a", "c"])

    @pytest.mark.usefixtures("store")
    def test_another_dimension(self) -> None:
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"column 0 \(a\): rows of the table have 3 elements, but dims says 4",
        ):
            gather([1], tables=["a"], dims=[4])

    @pytest.mark.usefixtures("store")
    @pytest.mark.parametrize(
        ("attrs", "text"),
        [
            ({"tables": ["a"], "dims": [3, 3]}, "tables and dims have 1 and 2 items for 1 tensors"),
            ({"tables": [], "dims": [3]}, "tables and dims have 0 and 1 items for 1 tensors"),
            ({"tables": ["a"], "dims": [0]}, "dims must be at least 1, not 0"),
        ],
    )
    def test_attrs_that_do_not_go_together(self, attrs, text: str) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            gather([1], **attrs)

    @pytest.mark.usefixtures("store")
    def test_a_tier_that_does_not_answer(self, tier: ManyTablesTier) -> None:
        tier.error = "connection refused"
        with pytest.raises(tf.errors.UnavailableError, match="many, table b: connection refused"):
            gather([1], tables=["b"], dims=[16])
        tier.error = None
        assert np.array_equal(gather([1], tables=["b"], dims=[16])[0], rows([1], B))

    def test_a_store_closes_after_what_nobody_waits_for(
        self, tier: ManyTablesTier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An op that has given up leaves a request, which goes on with the store's memory."""
        monkeypatch.setattr(table_store, "PATIENCE_NS", 1)
        store = TableStore([A, B], [tier], cache_rows=200)
        tier.gate.clear()
        with store.as_default(), pytest.raises(tf.errors.DeadlineExceededError, match="in time"):
            gather([1], [2])
        closing = threading.Thread(target=store.close)
        closing.start()
        while store._record.address in open_stores()._stores:
            threading.Event().wait(0.001)
        assert not tier.is_closed
        tier.gate.set()
        closing.join(60)
        assert tier.is_closed

    @pytest.mark.usefixtures("store")
    def test_what_should_not_happen(
        self, tier: ManyTablesTier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(requests):
            raise ZeroDivisionError("broken")

        monkeypatch.setattr(tier, "fetch_many", broken)
        with pytest.raises(tf.errors.InternalError, match="ZeroDivisionError: broken"):
            gather([1], tables=["b"], dims=[16])


def test_names_of_stores(tier: ManyTablesTier) -> None:
    """The default one of a block, and one that takes the place of another."""
    other = DictionaryTier().fill("a", [1], [[9, 9, 9]])

    def value() -> float:
        return float(gather([1], tables=["a"], dims=[3])[0][0, 0])

    with TableStore([A], [tier], 5) as first, TableStore([A], [other], 5) as second:
        with first.as_default():
            assert value() == 1
            with second.as_default():
                assert value() == 9
            assert value() == 1
            second.register()
            assert value() == 9
        with pytest.raises(tf.errors.FailedPreconditionError):
            value()


def test_no_gradient(store: TableStore) -> None:
    del store
    scale = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        (found,) = gather([1, 2], tables=["a"], dims=[3])
        loss = tf.reduce_sum(found * scale)
    assert tape.gradient(loss, scale).numpy() == 9


def test_threads_while_rows_change(store: TableStore) -> None:
    """Ops of a graph in several threads, while rows are updated and dropped."""
    stop, wrong = threading.Event(), list[str]()

    @tf.function
    def function(first, second):
        return gather(first, second)

    def change() -> None:
        rng = np.random.default_rng(1)
        while not stop.is_set():
            keys = np.unique(rng.integers(0, 200, 20))
            for table in (A, B):
                store.update(table.name, keys, rows(keys + 1000 * rng.integers(9), table))
                store.invalidate(table.name, keys[::3])

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            keys = rng.integers(0, 200, (2, 300))
            for one, own in zip(function(*map(tf.constant, keys)), keys, strict=True):
                values = one.numpy()
                if not ((values == values[:, :1]).all() and (values[:, 0] % 1000 == own).all()):
                    wrong.append(f"{own}: {values}")

    changer = threading.Thread(target=change)
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in (changer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    changer.join()
    assert wrong == []


def test_in_a_dataset(store: TableStore) -> None:
    """Threads of TensorFlow's own wait for rows."""
    del store
    keys = np.arange(200).reshape(20, 10)
    dataset = tf.data.Dataset.from_tensor_slices(keys)
    dataset = dataset.map(lambda own: gather(own, tables=["a"], dims=[3])[0], 4)
    assert np.array_equal(np.stack([*dataset.as_numpy_iterator()]), rows(keys, A))


_LEFT_OPEN = """
import tensorflow as tf
import fusion
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from tests.stores.dictionary_tier import DictionaryTier

tier = DictionaryTier().fill("a", range(9), [[key] * 3 for key in range(9)])
store = TableStore([TableDescription("a", 3)], [tier], 5, hit_rate_threshold=0.0).register()
for key in range(9):
    rows = fusion.ops.table_store_gather([tf.constant([key], tf.int64)], tables=["a"], dims=[3])
print("ends")
"""


def test_a_process_ends_whose_store_is_open() -> None:
    command = [sys.executable, "-c", _LEFT_OPEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


_LOADS = """
import sys
import numpy as np
import tensorflow as tf
import fusion
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from tests.stores.dictionary_tier import DictionaryTier

model = tf.saved_model.load(sys.argv[1])
tier = DictionaryTier().fill("a", [7], [[7, 8, 9]])
try:
    model.serve(tf.constant([7], tf.int64))
except tf.errors.FailedPreconditionError as error:
    assert "no table store default is open" in str(error)
with TableStore([TableDescription("a", 3)], [tier], cache_rows=5).register():
    print(model.serve(tf.constant([7, 8], tf.int64)).numpy().tolist())
"""


def test_a_saved_model_with_it_runs_in_another_process(tmp_path: Path) -> None:
    module = tf.Module()
    module.serve = tf.function(
        lambda keys: gather(keys, tables=["a"], dims=[3])[0],
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    command = [sys.executable, "-c", _LOADS, str(tmp_path / "model")]
    done = zygote.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[7.0, 8.0, 9.0], [0.0, 0.0, 0.0]]"

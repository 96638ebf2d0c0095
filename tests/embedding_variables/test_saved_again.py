"""Models with embedding variables that were loaded, and are saved again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import fuse_saved_model
from fusion.tables import EmbeddingVariable, PartitionedEmbeddingVariable

IDS = tf.constant([1, 2, 5, 2**40, 77], tf.int64)
SPEC = [tf.TensorSpec([None], tf.int64)]


class Model(tf.Module):
    """An embedding variable, of which three keys were trained, and a plain one."""

    def __init__(self, **options: Any) -> None:
        partitions = options.pop("partitions", None)
        self.table = (
            EmbeddingVariable("keyed", 4, **options)
            if partitions is None
            else PartitionedEmbeddingVariable("keyed", 4, partitions, **options)
        )
        self.bias = tf.Variable([1.0, 2.0, 3.0, 4.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self._rows(IDS[:4]))
        variables = self.table.tables if partitions else [self.table.table]
        gradients = tape.gradient(loss, variables)
        optimizer = tf.keras.optimizers.SGD(0.5)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _rows(self, ids: tf.Tensor) -> tf.Tensor:
        bags = tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids)).to_sparse()
        return fusion.fused_safe_embedding_lookup_sparse(self.table, bags, combiner="sum")

    @tf.function(input_signature=SPEC)
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"rows": self._rows(ids) + self.bias}


def saved(model: Any, path: Path) -> Path:
    tf.saved_model.save(model, str(path), signatures=model.serve)
    return path


def loaded(path: Path) -> Any:
    return tf.saved_model.load(str(path))


def rows(model: Any) -> np.ndarray:
    return model.signatures["serving_default"](ids=IDS)["rows"].numpy()


def shapes(path: Path) -> dict[str, list[int]]:
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    return reader.get_variable_to_shape_map()


@pytest.mark.parametrize(
    "options",
    [{"capacity": 100}, {}, {"partitions": 3}, {"key_dtype": tf.int64, "admission": 1}],
    ids=["capacity", "default", "partitions", "admission"],
)
def test_as_it_was_loaded(tmp_path: Path, options: dict[str, Any]) -> None:
    """Checkpoints have the keys that have rows, and no variable of all the capacity."""
    model = Model(**options)
    first = saved(model, tmp_path / "0")
    expected = model.serve(IDS)["rows"].numpy()
    assert not np.array_equal(expected[0], expected[4])
    for number in (1, 2):
        again = saved(loaded(tmp_path / str(number - 1)), tmp_path / str(number))
        assert shapes(again) == shapes(first)
        np.testing.assert_array_equal(rows(loaded(again)), expected)
    assert shapes(first)["bias/.ATTRIBUTES/VARIABLE_VALUE"] == [4]


def test_in_another_model(tmp_path: Path) -> None:
    class Around(tf.Module):
        def __init__(self) -> None:
            self.inner = loaded(tmp_path / "inner")
            self.scale = tf.Variable(2.0)

        @tf.function(input_signature=SPEC)
        def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"rows": self.scale * self.inner.serve(ids)["rows"]}

    model = Model()
    saved(model, tmp_path / "inner")
    around = saved(Around(), tmp_path / "around")
    expected = 2 * model.serve(IDS)["rows"].numpy()
    np.testing.assert_array_equal(rows(loaded(around)), expected)
    names = [name for name in shapes(around) if "inner/table" in name]
    assert len(names) == len(shapes(tmp_path / "inner")) - 2  # but for the graph and the bias
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(around))
        signature = meta.signature_def["serving_default"]
        fed = {signature.inputs["ids"].name: IDS.numpy()}
        found = session.run(signature.outputs["rows"].name, fed)
    np.testing.assert_array_equal(found, expected)


def test_a_checkpoint_of_a_loaded_model(tmp_path: Path) -> None:
    model = Model()
    again = loaded(saved(model, tmp_path / "0"))
    path = tf.train.Checkpoint(again).save(str(tmp_path / "checkpoint"))
    other = Model(seed=7)
    assert not np.array_equal(rows(loaded(saved(other, tmp_path / "1"))), rows(again))
    tf.train.Checkpoint(other).restore(path)
    np.testing.assert_array_equal(other.serve(IDS)["rows"], rows(again))


def test_tables_in_files(tmp_path: Path) -> None:
    model = Model(capacity=100)
    saved(model, tmp_path / "0")
    fuse_saved_model(tmp_path / "0", tmp_path / "mapped", tables="mapped", least_table_bytes=0)
    again = loaded(tmp_path / "mapped")
    np.testing.assert_array_equal(rows(again), model.serve(IDS)["rows"])
    saved(again, tmp_path / "again")  # whose tables are in its checkpoint
    np.testing.assert_array_equal(rows(loaded(tmp_path / "again")), model.serve(IDS)["rows"])


def test_other_objects_of_a_loaded_model(tmp_path: Path) -> None:
    """Stock tables are saved again as they always were, and variables as a whole."""
    model = Model(capacity=100)
    model.stock = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([4]))
    model.stock.insert(IDS[:1], tf.ones([1, 4]))
    again = loaded(saved(model, tmp_path / "0"))
    again.bias.assign([9.0, 9.0, 9.0, 9.0])
    twice = loaded(saved(again, tmp_path / "1"))
    assert shapes(tmp_path / "0") == shapes(tmp_path / "1")
    np.testing.assert_array_equal(twice.bias, [9, 9, 9, 9])
    np.testing.assert_array_equal(rows(twice), rows(again))

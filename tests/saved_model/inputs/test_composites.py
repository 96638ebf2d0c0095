from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from fusion.saved_model.inputs.composites import Composite, composite_arguments, flattened_arguments
from fusion.saved_model.model.source import read_saved_model


def test_parts_are_counted_through_nested_arguments(tmp_path: Path):
    ragged = tf.RaggedTensorSpec([None, None, None], tf.int64)
    sparse = tf.SparseTensorSpec([None, None], tf.float32)
    dense = tf.TensorSpec([None], tf.float32)

    class Model(tf.Module):
        @tf.function(input_signature=[dense, {"b": [dense, ragged], "a": sparse}])
        def __call__(self, first, others):
            return first + others["b"][0]

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    (meta,) = read_saved_model(tmp_path / "model").meta_graphs
    (found,) = composite_arguments(meta).values()
    # dense; then, by the names in the dictionary, the sparse tensor, dense, the ragged one.
    assert found == (Composite(True, (1, 2, 3)), Composite(False, (5, 6, 7)))


def test_functions_of_plain_tensors_have_none(tmp_path: Path):
    module = tf.Module()
    module.f = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "model"))
    (meta,) = read_saved_model(tmp_path / "model").meta_graphs
    assert composite_arguments(meta) == {}


def test_parts_are_called_one_after_the_other():
    names = ["b_1", "a", "b", "b_2", "b_4", "a_b"]
    assert list(flattened_arguments(names)) == [["b", "b_1", "b_2"]]

"""The example server in C parses tf.Examples by a library of ops, without Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fusion
from examples.native.client import Client, Refused
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of
from tests.examples.native import assert_same, running
from tests.ops_library.conftest import HOST_LEVELS

ROWS = 50
FEATURES = {
    "items": tf.io.VarLenFeature(tf.int64),
    "word": tf.io.FixedLenFeature([], tf.string, default_value="none"),
    "age": tf.io.FixedLenFeature([2], tf.float32, default_value=[0.5, 1.5]),
}


def of_ages(*values: float) -> bytes:
    made = tf.train.Example()
    made.features.feature["age"].float_list.value.extend(values)
    return made.SerializeToString()


#: Bytes that are no such Example, and what is said of them.
WRONG = {
    b"no Example": "Could not parse example input, value: 'no Example'",
    of_ages(1.0, 2.0, 3.0): "Number of float values != expected.",
}


class Shop(tf.Module):
    """A basket of ids, a hashed word and two numbers, from Examples."""

    def __init__(self) -> None:
        self.items = tf.Variable(tf.random.stateless_normal([ROWS, 8], [1, 2]))
        self.words = tf.Variable(tf.random.stateless_normal([ROWS, 4], [3, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, FEATURES)
        word = tf.sparse.from_dense(tf.strings.to_hash_bucket_fast(parsed["word"][:, None], ROWS))
        rows = [
            tf.nn.safe_embedding_lookup_sparse(self.items, parsed["items"], combiner="sum"),
            tf.nn.safe_embedding_lookup_sparse(self.words, word),
        ]
        return {"rows": tf.concat([*rows, parsed["age"]], 1), "word": parsed["word"]}


def example(number: int) -> bytes:
    made = tf.train.Example()
    feature = made.features.feature
    feature["items"].int64_list.value.extend(range(number % 5))
    if number % 4:
        feature["age"].float_list.value.extend([number, -0.5])
    if number % 3:
        feature["word"].bytes_list.value.append(b"word" * number)
    return made.SerializeToString()


def test_answers_and_errors_are_those_of_stock(program: Path, tmp_path: Path) -> None:
    stock, fused, library = (tmp_path / name for name in ("stock", "fused", "library.so"))
    shop = Shop()
    tf.saved_model.save(shop, str(stock), signatures=shop.serve)
    report = fusion.fuse_saved_model(stock, fused, verify=False)
    assert (report.fused_count, [one.fused for one in report.parsers]) == (2, [True])
    build(library, HOST_LEVELS[-1:], lambda: node_kernels.places_of_nodes(nodes_of(fused)))
    function = tf.saved_model.load(stock).signatures["serving_default"]
    with (
        running(program, "--ops", library, "--port", 0, "--threads", 2, fused) as process,
        Client(process.address) as client,
    ):
        for batch in (0, 1, 7, 300):
            examples = np.array([example(number) for number in range(batch)], object)
            wanted = function(examples=tf.constant(examples, tf.string))
            expected = {name: value.numpy() for name, value in wanted.items()}
            assert_same(client.predict({"examples": examples}), expected)
        for bad, said in WRONG.items():
            examples = np.array([example(1), bad], object)
            with pytest.raises(tf.errors.InvalidArgumentError) as error:
                function(examples=tf.constant(examples))
            with pytest.raises(Refused) as refused:
                client.predict({"examples": examples})
            assert said in error.value.message
            assert said in str(refused.value)

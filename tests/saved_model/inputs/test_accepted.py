"""What is made up for a model, the model itself accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2

from fusion.saved_model.inputs.cases import CASES, Ids
from fusion.saved_model.inputs.dataflow import input_meaning
from fusion.saved_model.inputs.generator import InputGenerator
from fusion.saved_model.inputs.signature import Signature, TensorSpec

INT, TEXT, VECTOR = tf.int64, tf.string, [None]
USUAL = [c for c in CASES if c.batch and c.ids in (Ids.IN_RANGE, Ids.UNEQUAL, Ids.MISSING)]


def _runs(
    function: Callable[..., Any], specs: dict[str, tf.TensorSpec]
) -> list[dict[str, tf.Tensor]]:
    """Returns the batches made up for a function, on each of which it ran."""
    concrete = tf.function(function, autograph=False).get_concrete_function(**specs)
    names = dict(zip(specs, (tensor.name for tensor in concrete.inputs), strict=False))
    inputs = tuple(
        TensorSpec(
            key,
            names[key],
            spec.dtype.as_datatype_enum,
            tuple(-1 if d is None else d for d in dims),
        )
        for key, spec in specs.items()
        for dims in [spec.shape.as_list()]
    )
    meaning = input_meaning(concrete.graph.as_graph_def(), names)
    generate = InputGenerator(Signature(("serve",), "f", inputs, (), ()), meaning, [b"known"])
    batches = []
    for case in USUAL:
        feeds = {key: tf.constant(array) for key, array in generate(case).items()}
        concrete(**feeds)
        batches.append(feeds)
    return batches


def _messages() -> bytes:
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="m.proto", package="m", syntax="proto2")
    query = file.message_type.add(name="Query")
    query.field.add(name="text", number=1, label=2, type=9)
    outer = file.message_type.add(name="Outer")
    outer.field.add(name="ids", number=1, label=3, type=3)
    outer.field.add(name="one", number=2, label=1, type=11, type_name=".m.Query")
    outer.field.add(name="many", number=3, label=3, type=11, type_name=".m.Query")
    outer.field.add(name="count", number=4, label=2, type=3)
    outer.field.add(name="tags", number=5, label=3, type=11, type_name=".m.Outer.TagsEntry")
    entry = outer.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=9)
    return b"bytes://" + found.SerializeToString()


@pytest.mark.parametrize("name", ["one", "many", "tags"])
def test_messages_that_nothing_parses_are_empty(name: str):
    def parsed(records: tf.Tensor) -> list[tf.Tensor]:
        fields = ["ids", name]
        return tf.io.decode_proto(records, "m.Outer", fields, [INT, TEXT], _messages())[1]

    sizes = []
    for feeds in _runs(parsed, {"records": tf.TensorSpec(VECTOR, TEXT)}):
        ids, nested = parsed(feeds["records"])
        assert set(nested.numpy().ravel().tolist()) <= {b""}
        sizes += [ids.shape[1], nested.shape[1]]
    assert max(sizes[::2]) == 11
    assert max(sizes[1::2]) == (11 if name == "many" else 1)


@pytest.mark.parametrize("columns", [1, 12])
@pytest.mark.parametrize("missing", ["", "known", " "])
def test_words_in_lines_are_never_missing(columns: int, missing: str):
    def parsed(lines: tf.Tensor) -> list[tf.Tensor]:
        required = [tf.constant([], TEXT)] * columns
        return tf.io.decode_csv(lines, required, na_value=missing)

    for feeds in _runs(parsed, {"lines": tf.TensorSpec(VECTOR, TEXT)}):
        assert all((words != b"").all() for words in (c.numpy() for c in parsed(feeds["lines"])))


def test_a_number_that_is_asserted_to_be_a_count_is_one():
    def counted(ids: tf.Tensor, splits: tf.Tensor, n: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        checks = [
            tf.debugging.assert_equal(tf.shape(ids)[0], n),
            tf.debugging.assert_equal(rows, tf.size(splits) - 1),
        ]
        with tf.control_dependencies(checks):
            return tf.RaggedTensor.from_row_splits(ids, splits).to_tensor()

    vector, scalar = tf.TensorSpec(VECTOR, INT), tf.TensorSpec([], tf.int32)
    specs = {"ids": vector, "splits": vector, "n": scalar, "rows": scalar}
    found = _runs(counted, specs)
    assert {int(feeds["rows"]) for feeds in found} == {1, 32}
    assert max(int(feeds["n"]) for feeds in found) > 32

    def of_batch(ids: tf.Tensor, others: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        checks = [tf.debugging.assert_equal(tf.shape(each)[0], n) for each in (ids, others)]
        with tf.control_dependencies(checks):
            return ids[0] + others[0]

    matrix = tf.TensorSpec([None, None], INT)
    for feeds in _runs(of_batch, {"ids": matrix, "others": vector, "n": scalar}):
        assert int(feeds["n"]) == len(feeds["ids"]) == len(feeds["others"])


@pytest.mark.parametrize("validate", [False, True])
def test_nested_row_lengths_are_as_many_as_the_rows_around_them_hold(validate: bool):
    def nested(ids: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        ragged = tf.RaggedTensor.from_nested_row_lengths(ids, [c, a, b], validate=validate)
        return ragged.to_tensor()

    vector = tf.TensorSpec(VECTOR, INT)
    found = _runs(nested, dict.fromkeys(("ids", "a", "b", "c"), vector))
    for feeds in found:
        assert len(feeds["c"]) in (1, 32)
        assert int(tf.reduce_sum(feeds["c"])) == len(feeds["a"])
        assert int(tf.reduce_sum(feeds["a"])) == len(feeds["b"])
        assert int(tf.reduce_sum(feeds["b"])) == len(feeds["ids"])
    assert max(len(feeds["ids"]) for feeds in found) > 500

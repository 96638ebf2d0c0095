"""What is read from ExampleListWithContexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import graph_pb2

from fusion.passes.requests.example_lists import MESSAGE, descriptors, with_example_lists

v1 = tf.compat.v1
NAMES = ("requests", "candidates", "counts")


def graph_of(*others: str) -> graph_pb2.GraphDef:
    """A graph of three inputs, and of constants of other names."""
    with tf.Graph().as_default() as graph:
        for name in NAMES:
            dtype = tf.int64 if name == "counts" else tf.string
            tf.identity(v1.placeholder(dtype, [None], name), f"{name}_out")
        for name in others:
            tf.constant(1, name=name)
    return graph.as_graph_def()


def message(context: bytes | None, examples: Sequence[bytes]) -> bytes:
    """A message by protobuf itself, whose Examples have one field, a text."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))()
    if context is not None:
        made.context.MergeFromString(context)
    for one in examples:
        made.examples.add().MergeFromString(one)
    text: bytes = made.SerializeToString()
    return text


def text(length: int) -> bytes:
    return tf.train.BytesList(value=[b"x" * length]).SerializeToString()


def read(lists: Sequence[bytes], *others: str) -> list[Any]:
    """What the inputs are of messages."""
    made, taken = with_example_lists(graph_of(*others), "lists", *NAMES)
    assert (taken.node == "lists") is ("lists" not in others)
    assert [node.op for node in made.node].count("Placeholder") == 1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.import_graph_def(made, name="")
        fed = {graph.get_tensor_by_name(f"{taken.node}:0"): np.array([*lists, None], object)[:-1]}
        found: list[Any] = session.run([f"{name}_out:0" for name in NAMES], fed)
    return [one.tolist() for one in found]


@pytest.mark.parametrize("others", [(), ("lists", "lists/decoded", "request/constant")])
def test_contexts_examples_and_their_numbers(others: tuple[str, ...]) -> None:
    short, long, longer = text(3), text(200), text(70_000)
    lists = [message(short, [long, longer]), message(long, []), message(None, [short, b"", long])]
    assert read(lists, *others) == [[short, long, b""], [long, longer, short, b"", long], [2, 0, 3]]


@pytest.mark.parametrize("lists", [[], [b""], [b"", message(text(1), [])]])
def test_there_may_be_no_examples(lists: list[bytes]) -> None:
    requests, candidates, counts = read(lists)
    assert (candidates, counts) == ([], [0] * len(lists))
    assert requests == [b"", text(1)][: len(lists)]


def test_a_damaged_message_is_an_error() -> None:
    whole = message(text(3), [text(4)])
    for damaged in (whole[:-1], b"\xff" * 3):
        with pytest.raises(tf.errors.DataLossError):
            read([whole, damaged])

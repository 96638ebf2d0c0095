"""Which sparse features of Examples are parsed as ragged ones, and which stay sparse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED, PARSE_EXAMPLE, SINGLE
from tests.example_bytes import floats, ints, of, strings
from tests.passes import stock_graphs as stock
from tests.reference import assert_same_bits

v1 = tf.compat.v1
PASS = FuseLookups(preserve=frozenset({"out", "more", "initialize"}))

EXAMPLES = np.array(
    [
        of(a=ints([3, 1]), b=ints([5]), w=floats([0.5, 2.0]), t=strings([b"x", b"yy"])),
        of(b=ints([]), t=strings([b"x"]), n=floats([1.5])),
        of(a=ints([2, 2]), w=floats([1.0, 1.0]), r=ints([7, 8])),
        of(),
    ],
    object,
)
FEATURES = {
    **{key: tf.io.VarLenFeature(tf.int64) for key in "ab"},
    "w": tf.io.VarLenFeature(tf.float32),
    "t": tf.io.VarLenFeature(tf.string),
    "n": tf.io.FixedLenFeature([1], tf.float32, 0.0),
    "r": tf.io.RaggedFeature(tf.int64),
}


def table(seed: int) -> tf.Tensor:
    values = np.random.default_rng(seed).normal(size=[20, 4])
    return tf.constant(values.astype(np.float32))


def bags(ids: tf.SparseTensor, seed: int, weights: tf.SparseTensor | None = None) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(table(seed), ids, weights, combiner="mean")


class Graph:
    """A graph that parses Examples.

    Attributes:
        parsed: their features.
    """

    def __init__(self, shape: list[int | None] | None = None) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            shape = [None] if shape is None else shape
            tf.no_op("initialize")
            self.parsed = tf.io.parse_example(
                v1.placeholder(tf.string, shape, name="examples"), FEATURES
            )

    def fused(self) -> graph_pb2.GraphDef:
        """The rewritten graph; what it gives is what the old one gives, bit by bit."""
        before = self.graph.as_graph_def()
        after = PASS.apply(before).graph_def
        fetches = [f"{name}:0" for name in ("out", "more") if name in names(before)]
        feeds = {"examples:0": EXAMPLES}
        for one, other in zip(
            stock.run(before, feeds, fetches, optimize=False),
            stock.run(after, feeds, fetches, optimize=False),
            strict=True,
        ):
            assert_same_bits(one, other)
        return after


def names(graph_def: graph_pb2.GraphDef) -> set[str]:
    return {node.name for node in graph_def.node}


def only(graph_def: graph_pb2.GraphDef, *ops: str) -> node_def_pb2.NodeDef:
    (node,) = (node for node in graph_def.node if node.op in ops)
    return node


def keys(graph_def: graph_pb2.GraphDef) -> tuple[list[bytes], list[bytes]]:
    """The sparse and the ragged features."""
    attrs = only(graph_def, PARSE_EXAMPLE).attr
    return [*attrs["sparse_keys"].list.s], [*attrs["ragged_keys"].list.s]


@pytest.fixture
def graph() -> Any:
    made = Graph()
    with made.graph.as_default():
        yield made


def ends(*columns: tf.Tensor) -> None:
    tf.identity(tf.concat(columns, 1), name="out")


def test_what_lookups_alone_read_is_ragged(graph: Graph) -> None:
    parsed: Mapping[str, Any] = graph.parsed
    hashed = tf.SparseTensor(
        parsed["t"].indices,
        tf.strings.to_hash_bucket_fast(parsed["t"].values, 20),
        parsed["t"].dense_shape,
    )
    weighted = bags(parsed["a"], 2, parsed["w"])
    ends(bags(parsed["a"], 0), bags(parsed["b"], 1), weighted, bags(hashed, 3), parsed["n"])
    tf.identity(parsed["r"].flat_values, name="more")
    after = graph.fused()
    assert keys(after) == ([], [b"r", b"a", b"b", b"t", b"w"])
    forms = [*only(after, GROUPED).attr["forms"].list.s]
    assert forms == [b"row_splits"] * 4 + [b"copy"]


def test_one_column_alone_too(graph: Graph) -> None:
    ends(bags(graph.parsed["a"], 0))
    after = graph.fused()
    assert b"a" in keys(after)[1]
    node = only(after, GROUPED, SINGLE)
    form = node.attr["form"].s or node.attr["forms"].list.s[0]
    assert form == b"row_splits"


@pytest.mark.parametrize("part", ["indices", "dense_shape"])
def test_what_others_read_stays_sparse(graph: Graph, part: str) -> None:
    parsed = graph.parsed
    ends(bags(parsed["a"], 0), bags(parsed["b"], 1))
    tf.identity(getattr(parsed["a"], part), name="more")
    sparse, ragged = keys(graph.fused())
    assert (b"a" in sparse, b"b" in ragged) == (True, True)


def test_values_may_be_read_by_others(graph: Graph) -> None:
    ends(bags(graph.parsed["a"], 0), bags(graph.parsed["b"], 1))
    tf.reduce_sum(graph.parsed["a"].values, name="more")
    assert b"a" in keys(graph.fused())[1]


def test_rows_up_to_the_last_entry_stay_sparse(graph: Graph) -> None:
    rows = tf.nn.embedding_lookup_sparse(table(0), graph.parsed["b"], None, combiner="sum")
    tf.identity(rows, name="out")
    tf.identity(bags(graph.parsed["a"], 1), name="more")
    sparse, ragged = keys(graph.fused())
    assert (b"b" in sparse, b"a" in ragged) == (True, True)


def test_shapes_of_another_feature_keep_both_sparse(graph: Graph) -> None:
    parsed = graph.parsed
    mixed = tf.SparseTensor(parsed["a"].indices, parsed["a"].values, parsed["b"].dense_shape)
    ends(bags(mixed, 0), bags(parsed["b"], 1))
    assert {b"a", b"b"} <= {*keys(graph.fused())[0]}


def test_one_example_without_a_batch_stays_sparse() -> None:
    made = Graph([])
    with made.graph.as_default():
        tf.identity(made.parsed["a"].values, name="out")
    after = PASS.apply(made.graph.as_graph_def()).graph_def
    assert b"a" in keys(after)[0]


def test_a_parser_that_is_fetched_keeps_its_outputs(graph: Graph) -> None:
    ends(bags(graph.parsed["a"], 0), bags(graph.parsed["b"], 1))
    before = graph.graph.as_graph_def()
    name = only(before, "ParseExampleV2").name
    after = FuseLookups(preserve=frozenset({"out", name})).apply(before).graph_def
    assert {b"a", b"b"} <= {*keys(after)[0]}


def test_in_functions_twice_and_back(graph: Graph) -> None:
    def model(examples: tf.Tensor) -> tf.Tensor:
        parsed = tf.io.parse_example(examples, FEATURES)
        return tf.concat([bags(parsed["a"], 0), bags(parsed["b"], 1), parsed["n"]], 1)

    made = tf.Graph()
    with made.as_default():
        examples = v1.placeholder(tf.string, [None], name="examples")
        tf.no_op("initialize")
        tf.identity(tf.function(model, autograph=False)(examples), name="out")
    before, feeds = made.as_graph_def(), {"examples:0": EXAMPLES}
    once = PASS.apply(before).graph_def
    (expected,) = stock.run(before, feeds, ["out:0"], optimize=False)
    ops = {node.op: node for function in once.library.function for node in function.node_def}
    assert [*ops[PARSE_EXAMPLE].attr["sparse_keys"].list.s] == []
    assert not PASS.apply(once).modified
    lowered = LowerLookups(preserve=PASS.preserve).apply(once).graph_def
    for graph_def in (once, lowered):
        assert_same_bits(stock.run(graph_def, feeds, ["out:0"], optimize=False)[0], expected)

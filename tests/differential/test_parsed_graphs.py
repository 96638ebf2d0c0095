"""Random graphs around parsers of Examples agree with stock: fused, fetched in part, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED_SPLIT, PARSE_EXAMPLE
from tests.differential.agreement import IS_NIGHTLY, Array, rounds
from tests.differential.parsed_graphs import example, model

v1 = tf.compat.v1
_SEEDS = 8
#: Of `make fuzz`, of each seed, at most.
_ROUNDS = 60
_GRAPHS = 4
_INPUTS = ("one", "other")
_SPEC = [tf.TensorSpec([None], tf.string)] * 2

Texts = Sequence[bytes]


def graph_of(seed: int) -> tuple[graph_pb2.GraphDef, list[str]]:
    """A graph, and its results."""
    with tf.Graph().as_default() as graph:
        serialized = [v1.placeholder(tf.string, [None], name=name) for name in _INPUTS]
        results = model(Random(seed), serialized)
        return graph.as_graph_def(), [*results]


def run(graph_def: graph_pb2.GraphDef, fetches: Sequence[str], texts: Texts) -> list[Array]:
    """What is fetched of a graph, whose second Examples are the first ones, turned."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        feeds = {"one:0": [*texts], "other:0": [*texts[1:], *texts[:1]]}
        with v1.Session(graph=graph) as session:
            arrays: list[Array] = session.run([f"{name}:0" for name in fetches], feeds)
            return arrays


def compare(seed: int, counts: Counter[str]) -> None:
    """Compares a graph with what passes make of it."""
    random = Random(seed)
    graph_def, fetches = graph_of(seed)
    texts = [example(random) for _ in range(random.choice((0, 1, 6)))]
    expected = dict(zip(fetches, run(graph_def, fetches, texts), strict=True))
    some = random.sample(fetches, random.randrange(1, len(fetches) + 1))
    fused = FuseLookups(frozenset(fetches)).apply(graph_def).graph_def
    for result, asked in (
        (fused, fetches),
        (LowerLookups(frozenset(fetches)).apply(fused).graph_def, fetches),
        (LowerLookups(frozenset(fetches)).apply(graph_def).graph_def, fetches),
        (FuseLookups(frozenset(some)).apply(graph_def).graph_def, some),
    ):
        for name, array in zip(asked, run(result, asked, texts), strict=True):
            np.testing.assert_array_equal(array, expected[name], f"seed {seed}, {name}")
    for node in (node for node in fused.node if node.op == PARSE_EXAMPLE):
        outputs = [*node.attr["dense_outputs"].list.i]
        counts["joined"] += len(outputs) - len({*outputs})
        for kind in ("sparse", "dense", "ragged"):
            counts["hashed"] += sum(n > 0 for n in node.attr[f"{kind}_buckets"].list.i)
    for node in (node for node in fused.node if node.op == GROUPED_SPLIT):
        counts["split"] += node.attr["num_columns"].i


def compare_function(seed: int) -> None:
    """As `compare`, for a tf.function."""
    texts = [example(Random(seed)) for _ in range(3)]
    arguments = tf.constant(texts), tf.constant([*texts[1:], texts[0]])

    @tf.function(input_signature=_SPEC)
    def function(one: tf.Tensor, other: tf.Tensor) -> list[tf.Tensor]:
        return [*model(Random(seed), [one, other]).values()]

    concrete = function.get_concrete_function()
    fused = fusion.fuse_function(concrete)
    for one, other in zip(fused(*arguments), concrete(*arguments), strict=True):
        np.testing.assert_array_equal(one, other, f"seed {seed}")


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_random_graphs_agree_with_stock(seed: int) -> None:
    counts = Counter[str]()
    for number in rounds(_ROUNDS, _SEEDS):
        start = Random().randrange(1 << 62) if IS_NIGHTLY else 1000 * (_SEEDS * number + seed)
        for k in range(_GRAPHS):
            compare(start + k, counts)
        compare_function(start)
    print(f"parsed graphs: {dict(counts)}")
    assert counts.total() > 0

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.report.call import PARTS
from fusion.saved_model import fuse_saved_model
from fusion.saved_model.bench.feeds import Feeds, generated_feeds
from fusion.saved_model.bench.report import END_TO_END, IN_GRAPH
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.bench.sides import WAYS, InGraph, Side
from fusion.saved_model.model.source import read_saved_model
from tests.saved_model.models import KINDS

MODELS = sorted(KINDS)


@contextlib.contextmanager
def _loaded(way: str, path: Path) -> Iterator[tuple[Side, dict[int, Feeds]]]:
    model = read_saved_model(path)
    signature = choose_signature(model)
    with contextlib.closing(WAYS[way](model, signature)) as side:
        yield side, generated_feeds(model, signature, (1, 5, 64))


@pytest.mark.parametrize("kind", MODELS)
def test_both_ways_give_the_same_outputs_for_any_batch(models: Path, kind: str) -> None:
    outputs: list[list[dict[str, np.ndarray]]] = []
    for way in WAYS:
        with _loaded(way, models / kind) as (side, feeds):
            outputs.append([side.outputs(arrays) for arrays in feeds.values()])
            side.call(feeds[5])()
    for size, a, b in zip((1, 5, 64), *outputs, strict=True):
        assert a.keys() == b.keys()
        assert all(len(one) == size for one in a.values())
        for key, value in a.items():
            np.testing.assert_allclose(value, b[key], rtol=1e-6)


def test_a_call_in_the_graph_runs_on_its_inputs(models: Path, monkeypatch) -> None:
    with _loaded(IN_GRAPH, models / "example") as (side, feeds):
        bad = {key: np.full_like(value, b"no Example") for key, value in feeds[5].items()}
        side.call(feeds[5])()
        with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse example"):
            side.call(bad)()


@pytest.mark.parametrize("kind", ["tf2", "v1_ref"])
def test_a_stock_model_is_not_rewritten_and_a_fused_one_stays_so(
    models: Path, tmp_path: Path, kind: str
) -> None:
    fuse_saved_model(models / kind, tmp_path / "fused", verify=False)
    found = []
    for path in (models / kind, tmp_path / "fused"):
        with _loaded(IN_GRAPH, path) as (side, feeds):
            assert isinstance(side, InGraph)
            side.call(feeds[5])
            found.append(_ops(side))
    stock, fused = found
    assert not any("EmbeddingLookup" in op for op in stock)
    assert any(op.startswith("SparseSegment") for op in stock)
    assert any("EmbeddingLookup" in op for op in fused)
    assert not any(op.startswith("SparseSegment") for op in fused)


def test_shares_are_those_of_what_the_graph_has(models: Path, tmp_path: Path) -> None:
    fuse_saved_model(models / "example", tmp_path / "fused", verify=False)
    for path in (models / "example", tmp_path / "fused"):
        with _loaded(IN_GRAPH, path) as (side, feeds):
            shares = side.shares(feeds[64])
        assert [*shares] == [*PARTS]
        assert sum(shares.values()) == pytest.approx(1)
        # Its ids are in the Examples as they are.
        assert min(shares, key=shares.__getitem__) == "ids", shares
    with _loaded(IN_GRAPH, models / "plain") as (side, feeds):
        assert side.shares(feeds[5]) == {"parsing": 0, "ids": 0, "lookups": 0, "dense": 1}
    with _loaded(END_TO_END, models / "plain") as (side, feeds):
        assert side.shares(feeds[5]) == {}


def _ops(side: InGraph) -> set[str]:
    """The ops of the graph that TensorFlow made of what is computed, functions inlined."""
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    session = side._session
    computed = [session.graph.get_tensor_by_name(t).op for t in side._tensors().values()]
    session.run(computed, options=options, run_metadata=metadata)
    return {node.op for graph in metadata.partition_graphs for node in graph.node}


def test_inputs_are_neither_fed_nor_known_to_the_graph(models: Path) -> None:
    with _loaded(IN_GRAPH, models / "tf2") as (side, feeds):
        assert isinstance(side, InGraph)
        side.call(feeds[64])
        ops = _ops(side)
        assert "ReadVariableOp" in ops
        assert not ops & {"Placeholder", "_Arg"}
        assert any(op.startswith("SparseSegment") for op in ops)

"""Every graph that was ever dumped is recognised to the spec that its file's name tells."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.recognise.spec import DenseIds, LookupSpec, RaggedIds, SparseIds
from tests.dumps import Dump, dumps
from tests.graph_text import parse_graph, print_graph

COMBINERS = ("sum", "mean", "sqrtn")


def expected(name: str) -> dict[str, Any]:
    """What a file's name says of its lookups."""
    words = name.split("_")
    is_part = next((word for word in words if word.startswith("part")), "")
    default = 3 if "defaultid" in words else 0 if "default" in words else None
    return {
        "combiner": "sum"
        if "linear" in words
        else next(w for w in words if w in COMBINERS)
        if set(words) & set(COMBINERS)
        else "mean",
        "weighted": "weighted" in words,
        "max_norm": 1.0 if "maxnorm" in words else None,
        "shards": int(is_part.removeprefix("part") or 1),
        "strategy": ("mod" if "mod" in words else "div") if is_part else "",
        "default_id": default if "defaultid" in words else None,
        "ids": ids_kind(words),
        "dtype": types_pb2.DT_INT32 if "int32ids" in words or "bucket" in words else None,
        "table": types_pb2.DT_HALF
        if "half" in words
        else types_pb2.DT_BFLOAT16
        if "bf16" in words
        else types_pb2.DT_FLOAT,
        "buckets": 100 if "default" in words else None,
    }


def ids_kind(words: list[str]) -> type:
    if "ragged" in words:
        return RaggedIds
    is_dense = "dense" in words and "identity" in words
    folded = "bucket" in words or is_dense or ("hash" in words and "sparse" not in words)
    return DenseIds if folded else SparseIds


def said(spec: LookupSpec) -> dict[str, Any]:
    return {
        "combiner": spec.combiner,
        "weighted": spec.weights is not None,
        "max_norm": spec.table.max_norm,
        "shards": len(spec.table.shards),
        "strategy": spec.table.strategy,
        "default_id": None if spec.column.default_id < 0 else spec.column.default_id,
        "ids": type(spec.ids),
        "dtype": types_pb2.DT_INT32 if spec.dtype == types_pb2.DT_INT32 else None,
        "table": spec.table.dtype,
        "buckets": spec.column.num_buckets or None,
    }


def outputs(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """The last node, which is what the program returns; the rest nobody asks for."""
    return frozenset({graph_def.node[-1].name})


MODELS = ("tfkeras", "simple_save")
PROGRAMS = [name for name in dumps() if not any(word in name for word in MODELS)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_recognised_in_every_form(name: str) -> None:
    found = 0
    for title, graph_def in dumps()[name].graphs():
        report = FuseLookups(preserve=outputs(graph_def)).explain(graph_def)
        columns = int(match[1]) if (match := re.search(r"_x(\d)$", name)) else 1
        assert len(report.columns) == columns, title
        for column in report.columns:
            assert column.fused, f"{title}: {column.reason} at {column.node}"
            assert column.spec is not None
            ids_class = expected(name)
            assert said(column.spec) == ids_class, title
            # Weights are dropped by the entry's weight unless they are summed up; rows are filled.
            by_weight = column.spec.column.prune_sparse_weights
            assert by_weight == (ids_class["weighted"] and ids_class["combiner"] != "sum")
            assert column.spec.column.prune
            assert column.spec.column.fill_empty_row
            found += 1
    assert found >= 2


MODEL_SPECS = {
    "tf221_tfkeras_densefeatures": {("mean", False), ("sum", True), ("sqrtn", False)},
    "tf221_tfkeras_functional_savedmodel": {("mean", False), ("sum", True), ("sqrtn", False)},
    "tf221_v1_simple_save_loaded_v2": {("mean", False)},
}


@pytest.mark.parametrize("name", MODEL_SPECS)
def test_models_are_recognised_in_every_form(name: str) -> None:
    for title, graph_def in dumps()[name].graphs():
        report = FuseLookups().explain(graph_def)
        assert report.columns, title
        assert report.fused_count == len(report.columns), str(report)
        specs = [column.spec for column in report.columns if column.spec is not None]
        kinds = {(spec.combiner, spec.weights is not None) for spec in specs}
        assert kinds >= MODEL_SPECS[name], title


@pytest.mark.parametrize("name", list(dumps())[::3])
def test_a_second_time_nothing_is_left_to_do(name: str) -> None:
    for _, graph_def in dumps()[name].graphs():
        once = FuseLookups(preserve=outputs(graph_def)).apply(graph_def)
        again = FuseLookups(preserve=outputs(graph_def)).apply(once.graph_def)
        assert once.modified
        assert not again.modified
        assert not [column for column in again.report.columns if column.fused]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "ragged" in name])
def test_where_a_value_may_be_fetched_the_reason_says_so(name: str) -> None:
    # In the graph as it was built, nodes that nobody reads look at the filled rows.
    built: Dump = dumps()[name]
    (column,) = FuseLookups().explain(built.graph("tf.function body")).columns
    assert not column.fused
    assert "is also used by" in str(column.reason)


@pytest.mark.parametrize("name", list(dumps())[::7])
def test_the_text_of_the_graphs_round_trips(name: str) -> None:
    for _, graph_def in dumps()[name].graphs():
        text = print_graph(graph_def)
        assert parse_graph(text) == graph_def
        assert print_graph(parse_graph(text)) == text

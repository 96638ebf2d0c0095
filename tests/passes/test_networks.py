"""`FusionReport.to_networkx`: a model's graph before and after."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import networkx as nx
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.report import FusionReport, Networks
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
GROUPED = "GroupedEmbeddingLookup"


@pytest.fixture(scope="module")
def graph_def() -> graph_pb2.GraphDef:
    """Two columns side by side, and one that stays."""
    with tf.Graph().as_default() as graph:
        columns = []
        for name in ("items", "shops", "tags"):
            table = v1.get_variable(name, [20, 6], use_resource=True)
            ids = v1.sparse_placeholder(tf.int64, [None, None], name=f"{name}_ids")
            if name == "tags":
                default = tf.argmax(table[:, 0], name="default")
                ids, _ = tf.sparse.fill_empty_rows(ids, default)
                columns.append(tf.nn.embedding_lookup_sparse(table, ids, None, name=name))
            else:
                columns.append(tf.nn.safe_embedding_lookup_sparse(table, ids))
        wait = tf.no_op(name="wait")
        with tf.control_dependencies([wait]), tf.device("/cpu:0"):
            tf.concat(columns, -1, name="out")
        return graph.as_graph_def()


@pytest.fixture(scope="module")
def networks(graph_def: graph_pb2.GraphDef) -> Networks:
    return fusion.fuse_graph(graph_def, ["out"]).report.to_networkx()


def edges_of(graph_def: graph_pb2.GraphDef) -> list[tuple[str, str, int, int]]:
    """The edges as the NodeDefs have them."""
    edges = []
    for node in graph_def.node:
        for position, text in enumerate(node.input):
            name, _, index = text.partition(":")
            is_control = name.startswith("^")
            numbers = (-1, -1) if is_control else (int(index or 0), position)
            edges.append((name.removeprefix("^"), node.name, *numbers))
    return sorted(edges)


def test_nodes_and_edges_are_those_of_the_graphs(
    graph_def: graph_pb2.GraphDef, networks: Networks
) -> None:
    fused = fusion.fuse_graph(graph_def, ["out"]).graph_def
    for network, graph in zip(networks, (graph_def, fused), strict=True):
        assert isinstance(network, nx.MultiDiGraph)
        assert dict(network.nodes(data="op")) == {node.name: node.op for node in graph.node}
        found = ((*ends, data["output"], data["input"]) for *ends, data in network.edges(data=True))
        assert sorted(found) == edges_of(graph)
        assert {n for n, is_one in network.nodes(data="returned") if is_one} == {"out"}
        assert network.nodes["out"]["device"] == "/device:CPU:0"
    assert ("wait", "out/axis", -1) in networks.before.edges(data="output")


def test_each_node_says_which_columns_it_is_a_part_of(
    graph_def: graph_pb2.GraphDef, networks: Networks
) -> None:
    columns = fusion.explain(graph_def, under="rewrite", outputs=["out"]).lookups
    numbers = {column.name: index for index, column in enumerate(columns)}
    before, after = networks
    for column in columns:
        assert before.nodes[column.anchor]["columns"] == column.name
    whole = after.nodes["out"]
    assert (whole["op"], whole["columns"]) == (GROUPED, "items, shops")
    assert whole["lookups"] == f"{numbers['items']}, {numbers['shops']}"
    tables = {name for name, op in after.nodes(data="op") if op == "ReadEmbeddingTables"}
    assert {after.nodes[name]["columns"] for name in tables} == {"items", "shops"}
    for network in networks:
        assert network.nodes["items_ids/values"]["columns"] == ""
        stays = network.nodes[columns[numbers["tags"]].anchor]
        assert (stays["columns"], stays["lookups"]) == ("tags", str(numbers["tags"]))


def test_what_the_rewrite_changes_and_why_the_rest_stays(networks: Networks) -> None:
    before, after = networks
    gone = {name for name, changed in before.nodes(data="changed") if changed}
    new = {name for name, changed in after.nodes(data="changed") if changed}
    assert gone - {"out"} == before.nodes - after.nodes.keys()
    assert new - {"out"} == after.nodes - before.nodes.keys()
    assert "out" in gone & new
    assert all(after.nodes[name]["columns"] for name in new if after.out_degree(name))
    for network in networks:
        reasons = {name: text for name, text in network.nodes(data="reason") if text}
        assert reasons == {"default": "the id for empty rows is not a constant"}


def test_file_formats_take_them(networks: Networks) -> None:
    for network in networks:
        file = io.BytesIO()
        nx.write_graphml(network, file)
        file.seek(0)
        again = nx.read_graphml(file, force_multigraph=True)
        assert dict(again.nodes(data=True)) == dict(network.nodes(data=True))
        assert sorted(again.edges(data="output")) == sorted(network.edges(data="output"))


@pytest.mark.parametrize("case", [stock.Case(), stock.Case(shards=2), stock.Case(table="constant")])
@pytest.mark.parametrize("target", ["fused", "stock"])
def test_every_new_node_is_a_part_of_the_column(case: stock.Case, target: str) -> None:
    report = fusion.fuse_graph(stock.build(case), ["out"], target=target).report
    _, after = report.to_networkx()
    read = [data for name, data in after.nodes(data=True) if after.out_degree(name)]
    assert {data["columns"] for data in read if data["changed"]} == {report.columns[0].name}


def test_nodes_of_functions_have_its_name() -> None:
    table = tf.Variable(tf.zeros([20, 6]), name="items")

    @tf.function
    def embed(ids: tf.SparseTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(table, ids)

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def whole(ids: tf.SparseTensor) -> Any:
        return embed(ids) + 1.0

    before, after = fusion.explain(whole.get_concrete_function(), under="rewrite").to_networkx()
    (call,) = (data for _, data in before.nodes(data=True) if data["calls"])
    assert call["function"] == ""
    assert "@" not in call["node"]
    inner = [(name, data) for name, data in after.nodes(data=True) if data["function"]]
    for name, data in inner:
        assert name == f"{data['node']}@{call['calls']}"
    assert [data["columns"] for _, data in inner if data["op"].startswith("Fused")] == ["items"]
    assert sum(data["returned"] for _, data in inner) == 1


def test_a_graph_that_has_changed_is_an_error(graph_def: graph_pb2.GraphDef) -> None:
    changing = graph_pb2.GraphDef()
    changing.CopyFrom(graph_def)
    report = fusion.fuse_graph(changing, ["out"]).report
    report.to_networkx()
    for node in changing.node:
        node.device = "/device:TPU:0"
    with pytest.raises(ValueError, match="lookups have changed since"):
        report.to_networkx()


def test_reports_on_what_runs_hold_no_graph(graph_def: graph_pb2.GraphDef) -> None:
    lookups = FuseLookups(frozenset({"out"}))
    report = lookups.apply(graph_def).report
    assert report.networks is None
    under_enable = fusion.explain(graph_def, outputs=["out"])
    for one in (FusionReport(), report, under_enable):
        with pytest.raises(ValueError, match="under='rewrite'"):
            one.to_networkx()


def test_reports_compare_print_and_pickle_without_their_graphs(
    graph_def: graph_pb2.GraphDef, networks: Networks
) -> None:
    report = fusion.fuse_graph(graph_def, ["out"]).report
    bare = FuseLookups(frozenset({"out"})).apply(graph_def).report
    assert str(report) == str(bare)
    assert report.to_dict() == bare.to_dict()
    assert report == bare
    assert "networks" not in repr(report)
    assert nx.utils.graphs_equal(report.to_networkx().after, networks.after)
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    with pytest.raises(ValueError, match="this report holds no graph"):
        again.to_networkx()


def test_a_report_on_a_function_is_pickled_and_copied() -> None:
    table = tf.Variable(tf.ones([8, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def rows(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, ids)

    report = fusion.explain(rows.get_concrete_function(), under="rewrite")
    assert report.to_networkx().before
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report

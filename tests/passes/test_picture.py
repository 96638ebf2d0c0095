"""Which nodes of a graph a drawing of a column shows, and as what."""

from __future__ import annotations

import pytest
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.parts import Parts
from fusion.passes.report.picture import (
    FRONT,
    INPUT,
    STOP,
    UNEXPLAINED,
    Picture,
    PictureNode,
    emitted_picture,
    stock_picture,
)
from tests.passes import stock_graphs as stock


def recognised(case: stock.Case) -> tuple[GraphView, GraphView, LookupMatch]:
    graph_def = stock.build(case)
    view = GraphView.of_graph(graph_def)
    (one,) = recognise_all(view)
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    return view, GraphView.of_graph(result.graph_def), one


def with_role(picture: Picture, role: str) -> set[str]:
    return {name for name, node in picture.nodes.items() if node.role == role}


@pytest.mark.parametrize("rank", [2, 3, None])
def test_all_that_is_explained_is_shown(rank: int | None) -> None:
    view, _, one = recognised(stock.Case(rank=rank))
    picture = stock_picture(view, one)
    constants = {name for name in view.nodes if view.op(name) == "Const"}
    for stage in Stage:
        assert with_role(picture, stage.value) == {*one.nodes(stage)} - constants
    assert with_role(picture, FRONT) >= {*one.front()} - {*one.nodes()} - constants
    inputs = with_role(picture, INPUT)
    assert {"table", "ids/values"} <= inputs
    assert not constants & set(picture.nodes)
    sources, consumers = ({*ends} for ends in zip(*picture.edges, strict=True))
    assert not consumers & inputs
    assert one.spec is not None
    assert set(picture.nodes) - sources == {one.spec.output.node}
    shown = PictureNode("SparseSegmentMean", "embedding_lookup_sparse", Stage.OUTPUT.value)
    assert picture.nodes[one.anchor] == shown


def test_edges_are_those_of_the_graph() -> None:
    view, _, one = recognised(stock.Case())
    for source, name in stock_picture(view, one).edges:
        assert source in {tensor.node for tensor in view.inputs(name)}


def emitted(case: stock.Case) -> tuple[GraphView, Picture]:
    view, after, one = recognised(case)
    assert one.spec is not None
    output = one.spec.output.node
    picture = emitted_picture(view, after, one, output)
    inputs = with_role(picture, INPUT)
    assert inputs <= set(view.nodes)
    assert "ids/values" in inputs
    assert (set(picture.nodes) - inputs) & set(view.nodes) == {output}
    assert with_role(picture, Stage.OUTPUT.value) == {output}
    return after, picture


@pytest.mark.parametrize(
    ("shards", "reads", "others"),
    [
        (1, ["ReadEmbeddingTables"], ["FusedEmbeddingLookup"]),
        (
            2,
            ["ResourceGather"] * 2,
            [
                "FusedEmbeddingSparsePostLookUpV2",
                "PartitionWithPermutation",
                "PruneInvalidAndFillEmptyRows",
                "UniqueWithCountsV3",
            ],
        ),
    ],
)
def test_what_was_emitted_ends_at_what_was_there(
    shards: int, reads: list[str], others: list[str]
) -> None:
    after, picture = emitted(stock.Case(shards=shards))
    rows = with_role(picture, Stage.ROWS.value)
    assert [after.op(name) for name in rows] == reads
    rest = set(picture.nodes) - with_role(picture, INPUT) - rows
    assert sorted(after.op(name) for name in rest) == others
    tables = {"table"} if shards == 1 else {"table_0", "table_1"}
    assert tables <= with_role(picture, INPUT)


def test_of_a_group_one_column_is_shown() -> None:
    with tf.Graph().as_default() as graph:
        columns = []
        for name in "ab":
            ids = stock.sparse_placeholder(stock.Case(), f"{name}/ids")
            table = stock.make_table(stock.Case(), f"{name}/table")
            columns.append(stock.lookup(table, ids, stock.Case()))
        tf.concat([*columns, tf.ones([7, 2])], 1, name="out")
        graph_def = graph.as_graph_def()
    view = GraphView.of_graph(graph_def)
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    after = GraphView.of_graph(result.graph_def)
    for name, one, column in zip("ab", recognise_all(view), result.report.columns, strict=True):
        assert column.op == "out"
        picture = emitted_picture(view, after, one, column.op)
        inputs = with_role(picture, INPUT)
        assert inputs == {
            f"{name}/table",
            *(f"{name}/ids/{k}" for k in ("values", "indices", "shape")),
        }
        assert with_role(picture, Stage.OUTPUT.value) == {"out"}
        assert len(with_role(picture, Stage.ROWS.value)) == 1


def clipped() -> tuple[GraphView, LookupMatch]:
    """A lookup that is understood up to its rows, which something nobody knows has changed."""
    with tf.Graph().as_default() as graph:
        table = stock.make_table(stock.Case())
        stock.lookup(table, stock.sparse_placeholder(stock.Case()), stock.Case())
    graph_def = graph.as_graph_def()
    (gather,) = (node for node in graph_def.node if node.op == "ResourceGather")
    for node in graph_def.node:
        node.input[:] = ["odd" if text == gather.name else text for text in node.input]
    odd = graph_def.node.add(name="odd", op="Tan", input=[gather.name])
    odd.attr["T"].type = tf.float32.as_datatype_enum
    view = GraphView.of_graph(graph_def)
    (one,) = recognise_all(view)
    return view, one


def test_a_partial_explanation_shows_where_it_stops_and_what_is_around() -> None:
    view, one = clipped()
    assert one.failure is not None
    assert one.failure.node == "odd"
    picture = stock_picture(view, one, one.failure)
    assert with_role(picture, STOP) == {"odd"}
    around = {picture.nodes[name].op for name in with_role(picture, UNEXPLAINED)}
    assert around >= {"Unique", "ResourceGather", "Identity", "VarHandleOp"}
    assert picture.nodes[one.anchor].role == Stage.OUTPUT.value
    reached, size = {"odd"}, 0
    while len(reached) > size:
        size = len(reached)
        reached |= {name for edge in picture.edges if reached & {*edge} for name in edge}
    assert reached == set(picture.nodes)


def test_a_lookup_of_which_nothing_is_explained() -> None:
    view, _, one = recognised(stock.Case())
    nothing = LookupMatch(one.anchor, Parts(), None, NoMatch("why", one.anchor), one.anchor)
    picture = stock_picture(view, nothing, nothing.failure)
    assert with_role(picture, STOP) == {one.anchor}
    assert with_role(picture, UNEXPLAINED)

"""What the pass keeps, moves and refuses, seen on the graph itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.ops import control_flow_util

import fusion
from fusion.passes.edit import GraphEdit
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report import ColumnReport
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
ANCHOR = "embedding_lookup/embedding_lookup_sparse"
GATHER = f"{ANCHOR}/embedding_lookup"
PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))


def nodes(graph_def: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    return {node.name: node for node in graph_def.node}


def only(graph_def: graph_pb2.GraphDef, op: str) -> node_def_pb2.NodeDef:
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


def fused(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    result = PASS.apply(graph_def)
    assert result.report.fused_count == len(result.report.columns), str(result.report)
    assert result.modified
    return result.graph_def


def refused(graph_def: graph_pb2.GraphDef, rewrite: FuseLookups = PASS) -> ColumnReport:
    """The one column's verdict, checked to leave the graph as it is."""
    before = graph_def.SerializeToString(deterministic=True)
    result = rewrite.apply(graph_def)
    (column,) = result.report.columns
    assert not column.fused
    assert not result.modified
    assert result.graph_def.SerializeToString(deterministic=True) == before
    assert result.report.nodes_before == result.report.nodes_after
    return column


def add(graph_def: graph_pb2.GraphDef, op: str, name: str, *inputs: str, **types: int) -> None:
    node = graph_def.node.add(name=name, op=op, input=inputs)
    for key, value in types.items():
        node.attr[key].type = value


def written_somewhere(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with an update of single rows of `table` in it, which nobody runs."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        handle = graph.get_tensor_by_name("table:0")
        rows = tf.zeros([1, stock.DIM])
        tf.raw_ops.ResourceScatterAdd(resource=handle, indices=[0], updates=rows, name="write")
        return graph.as_graph_def(add_shapes=True)


def build_with(edit: Callable[[Any, Any, Case], Any], case: Case | None = None) -> Any:
    """A graph whose `out` is what `edit(table, ids, case)` builds."""
    case = case or Case()
    with tf.Graph().as_default() as graph:
        table, ids = stock.make_table(case), stock.sparse_placeholder(case)
        tf.identity(edit(table, ids, case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def test_one_column_becomes_one_op_under_the_old_output_name() -> None:
    graph_def = stock.build(Case())
    after = nodes(fused(graph_def))
    assert after["out"] == nodes(graph_def)["out"]
    kinds = Counter(node.op for node in after.values() if node.name.startswith("embedding_lookup"))
    assert kinds == {
        "ReadVariableOp": 1,
        "FusedEmbeddingLookup": 1,
        "Const": 2,
    }
    assert after["embedding_lookup/Reshape_2"].op == "FusedEmbeddingLookup"


def test_one_column_of_a_table_that_is_written_becomes_four_ops() -> None:
    graph_def = written_somewhere(stock.build(Case()))
    after = nodes(fused(graph_def))
    assert after["embedding_lookup/Reshape_2"].op == "FusedEmbeddingSparsePostLookUpV2"
    assert after["out"] == nodes(graph_def)["out"]
    kinds = Counter(node.op for node in after.values() if node.name.startswith("embedding_lookup"))
    assert kinds == {
        "PruneInvalidAndFillEmptyRows": 1,
        "UniqueWithCountsV3": 1,
        "ResourceGather": 1,
        "FusedEmbeddingSparsePostLookUpV2": 1,
        "Const": 2,
    }


def test_nothing_else_changes() -> None:
    graph_def = stock.build(Case())
    before, after = nodes(graph_def), nodes(fused(graph_def))
    kept = [name for name in before if not name.startswith("embedding_lookup")]
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert fused(graph_def).versions == graph_def.versions


def test_a_graph_without_lookups_is_returned_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.math.segment_sum(tf.ones([3, 2]), [0, 0, 1], name="sums")
        graph_def = graph.as_graph_def()
    result = FuseLookups().apply(graph_def)
    assert result.graph_def is graph_def
    (column,) = result.report.columns
    assert column.reason == "the segment sum does not reduce looked-up rows"


def test_applying_twice_changes_nothing_and_equal_graphs_give_equal_bytes() -> None:
    graph_def = stock.build(Case())
    once = PASS.apply(graph_def).graph_def
    again = PASS.apply(once)
    assert not again.modified
    assert again.graph_def == once
    other = PASS.apply(stock.build(Case())).graph_def
    assert other.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_explain_gives_the_same_verdicts_and_changes_nothing() -> None:
    graph_def = stock.build(Case())
    before = graph_def.SerializeToString(deterministic=True)
    report = PASS.explain(graph_def)
    assert report.columns == PASS.apply(graph_def).report.columns
    assert report.nodes_before == report.nodes_after == len(graph_def.node)
    assert graph_def.SerializeToString(deterministic=True) == before


def with_control_edges(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    add(graph_def, "NoOp", "after_read", f"^{GATHER}")
    add(graph_def, "NoOp", "after_all", "^embedding_lookup/Reshape_2", "^embedding_lookup/Where")
    add(graph_def, "NoOp", "before")
    nodes(graph_def)[GATHER].input.append("^before")
    nodes(graph_def)["embedding_lookup/Where"].input.append("^before")
    return graph_def


def test_control_edges_move_to_the_new_op() -> None:
    graph_def = with_control_edges(stock.build(Case()))
    after = nodes(fused(graph_def))
    base = "embedding_lookup/Reshape_2"
    assert list(after["after_read"].input) == list(after["after_all"].input) == [f"^{base}"]
    for name in (base, f"{base}/table"):
        assert "^before" in after[name].input
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


def test_control_edges_move_to_the_new_ops() -> None:
    graph_def = with_control_edges(written_somewhere(stock.build(Case())))
    after = nodes(fused(graph_def))
    base = "embedding_lookup/Reshape_2"
    assert list(after["after_read"].input) == [f"^{base}/gather"]
    assert list(after["after_all"].input) == [f"^{base}", f"^{base}/prune_and_fill"]
    assert "^before" in after[f"{base}/gather"].input
    assert "^before" in after[f"{base}/prune_and_fill"].input
    assert "^before" not in after[base].input
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_each_shard_is_read_after_what_it_waits_for(max_norm: float | None) -> None:
    case = Case(shards=2, max_norm=max_norm, dtype=tf.float16)
    graph_def = stock.build(case)
    for i in range(2):
        add(graph_def, "NoOp", f"before_{i}")
        gathers = [node for node in graph_def.node if node.op == "ResourceGather"]
        gathers[i].input.append(f"^before_{i}")
        add(graph_def, "NoOp", f"after_{i}", f"^{gathers[i].name}")
    after = fused(graph_def)
    for i, gather in enumerate(node for node in after.node if node.op == "ResourceGather"):
        assert f"^before_{i}" in gather.input
        assert f"^before_{1 - i}" not in gather.input
        assert list(nodes(after)[f"after_{i}"].input) == [f"^{gather.name}"]
    stock.run(after, stock.feeds(case))


@pytest.mark.parametrize("table", ["resource", "ref"])
@pytest.mark.parametrize("shards", [1, 2])
def test_reads_stay_between_the_writes_around_them(table: str, shards: int) -> None:
    case = Case(table=table, shards=shards)

    def written_read_written(table: Any, ids: Any, case: Case) -> Any:
        parts = table if isinstance(table, list) else [table]
        first = [v1.assign(part, tf.ones_like(part)) for part in parts]
        with tf.control_dependencies(first):
            result = stock.lookup(
                [tf.identity(p) for p in parts] if shards > 1 else parts, ids, case
            )
        with tf.control_dependencies([result]):
            last = [v1.scatter_update(part, [0], tf.zeros([1, stock.DIM])) for part in parts]
        with tf.control_dependencies(last):
            return result + 0.0

    graph_def = build_with(written_read_written, case)
    after = fused(graph_def)
    # TensorFlow's own optimizer lets stock lookups of resources read before they should.
    expected = stock.run(graph_def, stock.feeds(case), optimize=False)
    assert set(np.unique(expected)) == {0.0, 1.0}
    for optimize in (False, True):
        got = stock.run(after, stock.feeds(case), optimize=optimize)
        np.testing.assert_array_equal(got, expected)


WRITTEN_FIRST = {
    "safe": stock.lookup,
    "filled": lambda table, ids, case: tf.nn.embedding_lookup_sparse(
        table, tf.sparse.fill_empty_rows(ids, np.int64(0))[0], None
    ),
    "plain": lambda table, ids, case: tf.nn.embedding_lookup_sparse(table, ids, None),
}


@pytest.mark.parametrize("optimize", [False, True], ids=["raw", "optimized"])
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("safe", Case()),
        ("safe", Case(weighted=True)),
        ("safe", Case(max_norm=100.0)),
        ("safe", Case(shards=2)),
        ("safe", Case(ragged=True)),
        ("safe", Case(rank=3, default_id=1)),
        ("filled", Case()),
        ("plain", Case()),
    ],
    ids=str,
)
def test_a_lookup_stays_behind_a_write_that_only_its_constants_wait_for(
    kind: str, case: Case, optimize: bool
) -> None:
    def written_before(table: Any, ids: Any, case: Case) -> Any:
        parts = table if isinstance(table, list) else [table]
        with tf.control_dependencies([v1.assign(part, tf.ones_like(part)) for part in parts]):
            return WRITTEN_FIRST[kind](table, ids, case)

    graph_def = build_with(written_before, case)
    if optimize:
        graph_def = stock.optimized(graph_def)
        if any("SimplifyEmbeddingLookupStage" in node.name for node in graph_def.node):
            return  # TensorFlow's optimizer has lost the order itself: the table is read anyhow
    feed = stock.feeds(case)
    if kind != "safe":
        feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
        feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    after = fused(graph_def)
    if not optimize:
        expected = stock.run(graph_def, feed, optimize=False)[0]
        assert set(np.unique(expected)) <= {0.0, 1.0}
    assert set(np.unique(stock.run(after, feed, optimize=False)[0])) <= {0.0, 1.0}


@pytest.mark.parametrize("circular", [False, True])
def test_lookups_that_would_wait_for_each_other_are_refused(
    circular: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Print", "effect", "ids/values", T=9)
    nodes(graph_def)["effect"].attr["U"].list.SetInParent()
    nodes(graph_def)[f"{ANCHOR}/strided_slice/stack"].input.append("^effect")
    build = GraphEdit._build

    def in_a_circle(edit: GraphEdit) -> list[node_def_pb2.NodeDef]:
        built = build(edit)
        if circular:
            node = node_def_pb2.NodeDef()
            node.CopyFrom(next(one for one in built if one.name == "effect"))
            node.input.append("^embedding_lookup/Reshape_2")
            built = [node if one.name == "effect" else one for one in built]
        return built

    monkeypatch.setattr(GraphEdit, "_build", in_a_circle)
    if circular:
        assert "in a circle" in str(refused(graph_def).reason)
    else:
        assert "^effect" in nodes(fused(graph_def))["embedding_lookup/Reshape_2"].input


def test_a_control_path_out_of_the_lookup_and_back_is_refused() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "NoOp", "between", "^embedding_lookup/Where")
    nodes(graph_def)[f"{ANCHOR}/strided_slice"].input.append("^between")
    assert "control dependency" in str(refused(graph_def).reason)


def test_devices_and_colocation_stay_with_the_table() -> None:
    graph_def = stock.build(Case())
    for node in graph_def.node:
        node.device = "/job:worker/device:CPU:0"
    nodes(graph_def)[GATHER].device = "/job:ps/device:CPU:0"
    gather = only(fused(graph_def), "ResourceGather")
    assert gather.device == "/job:ps/device:CPU:0"
    assert list(gather.attr["_class"].list.s) == [b"loc:@table"]
    assert only(fused(graph_def), "UniqueWithCountsV3").device == "/job:worker/device:CPU:0"


def test_a_lookup_on_a_device_without_kernels_is_refused() -> None:
    graph_def = stock.build(Case())
    nodes(graph_def)[ANCHOR].device = "/device:GPU:0"
    assert refused(graph_def).node == ANCHOR
    everywhere = FuseLookups(device_types=frozenset({"CPU", "GPU"}))
    assert everywhere.apply(graph_def).modified


def test_colocation_with_a_removed_node_is_dropped() -> None:
    graph_def = stock.build(Case())
    groups = nodes(graph_def)["out"].attr["_class"].list.s
    groups.extend([b"loc:@table", f"loc:@{ANCHOR}".encode()])
    after = fused(graph_def)
    assert list(nodes(after)["out"].attr["_class"].list.s) == [b"loc:@table"]
    stock.run(after, stock.feeds(Case()))


@pytest.mark.parametrize("name", [ANCHOR, GATHER, "embedding_lookup/GatherV2_2"])
def test_a_value_inside_the_lookup_that_is_fetched_is_refused(name: str) -> None:
    column = refused(stock.build(Case()), FuseLookups(preserve=frozenset({"out", name})))
    assert column.node == name


@pytest.mark.parametrize("name", ["embedding_lookup", "embedding_lookup/Reshape_2"])
def test_a_result_that_is_fetched_keeps_its_name(name: str) -> None:
    preserve = frozenset({"initialize", name})
    graph_def = stock.build(Case())
    after = FuseLookups(preserve=preserve).apply(graph_def).graph_def
    assert nodes(after)[name].op == "FusedEmbeddingLookup"
    feed, fetches = stock.feeds(Case()), (f"{name}:0", "out:0")
    np.testing.assert_array_equal(
        stock.run(after, feed, fetches), stock.run(graph_def, feed, fetches)
    )


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (ANCHOR, 1),
        (f"{ANCHOR}/Unique:1", 3),
        ("embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows:1", 9),
    ],
)
def test_a_value_inside_the_lookup_that_others_use_is_refused(source: str, dtype: int) -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "spy", source, T=dtype)
    column = refused(graph_def, FuseLookups(preserve=frozenset({"out", "initialize", "spy"})))
    assert column.node == source.partition(":")[0]
    assert "spy" in str(column.reason)
    assert column.spec is not None


def test_a_user_that_nobody_sees_keeps_its_value_and_is_no_obstacle() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "unseen", f"{ANCHOR}/Unique:1", T=3)
    after = fused(graph_def)
    feed, fetches = stock.feeds(Case()), ("unseen:0", "out:0")
    for one, other in zip(
        stock.run(after, feed, fetches), stock.run(graph_def, feed, fetches), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dense", [False, True])
def test_the_flags_of_empty_rows_may_be_used_by_others(dense: bool) -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        if dense:
            matrix = tf.stack([ids.indices[:, 0], ids.values], 1, name="matrix")
            ids = to_sparse(tf.ensure_shape(matrix, [None, 2]))
        return stock.lookup(table, ids, case)

    graph_def = build_with(lookup)
    (fill,) = (node.name for node in graph_def.node if node.op == "SparseFillEmptyRows")
    add(graph_def, "Identity", "spy", f"{fill}:2", T=10)
    result = FuseLookups(preserve=frozenset({"out", "initialize", "spy"})).apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert fill not in nodes(result.graph_def)
    feed, fetches = stock.feeds(Case()), ("spy:0", "out:0")
    for one, other in zip(
        stock.run(result.graph_def, feed, fetches), stock.run(graph_def, feed, fetches), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def to_sparse(matrix: tf.Tensor) -> tf.SparseTensor:
    """As feature columns do it."""
    places = tf.where(tf.not_equal(matrix, 1))
    return tf.SparseTensor(places, tf.gather_nd(matrix, places), tf.shape(matrix, tf.int64))


def test_inputs_of_the_lookup_may_be_used_by_others() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "spy", "embedding_lookup/GreaterEqual", T=10)
    assert "embedding_lookup/GreaterEqual" in nodes(fused(graph_def))


def test_nodes_that_were_dead_before_stay() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "dangling", "ids/values", T=9)
    assert "dangling" in nodes(fused(graph_def))


def test_a_training_graph_is_refused() -> None:
    def loss(table: Any, ids: Any, case: Case) -> Any:
        result = stock.lookup(table, ids, case)
        with tf.control_dependencies([tf.gradients(result, table.handle)[0].values]):
            return tf.identity(result)

    column = refused(build_with(loss))
    assert "is also used by gradients/" in str(column.reason)


def test_columns_with_the_same_ids_share_prune_and_unique() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        other = stock.make_table(case, "other")
        return stock.lookup(table, ids, case) + stock.lookup(other, ids, case)

    graph_def = build_with(two, Case(shards=2))
    for variant in (graph_def, stock.optimized(graph_def)):
        after = fused(variant)
        kinds = Counter(node.op for node in after.node)
        assert kinds["PruneInvalidAndFillEmptyRows"] == kinds["UniqueWithCountsV3"] == 1
        assert kinds["FusedEmbeddingSparsePostLookUpV2"] == 2
        feed = stock.feeds(Case())
        np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_columns_with_different_defaults_share_nothing_but_the_numbers() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        return tf.concat(
            [stock.lookup(table, ids, Case(default_id=d)) for d in (None, 0, 3)], axis=1
        )

    graph_def = build_with(two, Case(shards=2))
    for variant in (graph_def, stock.optimized(graph_def)):
        after = fused(variant)
        assert Counter(node.op for node in after.node)["PruneInvalidAndFillEmptyRows"] == 3
        feed = stock.feeds(Case())
        np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_a_refused_neighbour_on_the_same_ids_keeps_what_it_needs() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        plain = stock.lookup(table, ids, case)
        return tf.concat([plain, stock.lookup(table, ids, case, max_norm=0.5)], axis=1)

    graph_def = build_with(two)
    for variant in (graph_def, stock.optimized(graph_def)):
        result = PASS.apply(variant)
        assert len(result.report.columns) == 2
        feed = stock.feeds(Case())
        expected = stock.run(graph_def, feed)
        np.testing.assert_array_equal(stock.run(result.graph_def, feed), expected)


@pytest.mark.parametrize("split", [False, True])
def test_recorded_shapes_cover_all_outputs(split: bool) -> None:
    graph_def = build_with(stock.lookup)
    if split:
        graph_def = written_somewhere(graph_def)
    op = "FusedEmbeddingSparsePostLookUpV2" if split else "FusedEmbeddingLookup"
    node = only(fused(graph_def), op)
    shapes = [[dim.size for dim in s.dim] for s in node.attr["_output_shapes"].list.shape]
    assert shapes == [[-1, stock.DIM], [-1]][: 1 + split]


def test_lookups_in_library_functions_are_fused() -> None:
    case = Case()

    def build(table: Any, ids: Any, case: Case) -> Any:
        inner = tf.function(lambda i: stock.lookup(table, i, case), autograph=False)
        return tf.function(lambda i: inner(i) * 2.0, autograph=False)(ids)

    graph_def = build_with(build)
    result = PASS.apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert column.function in {f.signature.name for f in graph_def.library.function}
    feed = stock.feeds(case)
    np.testing.assert_array_equal(stock.run(result.graph_def, feed), stock.run(graph_def, feed))
    assert not PASS.apply(result.graph_def).modified


@pytest.mark.parametrize("direct", [True, False])
def test_a_function_that_returns_an_inner_value_is_refused(direct: bool) -> None:
    def build(table: Any, ids: Any, case: Case) -> Any:
        def body(i: Any) -> Any:
            result = stock.lookup(table, i, case)
            return result, result.graph.get_tensor_by_name(f"{ANCHOR}:0")

        return tf.function(body, autograph=False)(ids)[0]

    graph_def = build_with(build)
    (function,) = graph_def.library.function
    if direct:
        (passer,) = (
            node
            for node in function.node_def
            if f"{ANCHOR}:output:0" in node.input[:1] and node.op == "Identity"
        )
        function.ret[function.signature.output_arg[1].name] = passer.input[0]
        function.node_def.remove(passer)
    column = refused(graph_def)
    assert column.node == ANCHOR
    assert ("returned by the function" if direct else "used by") in str(column.reason)


def test_a_function_compiled_by_xla_is_refused() -> None:
    def build(table: Any, ids: Any, case: Case) -> Any:
        inner = tf.function(lambda i: stock.lookup(table, i, case), autograph=False)
        return tf.function(lambda i: inner(i) + 1.0, autograph=False, jit_compile=True)(ids)

    assert refused(build_with(build)).reason == "the function is compiled by XLA"


@pytest.mark.parametrize("v2", [True, False], ids=["functions", "frames"])
def test_a_lookup_in_a_while_loop(v2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", v2)

    def build(table: Any, ids: Any, case: Case) -> Any:
        def step(i: Any, total: Any) -> Any:
            moved = ids.with_values((ids.values + tf.cast(i, tf.int64)) % stock.ROWS)
            return i + 1, total + stock.lookup(table, moved, case)

        start = stock.lookup(table, ids, case)
        shape = tf.TensorShape([None, stock.DIM])
        return v1.while_loop(
            lambda i, _: i < 3, step, (0, start), (tf.TensorShape([]), shape), back_prop=False
        )[1]

    graph_def = build_with(build)
    after = fused(graph_def)
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_new_names_are_free_ones() -> None:
    graph_def = stock.build(Case())
    taken = "embedding_lookup/Reshape_2/table"
    add(graph_def, "NoOp", taken)
    after = fused(graph_def)
    assert nodes(after)[taken].op == "NoOp"
    assert nodes(after)[f"{taken}_1"].op == "ReadVariableOp"


@pytest.mark.parametrize("shape", [[10], [10, 4], [10, 2, 3]])
@pytest.mark.parametrize("called", [False, True])
def test_tables_of_functions_that_are_no_matrices_are_refused(
    shape: list[int], called: bool
) -> None:
    table = tf.Variable(tf.ones(shape))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def look_up(ids: Any) -> Any:
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)], autograph=False)
    def call(ids: Any) -> Any:
        return look_up(ids)

    function = (call if called else look_up).get_concrete_function()
    (column,) = fusion.explain(function).columns
    assert column.fused == (len(shape) == 2)
    if len(shape) != 2:
        assert column.reason == f"the table has {len(shape)} dimensions, not 2"


def test_a_table_of_unknown_rank_is_refused() -> None:
    def lookup(_: Any, ids: Any, case: Case) -> Any:
        table = v1.placeholder_with_default(tf.ones([stock.ROWS, 2]), None)
        return tf.nn.embedding_lookup_sparse(table, ids, None)

    column = refused(build_with(lookup))
    assert column.reason == "the table is not known to be a matrix"


def test_a_single_weight_for_all_entries_is_one_as_in_stock() -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        weights = tf.SparseTensor(ids.indices, v1.placeholder(tf.float32, [None], "w"), [1, 1])
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")

    graph_def = build_with(lookup)
    after = fused(graph_def)
    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    for count in (1, len(feed["ids/values:0"])):
        feed["w:0"] = np.linspace(0.5, 2, count, dtype=np.float32)
        one, other = (stock.run(graph, feed) for graph in (after, graph_def))
        np.testing.assert_allclose(one, other, rtol=1e-6)
    feed["w:0"] = np.ones(2, np.float32)
    for graph in (after, graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(graph, feed)


@pytest.mark.parametrize("depth", [40, 2000])
def test_a_verdict_comes_soon_whatever_stands_in_front(depth: int) -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        values, weights = ids.values, tf.cast(ids.values, tf.float32)
        for _ in range(depth):
            values, weights = values + values, weights * weights
        ids = tf.SparseTensor(ids.indices, values, ids.dense_shape)
        return tf.nn.embedding_lookup_sparse(table, ids, ids.with_values(weights))

    (column,) = FuseLookups().explain(build_with(lookup)).columns
    assert column.fused or column.reason


def test_a_damaged_graph_gets_a_verdict_and_stays_as_it_is() -> None:
    graph_def = stock.build(Case())
    del nodes(graph_def)["embedding_lookup/GreaterEqual/y"].attr["value"]
    del nodes(graph_def)["embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows"].input[2:]
    column = refused(graph_def)
    assert "makes no sense" in str(column.reason)


def test_ids_that_are_cast_inside_a_grid_are_taken_as_they_are() -> None:
    def lookup(table: Any, _: Any, case: Case) -> Any:
        matrix = v1.placeholder(tf.int64, [None, 1], "x")
        batch = tf.shape(matrix)[0]
        rows = tf.reshape(tf.tile(tf.expand_dims(tf.range(batch), 1), [1, 1]), [-1])
        columns = tf.tile(tf.range(1), [batch])
        indices = tf.cast(tf.transpose(tf.stack([rows, columns])), tf.int64)
        values = tf.reshape(tf.cast(matrix, tf.int32), [-1])
        shape = tf.cast(tf.stack([batch, 1]), tf.int64)
        return stock.lookup(table, tf.SparseTensor(indices, values, shape), case)

    graph_def = build_with(lookup, Case(ids=tf.int32))
    feed = {"x:0": np.array([[1], [-1], [5]])}
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


@pytest.mark.parametrize(("zeros", "fits"), [(0.0, True), ([[0.0] * 5], False)])
def test_zeros_that_make_the_result_wider_are_no_mask(zeros: Any, fits: bool) -> None:
    def lookup(_: Any, ids: Any, case: Case) -> Any:
        table = tf.ones([stock.ROWS, 1])
        filled, empty = tf.sparse.fill_empty_rows(ids, np.int64(0))
        result = tf.nn.embedding_lookup_sparse(table, filled, None)
        return tf.where(empty[:, tf.newaxis], tf.constant(zeros), result)

    after = FuseLookups(preserve=frozenset({"out", "initialize"})).apply(build_with(lookup))
    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    one, other = (stock.run(g, feed)[0] for g in (after.graph_def, build_with(lookup)))
    np.testing.assert_array_equal(one, other)
    assert (one.shape[1] == 1) == fits

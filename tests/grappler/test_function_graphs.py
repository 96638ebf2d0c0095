"""Graphs of functions as TensorFlow hands them over, with arguments and control outputs."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.python.eager import context

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.running import grappler
from fusion.runtime.tensorflow.cluster import local_tasks
from tests.grappler.lookups import expected, ids, look_up, new_function

GATHER = "ResourceGather"
FUSED = "FusedEmbeddingLookup"


def handed_over(monkeypatch, function):
    """The graph, the names to preserve and the fetches of each call while a function runs."""
    calls = []
    fuse = grappler._fuse

    def note_and_fuse(item):
        graph = graph_pb2.GraphDef.FromString(item.graph_def())
        calls.append((graph, item.nodes_to_preserve(), item.fetches()))
        return fuse(item)

    monkeypatch.setattr(grappler, "_fuse", note_and_fuse)
    with fusion.fused():
        outputs = function(ids())
    monkeypatch.setattr(grappler, "_fuse", fuse)
    return calls, outputs


def names(graph, op):
    return [node.name for node in graph.node if node.op == op]


@pytest.fixture
def handed(monkeypatch):
    calls, output = handed_over(monkeypatch, new_function())
    np.testing.assert_array_equal(output, expected())
    return calls[0]


def test_a_control_output_leaves_a_node_of_its_name_behind(handed):
    graph, preserved, fetches = handed
    (gather,) = names(graph, GATHER)
    (result,) = names(graph, "_Retval")
    assert fetches == {result}
    assert preserved - fetches == {gather}
    fused = FuseLookups(preserve=fetches, awaited=preserved - fetches).apply(graph)
    assert fused.modified
    nodes = {node.name: node for node in fused.graph_def.node}
    assert nodes[gather].op == "NoOp"
    (waited_for,) = nodes[gather].input
    assert nodes[waited_for.removeprefix("^")].op == FUSED
    assert nodes[gather].device


def test_a_value_that_is_fetched_is_not_taken_away(handed):
    graph, preserved, _ = handed
    kept = FuseLookups(preserve=preserved).apply(graph)
    assert [column.form for column in kept.report.columns] == ["forward"]
    assert "named outside" in str(kept.report)
    assert names(kept.graph_def, GATHER) == names(graph, GATHER)


def test_a_value_read_by_a_node_that_is_awaited_is_not_taken_away(handed):
    graph, preserved, fetches = handed
    (gather,) = names(graph, GATHER)
    watcher = graph.node.add(name="watcher", op="Identity", input=[gather])
    watcher.attr["T"].type = tf.float32.as_datatype_enum
    fuse = FuseLookups(preserve=fetches, awaited=preserved - fetches | {"watcher"})
    assert names(fuse.apply(graph).graph_def, GATHER) == [gather]
    # Nobody can tell whether a node runs that is neither.
    unseen = FuseLookups(preserve=fetches, awaited=preserved - fetches).apply(graph)
    assert names(unseen.graph_def, FUSED) != []


def test_arguments_and_results_stay(handed):
    graph, preserved, fetches = handed
    fused = FuseLookups(preserve=fetches, awaited=preserved - fetches).apply(graph).graph_def
    for op in ("_Arg", "_Retval"):
        assert names(fused, op) == names(graph, op) != []
    assert all(node.device for node in fused.node)


def test_what_another_process_runs_is_left_alone(handed):
    graph, preserved, fetches = handed
    elsewhere = "/job:worker/replica:0/task:1/device:CPU:0"
    for node in graph.node:
        node.device = elsewhere
    own, other = (f"/job:worker/replica:0/task:{index}" for index in (1, 0))
    fuse = FuseLookups(preserve=fetches, awaited=preserved - fetches, tasks=frozenset({own}))
    assert fuse.apply(graph).modified
    left = replace(fuse, tasks=frozenset({other})).apply(graph)
    assert not left.modified
    assert elsewhere in str(left.report)


@pytest.mark.parametrize("attribute", ["_server_def", "_collective_ops_server_def"])
def test_which_tasks_are_this_process(monkeypatch, attribute):
    localhost = "/job:localhost/replica:0/task:0"
    assert local_tasks() == {localhost}
    server = ServerDef(job_name="chief", task_index=2)
    monkeypatch.setattr(context.context(), attribute, server)
    assert local_tasks() == {localhost, "/job:chief/replica:0/task:2"}


def test_servers_of_this_process_are_its_tasks():
    worker, other = (f"/job:worker/replica:0/task:{index}" for index in (0, 1))
    assert worker not in local_tasks()
    cluster = {"worker": ["127.0.0.1:0", "127.0.0.1:1"]}
    with pytest.raises(tf.errors.InternalError) as error:
        tf.distribute.Server(cluster, job_name="worker", task_index=2)
    assert "/job:worker/replica:0/task:2" not in local_tasks()
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
    found = local_tasks()
    assert worker in found
    assert other not in found
    del server, error


def test_a_second_call_finds_nothing_to_do(handed):
    graph, preserved, fetches = handed
    fuse = FuseLookups(preserve=fetches, awaited=preserved - fetches)
    once = fuse.apply(graph)
    assert fuse.apply(graph).graph_def == once.graph_def
    again = fuse.apply(once.graph_def)
    assert not again.modified
    assert again.graph_def == once.graph_def
    assert all(column.fused_before for column in again.report.columns)


def test_later_calls_find_the_fused_op_still_there(monkeypatch):
    """There is a column that is not fused in the graph, too, which is looked at again."""
    table, inner = tf.Variable(tf.ones([20, 4])), new_function()

    def run(one):
        weights = tf.ones_like(one.values, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            given = one.with_values(weights)
            loss = tf.nn.safe_embedding_lookup_sparse(table, one, given)
        return inner(one), tape.gradient(loss, weights)

    calls, _ = handed_over(monkeypatch, tf.function(run))
    (first, *_), (second, *_) = calls
    assert names(first, FUSED) == []
    assert len(names(second, FUSED)) == len(names(first, "SparseSegmentMean")) == 1
    assert len(names(second, "SegmentSum")) == len(names(first, "SegmentSum")) > 0


def test_an_inner_value_that_is_returned_is_not_taken_away(monkeypatch):
    table = tf.Variable(tf.ones([20, 4]))

    def run(one):
        output = look_up(table, one)
        (gather,) = [op for op in output.graph.get_operations() if op.type == GATHER]
        return output, gather.outputs[0]

    _, (_, rows) = handed_over(monkeypatch, tf.function(run))
    assert "alone: a value inside the lookup is also used by identity_1_RetVal" in str(
        fusion.stats().last_report
    )
    np.testing.assert_array_equal(rows, np.ones([4, 4]))

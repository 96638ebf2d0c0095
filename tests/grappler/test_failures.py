"""Whatever goes wrong inside, the graph stays as it was."""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.recognise.lookup import FORMS
from fusion.running import grappler
from fusion.runtime import process
from fusion.runtime.optimizer import plugin, prefilter
from fusion.runtime.upcalls import service
from tests.grappler.lookups import expected, ids, is_fused, new_function


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch):
    """As in a process in which nothing has gone wrong yet."""
    monkeypatch.setattr(grappler._state, "failures", 0)


def break_with(monkeypatch, error):
    def apply(*_):
        raise error

    monkeypatch.setattr(FuseLookups, "apply", apply)


def test_an_exception_in_the_pass(monkeypatch, caplog):
    break_with(monkeypatch, ValueError("it broke\x1b[31m"))
    with caplog.at_level(logging.WARNING), fusion.fused():
        assert not is_fused()
        assert not is_fused()
    assert fusion.stats().failures == 4
    (record,) = caplog.records
    assert record.name == "fusion"
    assert r"it broke\x1b[31m" in record.getMessage()
    monkeypatch.undo()
    with fusion.fused():
        assert is_fused()


def test_an_item_that_tensorflow_cannot_read(monkeypatch):
    monkeypatch.setattr(plugin.Item, "nodes_to_preserve", lambda _: 1 / 0)
    with fusion.fused():
        assert not is_fused()
    assert fusion.stats().failures == 2


def test_an_interruption_in_the_pass(monkeypatch):
    interruptions = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: interruptions.append(one.exc_type))
    break_with(monkeypatch, KeyboardInterrupt())
    with fusion.fused():
        assert not is_fused()
    assert interruptions == [KeyboardInterrupt] * 2


def test_no_memory_for_the_result(monkeypatch):
    monkeypatch.setattr(service.Request, "answer", lambda *_: False)
    with fusion.fused():
        assert not is_fused()


def child(connection):
    fusion.enable()
    connection.send(fusion.stats().enabled)


def test_a_child_forked_while_another_thread_holds_the_locks():
    with fusion.fused():
        pass
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    forked = context.Process(target=child, args=(theirs,))
    optimizer = process.single("optimizer_plugin", plugin._Plugin)
    held, forked_by_now = threading.Event(), threading.Event()

    def hold():
        with grappler._state.lock, optimizer.lock:
            held.set()
            forked_by_now.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    forked.start()
    forked_by_now.set()
    holder.join()
    assert ours.poll(60)
    assert ours.recv()
    forked.join(60)
    assert forked.exitcode == 0


def test_a_handler_of_signals_may_ask_for_stats_whatever_it_interrupts():
    assert not grappler._state.on
    seen = []

    def too_late(*_):
        raise TimeoutError

    handlers = {signal.SIGUSR1: lambda *_: seen.append(fusion.stats()), signal.SIGALRM: too_late}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with grappler._state.switching():
            signal.alarm(20)
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not seen[0].enabled


# A graph without embeddings is not parsed


def fail(_):
    raise AssertionError("parsed")


def test_graphs_without_segment_reductions_are_not_parsed(monkeypatch):
    monkeypatch.setattr(grappler, "_fuse", fail)

    @tf.function
    def others(x):
        found = tf.math.unsorted_segment_sum(x, tf.constant([0, 1, 0]), 2, name="SegmentSum")
        return tf.identity(found, name="SparseSegmentSum")

    before = fusion.stats().graphs_seen
    with fusion.fused():
        np.testing.assert_array_equal(others(tf.ones([3])), [2.0, 1.0])
    assert fusion.stats().graphs_seen == before + 2
    assert fusion.stats().failures == 0
    with fusion.fused():
        np.testing.assert_array_equal(new_function()(ids()), expected())
    assert fusion.stats().failures == 2


LOOKED_AT = [(form, op) for form in FORMS for op in sorted(form.anchors)]


@pytest.mark.parametrize(("form", "op"), LOOKED_AT, ids=[op for _, op in LOOKED_AT])
def test_every_op_that_a_lookup_ends_with_is_found(form, op):
    beside = [tf.compat.v1.NodeDef(name="y", op=other) for other in sorted(form.beside)[:1]]
    node = tf.compat.v1.NodeDef(name="x", op=op)
    graph = tf.compat.v1.GraphDef(node=[*beside, node]).SerializeToString()
    other = op[:-1] + "?"
    # What is beside some forms is all of another.
    is_other = any(
        {other.op for other in beside} & form.anchors for form in FORMS if not form.beside
    )
    for data, found in ((graph, True), (graph.replace(op.encode(), other.encode()), is_other)):
        assert prefilter.meets(grappler.LOOKUPS, data) == found
    if beside:
        alone = tf.compat.v1.GraphDef(node=[node]).SerializeToString()
        assert not prefilter.meets(grappler.LOOKUPS, alone)


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        (["ResourceScatterAdd"], True),
        (["ResourceScatterSub", "MatMul"], True),
        (["AssignSubVariableOp", "UnsortedSegmentSum"], True),
        (["AssignSubVariableOp", "MatMul"], False),
        (["UnsortedSegmentSum"], False),
    ],
)
def test_where_updates_are_looked_for(ops, found):
    nodes = [tf.compat.v1.NodeDef(name=f"n{k}", op=op) for k, op in enumerate(ops)]
    graph = tf.compat.v1.GraphDef(node=nodes).SerializeToString()
    assert not prefilter.meets(grappler._state.rule, graph)
    with fusion.fused():
        assert prefilter.meets(grappler._state.rule, graph) == found


def collects():
    """Whether Python looks for garbage as new objects are made."""
    return gc.isenabled() and gc.get_threshold()[0] > 0


def test_a_child_collects_garbage_though_it_was_forked_beside_the_pass():
    with grappler._no_garbage_collection():
        child = os.fork()
        if child == 0:
            os._exit(not collects())
        assert not collects()
    assert collects()
    assert os.waitpid(child, 0)[1] == 0


def test_garbage_is_collected_as_before_when_passes_overlap():
    before = gc.get_threshold()
    first, second = grappler._no_garbage_collection(), grappler._no_garbage_collection()
    with ExitStack() as one, ExitStack() as other:
        one.enter_context(first)
        other.enter_context(second)
        one.close()
        assert gc.get_threshold() == before
    assert gc.get_threshold() == before


def test_what_a_program_does_about_collection_during_the_pass_stays(request):
    request.addfinalizer(gc.enable)
    request.addfinalizer(partial(gc.set_threshold, *gc.get_threshold()))
    with grappler._no_garbage_collection():
        assert gc.isenabled()  # nobody keeps it off who puts back what was there
        gc.disable()
    assert not gc.isenabled()
    with grappler._no_garbage_collection():
        gc.set_threshold(900, 20, 20)
    assert gc.get_threshold() == (900, 20, 20)
    gc.set_threshold(0)
    with grappler._no_garbage_collection():
        pass
    assert gc.get_threshold()[0] == 0

"""Kernels whose state is there before TensorFlow makes them, and those whose state is not."""

import ctypes
import secrets
import threading

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.runtime.registration import creation, registration
from fusion.runtime.registration.creation import PreparedEntry, PreparedRecord
from fusion.runtime.registration.registration import Kernels
from tests.grappler.lookups import TABLE, expected, ids, new_function

v1 = tf.compat.v1


@pytest.fixture
def asked(monkeypatch):
    """The ops of the nodes whose state Python was asked for."""
    ops, serve = [], Kernels.serve

    def note_and_serve(self, request):
        ops.append(self.spec.name)
        serve(self, request)

    monkeypatch.setattr(Kernels, "serve", note_and_serve)
    return ops


def test_what_is_fused_needs_nothing_of_python_to_run(asked):
    with fusion.fused():
        before = fusion.stats().columns_fused
        np.testing.assert_array_equal(new_function()(ids()), expected())
    assert fusion.stats().columns_fused == before + 1
    assert asked == []


def run(change):
    """A fused lookup in a graph of its own, whose nodes are changed first."""
    with tf.Graph().as_default() as graph:
        fused = fusion.fused_safe_embedding_lookup_sparse(tf.constant(TABLE), ids())
        output = fused.name
        graph_def = graph.as_graph_def()
    for node in graph_def.node:
        change(node)
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(output)


def is_ours(node):
    return (node.op, "CPU") in registration._kernels


def test_python_is_asked_for_others(asked):
    np.testing.assert_array_equal(run(lambda _: None), expected())
    assert asked


def test_a_number_from_elsewhere_is_no_state(asked):
    def change(node):
        if is_ours(node):
            node.attr[creation.STATE_ATTR].i = secrets.randbits(62)

    np.testing.assert_array_equal(run(change), expected())
    assert asked


def test_an_attr_of_another_type_is_no_number(asked):
    def change(node):
        if is_ours(node):
            node.attr[creation.STATE_ATTR].s = b"a"

    np.testing.assert_array_equal(run(change), expected())
    assert asked


def test_a_state_serves_the_kernels_that_it_is_for_only(asked):
    other = registration._kernels["GroupedEmbeddingLookup", "CPU"]
    number = creation.prepared().number(other.address, [0, 0, 0, 0])

    def change(node):
        assert node.op != "GroupedEmbeddingLookup"
        if is_ours(node):
            node.attr[creation.STATE_ATTR].i = number

    np.testing.assert_array_equal(run(change), expected())
    assert asked


def test_only_placed_nodes_of_our_own_are_prepared():
    with tf.Graph().as_default() as graph:
        fusion.fused_safe_embedding_lookup_sparse(tf.constant(TABLE), ids())
    nodes = graph.as_graph_def().node
    for device, prepared in (("", False), ("/device:CPU:0", True), ("/device:TPU:0", False)):
        for node in nodes:
            node.device = device
            registration.prepare(node)
            assert (creation.STATE_ATTR in node.attr) == (prepared and is_ours(node))


def test_there_may_be_many_states():
    kernels, states = registration._kernels["UniqueWithCountsV3", "CPU"], creation.Prepared()
    numbers = [states.number(kernels.address, [k]) for k in range(200)]
    assert len(set(numbers)) == 200
    assert [states.number(kernels.address, [k]) for k in range(200)] == numbers
    assert states.words[PreparedRecord.count] == 200
    entries = np.array(states._entries[: 200 * PreparedEntry.SIZE]).reshape(200, -1)
    assert list(entries[:, PreparedEntry.number]) == numbers


def test_each_number_has_its_state_however_many_threads_ask_for_some():
    prepared, threads, states = creation.Prepared(), 4, 200
    start = threading.Barrier(threads)
    numbers = {}

    def ask(owner):
        start.wait()
        for index in range(states):
            state = [owner, index] * 100
            numbers[owner, index] = prepared.number(owner, state)

    asking = [threading.Thread(target=ask, args=[owner]) for owner in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    count, width = prepared.words[PreparedRecord.count], PreparedEntry.SIZE
    entries = (ctypes.c_int64 * (count * width)).from_address(
        prepared.words[PreparedRecord.entries]
    )
    found = {entries[width * k + PreparedEntry.number]: width * k for k in range(count)}
    assert count == threads * states == len(found)
    for (owner, place), number in numbers.items():
        entry = found[number]
        assert entries[entry + PreparedEntry.owner] == owner
        state = (ctypes.c_int64 * 2).from_address(entries[entry + PreparedEntry.state])
        assert [*state] == [owner, place]

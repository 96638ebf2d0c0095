"""The states of kernels: made natively, of which Python is asked only for what is not there yet."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

import fusion
from fusion import ops
from fusion.runtime.records import LiveMemory
from fusion.runtime.registration import creation, op_kernels
from fusion.runtime.registration.creation import Creation, KernelsRecord
from fusion.runtime.registration.op_kernels import Kernels
from fusion.runtime.tensorflow import attrs
from fusion.runtime.tensorflow.layout import State
from fusion.schema.columns import COLUMN_ATTRS
from tests.grappler.lookups import TABLE, expected, ids, new_function
from tests.ops.embedding_columns import NO_IDS
from tests.ops.embedding_columns import attrs as column_attrs

v1 = tf.compat.v1


@pytest.fixture
def asked(monkeypatch):
    """What Python was asked for, with the op of the node."""
    lacking, bring = [], Kernels.bring

    def note_and_bring(self, what):
        lacking.append((self.spec.name, what))
        bring(self, what)

    monkeypatch.setattr(Kernels, "bring", note_and_bring)
    return lacking


@pytest.fixture
def unique() -> Kernels:
    """The kernels of UniqueWithCountsV3, none of which is there yet."""
    kernels = kernels_of("UniqueWithCountsV3")
    forget(kernels)
    return kernels


def kernels_of(op: str) -> Kernels:
    """The kernels of an op on a CPU."""
    found = op_kernels.kernels_of(op)
    assert found is not None
    return found


def forget(kernels: Kernels) -> None:
    """Lets a process be as one in which no node of an op has run."""
    kernels.words[KernelsRecord.builder] = kernels.words[KernelsRecord.constants] = 0
    bodies = kernels.words[KernelsRecord.bodies]
    ctypes.memset(bodies, 0, 8 * len(kernels.bodies))


def bodies_of(kernels: Kernels) -> list[int]:
    """The addresses of an op's kernels."""
    size = len(kernels.bodies)
    return list((ctypes.c_int64 * size).from_address(kernels.words[KernelsRecord.bodies]))


def distinct(numbers: list[int]) -> list[int]:
    """The distinct ones, by a node of a graph of its own: eager kernels stay."""
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(ops.unique_with_counts_v3(tf.constant(numbers)).unique_keys).tolist()


def nodes_of_a_lookup() -> list[node_def_pb2.NodeDef]:
    with tf.Graph().as_default() as graph:
        fusion.fused_safe_embedding_lookup_sparse(tf.constant(TABLE), ids())
    return list(graph.as_graph_def().node)


def test_python_is_asked_once_for_what_is_not_there(asked, unique):
    for number in (1, 2):
        assert distinct([3, number, 3]) == [3, number]
    (body,) = (index for index, types in enumerate(unique.bodies) if types == {"Tid": "int32"})
    assert asked == [("UniqueWithCountsV3", creation.BUILDER), ("UniqueWithCountsV3", body)]


def test_what_is_fused_needs_nothing_of_python_to_run(asked, monkeypatch):
    with fusion.fused():
        before, serving = fusion.stats().columns_fused, []
        monkeypatch.setattr(Kernels, "serve", lambda self, request: serving.append(self))
        np.testing.assert_array_equal(new_function()(ids()), expected())
    assert fusion.stats().columns_fused == before + 1
    assert serving == []


def test_only_placed_nodes_of_our_own_are_prepared(unique):
    nodes = [node for node in nodes_of_a_lookup() if node.op == "UniqueWithCountsV3"]
    assert nodes
    for device, is_ready in (("", False), ("/device:TPU:0", False), ("/device:CPU:0", True)):
        for node in nodes:
            node.device = device
            before = node.SerializeToString()
            op_kernels.prepare([node])
            assert node.SerializeToString() == before
        assert any(bodies_of(unique)) == is_ready
    other = node_def_pb2.NodeDef(name="a", op="NoOp", device="/device:CPU:0")
    op_kernels.prepare([other])


def test_a_node_that_could_not_run_is_prepared_in_silence(unique):
    node = node_def_pb2.NodeDef(name="a", op="UniqueWithCountsV3", device="/device:CPU:0")
    op_kernels.prepare([node])
    assert not any(bodies_of(unique))


def test_an_error_of_what_is_asked_for_is_that_of_the_node(unique, monkeypatch):
    def fail(self, what):
        raise ValueError("no such thing")

    monkeypatch.setattr(Kernels, "bring", fail)
    with pytest.raises(tf.errors.InvalidArgumentError, match="UniqueWithCountsV3: no such thing"):
        distinct([1])


def test_what_is_never_brought_ends_in_an_error(unique, monkeypatch):
    monkeypatch.setattr(Kernels, "bring", lambda self, what: None)
    with pytest.raises(tf.errors.InternalError, match="still lacking"):
        distinct([1])


@pytest.mark.parametrize("name", ["newer", "Ti", "Tids", "x" * 300])
def test_a_node_of_a_later_version_is_refused(name):
    """TensorFlow leaves out what an op does not have; the node would not do what it says."""
    with tf.Graph().as_default() as graph:
        ops.unique_with_counts_v3(tf.constant([3, 1, 3]), name="unique")
    content = graph.as_graph_def()
    (node,) = (node for node in content.node if node.name == "unique")
    for attr, is_known in (("_newer", True), (name, False)):
        node.attr[attr].i = 1
        with tf.Graph().as_default(), v1.Session() as session:
            v1.import_graph_def(content, name="")
            if is_known:
                assert session.run("unique:0").tolist() == [3, 1]
                continue
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"attr {name[:200]}.* later"):
                session.run("unique:0")
    with pytest.raises(ValueError, match=f"UniqueWithCountsV3: attr {name} is not known"):
        kernels_of(node.op).needs(node)


def columns(count: int) -> node_def_pb2.NodeDef:
    """A node of a group of columns of as many dimensions."""
    with tf.Graph().as_default() as graph:
        ops.grouped_embedding_lookup(
            tables=[tf.zeros([1, dim]) for dim in range(1, count + 1)],
            ids=[NO_IDS] * count,
            entry_rows=[NO_IDS] * count,
            dense_shapes=[tf.constant([1], tf.int64)] * count,
            weights=[tf.zeros([0])] * count,
            **grouped(count, dims=list(range(1, count + 1))),
        )
    (node,) = (n for n in graph.as_graph_def().node if n.op == "GroupedEmbeddingLookup")
    return node


def grouped(count: int, **lists) -> dict:
    """The attrs of a group of plain columns."""
    one = column_attrs(form="row_ids")
    values = {
        name: [one.get(attr.name, attr.default)] * count for name, attr in COLUMN_ATTRS.items()
    }
    return {**values, "boundaries": [], "boundary_counts": [0] * count, **lists}


def test_more_may_be_lacking_than_is_asked_for_at_once():
    kernels, count = kernels_of("GroupedEmbeddingLookup"), 150
    needed = kernels.needs(columns(count))
    assert len(needed) == len({*needed})
    assert 0 in needed
    assert len({kernels.recipe(what)[0] for what in needed}) == len(needed)


def built(op: str, node: node_def_pb2.NodeDef) -> int:
    """The address of the state of a node's kernel."""
    kernels, memory = kernels_of(op), LiveMemory()
    for what in (*kernels.lacks(), *kernels.needs(node)):
        kernels.bring(what)
    words = (ctypes.c_int64 * Creation.SIZE)()
    words[Creation.record] = kernels.address
    words[Creation.values] = attrs.values(kernels.spec.attrs, node, memory)
    op_kernels._builder_function(kernels)(ctypes.addressof(words))
    assert not words[Creation.has_failed]
    assert not words[Creation.missing_count]
    return words[Creation.state]


def names_of(names: list[bytes]) -> list[bytes]:
    """What messages call columns of these names, behind their numbers."""
    node = columns(max(1, len(names)))
    node.attr["column_names"].list.s[:] = names
    node.attr["column_names"].list.SetInParent()
    state = built(node.op, node)
    offset = ctypes.c_int64.from_address(state + 8 * State.names_offset).value
    starts = (ctypes.c_int64 * len(names)).from_address(state + 8 * offset)
    return [ctypes.string_at(state + start) for start in starts]


def test_each_column_has_a_name():
    found = names_of([b"a", b"", b"ab/c of table d", "\u00e9\u4e00".encode()])
    assert found == [b" (a)", b"", b" (ab/c of table d)", " (\u00e9\u4e00)".encode()]
    assert names_of([]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"a\0b\x1b[2J\n", rb"a\x00b\x1b[2J\n"),
        (b"\xff\xc3", rb"\xff\xc3"),
        (b"\xc0\xaf\xed\xa0\x80", rb"\xc0\xaf\xed\xa0\x80"),
        ("\u202eabc\u2028".encode(), rb"\u202eabc\u2028"),
        ("\U000e0001".encode(), rb"\U000e0001"),
    ],
)
def test_what_is_not_printed_is_escaped(name, text):
    assert names_of([name]) == [b" (" + text + b")"]


def test_no_name_ends_early_or_has_half_a_letter():
    for length in range(230, 250):
        (found,) = names_of([b"x" * (length % 3) + "\u00e9".encode() * length])
        text = found.decode()
        assert text.startswith(" (")
        assert text.endswith("\u00e9)")
        assert len(found) < 256
        assert ("..." in text) == (length * 2 + length % 3 > 240)

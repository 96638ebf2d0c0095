"""Which graphs are looked at: those whose ops meet a rule, and those that make no sense."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.recognise.lookup import FORMS
from fusion.running import grappler
from fusion.runtime.optimizer import prefilter
from fusion.runtime.optimizer.prefilter import Rule
from tests.dumps import dumps
from tests.golden import golden_graphs
from tests.tiers import some

OPS = sorted({op for form in FORMS for ops in form.ops for op in ops})
OTHERS = ["Const", "Identity", "StatefulPartitionedCall", "GatherV3", "Su", "Selects", "N" * 200]


def ops(graph: graph_pb2.GraphDef) -> set[str]:
    bodies = graph.node, *(function.node_def for function in graph.library.function)
    return {node.op for body in bodies for node in body}


def is_met(rule: Rule, found: set[str]) -> bool:
    return any(all(found & one_of for one_of in clause) for clause in rule)


def search(rule: Rule, data: bytes) -> bool:
    """Looks for the serialized field with an op, anywhere."""

    def is_in(op: str) -> bool:
        return bytes([0x12, len(op)]) + op.encode() in data

    return any(all(any(map(is_in, one_of)) for one_of in clause) for clause in rule)


def serialized(graph: graph_pb2.GraphDef) -> bytes:
    return graph.SerializeToString(deterministic=True)


def random_node(rng: random.Random) -> node_def_pb2.NodeDef:
    op = rng.choice(OPS if rng.random() < 0.1 else OTHERS)
    node = node_def_pb2.NodeDef(name="n" * rng.choice([1, 5, 127, 128, 300]), op=op)
    node.input.extend(rng.choices(OPS, k=rng.randrange(3)))
    if rng.random() < 0.3:
        # As an op is serialized; as much as needs a length of so many bytes.
        node.attr["text"].s = b"\x12\x06MatMul" + b"\n" * rng.choice([0, 20, 120, 20_000, 1 << 21])
    return node


def random_graph(rng: random.Random) -> graph_pb2.GraphDef:
    graph = graph_pb2.GraphDef()
    graph.node.extend(random_node(rng) for _ in range(rng.randrange(8)))
    for k in range(rng.randrange(3)):
        function = graph.library.function.add()
        function.signature.name = rng.choice(OPS) + str(k)
        function.node_def.extend(random_node(rng) for _ in range(rng.randrange(3)))
        function.ret["y"] = rng.choice(OPS)
        graph.library.gradient.add(function_name="f", gradient_func=rng.choice(OPS))
    if rng.random() < 0.5:
        graph.versions.producer = rng.randrange(1 << 20)
    return graph


@pytest.mark.parametrize("seed", some(range(300), 5))
def test_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng)
    single = tuple((frozenset({op}),) for op in rng.sample(OPS, 2))
    for rule in (grappler.LOOKUPS, (*grappler.LOOKUPS, *grappler.UPDATES), single):
        met = prefilter.meets(rule, serialized(graph))
        assert met == is_met(rule, ops(graph))
        assert not met or search(rule, serialized(graph))


def real_graphs() -> Iterator[graph_pb2.GraphDef]:
    for dump in dumps().values():
        yield from (graph for _, graph in dump.graphs())
    yield from golden_graphs()


def test_real_graphs() -> None:
    for graph in real_graphs():
        data = graph.SerializeToString()
        for clause in grappler.LOOKUPS:
            found = prefilter.meets((clause,), data)
            assert found == is_met((clause,), ops(graph)) == search((clause,), data)


@pytest.mark.parametrize("found", ["", "a", "b", "c", "ab", "ca", "bc", "xay", "zbca", "yq"])
def test_clauses_that_share_sets_and_ops(found: str) -> None:
    a, b, bc, qa, y = (frozenset(one_of) for one_of in ("a", "b", "bc", "qa", "y"))
    rule = ((a, b), (a, bc), (qa, y))
    graph = graph_pb2.GraphDef()
    for op in found:
        graph.node.add(name="x", op=op)
    assert prefilter.meets(rule, graph.SerializeToString()) == is_met(rule, {*found})
    assert not prefilter.meets((), graph.SerializeToString())


def test_ops_of_a_slot() -> None:
    """Those that are sought at the same place, one behind the other."""
    rule = ((frozenset({"axxb"}),), (frozenset({"axyb"}), frozenset({"ayxb"})))
    for found in ({"axxb"}, {"axyb"}, {"ayxb"}, {"ayyb"}, {"axyb", "ayxb"}):
        graph = graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="x", op=op) for op in found])
        assert prefilter.meets(rule, graph.SerializeToString()) == is_met(rule, found)


# What is no graph


class Wall:
    """Memory behind whose end nothing must be read."""

    def __init__(self, size: int) -> None:
        self.pages = mmap.mmap(-1, (-(-size // mmap.PAGESIZE) + 1) * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.end = start + len(self.pages) - mmap.PAGESIZE
        libc = ctypes.CDLL(None)
        assert libc.mprotect(ctypes.c_void_p(self.end), mmap.PAGESIZE, 0) == 0

    def meets(self, data: bytes) -> bool:
        ctypes.memmove(self.end - len(data), data, len(data))
        return prefilter.meets_at(grappler.LOOKUPS, self.end - len(data), len(data))


def parsed(data: bytes) -> graph_pb2.GraphDef | None:
    """A graph, if it is serialized as protobuf does it."""
    try:
        graph = graph_pb2.GraphDef.FromString(data)
    except DecodeError:
        return None
    return graph if serialized(graph) == data else None


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_cut_off(seed: int) -> None:
    data = serialized(random_graph(random.Random(seed)))[:5000]
    wall = Wall(len(data))
    for length in range(len(data) + 1):
        graph = parsed(data[:length])
        met = wall.meets(data[:length])
        assert met if graph is None else met >= is_met(grappler.LOOKUPS, ops(graph))


@pytest.mark.parametrize("seed", some(range(50), 2))
def test_bytes_that_are_changed(seed: int) -> None:
    rng = random.Random(seed)
    data = serialized(random_graph(rng))[:5000]
    wall = Wall(len(data))
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            changed[at : at + rng.randrange(2)] = rng.randbytes(rng.randrange(2))
        met = wall.meets(bytes(changed)[: len(data)])
        graph = parsed(bytes(changed)[: len(data)])
        assert graph is None or met >= is_met(grappler.LOOKUPS, ops(graph))


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\x18\x01",  # a number
        b"\x0a\x05\x0a\x01x\x12",  # a node that is longer than the graph
        b"\x0a\xff\xff\xff\xff\xff\x01",  # a length without an end
        b"\x0a\x80\x80\x80\x80\x80\x00",
        b"\x8a\x80\x00\x00",  # a tag of three bytes
        b"\x0a\x00",  # a node without an op
        b"\x0a\x06\x1a\x00\x12\x02Op",  # in another order
        b"\x12\x03\x0a\x05\x0a",  # a function that is longer than the library
    ],
)
def test_bytes_that_tensorflow_does_not_write(data: bytes) -> None:
    assert Wall(len(data)).meets(data)

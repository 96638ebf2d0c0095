"""New nodes of stateful ops have the digest of all that their kernels depend on in their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

import fusion.passes
from fusion.ops.registered import SPECS
from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.gather_tables import GatherTables
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.kernel_names import kernel_name, plain_name
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import Pass
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.targets import PASSES
from fusion.schema import names
from tests.golden import golden_graphs
from tests.passes.rewritten_graphs import nodes

OUT = frozenset({"out"})
raw = tf.raw_ops
v1 = tf.compat.v1

STATEFUL = [spec for spec in SPECS if spec.is_stateful]


def is_stateful(op: str) -> bool:
    definition = op_def_registry.get(op)
    return definition is not None and definition.is_stateful


def written_ops() -> set[str]:
    """The ops that passes name where they make nodes."""
    found = set()
    for path in Path(fusion.passes.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                makes = call.func.attr in ("node", "replacement", "result", "shared")
                for arg in call.args if makes else ():
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                        found.add(arg.value)
                    elif isinstance(arg, ast.Name) and arg.id.isupper():
                        found.add(getattr(names, arg.id, ""))
    return found


def check_names(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> Iterator[str]:
    """Checks the names of new stateful nodes, and yields their ops."""
    library = {one.signature.name: one for one in before.library.function}
    bodies = [(before.node, after.node)]
    for function in after.library.function:
        old = library.get(function.signature.name)
        bodies.append((old.node_def if old is not None else [], function.node_def))
    for old, new in bodies:
        known = {node.name: node for node in old}
        for node in new:
            is_old = node.name in known and known[node.name].op == node.op
            if is_stateful(node.op) and not is_old:
                plain = node_def_pb2.NodeDef()
                plain.CopyFrom(node)
                plain.name = plain_name(node.name)
                assert kernel_name(plain).rpartition("-")[2] in node.name, node
                yield node.op


def moved_reads() -> graph_pb2.GraphDef:
    """A variable whose rows are written, and of which all is read for a gather."""
    with tf.Graph().as_default() as graph:
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[9, 3], shared_name="t", name="t")
        ids = v1.placeholder(tf.int64, [None], name="ids")
        table = raw.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
        rows = raw.GatherV2(params=table, indices=ids, axis=0, name="rows")
        write = raw.ResourceScatterSub(resource=handle, indices=ids, updates=tf.square(rows))
        with tf.control_dependencies([write]):
            tf.identity(rows, name="out")
        return graph.as_graph_def()


def test_what_passes_write_is_named_by_its_attrs() -> None:
    passes: list[Pass] = [*(kind(preserve=OUT) for kind in PASSES.values())]
    passes += [GatherTables(OUT), FuseUpdates(OUT)]
    seen = set[str]()
    for before in (*golden_graphs(), moved_reads()):
        for one in passes:
            after = one.apply(before).graph_def
            seen.update(check_names(before, after))
            if one is passes[0]:
                seen.update(check_names(after, LowerLookups(preserve=OUT).apply(after).graph_def))
    written = {op for op in written_ops() if is_stateful(op)}
    assert written == seen, (written, seen)


@pytest.mark.parametrize("spec", STATEFUL, ids=lambda spec: spec.name)
def test_a_kernel_is_that_of_its_attrs(spec) -> None:
    """Two graphs that have other nodes of one name, and one that has the same."""

    def added(**attrs: int) -> str:
        view = GraphView.of_graph(graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="a")]), OUT)
        node = node_def_pb2.NodeDef(name="a/new", op=spec.name)
        for key, value in attrs.items():
            node.attr[key].i = value
        edit = GraphEdit(view)
        edit.add(node, at="a")
        return next(node.name for node in edit.build() if node.op)

    one, same, other = (added(number=1, _note=2), added(_note=3, number=1), added(number=2))
    assert one == same != other
    assert plain_name(one) == plain_name(other) == "a/new"


def test_no_pass_makes_resources() -> None:
    """They are kept by the names of their nodes."""
    for op in written_ops():
        definition = op_def_registry.get(op)
        for output in definition.output_arg if definition is not None else ():
            assert output.type != types_pb2.DT_RESOURCE, op


def test_ops_without_state_keep_their_names() -> None:
    view = GraphView.of_graph(graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="a")]), OUT)
    edit = GraphEdit(view)
    edit.add(node_def_pb2.NodeDef(name="a/new", op="GroupedEmbeddingLookup"), at="a")
    assert [node.name for node in edit.build()] == ["a/new", "a"]


def test_a_name_that_is_known_outside_stays_that_of_the_result() -> None:
    after = nodes(GatherTables(OUT | {"rows"}).apply(moved_reads()).graph_def)
    assert after["rows"].op == "Identity"
    (gather,) = after["rows"].input
    assert after[gather].op == "ResourceGather"
    assert plain_name(gather) == "rows"
    assert after["out"].input[0] == gather


def test_who_is_beside_a_renamed_node_stays_beside_it() -> None:
    before = moved_reads()
    nodes(before)["out"].attr["_class"].list.s.append(b"loc:@rows")
    after = nodes(GatherTables(OUT).apply(before).graph_def)
    (group,) = after["out"].attr["_class"].list.s
    assert group.decode() == f"loc:@{after['out'].input[0]}"


def test_functions_return_and_wait_for_renamed_nodes() -> None:
    table = tf.Variable(tf.ones([9, 3]))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def look_up(ids):
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")

    definition = look_up.get_concrete_function().function_def
    view = GraphView.of_function(definition)
    edit = GraphEdit(view)
    anchor = next(view.named("SparseSegmentSum"))
    node = node_def_pb2.NodeDef(name=anchor, op="ReadVariableOp", input=["resource"])
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    edit.add(node, at=anchor)
    edit.remove([anchor], anchor)
    edit.build()
    name = edit.successor(anchor)
    assert plain_name(name) == anchor != name
    assert edit.returned(f"{anchor}:value:0") == f"{name}:value:0"


def test_plain_names_are_those_of_the_program() -> None:
    made = kernel_name(node_def_pb2.NodeDef(name="a/rows", op="ReadVariableOp"))
    assert plain_name(made) == plain_name(f"{made}_1")[: -len("_1")] == "a/rows"
    assert plain_name(f"{made}/inner:1 ({made})") == "a/rows/inner:1 (a/rows)"
    for own in ("emb-3f2a9c0d41e2", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "a-x3f2a9c0d41e"):
        assert plain_name(own) == own

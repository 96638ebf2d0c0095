"""Row updates as optimizers leave them: which ops the pass replaces, and by what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion import ops
from fusion.passes.report.report import FusionResult
from fusion.passes.row_updates import FuseRowUpdates
from fusion.schema.columns import PRE_ATTRS

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 9, 3
PASS = FuseRowUpdates(preserve=frozenset({"out"}))
EMITTED = ("ResourceGather", "FusedEmbeddingRowUpdate", "ResourceScatterUpdate")
Handles = list[tf.Tensor]


def build(
    body: Callable[[Handles, tf.Tensor], Any],
    dtype: Any = tf.float32,
    shape: tuple[int, ...] = (ROWS, DIM),
    count: int = 1,
) -> graph_pb2.GraphDef:
    """A graph whose `out` is the tables after what `body` does to them, given their handles."""
    with tf.Graph().as_default() as graph:
        handles = [
            raw.VarHandleOp(dtype=dtype, shape=shape, shared_name=f"table{n}", name=f"table{n}")
            for n in range(count)
        ]
        ids = v1.placeholder(tf.int64, [None], name="ids")
        made = body(handles, ids)
        with tf.control_dependencies(tf.nest.flatten(made)):
            values = [raw.ReadVariableOp(resource=handle, dtype=dtype) for handle in handles]
            tf.stack([tf.cast(value, tf.float64) for value in values], name="out")
        return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, feed: Mapping[str, Any]) -> Any:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        for number, node in enumerate(graph_def.node):
            if node.op == "VarHandleOp":
                dtype, shape = node.attr["dtype"].type, node.attr["shape"].shape
                sizes = [dim.size for dim in shape.dim]
                values = np.random.default_rng(number).normal(size=sizes)
                handle = graph.get_tensor_by_name(f"{node.name}:0")
                tensor = tf.constant(values, tf.as_dtype(dtype))
                session.run(raw.AssignVariableOp(resource=handle, value=tensor))
        return session.run("out:0", {f"{name}:0": value for name, value in feed.items()})


def apply(graph_def: graph_pb2.GraphDef, rewrite: FuseRowUpdates = PASS) -> FusionResult:
    return rewrite.apply(graph_def)


def count(graph_def: graph_pb2.GraphDef) -> dict[str, int]:
    """The ops that the pass emits or replaces."""
    found = Counter(node.op for node in graph_def.node)
    kinds = (*EMITTED, "ResourceScatterAdd", "ResourceScatterSub")
    return {kind: found[kind] for kind in kinds if found[kind]}


def check(graph_def: graph_pb2.GraphDef, updates: int = 1) -> FusionResult:
    """Applies the pass, which replaces all updates, and compares the tables."""
    result = apply(graph_def)
    assert [update.fused for update in result.report.updates] == [True] * updates
    assert result.modified
    assert count(result.graph_def) == dict.fromkeys(EMITTED, updates)
    assert not apply(result.graph_def).modified
    for ids in ([4, 1, 4, 8], [0], []):
        feed = {"ids": np.array(ids, np.int64)}
        np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))
    return result


def refused(graph_def: graph_pb2.GraphDef, reason: str, rewrite: FuseRowUpdates = PASS) -> None:
    """The pass changes nothing, and says why."""
    result = apply(graph_def, rewrite)
    assert result.graph_def is graph_def
    (update,) = result.report.updates
    assert not update.fused
    assert update.reason == reason
    assert f"0 of 1 row updates fused\n  stock  {update.name}\n" in str(result.report)
    assert result.report.to_dict()["updates"] == [update.to_dict()]


def numbers_of(ids: tf.Tensor, dtype: Any = tf.float32, dim: int = DIM) -> tf.Tensor:
    """Some number for each element of a row of each id."""
    numbers = tf.cast(ids, tf.float64)[:, None] + tf.range(dim, dtype=tf.float64) / 7
    return tf.reshape(tf.cast(numbers, dtype), [-1, dim])


def subtract(handles: Handles, ids: tf.Tensor, dtype: Any = tf.float32) -> list[tf.Operation]:
    found = tf.unique(ids)[0]
    updates = numbers_of(found, dtype) * tf.cast(0.3, dtype)
    return [raw.ResourceScatterSub(resource=one, indices=found, updates=updates) for one in handles]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("op", [raw.ResourceScatterSub, raw.ResourceScatterAdd])
@pytest.mark.parametrize("factor", ["first", "second", "none"])
def test_updates_of_distinct_ids(dtype, op, factor):
    def body(handles, ids):
        found = tf.unique(ids)[0]
        updates, number = numbers_of(found, dtype), tf.cast(0.3, dtype)
        if factor != "none":
            updates = number * updates if factor == "first" else updates * number
        return [op(resource=handles[0], indices=found, updates=updates)]

    result = check(build(body, dtype))
    muls = [node for node in result.graph_def.node if node.op == "Mul"]
    assert not muls


def test_a_factor_per_row_stays_a_product():
    def body(handles, ids):
        found = tf.unique(ids)[0]
        updates = numbers_of(found) * tf.cast(found, tf.float32)[:, None]
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    result = check(build(body))
    assert sum(node.op == "Mul" for node in result.graph_def.node) == 1


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_ids_of_a_segment_gradient(kind):
    def body(handles, ids):
        segments = tf.zeros_like(ids)
        gradient = getattr(raw, f"SparseSegment{kind}GradV2")(
            grad=tf.ones([1, DIM]), indices=ids, segment_ids=segments, dense_output_dim0=ROWS
        )
        values, found = gradient.output, gradient.sorted_unique_indices
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=values)]

    check(build(body))


def test_ids_of_the_training_op():
    def body(handles, ids):
        attrs = {name: [attr.default] for name, attr in PRE_ATTRS.items()} | {"forms": ["dense"]}
        pre = ops.grouped_embedding_pre_look_up(
            ids=[ids[:, None]],
            entry_rows=[tf.zeros([0], tf.int64)],
            dense_shapes=[tf.zeros([0], tf.int64)],
            weights=[tf.zeros([0])],
            Tkeys=[tf.int64],
            **attrs,
            boundaries=[],
            boundary_counts=[0],
        )
        (keys,) = pre.unique_keys
        return [raw.ResourceScatterSub(resource=handles[0], indices=keys, updates=numbers_of(keys))]

    check(build(body))


@pytest.mark.parametrize("shape", [[-1], None])
def test_ids_that_are_reshaped(shape):
    def body(handles, ids):
        found = tf.unique(ids)[0]
        flat = tf.reshape(found, tf.stack([tf.size(found)]) if shape is None else shape)
        return [raw.ResourceScatterSub(resource=handles[0], indices=flat, updates=numbers_of(flat))]

    check(build(body))


def test_many_tables():
    result = check(build(subtract, count=3), updates=3)
    assert "  3 of 3 row updates fused" in str(result.report)


def test_an_update_waits_for_another_one():
    def body(handles, ids):
        made: list[tf.Operation] = []
        pairs = [(tf.unique(ids + step)[0], handle) for step, handle in enumerate(handles)]
        for found, handle in pairs:
            updates = numbers_of(found)
            with tf.control_dependencies(made):
                made = [raw.ResourceScatterSub(resource=handle, indices=found, updates=updates)]
        return made

    graph_def = build(body, count=3)
    result = apply(graph_def)
    assert all(update.fused for update in result.report.updates)
    # The second one, whose ids are out of range, keeps the third one from being done.
    for either in (graph_def, result.graph_def):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            tf.import_graph_def(either, name="")
            handles = [graph.get_tensor_by_name(f"table{n}:0") for n in range(3)]
            zeros = tf.zeros([ROWS, DIM])
            session.run([raw.AssignVariableOp(resource=one, value=zeros) for one in handles])
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
                session.run("out:0", {"ids:0": [ROWS - 1]})
            last = session.run(raw.ReadVariableOp(resource=handles[2], dtype=tf.float32))
            np.testing.assert_array_equal(last, 0)


@pytest.mark.parametrize("taken", [False, True])
def test_an_update_in_a_branch_that_is_not_taken(taken):
    """It must not take with it those that are in none, or in the other branch."""

    def body(handles, ids):
        predicate = v1.placeholder_with_default(taken, [])

        def update(handle):
            with tf.control_dependencies(subtract([handle], tf.identity(ids))):
                return tf.constant(1)

        done = tf.cond(predicate, lambda: update(handles[0]), lambda: update(handles[1]))
        return [done, *subtract(handles[2:], ids)]

    v1.disable_control_flow_v2()
    try:
        graph_def = build(body, count=3)
    finally:
        v1.enable_control_flow_v2()
    assert any(node.op == "Switch" for node in graph_def.node)
    result = check(graph_def, updates=3)
    feed = {"ids": np.array([1, 2, 1])}
    start, after = (run(one, feed) for one in (build(lambda *_: [], count=3), result.graph_def))
    moved = [bool(np.any(old != new)) for old, new in zip(start, after, strict=True)]
    assert moved == [taken, not taken, True]


def test_rows_are_read_after_what_the_update_waits_for():
    def body(handles, ids):
        read = raw.ReadVariableOp(resource=handles[0], dtype=tf.float32)
        found = tf.unique(ids)[0]
        inputs = {"resource": handles[0], "indices": found, "updates": numbers_of(found)}
        with tf.control_dependencies([read]):
            update = raw.ResourceScatterSub(**inputs)
        with tf.control_dependencies([update]):
            return [raw.AssignVariableOp(resource=handles[1], value=read)]

    result = check(build(body, count=2))
    (gather,) = (node for node in result.graph_def.node if node.op == "ResourceGather")
    assert "^ReadVariableOp" in gather.input


def test_a_product_that_waits_stays():
    """What it waits for may be an assertion."""

    def body(handles, ids):
        found, holds = tf.unique(ids)[0], tf.reduce_all(ids < 8)
        with tf.control_dependencies([tf.debugging.Assert(holds, [ids])]):
            updates = numbers_of(found) * tf.constant(0.5)
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    def body_outside(handles, ids):
        found, holds = tf.unique(ids)[0], tf.reduce_all(ids < 8)
        values, half = numbers_of(found), tf.constant(0.5)
        with tf.control_dependencies([tf.debugging.Assert(holds, [ids])]):
            updates = values * half
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    for one in (body, body_outside):
        graph_def = build(one)
        (update,) = apply(graph_def).report.updates
        assert update.fused
        for either in (graph_def, apply(graph_def).graph_def):
            with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
                run(either, {"ids": np.array([8])})
    products = [node for node in apply(graph_def).graph_def.node if node.op == "Mul"]
    assert len(products) == 1


@pytest.mark.parametrize("factor", [False, True])
def test_one_number_for_all_rows(factor):
    """Stock takes it; the fused op does not."""

    def body(handles, ids):
        number = v1.placeholder_with_default(2.0, [])
        updates = number * tf.constant(3.0) if factor else number
        found = tf.unique(ids)[0]
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    refused(build(body), "updates may be one number for all rows")


def test_updates_of_no_known_rank():
    def body(handles, ids):
        updates = v1.placeholder_with_default(2.0, None)
        found = tf.unique(ids)[0]
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    refused(build(body), "updates may be one number for all rows")


@pytest.mark.parametrize("op", ["Unique", "Reshape"])
def test_ids_that_may_be_fed(op):
    def body(handles, ids):
        found = tf.reshape(tf.unique(ids)[0], [-1])
        updates = numbers_of(found)
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    graph_def = build(body)
    name = next(node.name for node in graph_def.node if node.op == op)
    refused(
        graph_def, "ids of updated rows may be repeated", FuseRowUpdates(PASS.preserve | {name})
    )


def test_a_product_that_may_be_fed_stays():
    graph_def = build(subtract)
    (name,) = (node.name for node in graph_def.node if node.op == "Mul")
    result = apply(graph_def, FuseRowUpdates(PASS.preserve | {name}))
    (update,) = (node for node in result.graph_def.node if node.op == "FusedEmbeddingRowUpdate")
    assert update.input[0] == name


def test_repeated_ids():
    def body(handles, ids):
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=numbers_of(ids))]

    refused(build(body), "ids of updated rows may be repeated")


@pytest.mark.parametrize("output", ["idx", "count"])
def test_other_outputs_of_unique_may_be_repeated(output):
    def body(handles, ids):
        found = getattr(tf.unique_with_counts(ids), output)
        return [
            raw.ResourceScatterSub(resource=handles[0], indices=found, updates=numbers_of(found))
        ]

    refused(build(body), "ids of updated rows may be repeated")


def test_ids_of_a_matrix():
    def body(handles, ids):
        found = tf.reshape(tf.unique(ids)[0], [-1, 1])
        updates = tf.zeros_like(found, tf.float32)[:, :, None] + tf.ones([1, 1, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    refused(build(body), "ids of updated rows may be repeated")


def test_another_writer():
    def body(handles, ids):
        return [
            *subtract(handles, ids),
            raw.AssignSubVariableOp(resource=handles[0], value=tf.ones([ROWS, DIM])),
        ]

    result = apply(build(body))
    (update,) = result.report.updates
    assert update.reason is not None
    assert update.reason.startswith("the variable is also changed by ")


def test_two_updates_of_one_table():
    result = apply(build(lambda handles, ids: subtract(handles * 2, ids)))
    assert [update.fused for update in result.report.updates] == [False, False]
    assert not result.modified


def test_another_handle():
    def body(handles, ids):
        other = raw.VarHandleOp(dtype=tf.float32, shape=[ROWS, DIM], shared_name="table0")
        return [*subtract(handles, ids), raw.ReadVariableOp(resource=other, dtype=tf.float32)]

    refused(build(body), "the variable may have another handle")


def test_an_update_that_is_fetched():
    def body(handles, ids):
        (done,) = subtract(handles, ids)
        return [done]

    graph_def = build(body)
    name = next(node.name for node in graph_def.node if node.op == "ResourceScatterSub")
    rewrite = FuseRowUpdates(preserve=frozenset({"out", name}))
    refused(graph_def, "the op that updates the rows is named outside the graph", rewrite)


def test_an_update_that_is_awaited_stays_to_be_awaited():
    graph_def = build(subtract)
    name = next(node.name for node in graph_def.node if node.op == "ResourceScatterSub")
    rewrite = FuseRowUpdates(PASS.preserve, awaited=frozenset({name}))
    nodes = {node.name: node for node in apply(graph_def, rewrite).graph_def.node}
    assert nodes[name].op == "NoOp"
    (waits,) = nodes[name].input
    assert nodes[waits.removeprefix("^")].op == "ResourceScatterUpdate"


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("/job:ps/replica:0/task:0/device:CPU:0", "which may not know the fused ops"),
        ("/job:worker/replica:0/task:0/device:GPU:0", "the fused ops run on CPU"),
    ],
)
def test_updates_elsewhere(device, reason):
    graph_def = build(subtract)
    (node,) = (node for node in graph_def.node if node.op == "ResourceScatterSub")
    node.device = device
    rewrite = FuseRowUpdates(PASS.preserve, tasks=frozenset({"/job:worker/replica:0/task:0"}))
    refused(graph_def, f"placed on {device}{',' if 'may' in reason else ';'} {reason}", rewrite)


def test_updates_in_a_v1_loop():
    def body(handles, ids):
        def once(step):
            with tf.control_dependencies(subtract(handles, ids)):
                return step + 1

        return [tf.while_loop(lambda step: step < 2, once, [0])]

    v1.disable_control_flow_v2()
    try:
        graph_def = build(body)
    finally:
        v1.enable_control_flow_v2()
    refused(graph_def, "rows updated in a graph with loops stay as they are")


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (tf.float16, (ROWS, DIM)),
        (tf.bfloat16, (ROWS, DIM)),
        (tf.int32, (ROWS, DIM)),
        (tf.float32, (ROWS,)),
        (tf.float32, (ROWS, DIM, 2)),
    ],
)
def test_what_is_no_float_matrix_is_not_spoken_of(dtype, shape):
    def body(handles, ids):
        found = tf.unique(ids)[0]
        updates = tf.ones(tf.concat([tf.shape(found), shape[1:]], 0), dtype)
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    result = apply(build(body, dtype, shape))
    assert result.report.updates == ()
    assert not result.modified


def test_one_row_is_not_spread_over_all():
    """As in stock, where the shape of updates has to be that of the rows."""

    def body(handles, ids):
        found = tf.unique(ids)[0]
        one = v1.placeholder_with_default(tf.ones([1, DIM]), [None, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=one)]

    graph_def = build(body)
    for either in (graph_def, apply(graph_def).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(either, {"ids": np.array([4, 1], np.int64)})


def test_ids_out_of_range_raise_as_in_stock():
    graph_def = build(subtract)
    for either in (graph_def, apply(graph_def).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1\] = 9 is not in \[0, 9\)"):
            run(either, {"ids": np.array([4, ROWS], np.int64)})

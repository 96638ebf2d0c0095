"""Updates of tables as optimizers leave them: which the pass replaces, and by which program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes import fuse_updates
from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.report.report import FusionResult

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 9, 3
UPDATE = "FusedEmbeddingUpdate"
PASS = FuseUpdates(preserve=frozenset({"out"}))
SCATTERS = ("ResourceScatterAdd", "ResourceScatterSub")
WRITES = (*SCATTERS, "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
Handles = list[tf.Tensor]
Body = Callable[[Handles, tf.Tensor], Any]


def build(body: Body, dtype: Any = tf.float32, count: int = 1) -> graph_pb2.GraphDef:
    """A graph whose `out` is the tables after what `body` does to them, given their handles."""
    with tf.Graph().as_default() as graph:
        handles = [
            raw.VarHandleOp(dtype=dtype, shape=[ROWS, DIM], shared_name=f"t{n}", name=f"t{n}")
            for n in range(count)
        ]
        ids = v1.placeholder(tf.int64, [None], name="ids")
        made = body(handles, ids)
        with tf.control_dependencies(tf.nest.flatten(made)):
            values = [raw.ReadVariableOp(resource=handle, dtype=dtype) for handle in handles]
            tf.stack([tf.cast(value, tf.float64) for value in values], name="out")
        return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, feed: Mapping[str, Any], fetch: str = "out") -> Any:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        for number, node in enumerate(graph_def.node):
            if node.op == "VarHandleOp":
                dtype = tf.as_dtype(node.attr["dtype"].type)
                sizes = [dim.size for dim in node.attr["shape"].shape.dim]
                values = np.abs(np.random.default_rng(number).normal(size=sizes))
                handle = graph.get_tensor_by_name(f"{node.name}:0")
                session.run(raw.AssignVariableOp(resource=handle, value=tf.constant(values, dtype)))
        return session.run(f"{fetch}:0", {f"{name}:0": value for name, value in feed.items()})


def count(graph_def: graph_pb2.GraphDef) -> dict[str, int]:
    """The ops that the pass emits or replaces."""
    found = Counter(node.op for node in graph_def.node)
    return {op: found[op] for op in (UPDATE, *WRITES) if found[op]}


def check(
    graph_def: graph_pb2.GraphDef,
    *programs: str,
    rewrite: FuseUpdates = PASS,
    ops: int | None = None,
) -> FusionResult:
    """Applies the pass, which replaces all updates by these programs, and compares the tables."""
    result = rewrite.apply(graph_def)
    assert [update.program for update in result.report.updates] == [*programs]
    assert all(update.fused for update in result.report.updates)
    assert result.modified
    assert count(result.graph_def) == {UPDATE: len(programs) if ops is None else ops}
    assert not rewrite.apply(result.graph_def).modified
    for ids in ([4, 1, 4, 8, 4], [0], []):
        feed = {"ids": np.array(ids, np.int64)}
        np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))
    return result


def refused(graph_def: graph_pb2.GraphDef, reason: str, rewrite: FuseUpdates = PASS) -> None:
    """The pass changes nothing, and says why."""
    result = rewrite.apply(graph_def)
    assert result.graph_def is graph_def
    (update,) = result.report.updates
    assert not update.fused
    assert update.reason == reason
    assert f"0 of 1 updates of tables fused\n  stock  {update.name}\n" in str(result.report)
    assert result.report.to_dict()["updates"] == [update.to_dict()]


def rows_of(ids: tf.Tensor, dtype: Any = tf.float32) -> tf.Tensor:
    """Some number for each element of a row of each id."""
    numbers = tf.cast(ids, tf.float64)[:, None] + tf.range(DIM, dtype=tf.float64) / 7
    return tf.reshape(tf.cast(numbers, dtype), [-1, DIM])


def read(handle: tf.Tensor, dtype: Any = tf.float32) -> tf.Tensor:
    return raw.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return raw.AssignVariableOp(resource=handle, value=value)


def subtract(handles: Handles, ids: tf.Tensor, dtype: Any = tf.float32) -> list[tf.Operation]:
    updates = rows_of(ids, dtype) * tf.cast(0.3, dtype)
    return [raw.ResourceScatterSub(resource=one, indices=ids, updates=updates) for one in handles]


SUBTRACT = "t0=mul(x0,s0);scatter_sub(v0,t0)"


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("factor", ["first", "second", "none"])
def test_scattered_rows(dtype, op, factor):
    scatter = raw.ResourceScatterAdd if op == "add" else raw.ResourceScatterSub

    def body(handles, ids):
        updates, number = rows_of(ids, dtype), tf.cast(0.3, dtype)
        if factor != "none":
            updates = number * updates if factor == "first" else updates * number
        return [scatter(resource=handles[0], indices=ids, updates=updates)]

    product = {"first": "t0=mul(s0,x0);", "second": "t0=mul(x0,s0);", "none": ""}[factor]
    result = check(build(body, dtype), f"{product}scatter_{op}(v0,{'t0' if product else 'x0'})")
    assert not any(node.op == "Mul" for node in result.graph_def.node)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_types(dtype):
    graph_def = build(lambda handles, ids: subtract(handles, ids, dtype), dtype)
    refused(graph_def, f"updates of tables of {dtype.name} stay as they are")


def test_a_sweep_of_all_rows():
    def body(handles, ids):
        table, slot = handles
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        moved = read(slot) * 0.9 - sums
        with tf.control_dependencies([assign(slot, moved)]):
            return [raw.AssignAddVariableOp(resource=table, value=read(slot))]

    program = "t0=mul(v1,s0);t1=sum(x0);t2=sub(t0,t1);assign(v1,t2);t4=add(v0,v1);assign(v0,t4)"
    check(build(body, count=2), program)


def test_what_was_read_before_a_write_is_computed_before_it():
    def body(handles, ids):
        table, slot = handles
        old = read(slot)
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        with tf.control_dependencies([old]):
            written = assign(slot, sums)
        with tf.control_dependencies([written]):
            new = read(slot)
        return [raw.AssignSubVariableOp(resource=table, value=tf.sqrt(old) * 2.0 + new)]

    result = PASS.apply(build(body, count=2))
    (update,) = result.report.updates
    assert update.program is not None
    lines = update.program.split(";")
    assert lines.index("t0=sqrt(v1)") < next(
        k for k, line in enumerate(lines) if line.startswith("assign(v1")
    )
    check(build(body, count=2), update.program)


def test_what_was_and_what_is_read_at_once():
    def body(handles, ids):
        table, slot = handles
        old = read(slot)
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        with tf.control_dependencies([old]):
            written = assign(slot, sums)
        with tf.control_dependencies([written]):
            new = read(slot)
        return [raw.AssignSubVariableOp(resource=table, value=old * new)]

    refused(build(body, count=2), "what a variable was and what it becomes are read at once")


def test_rows_of_a_stock_op_in_between():
    """Rsqrt stays: what comes before and behind it are two ops."""

    def body(handles, ids):
        table, slot = handles
        rows, found = rows_of(ids), ids
        added = raw.ResourceScatterAdd(resource=slot, indices=found, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=found, dtype=tf.float32)
        step = rows * 0.1 * tf.math.rsqrt(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=found, updates=step)]

    first = "t0=square(x0);scatter_add(v0,t0);t2=take(v0);t3=add(t2,s0);result(t3)"
    second = "t0=mul(x0,s0);t1=mul(t0,x1);scatter_sub(v0,t1)"
    result = check(build(body, count=2), f"{first} | {second}", ops=2)
    (root,) = (node for node in result.graph_def.node if node.op == "Rsqrt")
    assert {node.op for node in result.graph_def.node if node.name in root.input} == {UPDATE}


def test_many_tables_share_their_numbers():
    def body(handles, ids):
        rate = v1.placeholder_with_default(0.5, [])
        rows = rows_of(ids)
        return [
            raw.ResourceScatterSub(resource=one, indices=ids, updates=rows * (rate * 2.0 + 1.0))
            for one in handles
        ]

    result = check(build(body, count=3), *[SUBTRACT] * 3)
    assert "  3 of 3 updates of tables fused" in str(result.report)
    assert Counter(node.op for node in result.graph_def.node)["Mul"] == 1


def test_columns_of_a_concat_are_read_where_they_are():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 1)
        parts = [raw.Slice(input=whole, begin=[0, DIM * k], size=[-1, DIM]) for k in range(2)]
        scatter = raw.ResourceScatterSub
        return [
            scatter(resource=handle, indices=ids, updates=part)
            for handle, part in zip(handles, parts, strict=True)
        ]

    result = check(build(body, count=2), *["scatter_sub(v0,x0)"] * 2)
    updates = [node for node in result.graph_def.node if node.op == UPDATE]
    assert [[*node.attr["offsets"].list.i] for node in updates] == [[0], [DIM]]
    assert not any(node.op == "Slice" for node in result.graph_def.node)


def test_the_first_rows_of_a_longer_matrix():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 0)
        size = tf.stack([tf.size(ids), DIM])
        part = raw.Slice(input=whole, begin=[0, 0], size=size)
        part = tf.ensure_shape(part, [None, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=part)]

    check(build(body), "scatter_sub(v0,x0)")


# --- ids and values that stock ops prepare ------------------------------------------------------


def update_of(result: FusionResult) -> Any:
    (node,) = (node for node in result.graph_def.node if node.op == UPDATE)
    return node


def flags(result: FusionResult) -> tuple[bool, bool]:
    attrs = update_of(result).attr
    return attrs["deduplicate"].b, attrs["wrap_negative"].b


def ops_of(result: FusionResult) -> set[str]:
    return {node.op for node in result.graph_def.node}


def summed(values: tf.Tensor, unique: Any, size: str) -> tf.Tensor:
    """As tf_keras and compat.v1 sum the values of repeated ids."""
    count = tf.size(unique.y) if size == "size" else tf.shape(unique.y, tf.int64)[0]
    count = tf.constant(ROWS) if size == "constant" else count
    return tf.math.unsorted_segment_sum(values, unique.idx, count)


@pytest.mark.parametrize("size", ["size", "shape"])
def test_values_of_repeated_ids_are_summed_by_the_op(size):
    def body(handles, ids):
        table, slot = handles
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, size)
        added = raw.ResourceScatterAdd(resource=slot, indices=unique.y, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=unique.y, dtype=tf.float32)
        step = rows * tf.abs(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=unique.y, updates=step)]

    program = (
        "t0=square(x0);scatter_add(v1,t0);t2=take(v1);t3=add(t2,s0);t4=abs(t3);t5=mul(x0,t4);"
        "scatter_sub(v0,t5)"
    )
    result = check(build(body, count=2), program)
    assert flags(result) == (True, False)
    assert ops_of(result).isdisjoint({"Unique", "UnsortedSegmentSum", "Shape", "Size"})
    assert "ids" in update_of(result).input


def test_sums_of_columns_of_a_concat():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 1)
        part, unique = raw.Slice(input=whole, begin=[0, DIM], size=[-1, DIM]), tf.unique(ids)
        rows = summed(part, unique, "shape")
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    result = check(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (True, False)
    assert [*update_of(result).attr["offsets"].list.i] == [DIM]
    assert "Slice" not in ops_of(result)


def test_sums_that_something_else_needs():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        scale = tf.reduce_sum(rows)
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows * scale)]

    result = check(build(body), SUBTRACT)
    assert flags(result) == (False, False)


def test_distinct_ids_that_something_else_needs():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        many = tf.cast(tf.reduce_sum(unique.y), tf.float32)
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows * many)]

    result = check(build(body), SUBTRACT)
    assert flags(result) == (True, False)
    assert "Unique" in ops_of(result)
    assert "UnsortedSegmentSum" not in ops_of(result)


@pytest.mark.parametrize("how", ["other values", "other ids", "other size"])
def test_entries_that_are_not_sums_by_these_ids(how):
    def body(handles, ids):
        unique, other = tf.unique(ids), tf.unique(ids[::-1])
        by = other if how == "other ids" else unique
        size = "constant" if how == "other size" else "size"
        rows = summed(rows_of(ids), by, size)[: tf.size(unique.y)]
        if how == "other values":
            rows = rows_of(unique.y)
        rows = tf.ensure_shape(rows, [None, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    assert flags(check(build(body), "scatter_sub(v0,x0)")) == (False, False)


def test_sums_that_may_be_fed():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = tf.identity(summed(rows_of(ids), unique, "shape"), name="sums")
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    rewrite = FuseUpdates(PASS.preserve | {"sums"})
    result = check(build(body), "scatter_sub(v0,x0)", rewrite=rewrite)
    assert flags(result) == (False, False)


def test_sums_for_two_halves_stay():
    def body(handles, ids):
        table, slot = handles
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        added = raw.ResourceScatterAdd(resource=slot, indices=unique.y, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=unique.y, dtype=tf.float32)
        step = rows * tf.math.rsqrt(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=unique.y, updates=step)]

    result = PASS.apply(build(body, count=2))
    assert count(result.graph_def) == {UPDATE: 2}
    assert "Unique" in ops_of(result)
    updates = [node for node in result.graph_def.node if node.op == UPDATE]
    assert not any(node.attr["deduplicate"].b for node in updates)


def check_negative(graph_def: graph_pb2.GraphDef, *programs: str) -> FusionResult:
    result = check(graph_def, *programs)
    feed = {"ids": np.array([-1, 8, -9, 3, 0, -1])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))
    return result


def flat(ids: tf.Tensor, how: str) -> tf.Tensor:
    sizes = {
        "size": lambda: tf.expand_dims(tf.size(ids), 0),
        "packed": lambda: tf.stack([tf.size(ids)]),
        "unknown": lambda: tf.constant([-1]),
    }
    return raw.Reshape(tensor=ids, shape=sizes[how]())


@pytest.mark.parametrize("how", ["size", "packed", "unknown"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_negative_ids_count_from_the_end(how, first, deduplicate):
    """As Keras 3's Embedding lets them."""

    def body(handles, ids):
        ids = tf.reshape(tf.cast(ids, tf.int32), [-1, 1], name="matrix")
        moved = ROWS + ids if first else ids + ROWS
        vector = flat(raw.SelectV2(condition=ids < 0, t=moved, e=ids), how)
        rows = rows_of(vector)
        if deduplicate:
            unique = tf.unique(vector)
            vector, rows = unique.y, summed(rows, unique, "shape")
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    result = check_negative(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (deduplicate, True)
    assert "matrix" in update_of(result).input


def test_ids_of_a_matrix_that_are_a_vector_again():
    def body(handles, ids):
        vector = flat(tf.reshape(ids, [-1, 1], name="matrix"), "size")
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows_of(ids))]

    result = check(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (False, False)
    assert "matrix" in update_of(result).input


@pytest.mark.parametrize("how", ["rows", "number", "comparison", "branches", "ids", "sum"])
def test_other_choices_of_ids(how):
    def body(handles, ids):
        others = tf.reverse(ids, [0])
        test = {"number": ids < -1, "comparison": ids <= 0}.get(how, ids < 0)
        test = others < 0 if how == "ids" else test
        moved = ids + (ROWS - 1 if how == "rows" else ROWS)
        moved = moved if how != "sum" else others + ROWS
        then, otherwise = (ids, moved) if how == "branches" else (moved, ids)
        wrapped = raw.SelectV2(condition=test, t=then, e=otherwise, name="chosen")
        return [raw.ResourceScatterSub(resource=handles[0], indices=wrapped, updates=rows_of(ids))]

    graph_def = build(body)
    result = PASS.apply(graph_def)
    assert flags(result) == (False, False)
    assert "chosen" in update_of(result).input


@pytest.mark.parametrize("name", ["matrix", "less", "moved", "chosen", "flat"])
def test_ids_that_may_be_fed(name):
    def body(handles, ids):
        ids = tf.reshape(ids, [-1, 1], name="matrix")
        test, moved = tf.less(ids, 0, name="less"), tf.add(ids, ROWS, name="moved")
        chosen = raw.SelectV2(condition=test, t=moved, e=ids, name="chosen")
        vector = tf.reshape(chosen, [-1], name="flat")
        rows = tf.ones([tf.size(vector), DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    graph_def = build(body)
    result = FuseUpdates(PASS.preserve | {name}).apply(graph_def)
    assert flags(result) == (False, name == "matrix")
    fed = {"less": np.array([[True]]), "flat": np.array([5])}.get(name, np.array([[5]]))
    feed = {"ids": np.array([-3]), name: fed}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


def test_a_reshape_to_another_number_of_ids():
    """Stock fails; so does what stands for it."""

    def body(handles, ids):
        matrix = raw.Reshape(tensor=ids, shape=[-1, 1])
        vector = raw.Reshape(tensor=matrix, shape=[tf.size(ids) + 1], name="vector")
        rows = tf.ones([tf.size(vector), DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    result = PASS.apply(build(body))
    assert "vector" in update_of(result).input


def test_an_update_waits_for_another_one():
    def body(handles, ids):
        made: list[tf.Operation] = []
        for step, handle in enumerate(handles):
            with tf.control_dependencies(made):
                made = subtract([handle], ids + step)
        return made

    graph_def = build(body, count=3)
    result = PASS.apply(graph_def)
    assert all(update.fused for update in result.report.updates)
    # The second one, whose ids are out of range, keeps the third one from being done.
    for either in (graph_def, result.graph_def):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            tf.import_graph_def(either, name="")
            handles = [graph.get_tensor_by_name(f"t{n}:0") for n in range(3)]
            session.run([assign(one, tf.zeros([ROWS, DIM])) for one in handles])
            with pytest.raises(tf.errors.InvalidArgumentError, match=r" = 9 is not in \[0, 9"):
                session.run("out:0", {"ids:0": [ROWS - 1]})
            np.testing.assert_array_equal(session.run(read(handles[2])), 0)


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
    result = check(graph_def, *[SUBTRACT] * 3)
    feed = {"ids": np.array([1, 2, 1])}
    start, after = (run(one, feed) for one in (build(lambda *_: [], count=3), result.graph_def))
    moved = [bool(np.any(old != new)) for old, new in zip(start, after, strict=True)]
    assert moved == [taken, not taken, True]


def test_an_update_partly_inside_a_branch():
    def body(handles, ids):
        table, slot = handles
        updated = raw.ResourceScatterAdd(resource=slot, indices=ids, updates=rows_of(ids))

        def update():
            taken = raw.ResourceGather(resource=slot, indices=ids, dtype=tf.float32)
            written = raw.ResourceScatterSub(resource=table, indices=ids, updates=taken)
            with tf.control_dependencies([written]):
                return tf.constant(1)

        with tf.control_dependencies([updated]):
            predicate = v1.placeholder_with_default(True, [])
            return [tf.cond(predicate, update, lambda: tf.constant(2))]

    v1.disable_control_flow_v2()
    try:
        refused_alike = PASS.apply(build(body, count=2)).report.updates
    finally:
        v1.enable_control_flow_v2()
    assert {update.reason for update in refused_alike if not update.fused} == {
        "the update is partly inside a branch"
    }


def test_a_product_that_waits():
    """What it waits for may be an assertion."""

    def body(handles, ids):
        holds = tf.reduce_all(ids < 8)
        values, half = rows_of(ids), tf.constant(0.5)
        with tf.control_dependencies([tf.debugging.Assert(holds, [ids])]):
            updates = values * half
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=updates)]

    graph_def = build(body)
    result = PASS.apply(graph_def)
    assert count(result.graph_def) == {UPDATE: 1}
    for either in (graph_def, result.graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            run(either, {"ids": np.array([8])})


NOT_ROWS = "it is not known whether updates are a row for each id"


def test_one_number_for_all_rows():
    """Stock takes it."""

    def body(handles, ids):
        number = v1.placeholder_with_default(2.0, [])
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=number)]

    refused(build(body), NOT_ROWS)


def test_updates_of_no_known_rank():
    def body(handles, ids):
        updates = v1.placeholder_with_default(2.0, None)
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=updates)]

    refused(build(body), NOT_ROWS)


def test_one_row_that_is_broadcast_to_all():
    def body(handles, ids):
        taken = tf.gather(read(handles[1]), ids)
        one = v1.placeholder_with_default(np.ones([1, DIM], np.float32), [None, DIM])
        updates = taken * one
        scatter = raw.ResourceScatterSub
        return [scatter(resource=h, indices=ids, updates=updates) for h in handles[:1]] + [
            raw.AssignAddVariableOp(resource=handles[1], value=tf.ones([ROWS, DIM]))
        ]

    graph_def = build(body, count=2)
    result = PASS.apply(graph_def)
    assert not any(
        "x1" in (update.program or "") or "take" in (update.program or "")
        for update in result.report.updates
    )
    feed = {"ids": np.array([1, 1, 4])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


def test_a_product_that_may_be_fed():
    graph_def = build(subtract)
    (name,) = (node.name for node in graph_def.node if node.op == "Mul")
    rewrite = FuseUpdates(PASS.preserve | {name})
    result = check(graph_def, "scatter_sub(v0,x0)", rewrite=rewrite)
    (update,) = (node for node in result.graph_def.node if node.op == UPDATE)
    assert name in update.input
    feed = {"ids": np.array([3]), name: np.full([1, DIM], 7, np.float32)}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


def test_ids_of_a_matrix():
    def body(handles, ids):
        updates = rows_of(ids)[:, None]
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids[:, None], updates=updates)]

    refused(build(body), NOT_ROWS)


def test_two_lists_of_ids():
    def body(handles, ids):
        table, slot = handles
        rows = rows_of(ids)
        added = raw.ResourceScatterAdd(resource=slot, indices=ids, updates=rows)
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=ids, dtype=tf.float32)
        return [raw.ResourceScatterSub(resource=table, indices=ids[::-1], updates=taken)]

    refused(build(body, count=2), "rows of several lists of ids are updated together")


def test_a_matrix_that_nobody_changes():
    def body(handles, ids):
        taken = tf.gather(read(handles[1]), ids) * 2.0
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=taken)]

    refused(build(body, count=2), "a matrix that stays as it is takes part in the update")


def test_another_writer():
    def body(handles, ids):
        made = subtract(handles, ids)
        with tf.control_dependencies(made):
            ones = tf.ones([1, DIM])
            return [raw.ResourceScatterMul(resource=handles[0], indices=[1], updates=ones)]

    refused(build(body), "the variable is also changed by ResourceScatterMul (ResourceScatterMul)")


def test_two_updates_in_no_order():
    refused(
        build(lambda handles, ids: subtract(handles * 2, ids)),
        "two changes of a variable are in no order",
    )


def test_a_read_in_no_order_with_the_update():
    def body(handles, ids):
        return [*subtract(handles, ids), tf.identity(read(handles[0]), name="loose")]

    refused(build(body), "it is not known whether ReadVariableOp reads before the update")


def test_another_handle():
    def body(handles, ids):
        other = raw.VarHandleOp(dtype=tf.float32, shape=[ROWS, DIM], shared_name="t0")
        made = subtract(handles, ids)
        with tf.control_dependencies(made):
            return [read(other)]

    refused(build(body), "the variable may have another handle")


def test_an_update_that_is_fetched():
    graph_def = build(subtract)
    name = next(node.name for node in graph_def.node if node.op == "ResourceScatterSub")
    rewrite = FuseUpdates(PASS.preserve | {name})
    refused(graph_def, "an op of the update is named outside the graph", rewrite)


def test_updates_that_are_awaited_stay_to_be_awaited():
    def body(handles, ids):
        table, slot = handles
        moved = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS) + read(slot)
        with tf.control_dependencies([assign(slot, moved)]):
            return [raw.AssignAddVariableOp(resource=table, value=read(slot))]

    graph_def = build(body, count=2)
    awaited = frozenset(
        n.name
        for n in graph_def.node
        if n.op.startswith("Assign") or (n.op == "ReadVariableOp" and n.input[0] == "t1")
    )
    rewrite = FuseUpdates(PASS.preserve, awaited=awaited)
    nodes = {node.name: node for node in rewrite.apply(graph_def).graph_def.node}
    ops = Counter(nodes[name].op for name in awaited)
    # The last read of the slot, behind the update, is that of `out`.
    assert ops == {UPDATE: 1, "NoOp": len(awaited) - 2, "ReadVariableOp": 1}


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
    rewrite = FuseUpdates(PASS.preserve, tasks=frozenset({"/job:worker/replica:0/task:0"}))
    refused(graph_def, f"placed on {device}{',' if 'may' in reason else ';'} {reason}", rewrite)


def test_updates_that_go_to_a_gpu():
    refused(
        build(subtract),
        "placed on a GPU; updates are fused on a CPU",
        FuseUpdates(PASS.preserve, home="GPU"),
    )


def test_a_tensorflow_without_the_functions(monkeypatch):
    monkeypatch.setattr(fuse_updates, "is_updated_in_place", lambda dtype: dtype != "float32")
    refused(build(subtract), "this TensorFlow lets no other kernels update variables")


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
    refused(graph_def, "an update inside of a loop stays as it is")


def test_an_update_beside_a_v1_loop():
    def body(handles, ids):
        loop = tf.while_loop(lambda step, _: step < 2, lambda s, t: (s + 1, t + 1.0), [0, 0.0])
        updates = rows_of(ids) * tf.reshape(loop[1], [])
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=updates)]

    v1.disable_control_flow_v2()
    try:
        graph_def = build(body)
    finally:
        v1.enable_control_flow_v2()
    assert any(node.op == "Enter" for node in graph_def.node)
    check(graph_def, SUBTRACT)


def test_a_v1_loop_that_reads_the_table_in_no_order_with_its_update():
    def body(handles, ids):
        def once(step, total):
            rows = raw.ResourceGather(resource=handles[0], indices=ids, dtype=tf.float32)
            return step + 1, total + tf.reduce_sum(rows)

        loop = tf.while_loop(lambda step, _: step < 2, once, [0, 0.0])
        return [*subtract(handles, ids), *loop]

    v1.disable_control_flow_v2()
    try:
        graph_def = build(body)
    finally:
        v1.enable_control_flow_v2()
    (update,) = PASS.apply(graph_def).report.updates
    assert update.reason is not None
    assert update.reason.startswith("it is not known whether while/ResourceGather reads before")


@pytest.mark.parametrize("widens", [True, False])
def test_ids_that_are_cast(widens):
    """A cast to int32 loses digits, which the op would not."""

    def body(handles, ids):
        narrow = tf.cast(ids, tf.int32)
        cast = tf.cast(narrow, tf.int64) if widens else narrow
        updates = rows_of(ids)
        return [raw.ResourceScatterSub(resource=handles[0], indices=cast, updates=updates)]

    result = check(build(body), "scatter_sub(v0,x0)")
    (update,) = (node for node in result.graph_def.node if node.op == UPDATE)
    (casts,) = (
        [
            node.name
            for node in result.graph_def.node
            if node.name in update.input and node.op == "Cast"
        ],
    )
    assert len(casts) == 1
    feed = {"ids": np.array([2**32 + 3])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(build(body), feed))

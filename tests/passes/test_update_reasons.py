"""Updates of tables in graphs that are near those of an optimizer: replaced, or why not."""

from __future__ import annotations

from collections import Counter

import pytest
import tensorflow as tf

from fusion.passes import fuse_updates
from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.graph.kernel_names import plain_name
from fusion.passes.recognise.updates import table_update
from tests.passes.update_checks import PASS, SUBTRACT, UPDATE, check, refused
from tests.passes.update_graphs import DIM, ROWS, assign, build, read, rows_of, subtract

v1 = tf.compat.v1
raw = tf.raw_ops


def test_integers_are_not_looked_at():
    graph_def = build(
        lambda handles, ids: [
            raw.ResourceScatterAdd(resource=handles[0], indices=ids, updates=rows_of(ids, tf.int32))
        ],
        tf.int32,
    )
    assert PASS.apply(graph_def).report.updates == ()


def test_a_table_of_any_number_of_rows():
    def body(handles, ids):
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[None, DIM], shared_name="t", name="t")
        return subtract([handle], ids)

    refused(build(body), "the static shape of the table is not known")


@pytest.mark.parametrize("most", [len(SUBTRACT) - 1, len(SUBTRACT)])
def test_a_program_that_is_too_long(monkeypatch, most):
    monkeypatch.setattr(table_update, "MAX_BYTES", most)
    graph_def = build(subtract)
    if most < len(SUBTRACT):
        refused(graph_def, "the update has more operations than one op may have")
    else:
        check(graph_def, SUBTRACT)


def test_a_sum_of_entries_that_goes_through_another_op():
    """Somebody wants to know why."""

    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        return [raw.AssignSubVariableOp(resource=handles[0], value=tf.exp(sums * 2.0) * 0.1)]

    refused(build(body), "Exp is not fused into an update")


def test_a_change_without_entries_is_none_of_a_table():
    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        dense = tf.linalg.matmul(sums, tf.ones([ROWS, DIM]), transpose_a=True)
        return [raw.AssignSubVariableOp(resource=handles[0], value=tf.exp(tf.tile(dense, [3, 1])))]

    assert PASS.apply(build(body)).report.updates == ()


def test_a_dense_gradient_besides():
    """As of a regularizer; the pass leaves sums of more terms."""

    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        total = tf.add_n([sums, read(handles[0]) * 2.0])
        return [raw.AssignSubVariableOp(resource=handles[0], value=total * 0.1)]

    program = "t0=mul(v0,s0);t1=sum(x0);t2=add(t1,t0);t3=mul(t2,s1);t4=sub(v0,t3);assign(v0,t4)"
    check(build(body), program)


def test_three_terms():
    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        total = tf.add_n([sums, sums, read(handles[0])])
        return [raw.AssignSubVariableOp(resource=handles[0], value=total)]

    refused(build(body), "a sum of more than two terms is not fused into an update")


def test_the_rows_of_a_shape_in_a_branch():
    def body(handles, ids):
        predicate = v1.placeholder_with_default(True, [])
        switched = [raw.Switch(data=h, pred=predicate).output_true for h in handles]
        shape = raw.Switch(data=tf.constant([ROWS, DIM]), pred=predicate).output_true
        rows = raw.Switch(data=rows_of(ids), pred=predicate).output_true
        sums = tf.math.unsorted_segment_sum(rows, ids, shape[0])
        written = raw.AssignAddVariableOp(resource=switched[0], value=sums * 0.5)
        with tf.control_dependencies([written]):
            done = tf.identity(rows)
        other = tf.identity(raw.Switch(data=0.0, pred=predicate).output_false)
        return [raw.Merge(inputs=[tf.reduce_sum(done), other]).output]

    check(build(body), "t0=sum(x0);t1=mul(t0,s0);t2=add(v0,t1);assign(v0,t2)")


def test_a_constant_matrix():
    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        step = sums * tf.constant([[*range(DIM)]] * ROWS, tf.float32)
        return [raw.AssignSubVariableOp(resource=handles[0], value=step)]

    refused(build(body), "a constant matrix takes part in the update")


@pytest.mark.parametrize(
    "repeat",
    [
        lambda: tf.constant(2.0, shape=[ROWS, DIM]),
        lambda: raw.Fill(dims=[ROWS, DIM], value=v1.placeholder_with_default(2.0, [])),
        lambda: raw.Tile(input=v1.placeholder_with_default([[2.0]], [1, 1]), multiples=[ROWS, DIM]),
        lambda: raw.BroadcastTo(input=v1.placeholder_with_default(2.0, []), shape=[ROWS, DIM]),
    ],
    ids=["Const", "Fill", "Tile", "BroadcastTo"],
)
def test_a_matrix_of_one_number(repeat):
    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        step = sums + raw.Mul(x=repeat(), y=read(handles[0]))
        return [raw.AssignSubVariableOp(resource=handles[0], value=step)]

    program = "t0=mul(s0,v0);t1=sum(x0);t2=add(t1,t0);t3=sub(v0,t2);assign(v0,t3)"
    check(build(body), program)


@pytest.mark.parametrize(
    ("repeat", "reason"),
    [
        (lambda: tf.constant([[2.0] * DIM] * (ROWS - 1) + [[3.0] * DIM]), "constant matrix"),
        (lambda: tf.constant([[0.0] * DIM] * (ROWS - 1) + [[-0.0] * DIM]), "constant matrix"),
        (
            lambda: raw.Tile(
                input=v1.placeholder_with_default([[2.0] * DIM], [1, DIM]), multiples=[ROWS, 1]
            ),
            "Tile is not fused",
        ),
        (
            lambda: raw.Fill(dims=[1, DIM], value=v1.placeholder_with_default(2.0, [])),
            "Fill is not fused",
        ),
    ],
    ids=["two numbers", "zeros of both signs", "rows", "another shape"],
)
def test_a_matrix_of_more(repeat, reason):
    def body(handles, ids):
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        step = sums + raw.Mul(x=repeat(), y=read(handles[0]))
        return [raw.AssignSubVariableOp(resource=handles[0], value=step)]

    (update,) = PASS.apply(build(body)).report.updates
    assert reason in str(update.reason)


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
    result = rewrite.apply(graph_def).graph_def
    nodes = {node.name: node for node in result.node}
    ops = Counter(nodes[name].op for name in awaited)
    # The last read of the slot, behind the update, is that of `out`.
    assert ops == {"NoOp": len(awaited) - 1, "ReadVariableOp": 1}
    (update,) = (node.name for node in result.node if node.op == UPDATE)
    assert {*nodes[plain_name(update)].input} == {f"^{update}"}


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

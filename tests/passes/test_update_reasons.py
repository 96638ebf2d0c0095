"""Updates of tables in graphs that are near those of an optimizer: replaced, or why not."""

from __future__ import annotations

import tensorflow as tf

from tests.passes.test_fuse_updates import (
    DIM,
    PASS,
    ROWS,
    build,
    check,
    raw,
    read,
    refused,
    rows_of,
    subtract,
    v1,
)


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
        step = sums * tf.ones([ROWS, DIM])
        return [raw.AssignSubVariableOp(resource=handles[0], value=step)]

    refused(build(body), "a constant matrix takes part in the update")

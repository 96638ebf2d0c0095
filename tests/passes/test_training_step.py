"""Lookups of a training step whose gradients read ids and sizes: what is fused, what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.report import FusionResult

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, WIDTHS, FETCHES = 4000, (8, 5, 8), ("out", "table0_after", "table1_after", "table2_after")
PASS = FuseLookups(frozenset(FETCHES), runs=True)
GROUPED, READS = "GroupedEmbeddingLookup", "ReadEmbeddingTables"


class Step:
    """A graph of lookups side by side, and what it does to their tables.

    Attributes:
        reads: whether rows are gathered from what is read of the variables, as Keras 3 does it.
        between: what makes matrices of rows, if it is not a reshape.
        handles: of three variables.
        ids: for each of them, [batch, 1].
        flag: a truth value.
    """

    def __init__(self, *, reads: bool = True, between: Any = None) -> None:
        self.reads = reads
        self.between = between
        self.handles = [self.handle(n) for n in range(3)]
        self.ids = [v1.placeholder(tf.int32, [None, 1], name=f"ids{n}") for n in range(3)]
        self.flag = v1.placeholder(tf.bool, [], name="flag")

    def handle(self, n: int, name: str | None = None) -> tf.Tensor:
        return raw.VarHandleOp(
            dtype=tf.float32,
            shape=[ROWS, WIDTHS[n]],
            shared_name=f"table{n}",
            name=name or f"table{n}",
        )

    def value(self, n: int) -> tf.Tensor:
        return raw.ReadVariableOp(resource=self.handles[n], dtype=tf.float32, name=f"table{n}_read")

    def rows(self, n: int) -> tf.Tensor:
        """[batch, 1, width]"""
        if self.reads:
            return raw.GatherV2(params=self.value(n), indices=self.ids[n], axis=0, name=f"rows{n}")
        return raw.ResourceGather(
            resource=self.handles[n], indices=self.ids[n], dtype=tf.float32, name=f"rows{n}"
        )

    def flat(self, n: int) -> tf.Tensor:
        """[batch, width], as Keras flattens."""
        rows = self.rows(n)
        if self.between is not None:
            return self.between(rows)
        return tf.reshape(rows, [tf.shape(rows)[0], WIDTHS[n]], name=f"flat{n}")

    def scatter(self, n: int, updates: tf.Tensor, handle: Any = None) -> tf.Operation:
        return raw.ResourceScatterSub(
            resource=self.handles[n] if handle is None else handle,
            indices=tf.reshape(self.ids[n], [-1]),
            updates=updates,
            name=f"scatter{n}",
        )

    def assign(self, n: int, value: tf.Tensor, handle: Any = None) -> tf.Operation:
        return raw.AssignSubVariableOp(
            resource=self.handles[n] if handle is None else handle, value=value, name=f"assign{n}"
        )

    def end(self, out: tf.Tensor, *writes: tf.Operation) -> None:
        with tf.control_dependencies(list(writes)):
            tf.identity(out, name="out")
            for n, handle in enumerate(self.handles):
                raw.ReadVariableOp(resource=handle, dtype=tf.float32, name=f"table{n}_after")


def trained(step: Step, loss_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """What TensorFlow makes of the gradient of a concat, and of SGD."""
    flat = [step.flat(n) for n in range(3)]
    joined = tf.concat(flat, 1, name="joined")
    gradients = tf.gradients(loss_of(joined), flat)
    step.end(joined, *(step.scatter(n, gradient) for n, gradient in enumerate(gradients)))


def plain(step: Step) -> None:
    trained(step, lambda joined: tf.reduce_sum(tf.square(joined)))


def build(
    body: Callable[[Step], None], *, reads: bool = True, between: Any = None
) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        body(Step(reads=reads, between=between))
        return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, batch: int, flag: bool = True) -> list[list[np.ndarray]]:
    """Returns what is fetched in two steps."""
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        for n, width in enumerate(WIDTHS):
            handle = graph.get_tensor_by_name(f"table{n}:0")
            value = tf.constant(rng.normal(size=[ROWS, width]), tf.float32)
            session.run(raw.AssignVariableOp(resource=handle, value=value))
        feed = {f"ids{n}:0": rng.integers(0, 3, [batch, 1]) for n in range(3)}
        names = [f"{name}:0" for name in FETCHES]
        return [session.run(names, {**feed, "flag:0": flag}) for _ in range(2)]


def switched(step: Step, value: tf.Tensor, index: int) -> tf.Tensor:
    """A value inside of one of the branches that `step.flag` chooses from."""
    return raw.Switch(data=value, pred=step.flag)[index]


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    return Counter(node.op for node in graph_def.node)


def check(graph_def: graph_pb2.GraphDef, fused: int = 3) -> FusionResult:
    """Checks that lookups become one op, with the same bits."""
    result = PASS.apply(graph_def)
    assert result.report.fused_count == fused
    assert ops(result.graph_def)[GROUPED] == 1
    assert not PASS.apply(result.graph_def).modified
    for batch in (4, 1, 0):
        for flag in (True, False):
            stock, mine = (run(one, batch, flag) for one in (graph_def, result.graph_def))
            for one, other in zip(stock, mine, strict=True):
                for theirs, ours in zip(one, other, strict=True):
                    np.testing.assert_array_equal(theirs, ours)
    return result


def stays(graph_def: graph_pb2.GraphDef, reason: str, rewrite: FuseLookups = PASS) -> None:
    result = rewrite.apply(graph_def)
    assert result.report.fused_count == 0
    assert not result.modified
    reasons = {column.reason for column in result.report.columns}
    assert any(reason in (one or "") for one in reasons), reasons


@pytest.mark.parametrize("reads", [True, False])
def test_a_step_reads_its_tables_in_one_op(reads: bool) -> None:
    result = ops(check(build(plain, reads=reads)).graph_def)
    assert result[READS] == 3
    assert result["GatherV2"] == result["ResourceGather"] == result["ConcatV2"] == 0
    # The last reads are those of the test.
    assert result["ReadVariableOp"] == 3
    assert result["SplitV"] == 1
    assert result["Slice"] == result["ConcatOffset"] == result["ShapeN"] == 0


SLICES: dict[str, Callable[[Any], Any]] = {
    "first": lambda rows: rows[:, 0],
    "last": lambda rows: rows[:, -1, :],
    "gathered": lambda rows: tf.gather(rows, 0, axis=1),
    "unstacked": lambda rows: tf.unstack(rows, axis=1)[0],
    "first few": lambda rows: tf.squeeze(rows[:, :1], 1),
    "of measured size": lambda rows: tf.slice(rows, [0, 0, 0], [tf.shape(rows)[0], 1, -1])[:, 0],
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_that_leave_nothing_out_are_read_in_one_op(name: str) -> None:
    result = ops(check(build(plain, between=SLICES[name])).graph_def)
    assert result["GatherV2"] == result["ResourceGather"] == 0
    assert result["SplitV"] == 1


def test_a_table_whose_rows_nobody_writes_is_read_as_stock_reads_it() -> None:
    """Adam adds to all rows: a read copies nothing, and everything waits for it."""

    def body(step: Step) -> None:
        flat = [step.flat(n) for n in range(3)]
        joined = tf.concat(flat, 1)
        gradients = tf.gradients(tf.reduce_sum(tf.square(joined)), flat)
        sums = [
            tf.math.unsorted_segment_sum(gradient, tf.reshape(step.ids[n], [-1]), ROWS)
            for n, gradient in enumerate(gradients)
        ]
        step.end(joined, *(step.assign(n, value) for n, value in enumerate(sums)))

    result = ops(check(build(body)).graph_def)
    assert (result[READS], result["ReadVariableOp"], result["GatherV2"]) == (0, 6, 0)


def test_gradients_are_split_around_what_is_beside() -> None:
    def body(step: Step) -> None:
        beside = tf.matmul(tf.cast(step.ids[0], tf.float32), tf.ones([1, 7]))
        flat = [step.flat(0), step.flat(1), beside, step.flat(2)]
        joined = tf.concat(flat, 1)
        first, last = tf.gradients(tf.reduce_sum(tf.square(joined)), [flat[0], flat[3]])
        step.end(joined, step.scatter(0, first), step.scatter(2, last))

    graph_def = build(body)
    result = check(graph_def).graph_def
    (split,) = (node for node in result.node if node.op == "SplitV")
    sizes = next(node for node in result.node if node.name == split.input[1])
    assert [*tf.make_ndarray(sizes.attr["value"].tensor)] == [8, 12, 8]


def test_behind_an_unknown_width_sizes_are_those_of_the_ids() -> None:
    def body(step: Step) -> None:
        wide = v1.placeholder_with_default(tf.ones([1, 2]), [None, None])
        beside = tf.tile(wide, [tf.shape(step.ids[0])[0], 1])
        flat = [step.flat(0), beside, step.flat(1), step.flat(2)]
        joined = tf.concat(flat, 1)
        gradients = tf.gradients(tf.reduce_sum(tf.square(joined)), [flat[0], *flat[2:]])
        step.end(joined, *(step.scatter(n, gradient) for n, gradient in enumerate(gradients)))

    result = check(build(body)).graph_def
    begins = [node.input[1] for node in result.node if node.op == "Slice"]
    assert sum("begin" in name for name in begins) == 1
    assert sum("ConcatOffset" in name for name in begins) == 2


@pytest.mark.parametrize("out_type", [tf.int32, tf.int64])
def test_measured_shapes_are_those_of_the_ids(out_type: Any) -> None:
    def body(step: Step) -> None:
        rows = [step.rows(n) for n in range(3)]
        joined = tf.concat(
            [tf.reshape(one, [-1, w]) for one, w in zip(rows, WIDTHS, strict=True)], 1
        )
        gradient = tf.gradients(tf.reduce_sum(tf.square(joined)), joined)[0][:, : WIDTHS[0]]
        shape = tf.shape(rows[0], out_type=out_type)
        step.end(joined, step.scatter(0, tf.reshape(gradient, shape)[:, 0]))

    result = check(build(body)).graph_def
    assert {node.input[0] for node in result.node if node.op == "Shape"} == {"ids0", "Square"}


def test_an_awaited_read_leaves_its_name() -> None:
    rewrite = FuseLookups(PASS.preserve, frozenset({"table0_read", "rows1"}), runs=True)
    result = rewrite.apply(build(plain))
    assert result.report.fused_count == 3
    nodes = {node.name: node.op for node in result.graph_def.node}
    assert nodes["table0_read"] == nodes["rows1"] == "NoOp"


def test_a_table_that_others_read_whole_is_read_as_stock_reads_it() -> None:
    def body(step: Step) -> None:
        value = step.value(0)
        rows = raw.GatherV2(params=value, indices=step.ids[0], axis=0)
        flat = [tf.reshape(rows, [-1, WIDTHS[0]]), step.flat(1), step.flat(2)]
        joined = tf.concat(flat, 1)
        loss = tf.reduce_sum(tf.square(joined)) + tf.reduce_sum(value)
        gradients = tf.gradients(loss, flat)
        step.end(joined, *(step.scatter(n, gradient) for n, gradient in enumerate(gradients)))

    result = check(build(body)).graph_def
    shared = [node.input[0] for node in result.node if node.op == READS]
    assert shared == ["table1", "table2"]


@pytest.mark.parametrize("is_reference", [False, True])
def test_of_a_value_readers_change_nothing(is_reference: bool) -> None:
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, [None, 1], name="ids")
        tables = [
            v1.get_variable(f"t{n}", [ROWS, 8], use_resource=False)
            if is_reference
            else v1.placeholder(tf.float32, [ROWS, 8], name=f"t{n}")
            for n in range(2)
        ]
        rows = [tf.reshape(tf.gather(table, ids), [-1, 8]) for table in tables]
        tf.concat(rows, 1, name="out")
        for n, table in enumerate(tables):
            tf.add(table, 1.0, name=f"table{n}_after")
    names = ["out", "table0_after", "table1_after"]
    graph_def = v1.graph_util.extract_sub_graph(graph.as_graph_def(), names)
    report = PASS.apply(graph_def).report
    assert report == FuseLookups(PASS.preserve).apply(graph_def).report
    assert report.fused_count == 2


def test_lookups_in_a_branch_are_read_before_what_waits_for_it() -> None:
    """Where another branch is taken, nothing is read: the write need not wait there."""

    def body(step: Step) -> None:
        handles = [switched(step, handle, 1) for handle in step.handles]
        ids = [switched(step, one, 1) for one in step.ids]
        flat = []
        for handle, one, width in zip(handles, ids, WIDTHS, strict=True):
            rows = raw.ResourceGather(resource=handle, indices=one, dtype=tf.float32)
            flat.append(tf.reshape(rows, [tf.shape(one)[0], width]))
        joined = tf.concat(flat, 1)
        writes = []
        for n, gradient in enumerate(tf.gradients(tf.reduce_sum(tf.square(joined)), flat)):
            other = tf.tile(
                switched(step, tf.ones([1, WIDTHS[n]]), 0), [tf.shape(step.ids[n])[0], 1]
            )
            writes.append(step.scatter(n, raw.Merge(inputs=[other, gradient])[0]))
        step.end(raw.Merge(inputs=[joined, switched(step, tf.ones([1, 1]), 0)])[0], *writes)

    check(build(body))


# What stays

MAY_NOT_WAIT = "which may not wait for it"


def test_a_graph_that_is_not_about_to_run_stays() -> None:
    stays(build(plain), "rows of its table are written", FuseLookups(PASS.preserve))


def does_not_wait(step: Step) -> None:
    joined = tf.concat([step.flat(n) for n in range(3)], 1)
    ones = [tf.ones([1, width]) for width in WIDTHS]
    step.end(joined, *(step.scatter(n, one) for n, one in enumerate(ones)))


def waits_by_sizes_alone(step: Step) -> None:
    """A constant is sliced by the sizes of what is looked up."""
    flat = [step.flat(n) for n in range(3)]
    joined = tf.concat(flat, 1)
    top = tf.ones([tf.shape(step.ids[0])[0], sum(WIDTHS)])
    gradients = tf.gradients(joined, flat, top)
    step.end(joined, *(step.scatter(n, gradient) for n, gradient in enumerate(gradients)))


def waits_for_the_read_alone(step: Step) -> None:
    values = [step.value(n) for n in range(3)]
    rows = [
        raw.GatherV2(params=value, indices=ids, axis=0)
        for value, ids in zip(values, step.ids, strict=True)
    ]
    joined = tf.concat([tf.reshape(one, [-1, w]) for one, w in zip(rows, WIDTHS, strict=True)], 1)
    with tf.control_dependencies(values):
        writes = [step.scatter(n, tf.ones([1, width])) for n, width in enumerate(WIDTHS)]
    step.end(joined, *writes)


def waits_in_one_branch_alone(step: Step) -> None:
    """If the other one is taken, tables are written whenever that is done."""
    flat = [step.flat(n) for n in range(3)]
    joined = tf.concat(flat, 1)
    writes = []
    for n, gradient in enumerate(tf.gradients(tf.reduce_sum(tf.square(joined)), flat)):
        inputs = [switched(step, tf.ones([1, WIDTHS[n]]), 0), switched(step, gradient, 1)]
        writes.append(step.scatter(n, raw.Merge(inputs=inputs)[0]))
    step.end(joined, *writes)


def written_by_another_handle(step: Step) -> None:
    joined = tf.concat([step.flat(n) for n in range(3)], 1)
    writes = [
        step.scatter(n, tf.ones([1, width]), step.handle(n, f"again{n}"))
        for n, width in enumerate(WIDTHS)
    ]
    step.end(joined, *writes)


def in_a_function(step: Step) -> None:
    joined = tf.concat([step.flat(n) for n in range(3)], 1)

    def write() -> Any:
        writes = [step.scatter(n, tf.ones([1, width])) for n, width in enumerate(WIDTHS)]
        with tf.control_dependencies(writes):
            return tf.constant(1.0)

    step.end(joined, tf.cond(step.flag, write, lambda: tf.constant(0.0)).op)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        does_not_wait,
        waits_by_sizes_alone,
        waits_for_the_read_alone,
        waits_in_one_branch_alone,
        written_by_another_handle,
    ],
)
def test_what_may_be_changed_early_stays(body: Callable[[Step], None], reads: bool) -> None:
    stays(build(body, reads=reads), MAY_NOT_WAIT)


@pytest.mark.parametrize("reads", [True, False])
def test_what_a_function_changes_stays(reads: bool) -> None:
    stays(build(in_a_function, reads=reads), MAY_NOT_WAIT)


def test_a_reference_variable_that_may_be_changed_early_stays() -> None:
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, [None, 1], name="ids")
        tables = [v1.get_variable(f"t{n}", [ROWS, 8], use_resource=False) for n in range(2)]
        rows = [tf.reshape(tf.gather(table, ids), [-1, 8]) for table in tables]
        writes = [v1.scatter_sub(table, [0], tf.ones([1, 8])) for table in tables]
        with tf.control_dependencies(writes):
            tf.identity(tf.concat(rows, 1), name="out")
    stays(graph.as_graph_def(), MAY_NOT_WAIT)


def test_one_table_that_may_be_changed_early_stays() -> None:
    def body(step: Step) -> None:
        flat = [step.flat(n) for n in range(3)]
        joined = tf.concat(flat, 1)
        gradients = tf.gradients(tf.reduce_sum(tf.square(joined)), flat)
        early = step.assign(2, tf.ones([ROWS, WIDTHS[2]]))
        step.end(joined, step.scatter(0, gradients[0]), step.scatter(1, gradients[1]), early)

    result = PASS.apply(build(body))
    fused = {column.anchor: column.fused for column in result.report.columns}
    assert fused == {"rows0": True, "rows1": True, "rows2": False}


def test_rows_that_others_read_stay() -> None:
    def body(step: Step) -> None:
        flat = [step.flat(n) for n in range(3)]
        joined = tf.concat(flat, 1)
        gradients = tf.gradients(tf.reduce_sum(tf.square(joined)), flat)
        writes = [step.scatter(n, tf.square(one)) for n, one in enumerate(gradients)]
        step.end(joined + tf.reduce_sum(tf.nn.relu(flat[0])), *writes)

    result = PASS.apply(build(body))
    fused = {column.anchor: column.fused for column in result.report.columns}
    assert fused == {"rows0": False, "rows1": True, "rows2": True}

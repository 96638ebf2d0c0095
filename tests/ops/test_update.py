"""FusedEmbeddingUpdate leaves the bits of stock's ops, one for each line of a program."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.update_program import parse
from tests.update_programs import PROGRAMS, counts, run_stock, same

SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-310, 1e30)


class Case:
    """Variables, of which both sides have their own, and the inputs of a call."""

    def __init__(
        self, text, rows, dim, count, *, dtype="float32", tid="int32", special=False, seed=0
    ):
        self.text, self.rng, self.dtype = text, np.random.default_rng(seed), dtype
        self.rows, self.dim, self.special, self.counts = rows, dim, special, counts(text)
        slots = [self.floats((rows, dim)) for _ in range(max(1, self.counts["v"]))]
        slots = [slots[0], *(np.abs(slot) for slot in slots[1:])]
        self.start = slots
        self.counts["v"] = len(slots)
        self.scalars = [tf.constant(value, dtype) for value in (0.1, 0.01, 0.5, 1e-7, 0.02)]
        # One that is not used tells TensorFlow's function the dtype.
        self.scalars = self.scalars[: max(self.counts["s"], not self.counts["x"])]
        few = max(1, min(rows, count // 3))
        ids = self.rng.choice(rows, few, replace=False)[self.rng.integers(0, few, count)]
        self.ids = tf.constant(ids if count else [], tid)
        self.offsets = [int(self.rng.integers(-1, 4)) for _ in range(self.counts["x"])]
        self.wide = [self.matrix(count, offset) for offset in self.offsets]
        self.values = [
            tf.constant(wide[:count, max(offset, 0) :][:, :dim])
            for wide, offset in zip(self.wide, self.offsets, strict=True)
        ]

    def matrix(self, count, offset):
        """The entries alone, or with more rows and columns."""
        more = (0, 0) if offset < 0 else (int(self.rng.integers(0, 3)), offset + 2)
        return self.floats((count + more[0], self.dim + more[1]))

    def floats(self, shape):
        values = self.rng.normal(size=shape)
        if self.special:
            where = self.rng.random(shape) < 0.2
            values = np.where(where, self.rng.choice(SPECIAL, shape), values)
        return values.astype(self.dtype)

    def variables(self):
        return [tf.Variable(value) for value in self.start]

    def update(self, variables, sparse=None, **changed):
        inputs = {
            "handles": [variable.handle for variable in variables],
            "ids": self.ids,
            "values": [tf.constant(value) for value in self.wide],
            "scalars": self.scalars,
            "dim": self.dim,
            "offsets": self.offsets,
            "sparse": [False] * len(variables) if sparse is None else sparse,
            "program": self.text,
            "num_results": parse(self.text).result_count,
        }
        return ops.fused_embedding_update(**inputs | changed)

    def check(self, steps=2, sparse=None, **attrs):
        ours, stock = self.variables(), self.variables()
        any_zero = "max" in self.text or "min" in self.text
        ids, values = self.ids, self.values
        if attrs.get("wrap_negative"):
            ids = tf.where(ids < 0, ids + self.rows, ids)
        if attrs.get("deduplicate"):
            ids, index = tf.unique(ids)
            values = [tf.math.unsorted_segment_sum(v, index, tf.size(ids)) for v in values]
        for _ in range(steps):
            results = self.update(ours, sparse, **attrs)
            expected = run_stock(parse(self.text), stock, ids, values, self.scalars)
            pairs = [*zip(ours, stock, strict=True), *zip(results, expected, strict=True)]
            for index, (one, other) in enumerate(pairs):
                assert same(one.numpy(), other.numpy(), any_zero=any_zero), index


SHAPES = [(1, 1), (7, 3), (300, 5), (129, 8), (5000, 16), (64, 64)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [0, 1, 7, 600])
def test_has_the_bits_of_stock(name, count):
    for index, (rows, dim) in enumerate(SHAPES):
        dtype, tid = ("float32", "float64")[index % 2], ("int32", "int64")[index // 2 % 2]
        Case(PROGRAMS[name], rows, dim, count, dtype=dtype, tid=tid, seed=index).check()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tid", ["int32", "int64"])
def test_numbers_that_are_not_finite_zeros_and_denormals(name, dtype, tid):
    for seed, (rows, dim, count) in enumerate([(40, 3, 30), (500, 16, 600), (2000, 1, 7)]):
        case = Case(PROGRAMS[name], rows, dim, count, dtype=dtype, tid=tid, special=True, seed=seed)
        case.check()


@pytest.mark.parametrize("name", ["k3_sgd", "k3_adagrad", "k3_adam", "tk_adam"])
@pytest.mark.parametrize("sparse", [True, False])
def test_either_access(name, sparse):
    case = Case(PROGRAMS[name], 300, 8, 60)
    case.check(sparse=[sparse] * case.counts["v"])
    case.check(sparse=[sparse, *[not sparse] * (case.counts["v"] - 1)])


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [0, 1, 7, 600])
def test_values_of_repeated_ids_that_are_summed_first(name, count):
    for index, (rows, dim) in enumerate(SHAPES):
        for special in (False, True):
            dtype, tid = ("float32", "float64")[index % 2], ("int32", "int64")[index // 2 % 2]
            options = {"dtype": dtype, "tid": tid, "seed": index, "special": special}
            Case(PROGRAMS[name], rows, dim, count, **options).check(deduplicate=True)


@pytest.mark.parametrize("name", ["k3_sgd", "lazy_momentum"])
@pytest.mark.parametrize("tid", ["int32", "int64"])
@pytest.mark.parametrize("is_distinct", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("rows", "dim", "count"),
    [
        (1000, 1, 500),
        (600, 1, 600),
        (599, 1, 600),  # marked first
        (40, 3, 600),
        (9000, 8, 600),  # on the heap, not the stack
        (500 * 32, 1, 500),  # the most rows that are numbered
        (500 * 32 + 1, 1, 500),
        (4000, 16, 512),  # the most elements
        (4000, 16, 513),
    ],
)
def test_rows_that_are_numbered_or_sorted(name, tid, is_distinct, is_whole, rows, dim, count):
    case = Case(PROGRAMS[name], rows, dim, count, tid=tid, special=True)
    if is_whole:
        case.offsets, case.wide = [-1], [case.values[0].numpy()]
    if is_distinct and rows >= count:
        case.ids = tf.constant(case.rng.permutation(rows)[:count], tid)
    for deduplicate in (True, False):
        case.check(deduplicate=deduplicate)


@pytest.mark.parametrize("tid", [tf.int32, tf.int64])
def test_ids_outside_a_table_of_fewer_rows_than_ids(tid):
    case = Case(PROGRAMS["lazy_momentum"], 3, 4, 6)
    variables = case.variables()
    for bad in (3, -1, tid.max, tid.min):
        ids = tf.constant([0, 1, 2, 2, bad, 1], tid)
        text = rf"ids\[4\] = {bad} is not in \[0, 3\), the rows"
        assert refused(case, variables, INVALID, text, ids=ids, deduplicate=True)


@pytest.mark.parametrize("name", ["k3_sgd", "k3_adagrad", "k3_adam", "tk_adam"])
@pytest.mark.parametrize("tid", ["int32", "int64"])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_negative_ids_count_from_the_end(name, tid, deduplicate):
    for index, (rows, dim) in enumerate(SHAPES):
        case = Case(PROGRAMS[name], rows, dim, 60, tid=tid, seed=index)
        ids = case.ids.numpy()
        ids[::2] -= rows
        case.ids = tf.constant(ids)
        case.check(wrap_negative=True, deduplicate=deduplicate)


@pytest.mark.parametrize("shape", [[60, 1], [5, 4, 3], [2, 30]])
def test_ids_of_any_shape(shape):
    case = Case(PROGRAMS["k3_adam"], 300, 8, 60)
    ours, stock = case.variables(), case.variables()
    case.update(ours, ids=tf.reshape(case.ids, shape))
    run_stock(parse(case.text), stock, case.ids, case.values, case.scalars)
    for one, other in zip(ours, stock, strict=True):
        assert same(one.numpy(), other.numpy())


def test_one_id():
    case = Case(PROGRAMS["k3_sgd"], 300, 8, 1)
    ours, stock = case.variables(), case.variables()
    case.update(ours, ids=case.ids[0])
    run_stock(parse(case.text), stock, case.ids, case.values, case.scalars)
    assert same(ours[0].numpy(), stock[0].numpy())


# --- rows without entries that stay ------------------------------------------------------------

ADAM = PROGRAMS["k3_adam"]


def sweep_case(text, slots, scalars=None, rows=3000, dim=8, count=5, **kwargs):
    """A case whose slots are given: zeros in most blocks of rows, so that these may be skipped."""
    case = Case(text, rows, dim, count, **kwargs)
    for index in range(1, case.counts["v"]):
        case.start[index] = np.full((rows, dim), slots, case.dtype)
        case.start[index][[0, 97]] = 0.5
    if scalars is not None:
        case.scalars = [tf.constant(value, case.dtype) for value in scalars]
    return case


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("slots", [0.0, -0.0])
def test_rows_of_zero_slots(name, dtype, slots):
    for dim in (1, 3, 8, 40):
        sweep_case(PROGRAMS[name], slots, dim=dim, dtype=dtype).check(steps=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, -0.0])
@pytest.mark.parametrize("which", range(4))
def test_scalars_that_change_rows_of_zero_slots(bad, which):
    """As 0 * inf does, and 0 / (sqrt(0) + 0)."""
    scalars = [0.1, 0.01, 0.5, 1e-7]
    scalars[which] = bad
    sweep_case(ADAM, 0.0, scalars).check()


@pytest.mark.parametrize(
    "text",
    [
        ADAM.replace("p=sub(v0,o)", "p=add(v0,o)"),
        ADAM.replace("p=sub(v0,o)", "p=sub(o,v0)"),
        ADAM + ";z=mul(p,s2);assign(v1,z)",
        ADAM + ";z=add(v0,v0);assign(v1,z)",
        "a=neg(v1);b=sub(v0,a);assign(v0,b);c=sum(x0);assign(v1,c)",
        "a=sub(v0,s0);assign(v0,a);c=sum(x0);assign(v1,c)",
        "c=sum(x0);assign(v1,c);a=mul(v0,s0);b=sub(v0,a);assign(v0,b)",
        "c=sum(x0);a=sub(v0,c);assign(v0,a)",
    ],
)
def test_programs_that_change_rows_of_zero_slots_or_do_not(text):
    scalars = [0.1, 0.01, 0.5, 1e-7][: counts(text)["s"]]
    case = sweep_case(text, 0.0, scalars)
    case.start[0][::3] = -0.0
    case.check(steps=3)


def test_a_table_of_what_is_not_finite_beside_zero_slots():
    case = sweep_case(ADAM, 0.0, special=True)
    case.start[0] = np.where(np.abs(case.start[0]) < 1e-30, 1, case.start[0])  # no denormals
    case.check(steps=3)


def test_rows_that_stay_are_not_computed():
    """A difference of a signaling NaN and 0 is a quiet one."""
    case = sweep_case(ADAM, 0.0)
    signaling, quiet = 0x7FA00000, 0x7FE00000
    case.start[0].view(np.int32)[:] = signaling
    variables = case.variables()
    case.update(variables)
    bits = variables[0].numpy().view(np.int32)
    touched = np.zeros(case.rows, bool)
    touched[case.ids.numpy()] = True
    touched[[0, 97]] = True  # slots that are not zero
    np.testing.assert_array_equal(bits[touched], quiet)
    # Blocks with entries, or with slots that are not zero, are computed whole.
    assert np.mean(bits == signaling) > 0.5
    # A second read of the table rules skipping out.
    case.text += ";z=add(v0,v0);assign(v1,z)"
    variables = case.variables()
    case.update(variables)
    np.testing.assert_array_equal(variables[0].numpy().view(np.int32), quiet)


# --- programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "result(x0)",
        "t=take(v0);u=mul(t,x0);result(u);scatter_sub(v0,u);result(x1)",
        "assign(v0,v1)",
        "assign(v0,v1);assign(v1,v0)",
        "a=neg(v0);assign(v1,a);assign(v0,a)",
        "a=neg(v0);b=neg(v1);assign(v0,b);assign(v1,a)",
        "a=neg(v0);assign(v0,a);b=square(v0);assign(v0,b);c=add(a,b);assign(v1,c)",
        "a=neg(v0);assign(v0,a);b=add(a,v1);assign(v0,b)",
        "a=sum(x0);assign(v0,a);scatter_add(v0,x0);b=add(a,v1);assign(v1,b)",
        "a=square(v0);t=take(v0);assign(v0,a);u=take(v0);w=add(t,u);scatter_add(v1,w)",
        "a=sum(x0);b=mul(a,s0);c=sub(s1,b);assign(v0,c);d=max(c,b);assign(v1,d)",
        "scatter_add(v0,x0);t=take(v0);scatter_sub(v1,t);u=take(v1);scatter_add(v0,u)",
        "a=div(s0,v0);t=take(a);scatter_add(v0,t);b=min(s1,v0);u=take(b);scatter_sub(v1,u)",
        "scatter_update(v0,x0);t=take(v0);scatter_add(v1,t);u=neg(v0);w=take(u);scatter_update(v1,w)",
        "a=neg(v0);assign(v0,a);scatter_update(v0,x0);b=square(v0);assign(v1,b)",
        "a=neg(x0);b=abs(a);scatter_add(v1,b);c=neg(x0);d=sum(c)",
    ],
)
def test_any_program(text):
    for rows, dim, count in [(1, 1, 3), (50, 5, 20), (900, 16, 40)]:
        case = Case(text, rows, dim, count, seed=rows)
        case.check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_but_variables_in_a_graph(dtype):
    """TensorFlow's function needs a value or a scalar for the dtype; a graph does not."""
    start = np.random.default_rng(0).normal(size=(30, 4)).astype(dtype)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("table", initializer=start, use_resource=True)
        node = tf.compat.v1.NodeDef()
        node.name, node.op = "update", "FusedEmbeddingUpdate"
        node.input.extend(["handle", "ids"])
        for name, count in (("variables", 1), ("values", 0), ("scalars", 0), ("results", 0)):
            node.attr[f"num_{name}"].i = count
        node.attr["T"].type = tf.as_dtype(dtype).as_datatype_enum
        node.attr["Tid"].type = tf.int32.as_datatype_enum
        node.attr["dim"].i = 4
        node.attr["sparse"].list.b.append(False)
        node.attr["offsets"].list.SetInParent()
        node.attr["program"].s = b"a=square(v0);assign(v0,a)"
        graph_def = tf.compat.v1.GraphDef(node=[node])
        inputs = {"handle": variable.handle, "ids": tf.constant([1])}
        tf.graph_util.import_graph_def(graph_def, inputs, name="")
        session.run(variable.initializer)
        session.run(graph.get_operation_by_name("update"))
        np.testing.assert_array_equal(session.run(variable), np.square(start))


def test_in_a_graph():
    case = Case(ADAM, 300, 8, 40)
    ours, stock = case.variables(), case.variables()

    @tf.function
    def step():
        case.update(ours)

    for _ in range(3):
        step()
        run_stock(parse(ADAM), stock, case.ids, case.values, case.scalars)
    for one, other in zip(ours, stock, strict=True):
        assert same(one.numpy(), other.numpy())


def test_a_step_in_a_graph_is_not_dropped_and_not_merged_with_an_equal_one():
    case = Case(PROGRAMS["k3_sgd"], 300, 8, 40)
    ours, stock = case.variables(), case.variables()

    @tf.function
    def step():
        case.update(ours)
        case.update(ours)

    step()
    for _ in range(2):
        run_stock(parse(case.text), stock, case.ids, case.values, case.scalars)
    assert same(ours[0].numpy(), stock[0].numpy())


# --- who else has the variable -----------------------------------------------------------------


def test_another_holder_keeps_the_old_value_of_a_dense_variable():
    case = Case(ADAM, 300, 8, 40)
    variables = case.variables()
    held = [variable.read_value() for variable in variables]
    case.update(variables, [False] * 3)
    for value, variable, start in zip(held, variables, case.start, strict=True):
        assert same(value.numpy(), start)
        assert not same(variable.numpy(), start)


@pytest.mark.parametrize("name", ["k3_adagrad", "k3_adam"])
def test_a_sparse_variable_stays_where_it_is(name):
    case = Case(PROGRAMS[name], 300, 8, 40)
    variables = case.variables()
    held = ops.read_embedding_tables([v.handle for v in variables], tf.float32)
    case.update(variables, [True] * len(variables))
    for value, variable, start in zip(held, variables, case.start, strict=True):
        assert same(value.numpy(), variable.numpy())
        assert not same(value.numpy(), start)


def test_a_stock_read_of_a_sparse_variable_keeps_its_value():
    case = Case(PROGRAMS["k3_sgd"], 300, 8, 40)
    (variable,) = case.variables()
    held = variable.read_value()
    case.update([variable], [True])
    again = variable.read_value()
    case.update([variable], [True])
    assert same(held.numpy(), case.start[0])
    assert not same(again.numpy(), variable.numpy())


@pytest.mark.parametrize("text", ["scatter_add(v0,x0)", "a=sum(x0);b=add(v0,a);assign(v0,b)"])
@pytest.mark.parametrize("sparse", [True, False])
def test_no_update_is_lost_among_threads(text, sparse):
    threads, times, rows, dim, count = 4, 50, 5000, 16, 500
    variable = tf.Variable(tf.zeros([rows, dim]))
    rng = np.random.default_rng(0)
    ids = [tf.constant(rng.integers(0, rows, count), tf.int32) for _ in range(threads)]
    values = [tf.constant(rng.integers(-5, 5, (count, dim)), tf.float32) for _ in range(threads)]

    def run(index):
        for _ in range(times):
            ops.fused_embedding_update(
                [variable.handle], ids[index], [values[index]], [], 0, dim, [0], [sparse], text
            )

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expected = np.zeros((rows, dim), np.float32)
    for index in range(threads):
        np.add.at(expected, ids[index].numpy(), values[index].numpy())
    np.testing.assert_array_equal(variable.numpy(), times * expected)


# --- errors ------------------------------------------------------------------------------------


def refused(case, variables, error, match, **changed):
    """Whether a call raises and leaves the variables as they were."""
    before = [variable.numpy() for variable in variables]
    with pytest.raises(error, match=match):
        case.update(variables, **changed)
    return all(same(v.numpy(), old) for v, old in zip(variables, before, strict=True))


INVALID = tf.errors.InvalidArgumentError


@pytest.mark.parametrize("name", ["k3_sgd", "k3_adagrad", "k3_adam", "tk_adam"])
@pytest.mark.parametrize("tid", [tf.int32, tf.int64])
def test_ids_outside_the_table(name, tid):
    case = Case(PROGRAMS[name], 20, 4, 3)
    variables = case.variables()
    for bad in (20, 2**31 - 1):
        text = rf"ids\[2\] = {bad} is not in \[0, 20\), the rows"
        ids = tf.constant([0, 5, bad], tid)
        assert refused(case, variables, INVALID, text, ids=ids)
        assert refused(case, variables, INVALID, text, ids=ids, deduplicate=True)
        text = rf"ids\[2\] = {bad} is not in \[-20, 20\), the rows"
        assert refused(case, variables, INVALID, text, ids=ids, wrap_negative=True)
    negative = tf.constant([0, -1, 5], tid)
    if name != "k3_adam":
        text = r"ids\[1\] = -1 is not in \[0, 20\), the rows"
        assert refused(case, variables, INVALID, text, ids=negative)
        text, below = r"ids\[2\] = -21 is not in \[-20, 20\)", tf.constant([0, -20, -21], tid)
        assert refused(case, variables, INVALID, text, ids=below, wrap_negative=True)


def test_entries_of_negative_ids_are_left_out_of_sums():
    case = Case(ADAM, 20, 4, 3)
    ours, stock = case.variables(), case.variables()
    case.ids = tf.constant([0, -1, 5])
    case.update(ours)
    run_stock(parse(ADAM), stock, case.ids, case.values, case.scalars)
    for one, other in zip(ours, stock, strict=True):
        assert same(one.numpy(), other.numpy())
    case.check(deduplicate=True)
    case.ids = tf.constant([0, -21, -15])
    case.check(wrap_negative=True)


def test_no_rows():
    case = Case(ADAM, 1, 4, 0)
    variables = [tf.Variable(tf.zeros([0, 4])) for _ in range(3)]
    case.update(variables)
    assert refused(Case(ADAM, 5, 4, 1), variables, INVALID, r"ids\[0\] = \d is not in \[0, 0\)")


def of_unknown_shapes(case, variables):
    """A function of ids, values and scalars that are checked only when it runs."""
    whole, real = tf.TensorSpec(None, tf.int32), tf.TensorSpec(None)
    counts_of = case.counts

    @tf.function(input_signature=[whole, [real] * counts_of["x"], [real] * counts_of["s"]])
    def run(ids, values, scalars):
        case.update(variables, ids=ids, values=values, scalars=scalars)

    return run


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"ids": [1, 2, 3, 4]}, r"values\[0\] has 3 rows, fewer than the 4 ids"),
        ({"ids": [[1, 2], [3, 4]]}, r"values\[0\] has 3 rows, fewer than the 4 ids"),
        ({"values": [np.zeros([2, 10])]}, r"values\[0\] has 2 rows, fewer than the 3 ids"),
        ({"values": [np.zeros([3])]}, r"values\[0\] has rank 1, not 2"),
        ({"values": [np.zeros([3, 4])]}, r"values\[0\] has 4 columns, fewer than 4 from 1 on"),
        ({"scalars": [1, 1, [1, 1], 1]}, r"scalars\[2\] has 2 elements, not 1"),
        ({"scalars": [1, 1, [], 1]}, r"scalars\[2\] has 0 elements, not 1"),
    ],
)
def test_shapes(changed, match):
    case = Case(ADAM, 20, 4, 3)
    case.offsets = [1]
    variables = case.variables()
    run = of_unknown_shapes(case, variables)
    inputs = {"ids": [1, 2, 3], "values": [np.zeros([3, 5])], "scalars": [0.5, [0.5], [[0.5]], 1]}
    with pytest.raises(INVALID, match=match):
        run(**as_tensors(inputs | changed))
    for variable, start in zip(variables, case.start, strict=True):
        assert same(variable.numpy(), start)
    run(**as_tensors(inputs))


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ([4, 4], r"values\[0\] has 4 rows, but there are 3 ids"),
        ([2, 4], r"values\[0\] has 2 rows, but there are 3 ids"),
        ([3, 5], r"values\[0\] has 5 columns, not 4"),
        ([3, 3], r"values\[0\] has 3 columns, not 4"),
    ],
)
def test_shapes_of_whole_values(shape, match):
    case = Case(ADAM, 20, 4, 3)
    case.offsets = [-1]
    assert refused(case, case.variables(), INVALID, match, values=[tf.zeros(shape)])


def as_tensors(inputs):
    floats = {
        name: [tf.constant(value, tf.float32) for value in inputs[name]]
        for name in ("values", "scalars")
    }
    return {"ids": tf.constant(inputs["ids"], tf.int32), **floats}


def test_variables_of_other_sizes():
    case = Case(ADAM, 20, 4, 3)
    odd = [*case.variables()[:2], tf.Variable(tf.zeros([21, 4]), name="odd")]
    assert refused(case, odd, INVALID, "behind .* has 84 elements, but the table 80")
    odd = [tf.Variable(tf.zeros([79])), *case.variables()[1:]]
    assert refused(case, odd, INVALID, "has 79 elements, which are no rows of 4")
    other = [*case.variables()[:2], tf.Variable(tf.zeros([20, 4], tf.float64))]
    assert refused(case, other, INVALID, "is not of dtype float32")
    (table, slot, _) = case.variables()
    assert refused(case, [table, slot, slot], INVALID, "is there twice")


def test_what_was_never_assigned():
    case = Case(PROGRAMS["k3_sgd"], 20, 4, 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[20, 4], shared_name="nothing")
        op = ops.fused_embedding_update(
            [handle], [1], [[[1.0, 2, 3, 4]]], [0.5], 0, 4, [0], [True], case.text
        )
        with pytest.raises(tf.errors.FailedPreconditionError, match='name="nothing"'):
            session.run(op)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"program": "g=mul(x0,s0);scatter_sub(v1,g)"}, r"'scatter_sub\(v1,g\)': there is no v1"),
        ({"program": "g=mul(x1,s0);scatter_sub(v0,g)"}, r"'g=mul\(x1,s0\)': there is no x1"),
        ({"program": "g=mul(x0,s1);scatter_sub(v0,g)"}, r"'g=mul\(x0,s1\)': there is no s1"),
        ({"program": "g=pow(x0,s0)"}, r"'g=pow\(x0,s0\)': there is no operation 'pow'"),
        ({"program": "result(x0)"}, "has 1 results, not 0"),
        ({"offsets": []}, "offsets has 0 items, not 1"),
        ({"offsets": [-2]}, "offsets must not be below -1"),
        (
            {"program": "result(x0)", "num_results": 1, "deduplicate": True},
            "program must not have results with deduplicate",
        ),
        ({"sparse": [True, True]}, "sparse has 2 items, not 1"),
        ({"dim": 0}, "dim"),
    ],
)
def test_nodes_that_cannot_be_made(changed, match):
    case = Case(PROGRAMS["k3_sgd"], 20, 4, 3)
    variables = case.variables()
    assert refused(case, variables, (INVALID, ValueError), match, **changed)


def test_a_variable_is_let_go_of():
    """Also after an error, and by a call that copies."""

    def resident_mib():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    case = Case(PROGRAMS["k3_sgd"], 20, 16, 3)
    before = resident_mib()
    for sparse in [True, False] * 4:
        table = tf.Variable(tf.zeros([1 << 20, 16]))  # 64 MiB
        held = table.read_value()
        case.update([table], [sparse])
        with pytest.raises(INVALID):
            case.update([table], [sparse], ids=tf.constant([0, 1, -1]))
        del table, held
        gc.collect()
    assert resident_mib() - before < 3 * 64

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
from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.schema.update_program import parse
from tests.ops.update_cases import ADAM, INVALID, Case, refused
from tests.update_programs import OF_VECTORS, PROGRAMS, run_stock, same

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


@pytest.mark.parametrize("name", OF_VECTORS)
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_has_the_bits_of_stock_in_whole_vectors(name, special, deduplicate):
    for seed, dim in enumerate((8, 16, 24, 40, 64, 136)):
        dtype, count = ("float32", "float64")[seed % 3 == 1], (7, 600)[seed % 2]
        case = Case(OF_VECTORS[name], 300, dim, count, dtype=dtype, special=special, seed=seed)
        case.check(deduplicate=deduplicate)


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
        (40, 3, 600),
        (9000, 8, 600),  # on the heap, not the stack
        (501, 16, 500),
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


LISTED = [name for name, text in PROGRAMS.items() if "assign(" not in text]
MARKED = (
    "t=take(v0);scatter_add(v1,x0);a=sum(x1);b=sub(v1,a);u=take(b);w=mul(u,t);scatter_sub(v0,w)"
)


@pytest.mark.parametrize("text", [*(PROGRAMS[name] for name in LISTED), MARKED])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "dim", "count"),
    [
        (8 * 500, 1, 500),  # the most rows that are marked
        (8 * 500 + 1, 1, 500),
        (2 * 700, 4, 700),
        (500, 16, 500),
        (9, 3, 600),
        (4099, 1, 20_000),  # several blocks, the last a part
        (100_003, 1, 70_000),  # and several threads
        (1 << 16, 16, 1 << 16),  # the most elements
        ((1 << 16) + 1, 16, (1 << 16) + 1),
    ],
)
def test_rows_that_are_marked(text, dtype, rows, dim, count):
    tid = "int32" if dtype == "float32" else "int64"
    case = Case(text, rows, dim, count, dtype=dtype, tid=tid, special=True, seed=rows)
    case.check(steps=1, deduplicate=True)
    ids = case.ids.numpy()
    ids[1::3] -= rows
    case.ids = tf.constant(ids)
    case.check(steps=1, deduplicate=True, wrap_negative=True)


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
        node.attr["code"].s = lower("a=square(v0);assign(v0,a)", Inputs(1, 0, 0, 0, False))
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

    code = lower(text, Inputs(1, 1, 0, 0, False))

    def run(index):
        for _ in range(times):
            handles, taken = [variable.handle], [values[index]]
            ops.fused_embedding_update(
                handles, ids[index], taken, [], 0, dim, [0], [sparse], text, code
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

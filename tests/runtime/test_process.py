"""Threads, processes and memory."""

import concurrent.futures
import multiprocessing
import threading

import numpy as np
import tensorflow as tf

import fusion
from fusion.ops.registered import SPECS
from fusion.runtime.native import objects
from fusion.runtime.registration import kernel_objects


def make_inputs(seed, rows=50, dim=8, batch=16):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, batch)
    where = np.repeat(np.arange(batch), counts)
    indices = np.stack([where, np.zeros_like(where)], 1)
    return indices.astype(np.int64), rng.integers(-1, rows, len(where)), [batch, 4]


def look_up(table, indices, values, shape):
    ids = tf.SparseTensor(indices, values, shape)
    return fusion.fused_safe_embedding_lookup_sparse(table, ids)


def expected(table, indices, values, shape):
    ids = tf.SparseTensor(indices, values, shape)
    return tf.nn.safe_embedding_lookup_sparse(table, ids).numpy()


def test_threads_share_one_function():
    table = tf.Variable(np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32))
    function = tf.function(
        lambda indices, values, shape: look_up(table, indices, values, shape),
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([2], tf.int64),
        ],
    )
    cases = [make_inputs(seed) for seed in range(8)]
    answers = [expected(table, *case) for case in cases]
    start = threading.Barrier(8)

    def work(which):
        start.wait()
        return all(
            np.array_equal(function(*cases[which]).numpy(), answers[which]) for _ in range(200)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


def test_threads_create_the_same_kernel_at_once(monkeypatch):
    monkeypatch.setattr(objects, "_addresses", {})
    loaded = []
    load = objects.load

    def count_and_load(code, symbol):
        loaded.append(symbol)
        return load(code, symbol)

    monkeypatch.setattr(objects, "load", count_and_load)
    spec = next(spec for spec in SPECS if spec.name == "UniqueWithCountsV3")
    recipe = kernel_objects.kernel_recipe(spec, "CPU", {"Tid": "int64"})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda _: objects.recipe_address(*recipe), range(8))
        assert len(set(results)) == 1
    assert loaded == ["UniqueWithCountsV3_CPU_int64"]


def child(connection, case):
    connection.send(look_up(tf.eye(50, 8), *case).numpy())


def test_forking_after_use():
    case = make_inputs(3)
    here = look_up(tf.eye(50, 8), *case).numpy()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, case))
    process.start()
    assert ours.poll(60)
    np.testing.assert_array_equal(ours.recv(), here)
    process.join(60)
    assert process.exitcode == 0


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_many_calls_leave_memory_flat():
    table = tf.Variable(tf.random.stateless_normal([50, 8], [1, 2]))
    indices, values, shape = make_inputs(5)

    @tf.function
    def many(count):
        total = tf.zeros([shape[0], 8])
        for _ in tf.range(count):
            # The input changes from call to call, so that nothing is hoisted out of the loop.
            total = look_up(table, indices, values + tf.cast(total[0, 0] * 0, tf.int64), shape)
        return total

    def fail_once():
        try:
            look_up(table, indices, values + 100, shape)
        except tf.errors.InvalidArgumentError:
            return True
        return False

    many(5000)
    assert all(fail_once() for _ in range(100))
    before = resident_bytes()
    many(100_000)
    assert all(fail_once() for _ in range(1000))
    # One leaked TF_Tensor of some 100 bytes per call would be 10 MB per op.
    assert resident_bytes() - before < 8 * 2**20

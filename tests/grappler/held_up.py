"""Does all kinds of things while TensorFlow waits for fusion: `python -m tests.grappler.held_up`.

TensorFlow holds locks while it optimizes a graph, and fusion needs Python's lock (the GIL) then. If
anything here waited for the former with the latter in its hands, this program would hang.
"""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

import fusion
from fusion.running import grappler
from tests.grappler.lookups import TABLE, ids, look_up, new_function

v1 = tf.compat.v1


def held_up(work: Callable[[], Any], meanwhile: Callable[[], Any]) -> None:
    """Starts `work` in a thread, and does the rest while it is inside fusion."""
    inside, go_on = threading.Event(), threading.Event()
    fuse = grappler._fuse

    def wait_and_fuse(item: Any, *args: Any, **kwargs: Any) -> Any:
        grappler._fuse = fuse  # only the first call waits
        inside.set()
        go_on.wait()
        return fuse(item, *args, **kwargs)

    grappler._fuse = wait_and_fuse
    fused = fusion.stats().columns_fused
    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    finish = meanwhile()
    go_on.set()
    thread.join()
    if finish is not None:
        finish()
    assert fusion.stats().columns_fused > fused


def functions_and_more() -> None:
    """Traces, runs, saves and discards."""
    new_function()(ids())
    traced = tf.function(lambda x: x + 1)
    traced(tf.constant(1))
    concrete = traced.get_concrete_function(tf.constant(1))
    concrete.graph.as_graph_def()
    context.context().list_function_names()
    context.context().get_function_def(concrete.name)
    del traced, concrete
    variable = tf.Variable([1.0])
    del variable
    gc.collect()
    list(tf.data.Dataset.range(3).map(lambda x: x + 1))
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(tf.Module(), folder)
    context.context().clear_kernel_cache()


def in_session() -> None:
    """A graph that grows while its session optimizes it."""
    with tf.Graph().as_default() as graph:
        placeholder = v1.sparse_placeholder(tf.int64, [None, None])
        output = look_up(v1.get_variable("table", initializer=TABLE), placeholder)
        session = v1.Session()
        session.run(v1.global_variables_initializer())
    feeds = {placeholder: v1.SparseTensorValue([[0, 0]], [1], [1, 1])}

    def meanwhile() -> Callable[[], None]:
        with graph.as_default():
            more = tf.constant(3) + 4
        # It waits for the other one, as it should, with locks of its own.
        second = threading.Thread(target=lambda: session.run(more))
        second.start()
        while second.is_alive() and not graph._group_lock._group_member_counts[1]:
            pass  # it is about to
        assert all(op.outputs[0].shape is not None for op in graph.get_operations() if op.outputs)
        graph.as_graph_def()
        functions_and_more()
        return second.join

    held_up(lambda: session.run(output, feeds), meanwhile)


def main() -> None:
    """Does it once in each way."""
    fusion.enable()
    one = ids()
    held_up(lambda: new_function()(one), functions_and_more)
    batches = tf.data.Dataset.from_tensors(one).repeat(3)
    table = tf.Variable(TABLE)
    mapped = batches.map(lambda ids: look_up(table, ids), num_parallel_calls=2)
    held_up(lambda: list(mapped), functions_and_more)
    in_session()


if __name__ == "__main__":
    main()

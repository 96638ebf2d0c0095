"""What replicas that are threads of one process must do alike: two logical CPUs, in a process."""

from __future__ import annotations

import sys

import pytest

from tests import zygote

PROGRAM = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import fusion
from fusion.distribute import ShardedEmbeddingVariable

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    tables = [ShardedEmbeddingVariable(name, 2, capacity=100, seed=1) for name in ("a", "b")]
ids = tf.ragged.constant([[1, 2], [3]], tf.int64)


def look_up(of_first, of_second):
    is_first = tf.get_static_value(
        tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)
    ) == 0
    asked = [tables[number] for number in (of_first if is_first else of_second)]
    return fusion.lookup_sparse(asked, [ids] * len(asked))


def differentiate():
    shards = [*tables[0].shards.values()]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            found = fusion.lookup_sparse(tables[0], ids, combiners="sum")
            loss = tf.reduce_sum(found**3)
        squares = [tf.reduce_sum(g.values**2) for g in inner.gradient(loss, shards)]
    return outer.gradient(squares, shards)


def said_by(step, *given):
    try:
        step(*given)
    except (ValueError, LookupError) as error:
        return str(error)
    return "nothing"


def together(*given):
    return strategy.run(look_up, given)


# Eagerly a thread that others wait for would wait for them, too.
for step in (together, tf.function(together)):
    for given in (((0, 1), (1, 0)), ((0, 1), (0,)), ((0, 1), (0, 1))):
        print(said_by(step, *given).splitlines()[-1].strip())
print(said_by(lambda: strategy.run(differentiate)).splitlines()[-1])
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    done = zygote.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", [0, 3])
def test_tables_are_looked_up_in_one_order(said: list[str], first: int):
    swapped, fewer, alike = said[first : first + 3]
    assert "in the same order, but one looks up ['a', 'b'] and another ['b', 'a']" in swapped
    assert "in the same order, but one looks up ['a', 'b'] and another ['a']" in fewer
    assert alike == "nothing"


def test_there_are_no_second_gradients(said: list[str]):
    assert "gradients of sharded tables that came from other replicas" in said[6]

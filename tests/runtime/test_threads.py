from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.runtime.threads import pool
from fusion.runtime.threads.layout import MAX_THREADS, SLOT_COUNT, THREADS_VARIABLE, Pool, Slot
from tests import zygote
from tests.ops.embedding_columns import NO_IDS, attrs

#: A process whose kernels have had help, and a child of it, in which there is none.
FORK = """
import os, sys
import numpy as np
from fusion import ops
from tests.ops.embedding_columns import attrs, NO_IDS

table = np.arange(40, dtype=np.float32).reshape(10, 4)
ids = np.arange(200_000)[:, None] % 10

def run():
    return ops.fused_embedding_lookup(
        table=table, ids=ids, entry_rows=NO_IDS, dense_shape=NO_IDS, weights=table[:0, 0],
        **attrs(form="dense", dim=4)
    ).numpy()

def is_right():
    return all(np.array_equal(run(), table[ids[:, 0]]) for _ in range(20))

assert is_right()
child = os.fork()
if child == 0:
    os._exit(0 if is_right() else 1)
assert is_right()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_number_of_threads(monkeypatch):
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    assert 1 <= pool.thread_count() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv(THREADS_VARIABLE, "3")
    assert pool.thread_count() == 3


@pytest.mark.parametrize(("setting", "helpers"), [("1", 0), ("3", 2)])
def test_a_pool_has_the_threads_that_it_is_to_have_besides_the_caller(
    monkeypatch, setting, helpers
):
    fresh = pool._Pool()
    monkeypatch.setattr(pool, "_pool", fresh)
    monkeypatch.setenv(THREADS_VARIABLE, setting)
    assert not pool.is_ready()
    pool.start_pool()
    assert pool.is_ready()
    assert fresh.words[Pool.thread_count] == helpers
    fresh.forget_threads()
    assert not pool.is_ready()


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", " 2", "\u0663"])
def test_a_number_of_threads_that_is_none(monkeypatch, caplog, text):
    """It is told, and there are as many as without it."""
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    default = pool.thread_count()
    monkeypatch.setenv(THREADS_VARIABLE, text)
    pool.warn_of_setting()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fusion", "WARNING")
    assert f"FUSION_NUM_THREADS is {text!r}, which is not a positive number" in record.message
    assert pool.thread_count() == default


@pytest.mark.parametrize("text", ["1", "64", "999999999999999999999", None])
def test_of_a_number_of_threads_nothing_is_told(monkeypatch, caplog, text):
    if text is None:
        monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(THREADS_VARIABLE, text)
    pool.warn_of_setting()
    assert not caplog.records
    assert 1 <= pool.thread_count() <= MAX_THREADS


def test_it_is_told_at_import():
    server = zygote.without_fusion()
    done = run_with({THREADS_VARIABLE: "0"}, "import fusion", server=server)
    assert "FUSION_NUM_THREADS is '0', which is not a positive number" in done.stderr


COUNT = "from fusion.runtime.threads import pool; print(pool.thread_count())"
SESSIONS = """
import fusion
import tensorflow as tf
v1 = tf.compat.v1
session = v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1), graph=tf.Graph())
other = v1.Session(graph=tf.Graph())
"""
SETTING = "import tensorflow as tf; tf.config.threading.set_intra_op_parallelism_threads({})\n"


@pytest.mark.parametrize(
    ("program", "variables", "count"),
    [
        ("", {"TF_NUM_INTRAOP_THREADS": "1"}, 1),
        ("", {"TF_NUM_INTRAOP_THREADS": "64"}, None),
        ("", {"TF_NUM_INTRAOP_THREADS": "0"}, None),
        ("", {"TF_NUM_INTRAOP_THREADS": "many"}, None),
        (SESSIONS, {}, 1),
        (SESSIONS, {"TF_NUM_INTRAOP_THREADS": "2"}, 1),
        (SESSIONS + "del session\n", {}, None),
        (SETTING.format(1), {}, 1),
        (SETTING.format(64), {"TF_NUM_INTRAOP_THREADS": "1"}, None),
        (SETTING.format(1) + SESSIONS, {THREADS_VARIABLE: "3"}, 3),
        ("", {"TF_NUM_INTRAOP_THREADS": "1", THREADS_VARIABLE: "3"}, 3),
    ],
)
def test_the_settings_of_tensorflow_are_read(program, variables, count):
    """None stands for the number of processors."""
    done = run_with(variables, program + COUNT)
    most = len(os.sched_getaffinity(0))
    assert done.stdout.split() == [str(most if count is None else count)], done.stderr


def run_with(variables, program, **options):
    """Runs a program with these settings and no others."""
    names = ("TF_NUM_INTRAOP_THREADS", THREADS_VARIABLE)
    environment = {name: text for name, text in os.environ.items() if name not in names}
    return zygote.run(
        [sys.executable, "-c", program],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


@pytest.mark.usefixtures("two_threads")
def test_threads_leave_nothing_behind_when_kernels_side_by_side_are_done():
    """They come, leave for kernels that begin and come back; all of them sleep in the end."""
    table = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    ids = np.random.default_rng(0).integers(0, 1000, (200_000, 1))
    inputs = {"table": table, "ids": ids, "entry_rows": NO_IDS, "dense_shape": NO_IDS}
    options = attrs(form="dense", dim=4)

    def is_right(_):
        found = ops.fused_embedding_lookup(**inputs, weights=table[:0, 0], **options)
        return np.array_equal(found.numpy(), table[ids[:, 0]])

    with ThreadPoolExecutor(4) as clients:
        assert all(clients.map(is_right, range(100)))
    words = pool._pool.words
    end = time.monotonic() + 10
    while words[Pool.sleeper_count] != words[Pool.thread_count] and time.monotonic() < end:
        time.sleep(0.01)
    assert words[Pool.sleeper_count] == words[Pool.thread_count] > 0
    assert words[Pool.active_count] == words[Pool.helper_count] == 0
    assert not any(words[Pool.slots : Pool.slots + Slot.SIZE * SLOT_COUNT])


@pytest.mark.parametrize("count", ["1", "4"])
def test_kernels_go_on_after_a_fork(count):
    environment = os.environ | {THREADS_VARIABLE: count}
    done = zygote.run(
        [sys.executable, "-c", FORK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        server=zygote.without_fusion(),
    )
    assert done.returncode == 0, done.stderr


def test_a_session_that_could_not_be_made_has_no_settings(monkeypatch):
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    with pytest.raises(TypeError) as error:  # its traceback has the session
        tf.compat.v1.Session(config={"intra": 1})
    assert pool.tensorflow_threads() >= 0
    del error

"""Children of forks after their parent has used TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
import tensorflow as tf
import fusion

def eager():
    return tf.constant(1) + 1

def session():
    with tf.compat.v1.Session(graph=tf.Graph()) as session, session.graph.as_default():
        return session.run(tf.constant(1) + 1)

call = {"eager": eager, "function": tf.function(eager), "session": session}[sys.argv[1]]
if sys.argv[2] == "used":
    call()
    sys.stderr.write("used\\n")
for uses in (False, True):
    child = os.fork()
    if not child:
        signal.alarm(1)  # it may wait forever
        if uses:
            call()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("call", "parent"),
    [("eager", "used"), ("function", "used"), ("session", "used"), ("function", "unused")],
)
def test_a_child_says_why_it_may_wait(call: str, parent: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, call, parent], capture_output=True, text=True, check=True
    )
    said = done.stderr.rpartition("used\n")[2]
    expected = 1 if parent == "used" else 0
    assert said.count("was forked from one in which TensorFlow had run") == expected

"""The cause in TensorFlow's messages, of the forms that TensorFlow 2.21 makes."""

from __future__ import annotations

import pytest
import tensorflow as tf

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.root_cause import root_cause

v1 = tf.compat.v1
WRONG = "No OpKernel was registered to support Op 'X' used by {{node a/b}} with these attrs: [T=1]"
KERNELS = "Registered devices: [CPU]\nRegistered kernels:\n  <no registered kernels>"
RESTORED = (
    "Restoring from checkpoint failed. This is most likely due to a mismatch between the current "
    "graph and the graph from the checkpoint. Original error:\n\nGraph execution error:\n\n"
)
DETECTED = "Detected at node 'a/b' defined at (most recent call last):\nNode: 'a/b'\n"
STACK = (
    "Detected at node a/b defined at (most recent call last):\n"
    '  File "<frozen runpy>", line 198, in _run_module_as_main\n\n'
    '  File "/home/x/train.py", line 7, in <module>\n\n'
)
OLD_STACK = (
    "Detected at node 'a/b' defined at (most recent call last):\n"
    '    File "/home/x/train.py", line 7, in <module>\n'
    "      y = tf.gather(t, x)\n"
    "Node: 'a/b'\n"
)
ORIGINAL = (
    "\n\nOriginal stack trace for 'a/b':\n  File \"train.py\", line 7, in <module>\n    main()"
)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            f"{RESTORED}{DETECTED}{WRONG}\n{KERNELS}\n\n\t [[a/b]]",
            f"{WRONG} {' '.join(KERNELS.split())}",
        ),
        (f"{WRONG}\n\n\t [[a/b]] [Op:__inference_f_12]", WRONG),
        (
            f"Graph execution error:\n\n{WRONG}\n\t [[f/g]]\n\t [[h]]",
            f"{WRONG} [[{{{{node f/g}}}}]]",
        ),
        (f"Graph execution error:\n\n{STACK}bad\n\t [[{{{{node a/b}}}}]]", "bad [[{{node a/b}}]]"),
        (f"{OLD_STACK}bad\n\t [[{{{{node a/b}}}}]]{ORIGINAL}", "bad [[{{node a/b}}]]"),
        (
            "Detected at node a defined at (most recent call last):\n<stack traces unavailable>\n"
            "indices[1] = 5 is not in [0, 5)\n\t [[{{node a}}]] [Op:__inference_f_1]",
            "indices[1] = 5 is not in [0, 5) [[{{node a}}]]",
        ),
        (
            f"Graph execution error:\n\n{DETECTED}2 root error(s) found.\n"
            "  (0) INVALID_ARGUMENT: bad\n\t [[{{node a/b}}]]\n\t [[c/_3]]\n"
            "  (1) INVALID_ARGUMENT: bad too\n\t [[{{node d}}]]\n0 successful operations.\n"
            f"0 derived errors ignored.{ORIGINAL}",
            "bad [[{{node a/b}}]]",
        ),
        (
            "Exception encountered when calling Layer.call().\n\n\x1b[1m{{function_node "
            "__wrapped__X_device_/job:localhost}} bad [Op:GatherV2] name: \x1b[0m\n\n"
            "Arguments received by Layer.call():\n  • x=1",
            "bad",
        ),
        (
            "bad\n\nErrors may have originated from an input operation.\nInput Source operations:\n"
            "In[0] x (defined at train.py:7)\n\nOperation defined at: (most recent call last)\n>>>",
            "bad",
        ),
        ("Function f: bad\nFunction call stack:\nf -> g\n", "Function f: bad"),
        # Of other errors nothing is lost.
        ("shapes\n  [[1, 2]] and\n  [3] differ", "shapes [[1, 2]] and [3] differ"),
        ("'key'", "'key'"),
        ("", ""),
        # Where there is nothing else, a stack trace is better than nothing.
        ("Graph execution error:\n", "Graph execution error:"),
        ("bad \x1b]0;title\x07\r\u202e", r"bad \x1b]0;title\x07 \u202e"),
    ],
)
def test_forms_of_messages(message: str, cause: str) -> None:
    assert root_cause(message) == cause


def test_a_long_message_is_cut_behind_the_cause() -> None:
    cause = root_cause(f"{DETECTED}bad: {'x' * 10_000}\n\t [[{{{{node a}}}}]]{ORIGINAL}")
    assert cause.startswith("bad: xxx")
    assert cause.endswith("... [[{{node a}}]]")
    assert len(cause) < 450


def test_what_tensorflow_says_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int64, [1])
        with tf.name_scope("columns"):
            found = tf.gather(tf.ones([3, 2]), ids, name="lookup")
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(found, {ids: [7]})
    assert "most recent call last" in str(caught.value)
    assert reason_of(caught.value) == "indices[0] = 7 is not in [0, 3) [[{{node columns/lookup}}]]"


def test_what_tensorflow_says_in_a_function() -> None:
    @tf.function
    def look_up(ids):
        return tf.gather(tf.ones([3, 2]), ids, name="lookup") + 1

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        look_up(tf.constant([7]))
    assert reason_of(caught.value) == "indices[0] = 7 is not in [0, 3) [[{{node lookup}}]]"


def test_an_error_without_words_has_a_class() -> None:
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(OSError(28, "No space left on device", "/secret")) == "no space left on device"


def test_a_model_error_is_one_line_that_is_safe_to_show() -> None:
    assert str(ModelError("a\n  b \x1b[31m\u202e")) == r"a b \x1b[31m\u202e"

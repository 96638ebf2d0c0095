"""What XLA compiles is not fused, which is said once."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.running import compiled
from fusion.runtime import process
from tests.grappler.lookups import ids


@pytest.fixture(autouse=True)
def fresh_watch():
    """As in a process that has not warned yet, and off afterwards."""
    fusion.enable()
    process.single("compiled", compiled._Watch).has_warned = False
    yield
    fusion.disable()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if "XLA" in r.getMessage()]


def lookups(count=26):
    tables = [tf.Variable(tf.ones([2000, 16])) for _ in range(count)]
    rows = np.zeros([512], np.int32)

    def call(rows):
        return tf.concat([tf.gather(table, rows) for table in tables], 1)

    return call, rows


def test_a_function_that_xla_compiles_is_warned_of_once(caplog):
    call, rows = lookups()
    tf.function(call, jit_compile=True).get_concrete_function(rows)
    (warning,) = warnings(caplog)
    assert warning.startswith("fusion cannot fuse 26 embedding lookups of __inference_call_")
    assert "tf.function(..., jit_compile=False)" in warning
    assert "model.compile(..., jit_compile=False)" in warning
    assert [r.levelno for r in caplog.records if "XLA" in r.getMessage()] == [logging.WARNING]
    call, rows = lookups()
    tf.function(call, jit_compile=True).get_concrete_function(rows)
    assert len(warnings(caplog)) == 1


def test_what_it_calls_is_seen_too(caplog):
    call, rows = lookups()
    inner = tf.function(call)
    tf.function(lambda rows: inner(rows) + 1, jit_compile=True).get_concrete_function(rows)
    assert "26 embedding lookups of" in warnings(caplog)[0]


def embedding_model(**arguments):
    inputs = [keras.Input([1], dtype="int32") for _ in range(26)]
    parts = [keras.layers.Flatten()(keras.layers.Embedding(2000, 16)(one)) for one in inputs]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile("sgd", "mse", **arguments)
    return model, [np.zeros([512, 1], np.int32)] * 26


def test_a_keras_model_that_xla_compiles(caplog):
    model, batch = embedding_model(jit_compile=True)
    model.predict(batch, 512, verbose=0)
    (warning,) = warnings(caplog)
    assert "26 embedding lookups of __inference_one_step_on_data" in warning


def test_a_keras_model_that_is_trained_by_xla(caplog):
    model, batch = embedding_model(jit_compile=True)
    model.fit(batch, np.zeros([512, 1]), batch_size=512, verbose=0)
    (warning,) = warnings(caplog)
    assert "26 embedding lookups of __inference_one_step_on_data" in warning


def test_with_the_line_there_is_no_warning(caplog):
    model, batch = embedding_model(jit_compile=False)
    model.predict(batch, 512, verbose=0)
    assert warnings(caplog) == []


def trained_model(jit_compile):
    """A custom training step of a stock lookup of sparse ids."""
    table = tf.Variable(tf.ones([2000, 16]))

    def call(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(table, ids))
        return tape.gradient(loss, table).values

    return tf.function(call, jit_compile=jit_compile)


def test_a_training_step(caplog):
    trained_model(False).get_concrete_function(ids())
    assert warnings(caplog) == []
    trained_model(True).get_concrete_function(ids())
    assert "1 embedding lookup of" in warnings(caplog)[0]


def test_no_warning_without_embeddings(caplog):
    model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    model.fit(np.ones([8, 4]), np.ones([8, 1]), verbose=0)
    table = tf.constant([1.0, 2.0])
    tf.function(lambda i: tf.gather(table, i), jit_compile=True)(tf.constant([1]))
    assert warnings(caplog) == []


@pytest.mark.parametrize("switch", ["off", "scope"])
def test_only_while_it_is_on(switch, caplog):
    fusion.disable()
    call, rows = lookups()
    if switch == "scope":
        with fusion.fused():
            tf.function(call, jit_compile=True).get_concrete_function(rows)
    else:
        tf.function(call, jit_compile=True).get_concrete_function(rows)
    assert len(warnings(caplog)) == (switch == "scope")


def test_an_error_of_ours_is_none_of_the_program(caplog, monkeypatch):
    def fail(_function):
        raise OSError

    monkeypatch.setattr(compiled, "_fusible_count", fail)
    call, rows = lookups()
    result = tf.function(call, jit_compile=True).get_concrete_function(rows)(tf.constant(rows))
    assert result.shape == (512, 26 * 16)
    assert warnings(caplog) == []


def test_explain_says_it():
    call, rows = lookups()
    function = tf.function(call, jit_compile=True)
    outer = tf.function(lambda rows: function(rows) + 1)
    for given in (function, outer):
        for under in (None, "rewrite"):
            report = fusion.explain(given.get_concrete_function(rows), under=under)
            assert len(report.columns) == 26
            reasons = {str(column.reason).rpartition(": ")[2] for column in report.columns}
            assert reasons == {"the function is compiled by XLA"}

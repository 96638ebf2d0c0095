"""When graphs are fused: enable, disable and scopes."""

import json
import threading

import pytest
import tensorflow as tf

import fusion
from tests.grappler.lookups import ids, is_fused, new_function


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    fusion.disable()


def test_it_is_off_at_first_and_again_in_the_end():
    assert not fusion.stats().enabled
    assert not is_fused()
    fusion.enable()
    assert fusion.stats().enabled
    assert is_fused()
    fusion.disable()
    assert not fusion.stats().enabled
    assert not is_fused()


def test_enabling_twice_is_enabling_once():
    fusion.enable()
    fusion.enable()
    assert is_fused()
    fusion.disable()
    assert not is_fused()
    fusion.disable()
    assert not is_fused()


def test_scopes_nest():
    with fusion.fused():
        with fusion.fused():
            assert is_fused()
        assert fusion.stats().enabled
        assert is_fused()
    assert not fusion.stats().enabled
    assert not is_fused()


def test_what_is_enabled_in_a_scope_stays_enabled_behind_it():
    with fusion.fused():
        fusion.enable()
    assert is_fused()


def test_disabling_does_not_end_a_scope():
    fusion.enable()
    with fusion.fused():
        fusion.disable()
        assert is_fused()
    assert not is_fused()


def test_a_scope_within_what_is_enabled_changes_nothing():
    fusion.enable()
    with fusion.fused():
        pass
    assert is_fused()


def test_a_scope_ends_when_its_body_raises():
    with pytest.raises(ValueError, match="inside"), fusion.fused():
        raise ValueError("inside")
    assert not is_fused()


def test_scopes_of_threads_overlap_in_any_order():
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with fusion.fused():
            first_in.set()
            assert second_in.wait(60)
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(60)
    with fusion.fused():
        second_in.set()
        assert first_out.wait(60)
        assert is_fused()
    thread.join()
    assert not is_fused()


def test_a_scope_holds_for_all_threads():
    found = []
    with fusion.fused():
        thread = threading.Thread(target=lambda: found.append(is_fused()))
        thread.start()
        thread.join()
    assert found == [True]


def test_graphs_that_ran_before_stay_as_they_were():
    stock, fused = new_function(), new_function()
    stock(ids())
    with fusion.fused():
        fused(ids())
        assert not is_fused(stock)
    assert is_fused(fused)


def test_stats_count_and_show_the_last_report():
    before = fusion.stats()
    with fusion.fused():
        new_function()(ids())
        new_function()(ids())
    after = fusion.stats()
    assert after.columns_fused - before.columns_fused == 2
    assert after.graphs_seen - before.graphs_seen == 4  # TensorFlow optimizes each graph twice
    assert after.milliseconds > before.milliseconds
    assert after.failures == before.failures
    # The second time around there was nothing left to report on.
    assert after.last_report is not None
    assert [column.fused for column in after.last_report.columns] == [True]
    assert json.loads(json.dumps(after.to_dict()))["last_report"]["fused"] == 1
    assert f"{after.columns_fused} columns, " in str(after)
    assert "embedding_lookup" in str(after)
    assert str(after).startswith("enable() is off")


def test_nothing_is_counted_while_it_is_off():
    with fusion.fused():  # so that TensorFlow calls at all
        pass
    before = fusion.stats()
    new_function()(ids())
    assert fusion.stats() == before


def test_the_last_report_is_on_all_columns_and_says_why_one_was_left():
    table, fused = tf.Variable(tf.ones([20, 4])), new_function()

    @tf.function
    def returns_an_interior_value(one):
        output = tf.nn.safe_embedding_lookup_sparse(table, one.with_values(one.values // 2))
        (sums,) = [op for op in output.graph.get_operations() if op.type == "SparseSegmentMean"]
        return output, sums.outputs[0], fused(one)

    with fusion.fused():
        returns_an_interior_value(ids())
    report = fusion.stats().last_report
    assert report is not None
    # TensorFlow shows the graph again, when only one of them is left.
    assert sorted(column.fused for column in report.columns) == [False, True]
    (left,) = [column for column in report.columns if not column.fused]
    assert left.reason
    assert report.nodes_before > report.nodes_after > 20


def test_the_log_tells_what_is_fused_and_what_is_left_alone(caplog):
    table, uses = tf.Variable(tf.ones([20, 4])), tf.Variable(tf.zeros([20]))

    @tf.function
    def left(batch):
        filled, _ = tf.sparse.fill_empty_rows(batch, tf.argmax(uses))
        return tf.nn.embedding_lookup_sparse(table, filled, None, combiner="mean")

    caplog.set_level("DEBUG", "fusion")
    with fusion.fused():
        new_function()(ids())
        left(tf.sparse.from_dense(tf.constant([[1, 2, 0], [0, 0, 0]], tf.int64)))
    told = [(record.levelname, record.message) for record in caplog.records]
    (fused,) = (text for level, text in told if level == "DEBUG" and text.startswith("fused"))
    assert fused.startswith("fused 1 of 1 columns of a graph, ")
    (alone,) = (text for level, text in told if level == "INFO" and text.startswith("left alone"))
    assert alone.endswith(": the id for empty rows is not a constant, at ArgMax")

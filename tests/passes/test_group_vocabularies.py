"""Which lookups in vocabularies become one op, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion.schema.names import GROUPED_IDS, VOCABULARY_INDEX
from tests.passes.vocabulary_graphs import (
    ALONE,
    CHANGES,
    DEFAULT,
    FETCHED,
    INSIDE,
    KEYS,
    NO_OP,
    OTHER_OPS,
    VocabularyGraph,
    bucketed,
    fast,
    find,
    fused,
    long,
    looked_up,
    masked,
    node_of,
    numbers,
    ops_of,
    raw,
    select,
    static,
    stays,
    text,
    v1,
    words,
)


@pytest.fixture
def graph():
    made = VocabularyGraph()
    with made.graph.as_default():
        yield made


def bucketed_by_size(texts, table, counted):
    """Buckets behind as many ids as a table has keys."""
    found = find(table, texts, 3)
    size = raw.LookupTableSizeV2(table_handle=counted)
    return select(raw.NotEqual(x=found, y=long(3)), found, fast(texts) + size)


FORMS = {
    "plain": lambda texts, _: find(words(), texts, 3),
    "mask": lambda texts, _: masked(texts, find(words(), texts, 3), b"mask", 2),
    "mask that is a key": lambda texts, _: masked(texts, find(words(), texts, 3), b"a", 2),
    "mask, operands swapped": lambda texts, _: select(
        tf.equal(tf.constant(b"mask"), texts), long(2), find(words(), texts, 3)
    ),
    "buckets": lambda texts, _: bucketed(find(words(), texts), fast(texts)),
    "buckets beside a size": lambda texts, _: bucketed_by_size(texts, table := words(), table),
    "buckets in place of another id": lambda texts, _: bucketed(
        find(words(), texts, 3), fast(texts), default=20
    ),
    "strong": lambda texts, _: bucketed(
        find(words(), texts), tf.strings.to_hash_bucket_strong(texts, 7, [3, 4])
    ),
    "legacy": lambda texts, _: bucketed(
        find(words(), texts), raw.StringToHashBucket(string_tensor=texts, num_buckets=7)
    ),
    "mask and buckets": lambda texts, _: bucketed(
        masked(texts, find(words(), texts), b"", 1), fast(texts)
    ),
    "integers": lambda _, numbers_: find(numbers(), numbers_, 4),
    "integers by remainder": lambda _, numbers_: bucketed(
        masked(numbers_, find(numbers(), numbers_), long(0), 2), tf.math.floormod(numbers_, long(6))
    ),
    "integers as text": lambda _, numbers_: bucketed(
        find(numbers(), numbers_), fast(text(numbers_))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(graph, form):
    ids = FORMS[form](graph.texts, graph.numbers)
    looked_up(ids, fast(text(graph.numbers)))
    graph_def = graph.check(2, 1)
    ops = ops_of(graph_def)
    assert not {"SelectV2", "Equal", "NotEqual", "FloorMod", "AsString"} & {*ops}
    assert ops.count("LookupTableFindV2") == 1  # in the branch that fills the variable


def test_a_vocabulary_alone_gains_nothing(graph):
    looked_up(find(words(), graph.texts, 3), tf.zeros_like(graph.numbers))
    graph.check(0, 0, ALONE)


def test_vocabularies_and_hashes_of_one_lookup_are_one_op(graph):
    table, other = words(), words("other", [b"zz", b"mask"])
    texts = graph.texts
    columns = [
        find(table, texts, 3),
        fast(texts),
        bucketed(find(table, texts), fast(texts, 4)),
        masked(texts, find(other, texts, 1), b"a", 2),
        find(numbers(), graph.numbers, 0),
        find(table, texts, 3),
    ]
    looked_up(*columns)
    graph_def = graph.check(6, 5)
    index = node_of(graph_def, VOCABULARY_INDEX)
    # Two columns have the same vocabulary, and a third its table with another default.
    assert index.attr["num_vocabularies"].i == 4
    assert index.attr["num_masks"].i == 1
    assert [*node_of(graph_def, GROUPED_IDS).attr["vocabularies"].list.i] == [-1, 0, 1, 2, 3, 0]


def test_lookups_in_one_table_that_tensorflow_puts_in_order(graph):
    table = words()
    values, default = tf.reverse(graph.texts, [0]), long(3)
    first = find(table, graph.texts, 3, "first")
    with tf.control_dependencies([first]):
        second = raw.LookupTableFindV2(table_handle=table, keys=values, default_value=default)
    with tf.control_dependencies([second]):
        size = raw.LookupTableSizeV2(table_handle=table)
    third = find(table, graph.texts)
    third = select(raw.NotEqual(x=third, y=long(DEFAULT)), third, fast(graph.texts) + size)
    looked_up(first, second, third)
    graph.check(3, 3)


def test_a_lookup_that_waits_for_an_effect_stays(graph):
    table, default = words(), long(3)
    with tf.control_dependencies([tf.print("effect", output_stream="file:///dev/null")]):
        ids = raw.LookupTableFindV2(table_handle=table, keys=graph.texts, default_value=default)
    looked_up(ids, fast(graph.texts), fast(graph.texts))
    graph.check(2, 0, NO_OP)


def test_ids_that_are_checked(graph):
    """As by a layer without buckets: a check reads the ids, and the lookup waits for it."""
    found = find(words(), graph.texts, 3)
    good = v1.Assert(tf.reduce_all(tf.not_equal(found, long(-1))), ["unknown"])
    with tf.control_dependencies([good]):
        ids = tf.identity(found)
    other = find(words("b"), graph.texts, 1)
    looked_up(ids, fast(graph.texts), other)
    assert "Assert" in ops_of(graph.check(3, 2))


def test_ids_of_what_a_check_guards_stay_apart(graph):
    found = find(words(), graph.texts, 3)
    good = v1.Assert(tf.reduce_all(tf.not_equal(found, long(-1))), ["unknown"])
    with tf.control_dependencies([good]):
        ids, texts = tf.identity(found), tf.identity(graph.texts)
    looked_up(ids, find(words("b"), texts, 1), fast(texts))
    graph.check(2, 1, "other ids of the lookup are computed from its ids")


def test_a_table_that_may_change_stays(graph):
    table = raw.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="mutable")
    filled = raw.LookupTableInsertV2(
        table_handle=table, keys=tf.constant(KEYS), values=tf.range(4, dtype=tf.int64)
    )
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
    looked_up(find(table, graph.texts, 3), fast(graph.texts), fast(graph.texts))
    graph.check(2, 0, CHANGES)


def test_ids_of_int32_stay(graph):
    table = static(KEYS, tf.range(4), "halves")
    ids = raw.LookupTableFindV2(table_handle=table, keys=graph.texts, default_value=3)
    looked_up(ids, fast(graph.texts), fast(graph.texts))
    graph.check(2, 0, NO_OP)


def test_what_is_not_the_same_in_all_runs_stays(graph):
    given = v1.placeholder_with_default(long(3), [], name="given")
    mask = v1.placeholder_with_default(tf.constant(b"a"), [], name="mask")
    texts = graph.texts
    looked_up(
        find(words(), texts, given),
        masked(texts, find(words("b"), texts, 3), mask, 1),
        select(tf.equal(texts, b"a"), given, find(words("c"), texts, 3)),
        fast(texts),
        fast(texts),
    )
    graph.feeds |= {"given:0": np.int64(5), "mask:0": b"zz"}
    graph_def = graph.check(2, 0, CHANGES)
    assert ops_of(graph_def).count("SelectV2") == 2


#: Ids whose last steps are no part of a lookup, by what is wrong.
OTHERS = {
    "mask of one dimension": lambda texts, _: select(
        tf.equal(texts, tf.constant([b"a"])), long(1), find(words(), texts, 3)
    ),
    "mask of another tensor": lambda texts, _: select(
        tf.equal(tf.strings.lower(texts), b"a"), long(1), find(words(), texts, 3)
    ),
    "id of a mask of one dimension": lambda texts, _: select(
        tf.equal(texts, b"a"), long([1]), find(words(), texts, 3)
    ),
    "no equality": lambda _, numbers_: select(
        numbers_ > long(5), long(1), find(numbers(), numbers_, 3)
    ),
    "two masks": lambda texts, _: masked(
        texts, masked(texts, find(words(), texts, 3), b"a"), b"bb", 1
    ),
    "mask behind buckets": lambda texts, _: masked(
        texts, bucketed(find(words(), texts, 3), fast(texts), default=3), b"a"
    ),
    "buckets of other texts": lambda texts, _: bucketed(
        find(words(), texts, 3), fast(tf.strings.lower(texts)), default=3
    ),
    "buckets without a start": lambda texts, _: select(
        tf.equal(find(words(), texts, 3), long(3)), fast(texts), find(words(), texts, 3)
    ),
    "buckets of other ids": lambda texts, _: select(
        tf.equal(fast(texts, 9), long(3)), fast(texts) + long(9), find(words(), texts, 3)
    ),
    "buckets in place of ids by more": lambda texts, _: select(
        find(words(), texts, 3) > long(20), fast(texts) + long(9), find(words(), texts, 3)
    ),
    "size of another table": lambda texts, _: bucketed_by_size(
        texts, words(), words("another", KEYS[:2])
    ),
    "remainder of others": lambda _, numbers_: bucketed(
        find(numbers(), numbers_, 3), tf.math.floormod(numbers_ + long(1), long(5)), default=3
    ),
    "divisor of one dimension": lambda _, numbers_: bucketed(
        find(numbers(), numbers_, 3), tf.math.floormod(numbers_, long([5])), default=3
    ),
    "negative divisor": lambda _, numbers_: bucketed(
        find(numbers(), numbers_, 3), tf.math.floormod(numbers_, long(-5)), default=3
    ),
}


#: Of these another hash is taken, too.
WITH_HASHES = {
    "buckets of other texts",
    "buckets without a start",
    "buckets of other ids",
    "buckets in place of ids by more",
    "size of another table",
}
#: An op that a comparison reads stays.
COMPARED = WITH_HASHES - {"buckets of other texts", "size of another table"}


@pytest.mark.parametrize("what", OTHERS)
def test_of_other_forms_the_lookup_is_taken_and_the_rest_stays(graph, what):
    ids = OTHERS[what](graph.texts, graph.numbers)
    looked_up(ids, fast(graph.texts), fast(graph.texts))
    graph_def = graph.check(
        3 + (what in WITH_HASHES), 1, *([OTHER_OPS] if what in COMPARED else [])
    )
    assert "SelectV2" in ops_of(graph_def)


def test_an_id_that_is_read_within_stays(graph):
    found = find(words(), graph.texts, 3, "found")
    tf.add(found, long(1), name="more")
    ids = bucketed(found, fast(graph.texts), default=3)
    looked_up(ids, fast(graph.texts), fast(graph.texts))
    graph.check(2, 0, INSIDE, preserve=("out", "more"), fetches=("out:0", "more:0"))


def test_an_id_that_is_fetched_within_stays(graph):
    found = find(words(), graph.texts, 3, "found")
    looked_up(masked(graph.texts, found, b"a"), fast(graph.texts), fast(graph.texts))
    graph.check(2, 0, INSIDE, preserve=("out", "found"), fetches=("out:0", "found:0"))


def test_ids_that_are_fetched_stay_and_ids_that_are_read_do_not(graph):
    first, second = find(words(), graph.texts, 3, "first"), find(words("b"), graph.texts, 3)
    more = tf.add(second, long(1))
    out = looked_up(first, second, fast(graph.texts))
    raw.IdentityN(input=[out, more], name="all")
    preserve, fetches = ("all", "first"), ("all:0", "first:0", "all:1")
    graph.check(2, 1, FETCHED, preserve=preserve, fetches=fetches)


def test_devices_are_kept(graph):
    with tf.device("/device:GPU:0"):
        other = find(words(), graph.texts, 3)
    looked_up(other, find(words("b"), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    assert fused(result) == [(2, 1)]
    assert stays(result) == {"placed on /device:GPU:0; the fused ops run on CPU"}


def test_the_index_stays_in_memory_of_the_host(graph):
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    assert node_of(result.graph_def, "VarHandleOp").device == "/device:CPU:0"


def test_v1_loops_stay(graph):
    table = words()

    def body(k, ids):
        found = tf.ensure_shape(find(table, graph.texts, 3), [None])
        return k + 1, tf.maximum(ids, fast(graph.texts) + found)

    with v1.control_dependencies([]):
        v1.disable_control_flow_v2()
        try:
            _, ids = v1.while_loop(lambda k, _: k < 2, body, [0, fast(graph.texts)])
        finally:
            v1.enable_control_flow_v2()
    looked_up(ids, find(table, graph.texts, 3), fast(graph.texts))
    graph.check(0, 0, "it is in a loop of TensorFlow 1")

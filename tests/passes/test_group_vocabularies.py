"""Which lookups in vocabularies become one op, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.kernel_names import plain_name
from fusion.schema.names import GROUPED_IDS, VOCABULARY_INDEX

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 60, 4
WORDS = [b"a", b"bb", b"", b"c" * 30, b"zz", b"a", b"mask"]
KEYS = [b"bb", b"a", b"c" * 30, b"d"]
TEXTS = np.array(WORDS, object)
NUMBERS = np.array([5, 7, 12, -3, 0, 9, 2**40])
NUMBER_KEYS = [7, 5, -3]
DEFAULT = -1

ALONE = "one op for the ids of one column gains nothing"
CHANGES = "its table may change, or may not be the same in all calls"
FETCHED = "its ids are fetched"
INSIDE = "what is looked up is read elsewhere as well"
NO_OP = "there is no fused op for what it does"
OTHER_OPS = "other ops are between its ids and the fused lookup"


def static(keys, values, name, dtype=None):
    """A static table's handle; what initializes it is in the collection of table initializers."""
    keys = tf.constant(keys, dtype)
    values = values if isinstance(values, tf.Tensor) else tf.constant([*values], tf.int64)
    table = raw.HashTableV2(key_dtype=keys.dtype, value_dtype=values.dtype, shared_name=name)
    filled = raw.LookupTableImportV2(table_handle=table, keys=keys, values=values)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
    return table


def words(name="words", keys=KEYS):
    return static(keys, range(20, 20 + len(keys)), name)


def numbers(name="numbers"):
    return static(NUMBER_KEYS, range(30, 30 + len(NUMBER_KEYS)), name, tf.int64)


def find(table, values, default=DEFAULT, name=None):
    return raw.LookupTableFindV2(
        table_handle=table,
        keys=values,
        default_value=tf.cast(default, tf.int64) if tf.is_tensor(default) else long(default),
        name=name,
    )


def long(number):
    return tf.constant(number, tf.int64)


def select(test, one, other):
    return raw.SelectV2(condition=test, t=one, e=other)


def masked(values, ids, mask, value=0):
    return select(tf.equal(values, mask), long(value), ids)


def bucketed(ids, bucket, start=40, default=DEFAULT):
    return select(tf.equal(ids, long(default)), bucket + long(start), ids)


def fast(values, buckets=5):
    return tf.strings.to_hash_bucket_fast(values, buckets)


def text(values):
    return raw.AsString(input=values)


def looked_up(*columns):
    """A concat of gathers of the ids, named "out"."""
    rows = []
    for k, ids in enumerate(columns):
        table = np.random.default_rng(k).normal(size=[ROWS, DIM]).astype(np.float32)
        rows.append(tf.gather(tf.constant(table), ids))
    return tf.identity(tf.concat(rows, 1, name="joined"), name="out")


class Graph:
    """A graph of lookups of ids.

    Attributes:
        texts, numbers: its inputs.
        feeds: what they are fed with.
    """

    def __init__(self):
        self.graph = tf.Graph()
        self.feeds = {"texts:0": TEXTS, "numbers:0": NUMBERS}
        with self.graph.as_default():
            self.texts = v1.placeholder(tf.string, [None], name="texts")
            self.numbers = v1.placeholder(tf.int64, [None], name="numbers")

    def result(self, preserve=("out",), **options):
        names = {op.name for op in self.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)}
        return FuseLookups(frozenset(preserve) | names, **options).apply(self.graph.as_graph_def())

    def initializers(self):
        return [op.name for op in self.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)]

    def run(self, graph_def, fetches=("out:0",), calls=2):
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            with v1.Session(graph=graph) as session:
                session.run(self.initializers())
                feeds = {**self.feeds}
                feeds = {key: value for key, value in feeds.items() if key[:-2] in names(graph_def)}
                results = [session.run(list(fetches), feeds) for _ in range(calls)]
        for result in results[1:]:
            np.testing.assert_equal(result, results[0])
        return results[0]

    def check(
        self, columns, vocabularies, *reasons, preserve=("out",), fetches=("out:0",), **options
    ):
        """Rewrites; the op has so many columns, and results are equal. Returns the graph.

        Args:
            columns, vocabularies: the numbers in the report.
            reasons: why others stay.
            preserve, options: of the pass.
            fetches: whose results are compared.
        """
        result = self.result(preserve, **options)
        assert fused(result) == ([(columns, vocabularies)] if columns else []), str(result.report)
        assert stays(result) == {*reasons}
        before = self.run(self.graph.as_graph_def(), fetches)
        for one, other in zip(before, self.run(result.graph_def, fetches), strict=True):
            np.testing.assert_array_equal(one, other)
        made = ops_of(result.graph_def)
        assert made.count(VOCABULARY_INDEX) == bool(vocabularies)
        return result.graph_def


def fused(result):
    """How many columns fused ops have, and of how many vocabularies."""
    return [(one.columns, one.vocabularies) for one in result.report.ids if one.fused]


def stays(result):
    """Why others stay."""
    return {one.reason for one in result.report.ids if not one.fused}


def names(graph_def):
    return {node.name for node in graph_def.node}


def ops_of(graph_def):
    functions = (node for function in graph_def.library.function for node in function.node_def)
    return [node.op for node in (*graph_def.node, *functions)]


def node_of(graph_def, op):
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


@pytest.fixture
def graph():
    made = Graph()
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


def called(texts, *captured, jit=None):
    """Lookups in a function of the main graph, whose handles are its arguments."""

    @tf.function(autograph=False, jit_compile=jit)
    def lookup(texts, tables):
        return looked_up(*(find(one, texts, 3) for one in tables), fast(texts))

    return lookup(texts, captured)


def test_functions_that_are_given_tables(graph):
    tf.identity(called(graph.texts, words(), words("b")), name="out")
    graph.check(3, 2)


def test_a_function_that_is_called_with_two_tables_stays(graph):
    @tf.function(autograph=False)
    def lookup(texts, table):
        return looked_up(find(table, texts, 3), fast(texts), fast(texts))

    first = lookup(graph.texts, words())
    second = lookup(graph.texts, words("b", [b"zz"]))
    tf.concat([first, second], 1, name="out")
    graph.check(2, 0, CHANGES)


def test_a_function_that_is_called_with_two_defaults_stays(graph):
    @tf.function(autograph=False)
    def lookup(texts, table, default):
        return looked_up(find(table, texts, default), fast(texts), fast(texts))

    table = words()
    calls = [lookup(graph.texts, table, long(default)) for default in (3, 4)]
    tf.concat(calls, 1, name="out")
    graph.check(2, 0, CHANGES)


def test_a_function_that_is_called_twice_with_equal_defaults(graph):
    @tf.function(autograph=False)
    def lookup(texts, table, default):
        return looked_up(find(table, texts, default), fast(texts), fast(texts))

    table = words()
    tf.concat([lookup(graph.texts, table, long(3)) for _ in range(2)], 1, name="out")
    graph.check(3, 1)


def test_a_function_that_nothing_calls_has_arguments_of_unknown_origin(graph):
    tf.identity(called(graph.texts, words()), name="out")
    graph_def = graph.graph.as_graph_def()
    del graph_def.node[:]
    result = FuseLookups(frozenset()).apply(graph_def)
    assert not fused(result)
    assert stays(result) == {CHANGES, ALONE}


def test_what_xla_compiles_stays(graph):
    tf.identity(called(graph.texts, words(), words("b"), jit=True), name="out")
    result = graph.result()
    assert not fused(result)
    assert stays(result) == {"the function is compiled by XLA"}


def test_a_table_that_is_not_initialized_is_the_error_of_stock(graph):
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    expected = graph.run(graph.graph.as_graph_def())
    with tf.Graph().as_default() as other:
        tf.import_graph_def(result.graph_def, name="")
        with v1.Session(graph=other) as session:
            for _ in range(2):
                with pytest.raises(
                    tf.errors.FailedPreconditionError, match="Table not initialized"
                ):
                    session.run("out:0", graph.feeds)
            session.run(graph.initializers())
            for _ in range(2):
                np.testing.assert_array_equal(session.run("out:0", graph.feeds), expected[0])


def test_sessions_have_their_own_index(graph):
    """The same graph with tables of other keys, which are fed."""
    keys = v1.placeholder_with_default(tf.constant(KEYS), [4], name="keys")
    table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="t")
    filled = raw.LookupTableImportV2(
        table_handle=table, keys=keys, values=tf.range(4, dtype=tf.int64)
    )
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
    looked_up(find(table, graph.texts, 9), fast(graph.texts))
    graph_def = graph.check(2, 1)
    for names_ in (KEYS, [b"a", b"zz", b"mask", b"q"]):
        results = []
        for one in (graph.graph.as_graph_def(), graph_def):
            with tf.Graph().as_default() as other:
                tf.import_graph_def(one, name="")
                with v1.Session(graph=other) as session:
                    session.run(graph.initializers(), {"keys:0": names_})
                    results.append(session.run("out:0", graph.feeds))
        np.testing.assert_array_equal(*results)


def test_twice_is_once(graph):
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    preserved = frozenset({"out", *graph.initializers()})
    again = FuseLookups(preserved).apply(result.graph_def)
    assert not again.modified
    assert (fused(again), stays(again)) == ([(2, 1)], set())
    assert again.report.ids[0].fused_before


def test_reports_have_vocabularies_and_why_others_stay(graph):
    tf.identity(find(words(), graph.texts, 3, "unread"), name="more")
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    report = graph.result(("out", "more")).report
    assert "joined/ids (ids of 2 columns, 1 by vocabularies)" in str(report)
    why = "no fused lookup reads its ids"
    assert f"stock  unread (1 op that makes ids)\n         {why}" in str(report)
    one, other = report.to_dict()["ids"]
    assert (one["vocabularies"], one["fused"]) == (1, True)
    assert (other["reason"], other["node"], other["fused"]) == (why, "unread", False)


def test_sessions_under_enable_take_several_fetches_in_turn(graph):
    texts, table = graph.texts, words()
    first = find(table, texts, 3, "first")
    second = masked(texts, find(table, texts, 4), b"a", 2)
    third = bucketed(find(words("b", [b"zz"]), texts, 3), fast(texts), default=3)
    out = looked_up(first, second, third, fast(texts))
    fetches = [[out], [out, first], [out, second], [first], [out, third, second], [out]]

    def run(metadata=None):
        options = v1.RunOptions(output_partition_graphs=metadata is not None)
        with v1.Session() as session:
            session.run(graph.initializers())
            for one in fetches:
                yield session.run(one, {texts: TEXTS}, options, metadata)

    expected = [*run()]
    metadata = v1.RunMetadata()
    with fusion.fused():
        for one, other in zip(expected, run(metadata), strict=True):
            for array, of_stock in zip(other, one, strict=True):
                np.testing.assert_array_equal(array, of_stock)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    assert [plain_name(node.name) for node in nodes if node.op == GROUPED_IDS] == ["joined/ids"]


def test_fetches_that_leave_other_vocabularies_have_other_variables(graph):
    """Two columns of one table: what is fetched of the one leaves the other one to the op."""
    texts, table = graph.texts, words()
    first = find(table, texts, 3, "first")
    second = find(table, texts, 4, "second")
    out = looked_up(first, second, fast(texts))
    with v1.Session() as session:
        session.run(graph.initializers())
        expected = session.run(out, {texts: TEXTS})
        with fusion.fused(), v1.Session() as ours:
            ours.run(graph.initializers())
            for one in (first, second, first, second):
                rows, _ = ours.run([out, one], {texts: TEXTS})
                np.testing.assert_array_equal(rows, expected)


def test_functions_under_enable_have_handles_of_unknown_origin():
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(KEYS), tf.range(4, dtype=tf.int64)
    )
    table = tf.lookup.StaticHashTable(initializer, 9)

    def model(texts):
        return looked_up(table.lookup(texts), fast(texts), fast(texts, 7))

    texts = tf.constant(WORDS)
    expected = tf.function(model)(texts)
    with fusion.fused():
        np.testing.assert_array_equal(tf.function(model)(texts), expected)
    report = fusion.stats().last_report
    assert report is not None
    (one, other) = report.ids
    assert (one.columns, one.vocabularies, other.columns, other.reason) == (2, 0, 1, CHANGES)

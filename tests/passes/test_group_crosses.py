"""Which crosses of features become one op, what it gives, and which stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.analysis.value_ranges import Range, range_of
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.edit import bodies
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED, GROUPED_CROSS, SINGLE
from tests.passes.rewritten_graphs import plainly_named

v1 = tf.compat.v1
raw = tf.raw_ops
fc = tf.feature_column
BUCKETS, DIM = 50, 4
TEXTS = np.array([[b"a"], [b"bb"], [b""], [b"a"]], object)
NUMBERS = np.array([[5], [-1], [123456789012], [5]])
PRICES = np.array([[0.5], [1.5], [99.0], [-3.0]], np.float32)
#: A text for row 0, two for row 1, none for row 2, one for row 3.
SPARSE = v1.SparseTensorValue([[0, 0], [1, 0], [1, 1], [3, 0]], [b"x", b"y", b"z", b"x"], [4, 2])


def table(index):
    values = np.random.default_rng(index).normal(size=[BUCKETS, DIM])
    return tf.constant(values.astype(np.float32))


def bags_of(crosses, combiner="mean"):
    """The bags of crosses side by side, named "out"."""
    bags = [
        tf.nn.safe_embedding_lookup_sparse(table(k), ids, combiner=combiner)
        for k, ids in enumerate(crosses)
    ]
    return tf.identity(tf.concat(bags, 1, name="joined"), name="out")


def cross(*features, **options):
    return tf.sparse.cross_hashed([*features], BUCKETS, **options)


#: What is said of a cross in front of no lookup.
UNREAD = "no fused lookup reads its ids, or another cross comes first, or another result needs them"


class Graph:
    """A graph of lookups of crosses.

    Attributes:
        texts, numbers, small, prices: matrices of one column, of strings, int64, int32 and floats.
        sparse: a SparseTensor of strings.
    """

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.texts = v1.placeholder(tf.string, [None, 1], name="texts")
            self.numbers = v1.placeholder(tf.int64, [None, 1], name="numbers")
            self.small = v1.placeholder(tf.int32, [None, 1], name="small")
            self.prices = v1.placeholder(tf.float32, [None, 1], name="prices")
            self.sparse = v1.sparse_placeholder(tf.string, [None, None], name="sparse")

    def feeds(self, count=4):
        rows = slice(0, count)
        kept = [k for k, (row, _) in enumerate(SPARSE.indices) if row < count]
        sparse = {
            "sparse/indices:0": np.array(SPARSE.indices)[kept].reshape(-1, 2),
            "sparse/values:0": np.array(SPARSE.values, object)[kept],
            "sparse/shape:0": [count, 2],
        }
        small = (NUMBERS % 1000 - 2).astype(np.int32)
        dense = {"texts": TEXTS, "numbers": NUMBERS, "small": small, "prices": PRICES}
        return {f"{name}:0": value[rows] for name, value in dense.items()} | sparse

    def result(self, preserve=("out",), **options):
        return FuseLookups(frozenset(preserve), **options).apply(self.graph.as_graph_def())

    def run(self, graph_def, fetches=("out:0",), count=4):
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            names = {node.name for node in graph_def.node}
            feeds = {key: one for key, one in self.feeds(count).items() if key[:-2] in names}
            with v1.Session(graph=graph) as session:
                if "init" in names:
                    session.run("init")
                return session.run(list(fetches), feeds)

    def check(self, preserve=("out",), fetches=("out:0",)):
        """Rewrites; results are equal. Returns the crosses of the report, and the graph."""
        before = self.graph.as_graph_def()
        result = self.result(preserve)
        for count in (4, 1, 0):
            pairs = zip(
                self.run(before, fetches, count),
                self.run(result.graph_def, fetches, count),
                strict=True,
            )
            for one, other in pairs:
                np.testing.assert_array_equal(one, other)
        return result.report.crosses, result.graph_def


@pytest.fixture
def graph():
    made = Graph()
    with made.graph.as_default():
        yield made


def ops_of(graph_def):
    return sorted(node.op for node in graph_def.node)


def only(graph_def, op):
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


def texts_of(attr):
    return [text.decode() for text in attr.list.s]


def forms(graph_def):
    """The forms of crosses, and of the columns of the lookup of many."""
    crosses = only(graph_def, GROUPED_CROSS).attr
    return texts_of(crosses["forms"]), texts_of(only(graph_def, GROUPED).attr["forms"])


def features(graph_def):
    return texts_of(only(graph_def, GROUPED_CROSS).attr["feature_forms"])


def fused(reports):
    return [one.crosses for one in reports if one.fused]


def reasons(reports):
    return [one.reason for one in reports if not one.fused]


def test_crosses_of_one_lookup_are_one_op(graph):
    bags_of(
        [
            cross(graph.texts, graph.numbers),
            cross(graph.sparse, graph.texts, hash_key=7),
            cross(graph.numbers, graph.small),
            tf.sparse.cross_hashed([graph.sparse], BUCKETS - 1),
        ]
    )
    reports, graph_def = graph.check()
    assert [(one.crosses, one.fused_before) for one in reports] == [(4, False)]
    assert "SparseCross" not in ops_of(graph_def)
    attrs = only(graph_def, GROUPED_CROSS).attr
    assert attrs["num_buckets"].list.i[:] == [BUCKETS] * 3 + [BUCKETS - 1]
    assert attrs["keys"].list.i[2:4] == [7, 0]
    assert features(graph_def) == [*["dense"] * 2, "sparse", *["dense"] * 3, "sparse"]
    # The int32 numbers are read as they are.
    assert "Cast" not in ops_of(graph_def)
    one, other = ["matrix", "row_splits"], ["dense", "row_splits"]
    assert forms(graph_def) == ([*one, *one], [*other, *other])
    assert "joined/crosses (4 crossed columns)" in str(graph.result().report)


def test_one_cross_alone(graph):
    bags_of([cross(graph.sparse, graph.texts)])
    reports, graph_def = graph.check()
    assert fused(reports) == [1]
    assert only(graph_def, SINGLE).attr["form"].s == b"row_splits"


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_several_values_in_a_row(graph, combiner):
    pair = tf.concat([graph.texts, graph.texts + "!"], 1)
    triple = tf.concat([graph.numbers + k for k in range(7)], 1)
    bags_of([cross(pair, triple), cross(graph.sparse, pair, triple)], combiner)
    reports, graph_def = graph.check()
    assert fused(reports) == [2]
    assert forms(graph_def) == (["matrix", "row_splits"], ["dense", "row_splits"])


def columns_of(kind):
    """Two columns of a kind: keys of crosses, and their features."""
    if kind == "texts":
        return ["texts", "other"]
    if kind == "identity":
        return [fc.categorical_column_with_identity(key, 1000) for key in ("numbers", "small")]
    if kind == "default":
        identity = fc.categorical_column_with_identity
        return [identity(key, 1000, default_value=0) for key in ("numbers", "small")]
    if kind == "buckets":
        price = fc.numeric_column("prices")
        return [fc.bucketized_column(price, [0.0, 1.0]), fc.bucketized_column(price, [5.0])]
    return ["sparse", "texts"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("texts", ["dense", "dense"]),
        ("identity", ["masked", "masked"]),
        ("default", None),
        ("buckets", ["masked", "masked"]),
        ("sparse", ["sparse", "dense"]),
    ],
)
def test_feature_columns(graph, kind, expected):
    tensors = {
        "texts": graph.texts,
        "other": tf.strings.join([graph.texts, "?"]),
        "numbers": tf.math.floormod(graph.numbers, 900),
        "small": graph.small,
        "prices": graph.prices,
        "sparse": graph.sparse,
        "third": tf.strings.join(["!", graph.texts]),
    }
    initializer = v1.random_normal_initializer(seed=1)
    columns = [
        fc.embedding_column(fc.crossed_column(keys, size, key), DIM, initializer=initializer)
        for keys, size, key in ((columns_of(kind), 10, None), (["third", *columns_of(kind)], 11, 3))
    ]
    tf.identity(v1.feature_column.input_layer(tensors, columns), name="out")
    tf.group(v1.global_variables_initializer(), name="init")
    reports, graph_def = graph.check(("out", "init"))
    assert fused(reports) == [2]
    if expected is not None:
        assert sorted(features(graph_def)) == sorted([*expected, *expected, "dense"])
        assert not {"Where", "GatherNd", "Transpose"} & {*ops_of(graph_def)}


def test_other_readers_of_rows_have_indices(graph):
    crossed = cross(graph.sparse, graph.texts)
    out = bags_of([crossed, cross(graph.texts, graph.numbers)])
    raw.IdentityN(input=[out, crossed.indices], name="all")
    reports, graph_def = graph.check(("all",), ("all:0", "all:1"))
    assert fused(reports) == [2]
    assert forms(graph_def) == (["indices", "matrix"], ["indices", "dense"])


def test_other_readers_of_ids_have_a_vector(graph):
    crossed = cross(graph.texts, graph.numbers)
    more = tf.add(crossed.values, 1)
    out = bags_of([crossed, cross(graph.sparse)])
    raw.IdentityN(input=[out, more], name="all")
    reports, graph_def = graph.check(("all",), ("all:0", "all:1"))
    assert fused(reports) == [2]
    assert forms(graph_def)[0] == ["row_splits", "row_splits"]


def test_a_cross_that_another_result_needs_stays(graph):
    """Who asks for that alone need not have what the other crosses are made of."""
    crossed = cross(graph.texts, graph.numbers)
    tf.add(crossed.values, 1, name="more")
    bags_of([crossed, cross(graph.sparse), cross(graph.texts)])
    reports, _ = graph.check(("out", "more"), ("out:0", "more:0"))
    assert fused(reports) == [2]
    assert [one.reason for one in reports if not one.fused] == [UNREAD]


def test_a_lookup_with_the_shape_of_another_cross_has_indices(graph):
    one, other = cross(graph.sparse, graph.texts), cross(graph.sparse, graph.numbers)
    bags_of([tf.SparseTensor(one.indices, one.values, other.dense_shape), other])
    reports, graph_def = graph.check()
    assert fused(reports) == [2]
    assert forms(graph_def)[0] == ["indices", "indices"]


def test_weights_stay_beside_their_ids(graph):
    crossed = cross(graph.texts, graph.numbers)
    weights = tf.SparseTensor(
        crossed.indices, tf.cast(crossed.values, tf.float32), crossed.dense_shape
    )
    rows = tf.nn.safe_embedding_lookup_sparse(table(0), crossed, weights)
    tf.identity(rows, name="out")
    reports, _ = graph.check()
    assert fused(reports) == [1]


def gathered(ids):
    """Rows of single ids side by side, named "out"."""
    rows = [tf.gather(table(k), one) for k, one in enumerate(ids)]
    return tf.identity(tf.concat(rows, -1, name="joined"), name="out")


def test_dense_ids_of_matrices(graph):
    """As HashedCrossing makes them."""
    ids = [cross(graph.texts, graph.numbers), cross(graph.small, graph.texts)]
    gathered([tf.reshape(tf.sparse.to_dense(one), [-1]) for one in ids])
    reports, graph_def = graph.check()
    assert fused(reports) == [2]
    assert forms(graph_def) == (["matrix", "matrix"], ["each", "each"])
    assert "SparseToDense" not in ops_of(graph_def)


def dense_rows(graph, end):
    """Rows of ids [B, 1] whose width is not in the graph's shapes, as Keras 3 makes them."""
    ids = [cross(graph.texts, graph.numbers), cross(graph.small, graph.texts)]
    rows = [tf.gather(table(k), tf.sparse.to_dense(one)) for k, one in enumerate(ids)]
    assert rows[0].shape.as_list() == [None, None, DIM]
    tf.identity(tf.concat([end(one) for one in rows], -1, name="joined"), name="out")


@pytest.mark.parametrize("is_flat", [True, False])
def test_crosses_of_columns_have_one_id_in_each_row(graph, is_flat):
    """But none where there are no rows, as `check` compares."""
    dense_rows(graph, (lambda rows: tf.reshape(rows, [-1, DIM])) if is_flat else tf.identity)
    reports, graph_def = graph.check()
    assert fused(reports) == [2]
    assert forms(graph_def) == (["matrix", "matrix"], ["each", "each"])


def test_what_fails_without_rows_stays(graph):
    dense_rows(graph, lambda rows: tf.squeeze(rows, 1))
    result = graph.result()
    assert reasons(result.report.crosses) == [UNREAD, UNREAD]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a dimension of 1"):
        graph.run(result.graph_def, count=0)


def test_dense_ids_of_rows_that_differ_are_filled_up_by_stock(graph):
    pair = tf.concat([graph.texts, graph.texts + "!"], 1)
    ids = [cross(graph.sparse, graph.texts), cross(pair, graph.numbers)]
    gathered([tf.reshape(tf.sparse.to_dense(one), [-1]) for one in ids])
    before = graph.graph.as_graph_def()
    result = graph.result()
    np.testing.assert_array_equal(graph.run(before), graph.run(result.graph_def))
    assert fused(result.report.crosses) == [2]
    assert forms(result.graph_def) == (["indices", "matrix"], ["each", "each"])
    assert ops_of(result.graph_def).count("SparseToDense") == 1


def later(*tensors, buckets: Any = BUCKETS, strong: Any = False, salt: Any = (3, -4)):
    """SparseCrossHashed of matrices, for which TensorFlow has no function."""
    found = raw.SparseCrossHashed(
        indices=[],
        values=[],
        shapes=[],
        dense_inputs=[*tensors],
        num_buckets=buckets,
        strong_hash=strong,
        salt=tf.constant(salt, tf.int64),
    )
    return tf.SparseTensor(*found)


def test_the_later_op(graph):
    options: list[dict[str, Any]] = [{}, {"strong": True}, {"buckets": 0}]
    crosses = [later(graph.texts, graph.texts, **one) for one in options]
    rest = tf.SparseTensor(crosses[2].indices, crosses[2].values % BUCKETS, crosses[2].dense_shape)
    bags_of([*crosses[:2], rest, later(graph.numbers, graph.texts)])
    reports, graph_def = graph.check()
    assert fused(reports) == [4]
    attrs = only(graph_def, GROUPED_CROSS).attr
    assert sorted(texts_of(attrs["hashes"])) == ["plain", "plain", "plain", "strong"]
    assert attrs["keys"].list.i[:2] == [3, -4]


def test_no_strong_hash_of_integers_and_no_computed_options(graph):
    strong = later(graph.numbers, graph.texts, strong=True)
    computed = later(graph.texts, buckets=tf.cast(tf.size(graph.texts), tf.int64) + 1)
    bags_of([strong, computed, cross(graph.texts)])
    result = graph.result()
    assert fused(result.report.crosses) == [1]
    assert reasons(result.report.crosses) == [
        "integers of dense features have no strong hash",
        "buckets or hash are computed",
    ]


def test_a_cross_of_nothing_stays(graph):
    nothing = tf.SparseTensor(
        *raw.SparseCross(
            indices=[],
            values=[],
            shapes=[],
            dense_inputs=[],
            hashed_output=True,
            num_buckets=BUCKETS,
            hash_key=1,
            out_type=tf.int64,
            internal_type=tf.string,
        )
    )
    rows = tf.nn.safe_embedding_lookup_sparse(table(0), nothing)
    bags_of([cross(graph.texts), cross(graph.numbers)])
    tf.identity(rows, name="other")
    result = graph.result(("out", "other"))
    assert fused(result.report.crosses) == [2]
    assert reasons(result.report.crosses) == ["crosses 0 features, not 1 to 1024"]


def test_texts_stay(graph):
    texts = tf.sparse.cross([graph.texts, graph.sparse])
    ids = tf.SparseTensor(
        texts.indices, tf.strings.to_hash_bucket_fast(texts.values, BUCKETS), texts.dense_shape
    )
    bags_of([ids, cross(graph.texts)])
    reports, graph_def = graph.check()
    assert fused(reports) == [1]
    assert reasons(reports) == ["makes texts, not hashed ids"]
    assert "SparseCrossV2" in ops_of(graph_def)
    assert "stock  SparseCross" in str(graph.result().report)


def test_a_cross_that_is_fetched_or_waited_for_stays(graph):
    fetched = cross(graph.texts, name="fetched")
    awaited = cross(graph.numbers)
    with tf.control_dependencies([awaited.values]):
        tf.identity(graph.texts, name="after")
    bags_of([fetched, awaited, cross(graph.sparse)])
    preserve = ("out", "fetched", "after")
    reports, _ = graph.check(preserve, ("out:0", "fetched:0"))
    assert fused(reports) == [1]
    assert sorted(reasons(reports)) == ["its ids are fetched", "there is a control dependency"]


def test_crosses_of_crosses_stay_apart(graph):
    first = cross(graph.sparse, graph.texts)
    bags_of([first, cross(first, graph.numbers), cross(graph.texts)])
    reports, graph_def = graph.check()
    assert fused(reports) == [2]
    assert len(reasons(reports)) == 1
    assert ops_of(graph_def).count("SparseCross") == 1


def test_a_cross_without_a_lookup_stays(graph):
    tf.identity(cross(graph.texts).values, name="out")
    reports, graph_def = graph.check()
    assert reasons(reports) == [UNREAD]
    assert GROUPED_CROSS not in ops_of(graph_def)


def test_devices_are_kept(graph):
    with tf.device("/device:GPU:0"):
        other = cross(graph.texts)
    bags_of([other, cross(graph.texts, graph.numbers)])
    reports = graph.result().report.crosses
    assert fused(reports) == [1]
    assert "GPU" in reasons(reports)[0]


@pytest.mark.parametrize("column", ["texts", "numbers"])
def test_other_masks_are_sparse_features(graph, column):
    """Only what SparseTensors leave out in feature columns is read from the matrix itself."""
    matrix = {"texts": graph.texts, "numbers": graph.numbers}[column]
    none = {"texts": "a", "numbers": -1}[column]
    indices = tf.where(tf.not_equal(matrix, none))
    shape = tf.shape(matrix, tf.int64)
    bags_of([cross(tf.SparseTensor(indices, tf.gather_nd(matrix, indices), shape), graph.texts)])
    _, graph_def = graph.check()
    assert features(graph_def)[0] == {"texts": "sparse", "numbers": "masked"}[column]


def view_of(graph_def):
    return next(iter(bodies(graph_def, frozenset({"out"}))))


def test_ranges_of_ids(graph):
    crossed = cross(graph.texts, graph.sparse)
    dense = tf.sparse.to_dense(crossed, default_value=-1)
    endless = tf.sparse.cross_hashed([graph.texts])
    bags_of([crossed, cross(graph.numbers)])
    view = view_of(graph.graph.as_graph_def())
    found = [
        range_of(Value(view, Tensor(one.op.name, one.value_index)))
        for one in (crossed.values, dense, endless.values, crossed.indices)
    ]
    expected = [Range(0, BUCKETS - 1), Range(-1, BUCKETS - 1), Range(0, 2**63 - 2), Range()]
    assert found == expected
    fused_view = view_of(graph.result().graph_def)
    name = only(graph.result().graph_def, GROUPED_CROSS).name
    assert range_of(Value(fused_view, Tensor(name, 1))) == Range(0, BUCKETS - 1)
    assert range_of(Value(fused_view, Tensor(name, 2))) == Range()
    shapes = [fused_view.shape(Tensor(name, index)) for index in range(6)]
    assert shapes == [(None,), (None, None), (None, 2), (None,), (2,), (2,)]


def test_twice_is_once_and_back_are_stock_ops(graph):
    bags_of([cross(graph.texts, graph.numbers), cross(graph.sparse, graph.small)])
    before = graph.graph.as_graph_def()
    once = graph.result().graph_def
    again = FuseLookups(frozenset({"out"})).apply(once)
    assert not again.modified
    assert [one.fused_before for one in again.report.crosses] == [True]
    stock = LowerLookups(frozenset({"out"})).apply(once).graph_def
    assert not {op for op in ops_of(stock) if op.startswith(("Grouped", "Fused"))}
    np.testing.assert_array_equal(graph.run(before), graph.run(stock))


def test_functions_and_enable():
    def model(texts, numbers):
        return bags_of([cross(texts, numbers), cross(numbers, texts)])

    arguments = tf.constant(TEXTS), tf.constant(NUMBERS)
    expected = tf.function(model)(*arguments)
    with fusion.fused():
        np.testing.assert_array_equal(tf.function(model)(*arguments), expected)
    report = fusion.stats().last_report
    assert report is not None
    assert fused(report.crosses) == [2]
    assert report.to_dict()["crosses"][0]["crosses"] == 2


def test_names_have_no_digests(graph):
    bags_of([cross(graph.texts), cross(graph.numbers)])
    result = graph.result()
    assert plainly_named(result.graph_def) is not None
    assert [one.name for one in result.report.crosses] == ["joined/crosses"]

"""Products of encoded ids and a matrix: which become bags, what they compute, and why others stay.

Random ones are in `tests/differential/test_products.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.choose import MIN_OPS
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.recognise.spec import JoinedIds
from fusion.schema.devices import Devices
from tests import layer_graphs as layers
from tests import product_graphs as products
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import SINGLE, ops
from tests.product_graphs import Part, Product

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
PASS = FuseLookups(preserve=KEEP)
#: Only there does the optimizer put what follows into a product.
CPU = "/device:CPU:0"
WIDE = Product((Part("vector", 70), Part("dense", 3), Part("column", 9), Part("dense", 2)))


def compare(model: Product, before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> None:
    feeds = [products.feeds(model, batch) for batch in (7, 1, 0)]
    stock_ones = stock.run_each(stock.imported(before), feeds, optimize=False)
    for optimize in (False, True):
        fused_ones = stock.run_each(stock.imported(after), feeds, optimize=optimize)
        for feed, (got,), (wanted,) in zip(feeds, fused_ones, stock_ones, strict=True):
            assert got.shape == wanted.shape
            # What follows a product here makes no difference larger, but rounds its own result.
            gap = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
            assert (gap <= products.bounds(model, feed) + 2.0**-22 * (1 + np.abs(wanted))).all()


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (Product(), 0),
        (WIDE, 1),
        (Product((Part("flat", 40), Part("sum", 50, None))), 0),
        (replace(WIDE, nested=True, kernel="constant"), 1),
        (Product((Part("each"),)), 0),
        (Product((Part("each", 100, None),)), 0),
    ],
    ids=["one", "beside others", "many to a row", "nested", "each a row", "of any length"],
)
def test_ids_become_bags_and_the_rest_a_smaller_product(model: Product, left: int) -> None:
    built = products.build(model)
    for graph_def in (built, stock.optimized(built)):
        result = PASS.apply(graph_def)
        assert [column.form for column in result.report.columns] == ["single"]
        found = ops(result.graph_def)
        assert found.count(SINGLE) == 1
        assert not {"OneHot", "DenseBincount"} & {*found}
        assert found.count("MatMul") == left
        assert not PASS.apply(result.graph_def).modified
        compare(model, graph_def, result.graph_def)


@pytest.mark.parametrize(
    "shape", [(None, 3), (None, None), (None, None, 2), (None, 1), (7, 3)], ids=str
)
def test_a_dense_layer_of_more_dimensions(shape: tuple[int | None, ...]) -> None:
    """It asks for the sizes of the one-hots, which the ids have."""
    with tf.Graph().as_default() as graph:
        hot = tf.one_hot(v1.placeholder(tf.int64, shape, "in_0"), 100)
        tf.identity(tf.tensordot(hot, products.kernel(Product()), 1), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        built = graph.as_graph_def(add_shapes=True)
    for graph_def in (built, stock.optimized(built)):
        for one in (PASS, LowerLookups(preserve=KEEP)):
            result = one.apply(graph_def)
            assert result.report.fused_count == 1, str(result.report)
            assert not {"OneHot", "MatMul"} & {*ops(result.graph_def)}
            for batch in (7,) if shape[0] else (7, 1, 0):
                sizes = (batch, *(4 if size is None else size for size in shape[1:]))
                ids = np.random.default_rng(batch).integers(-2, 103, sizes)
                (wanted,) = stock.run(graph_def, {"in_0:0": ids}, optimize=False)
                (got,) = stock.run(result.graph_def, {"in_0:0": ids})
                np.testing.assert_array_equal(got, wanted)


def reshaped(values: Any) -> Any:
    return tf.reshape(values, [tf.shape(values)[0], 4])


def summed(values: Any) -> Any:
    each = tf.range(tf.shape(values)[0])
    return tf.sparse.segment_sum(tf.ensure_shape(values, [None, 4]), each, each)


@pytest.mark.parametrize("width", [reshaped, summed])
def test_others_may_be_columns_of_which_the_width_alone_is_known(width: Any) -> None:
    """As feature columns are: sums of rows, reshaped where the size of the batch is not known."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    with tf.Graph().as_default() as graph:
        others = [v1.placeholder(tf.float32, None, f"in_{k}") for k in (1, 2)]
        parts = [width(other) for other in others]
        hot = tf.one_hot(v1.placeholder(tf.int64, [None], "in_0"), 92)
        kernel = v1.get_variable("kernel", initializer=numbers(100, 8))
        tf.matmul(tf.concat([parts[0], hot, parts[1]], 1), kernel, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def()
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 1, str(result.report)
    feeds = {"in_0:0": rng.integers(0, 92, 7), "in_1:0": numbers(7, 4), "in_2:0": numbers(7, 4)}
    (wanted,) = stock.run(graph_def, feeds, optimize=False)
    (got,) = stock.run(result.graph_def, feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


FOLLOWING: dict[str, Callable[[Any], Any]] = {
    "bias": lambda x: tf.nn.bias_add(x, tf.ones([8])),
    "relu": lambda x: tf.nn.relu(tf.nn.bias_add(x, tf.ones([8]))),
    "elu": lambda x: tf.nn.elu(tf.nn.bias_add(x, tf.ones([8]))),
    "leaky relu": lambda x: tf.nn.leaky_relu(tf.nn.bias_add(x, tf.ones([8])), 0.3),
    "tanh": lambda x: tf.tanh(tf.nn.bias_add(x, tf.ones([8]))),
}


@pytest.mark.parametrize("follows", FOLLOWING.values(), ids=FOLLOWING)
@pytest.mark.parametrize("parts", [(Part(),), WIDE.parts], ids=["alone", "beside others"])
def test_what_the_optimizer_put_into_the_product_follows_it(
    parts: tuple[Part, ...], follows: Callable[[Any], Any]
) -> None:
    model = Product(parts, follows=follows, device=CPU)
    graph_def = stock.optimized(products.build(model))
    assert "_FusedMatMul" in ops(graph_def)
    for one in (PASS, LowerLookups(preserve=KEEP)):
        result = one.apply(graph_def)
        assert result.report.fused_count == 1
        assert not {"_FusedMatMul", "OneHot"} & {*ops(result.graph_def)}
        compare(model, graph_def, result.graph_def)


def test_other_followers_are_a_reason() -> None:
    graph_def = stock.optimized(products.build(Product(follows=FOLLOWING["relu"], device=CPU)))
    node = next(node for node in graph_def.node if node.op == "_FusedMatMul")
    node.attr["fused_ops"].list.s[1] = b"GeluExact"
    (column,) = PASS.apply(graph_def).report.columns
    assert column.reason == "the product is one with BiasAdd and GeluExact"


def test_one_matrix_of_ids_for_several_products() -> None:
    with tf.Graph().as_default() as graph:
        x = products.matrix(WIDE)
        wide = tf.matmul(x, products.kernel(WIDE))
        deep = tf.matmul(x, tf.constant(products.values(replace(WIDE, width=3))))
        tf.concat([wide, deep], 1, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 2
    assert "OneHot" not in ops(result.graph_def)
    feed = products.feeds(WIDE)
    (wanted,), (got,) = (stock.run(one, feed) for one in (graph_def, result.graph_def))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_products_side_by_side_are_columns_of_one_op() -> None:
    with tf.Graph().as_default() as graph:
        parts = []
        for number in range(3):
            ids = v1.placeholder(tf.int64, [None], f"in_{number}")
            kernel = tf.constant(np.random.default_rng(number).normal(size=(100, 4)))
            parts.append(tf.matmul(tf.one_hot(ids, 100, dtype=tf.float64), kernel))
        tf.concat(parts, 1, name="out")
        tf.no_op(name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = PASS.apply(graph_def)
    assert [column.form for column in result.report.columns] == ["grouped"] * 3
    feed = {f"in_{k}:0": np.array([0, 99, 100, -1, 5 + k]) for k in range(3)}
    (wanted,), (got,) = (stock.run(one, feed) for one in (graph_def, result.graph_def))
    np.testing.assert_array_equal(got, wanted)


def test_rows_of_unequal_tensors_stay_an_error() -> None:
    result = PASS.apply(products.build(WIDE))
    feed = products.feeds(WIDE)
    for name in ("in_1:0", "in_2:0"):
        bad = {**feed, name: feed[name][:1]}
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(result.graph_def, bad)


def test_ids_that_bincount_refuses_are_refused_by_its_message() -> None:
    model = Product((Part("count", 100), Part("vector", 9)))
    graph_def = products.build(model)
    for one in (PASS, LowerLookups(preserve=KEEP)):
        result = one.apply(graph_def).graph_def
        feed = products.feeds(model)
        feed["in_0:0"][3, 1] = -1
        for before in (graph_def, result):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must be non-negative"):
                stock.run(before, feed, optimize=False)


def graph_of(make: Callable[[Any, Any], Any]) -> graph_pb2.GraphDef:
    """A graph with `in_0` of ids [B], a matrix of 100 rows, and `out` made of both."""
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None], "in_0")
        tf.identity(make(ids, products.kernel(Product())), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def hot(ids: Any, **options: Any) -> Any:
    return tf.one_hot(ids, 100, **options)


def _also_read(ids: Any, kernel: Any) -> Any:
    x = hot(ids)
    return tf.matmul(x, kernel) + tf.reduce_sum(x, 1, keepdims=True)


def _gradient(ids: Any, kernel: Any) -> Any:
    result = tf.matmul(hot(ids), kernel)
    return tf.reduce_sum(result) + tf.reduce_sum(tf.gradients(result, kernel.handle)[0])


REASONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "read besides": (_also_read, "the encoded ids are also used by Sum"),
    "trained": (_gradient, "the encoded ids are also used by "),
    "transposed": (
        lambda ids, kernel: tf.matmul(hot(ids), tf.transpose(kernel), transpose_b=True),
        "the matrix is transposed, or of no dtype of tables",
    ),
    "other values": (
        lambda ids, kernel: tf.matmul(hot(ids, on_value=2.0, off_value=0.0), kernel),
        "ids are not encoded as ones and zeros",
    ),
    "other axis": (
        lambda ids, kernel: tf.matmul(tf.one_hot(ids, 100, axis=0), kernel[:7]),
        "ids are not one-hot along the last axis",
    ),
    "classes": (
        lambda ids, kernel: tf.matmul(tf.one_hot(ids, tf.size(ids) * 0 + 100), kernel),
        "how many classes ids have is not known",
    ),
    "on the right": (
        lambda ids, kernel: tf.matmul(tf.transpose(kernel), hot(ids), transpose_b=True),
        "ids are encoded on the right of the product",
    ),
    "joined in sequences": (
        lambda ids, kernel: tf.tensordot(
            tf.concat([tf.one_hot(ids[:, None], 70), tf.one_hot(ids[:, None], 30)], -1), kernel, 1
        ),
        "it is not understood what becomes of encoded ids",
    ),
    "scaled": (
        lambda ids, kernel: tf.matmul(tf.cast(tf.cast(hot(ids), tf.bool), tf.float32), kernel),
        "it is not understood what becomes of encoded ids",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_why_others_stay(name: str) -> None:
    make, reason = REASONS[name]
    graph_def = graph_of(make)
    result = PASS.apply(graph_def)
    assert not result.modified
    (column,) = result.report.columns
    assert column.reason is not None
    assert column.reason.startswith(reason), column.reason


WHY = {
    "twos": "ids are not encoded as ones and zeros",
    "bools": "it is not understood what becomes of encoded ids",
    "unknown": "how many classes ids have is not known",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", WHY)
def test_ids_that_are_not_understood_are_a_part_of_the_smaller_product(
    kind: str, dtype: str
) -> None:
    parts = (Part("dense", 3), Part("vector", 70), Part(kind, 80), Part("sum", 5))
    model = Product(parts, dtype=dtype)
    built = products.build(model)
    for graph_def in (built, stock.optimized(built)):
        for one in (PASS, LowerLookups(preserve=KEEP)):
            result = one.apply(graph_def)
            bag, refused = result.report.columns
            assert bag.fused
            assert bag.spec is not None
            assert isinstance(bag.spec.ids, JoinedIds)
            assert [(ids.start, ids.classes) for ids in bag.spec.ids.parts] == [(3, 70), (153, 5)]
            assert (refused.fused, refused.reason) == (False, WHY[kind])
            found = ops(result.graph_def)
            assert (found.count("MatMul"), found.count("OneHot")) == (1, 1)
            compare(model, graph_def, result.graph_def)


@pytest.mark.parametrize(("classes", "count"), [(64, 1), (65, 2)])
def test_few_classes_that_are_not_understood_are_left_without_a_word(
    classes: int, count: int
) -> None:
    result = PASS.apply(products.build(Product((Part("vector", 70), Part("twos", classes)))))
    assert result.report.fused_count == 1
    assert len(result.report.columns) == count


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((Part("vector", 64), Part("twos", 80)), "twos"),
        ((Part("twos", 80), Part("dense", 90)), "twos"),
        ((Part("vector", 70), Part("unknown", 80), Part("unknown", 9)), "unknown"),
    ],
    ids=["few understood", "none understood", "unknown rows"],
)
def test_what_is_not_understood_is_why_others_stay(parts: tuple[Part, ...], kind: str) -> None:
    result = PASS.apply(products.build(Product(parts)))
    assert not result.modified
    (column,) = result.report.columns
    assert column.reason == WHY[kind]


def test_ids_that_several_products_do_not_understand_are_reported_once() -> None:
    model = Product((Part("vector", 70), Part("twos", 80)))
    with tf.Graph().as_default() as graph:
        x = products.matrix(model)
        wide = tf.matmul(x, products.kernel(model))
        deep = tf.matmul(x, tf.constant(products.values(replace(model, width=3))))
        tf.concat([wide, deep], 1, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    columns = PASS.apply(graph_def).report.columns
    assert [column.reason for column in columns] == [None, None, WHY["twos"]]


@pytest.mark.parametrize("is_matrix", [True, False])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_counts_of_other_ids_stay(kind: str, is_matrix: bool) -> None:
    with tf.Graph().as_default() as graph:
        ids = tf.RaggedTensor.from_row_splits(
            v1.placeholder(tf.int64, [None], "ids"), v1.placeholder(tf.int64, [None], "splits")
        )
        size, none = tf.constant(100, tf.int64), tf.constant([], tf.float32)
        if kind == "ragged":
            x = tf.raw_ops.RaggedBincount(
                splits=ids.row_splits, values=ids.values, size=size, weights=none
            )
        else:
            given = ids.to_sparse()
            x = tf.raw_ops.SparseBincount(
                indices=given.indices,
                values=given.values,
                dense_shape=given.dense_shape,
                size=size,
                weights=none,
            )
        if is_matrix:
            x.set_shape([None, None])
        tf.matmul(x, products.kernel(Product()), name="out")
        graph_def = graph.as_graph_def()
    (column,) = PASS.apply(graph_def).report.columns
    reason = "the ids that are counted are ragged or sparse"
    assert column.reason == (reason if is_matrix else NO_MATRICES)


NO_MATRICES = "the product is not known to be one of two matrices"


@pytest.mark.parametrize(("classes", "count"), [(64, 0), (65, 1)])
def test_products_of_more_dimensions_are_reported(classes: int, count: int) -> None:
    for equation in ("", "blc,cd->bld"):
        with tf.Graph().as_default() as graph:
            x = tf.one_hot(v1.placeholder(tf.int64, [None, 3], "ids"), classes)
            kernel = products.kernel(Product((Part("vector", classes),)))
            tf.einsum(equation, x, kernel) if equation else tf.linalg.matmul(x, kernel[None])
            graph_def = graph.as_graph_def()
        columns = PASS.apply(graph_def).report.columns
        assert [column.reason for column in columns] == [NO_MATRICES] * count


def test_few_classes_are_left_alone_without_a_word() -> None:
    for classes, count in ((64, 0), (65, 1)):
        result = PASS.apply(products.build(Product((Part("vector", classes), Part("dense", 90)))))
        assert len(result.report.columns) == result.report.fused_count == count


def test_the_matrix_itself_is_no_product_of_encoded_ids() -> None:
    graph_def = graph_of(lambda ids, kernel: tf.matmul(tf.ones([7, 100]), kernel))
    assert not PASS.apply(graph_def).report.columns


def test_on_gpus_sums_of_rows_stay() -> None:
    on_gpus = FuseLookups(preserve=KEEP, devices=Devices(frozenset({"CPU", "GPU"}), "GPU"))
    bags = Model((Table(3000, 8), Table(3000, 8)), (5,), between="", bag="mean")
    for graph_def in (products.build(Product()), layers.build(bags)):
        result = on_gpus.apply(graph_def)
        assert not result.modified
        assert result.report.columns
        for column in result.report.columns:
            assert str(column.reason).endswith("sums of rows by dense ops are fused on CPUs alone")


def sparse_graph(dtype: str = "float32", width: int = 32) -> graph_pb2.GraphDef:
    model = Product((Part("vector", 50),), width, dtype)
    with tf.Graph().as_default() as graph:
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values = v1.placeholder(dtype, [None], "values")
        shape = v1.placeholder(tf.int64, [2], "shape")
        a = tf.SparseTensor(indices, values, shape)
        tf.sparse.sparse_dense_matmul(a, products.kernel(model), name="product")
        tf.identity(graph.get_tensor_by_name("product/SparseTensorDenseMatMul:0"), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def sparse_feed(seed: int = 0, **changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    given = {
        # In no order, some of them twice, some rows without any.
        "indices": np.stack([rng.integers(0, 9, 40), rng.integers(0, 50, 40)], 1),
        "values": rng.normal(size=40),
        "shape": np.array([11, 50]),
        **changed,
    }
    return {f"{key}:0": value for key, value in given.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_product_of_a_sparse_matrix_is_a_bag(dtype: str) -> None:
    graph_def = sparse_graph(dtype)
    result = PASS.apply(graph_def)
    assert [column.form for column in result.report.columns] == ["single"]
    assert ops(result.graph_def).count(SINGLE) == 1
    lowered = LowerLookups(preserve=KEEP).apply(result.graph_def).graph_def
    assert SINGLE not in ops(lowered)
    eps = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}[dtype]
    for feed in (
        sparse_feed(),
        sparse_feed(indices=np.zeros([0, 2], np.int64), values=np.zeros([0])),
        sparse_feed(1, shape=np.array([9, 50])),
    ):
        feed["values:0"] = feed["values:0"].astype(tf.as_dtype(dtype).as_numpy_dtype)
        (wanted,) = stock.run(graph_def, feed, optimize=False)
        for one in (result.graph_def, lowered):
            (got,) = stock.run(one, feed)
            assert got.shape == wanted.shape
            # At most 40 terms of less than 4 times 4 in a row.
            gap = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
            assert (gap <= 4 * eps * 40 * 40).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": np.array([11, 49])},
        {"shape": np.array([11, 51])},
        {"indices": np.full([40, 2], 50)},
        {"indices": np.full([40, 2], -1)},
        {"values": np.ones(39)},
    ],
    ids=["narrow", "wide", "column", "negative", "values"],
)
def test_what_is_no_sparse_matrix_is_an_error(changed: dict[str, Any]) -> None:
    graph_def = sparse_graph()
    feed = sparse_feed(**changed)
    for one in (graph_def, PASS.apply(graph_def).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(one, feed, optimize=False)


def test_a_sparse_product_is_as_few_stock_ops_as_it_can_be() -> None:
    (column,) = LowerLookups(preserve=KEEP).apply(sparse_graph()).report.columns
    assert column.reason == MIN_OPS


def test_narrow_sparse_products_stay() -> None:
    (column,) = PASS.apply(sparse_graph(width=31)).report.columns
    assert column.reason is not None
    assert column.reason.startswith("nothing to gain: with fewer than 32 columns")


@pytest.mark.parametrize("option", ["adjoint_a", "adjoint_b"])
def test_transposed_sparse_products_stay(option: str) -> None:
    graph_def = sparse_graph()
    node = next(node for node in graph_def.node if node.op == "SparseTensorDenseMatMul")
    node.attr[option].b = True
    (column,) = PASS.apply(graph_def).report.columns
    assert column.reason == "one of the matrices is transposed"


def test_in_a_function_of_variables() -> None:
    kernel = tf.Variable(products.values(Product()))
    bias = tf.Variable(tf.ones([8]))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def model(ids: Any) -> Any:
        return tf.nn.relu(tf.matmul(tf.reduce_sum(tf.one_hot(ids, 100), 1), kernel) + bias)

    fused = fusion.fuse_function(model.get_concrete_function())
    ids = tf.constant([[1, 1, 99], [100, -1, 7]])
    np.testing.assert_allclose(fused(ids), model(ids), rtol=1e-6)
    kernel.assign_add(tf.ones_like(kernel))
    np.testing.assert_allclose(fused(ids), model(ids), rtol=1e-6)
    assert "fused  " in str(fusion.explain(model.get_concrete_function()))

"""Graphs that are almost a lookup: changed by one constant, attribute or input.

Every single change is tried on every node of a column. The pass must then decline the column, or
the rewritten graph must still compute what the changed stock graph computes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import tensor_util

import fusion  # noqa: F401  (registers the ops)
from fusion.passes.fuse_lookups import FuseLookups
from tests import layer_graphs as layers
from tests import product_graphs as products
from tests.layer_graphs import Model
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case
from tests.product_graphs import Part, Product
from tests.tiers import ALL_CASES, tier

v1 = tf.compat.v1
fc = tf.feature_column
FETCHES = ("out_a:0", "out_b:0")
PASS = FuseLookups(preserve=frozenset({"out_a", "out_b", "initialize"}))
BASES = {
    "classic": Case(),
    "default_id": Case(default_id=2),
    "fast": Case(table="constant", fast=True, combiner="sum"),
    "int32_sqrtn": Case(ids=tf.int32, combiner="sqrtn"),
    "weighted_mean": Case(weighted=True),
    "weighted_sqrtn": Case(weighted=True, combiner="sqrtn", default_id=1),
    "max_norm": Case(max_norm=1.5),
    "div": Case(shards=3),
    "mod": Case(shards=2, strategy="mod", combiner="sum"),
    "ragged": Case(ragged=True),
}
_SMALL = (layers.Table(8, 3), layers.Table(8, 3))
COLUMNS = {
    "bucketized": lambda key: fc.bucketized_column(fc.numeric_column(key, (2,)), [0.0, 1.0]),
    "dense_identity": lambda key: fc.categorical_column_with_identity(key, 8, 3),
    "dense_hash": lambda key: fc.categorical_column_with_hash_bucket(key, 8, tf.int64),
}
LAYERS = {
    "keras": Model(_SMALL, between="flatten as Keras", wraps=True),
    "sliced": Model(_SMALL, between="first behind an ellipsis"),
    "sequences": Model(_SMALL, (2,), between="", joins=(("concat", 2),)),
    "sequences of any length": Model(
        _SMALL, (2,), between="", joins=(("concat", 2),), any_length=True
    ),
    "constants": Model(tuple(replace(table, kind="constant") for table in _SMALL), between=""),
    "columns of a matrix": Model(_SMALL, (), between="", taken="vector"),
    "narrow columns of a matrix": Model(_SMALL, taken="slice"),
    "packed": Model(_SMALL, (), between="", joins=(("pack", 1),)),
    **{
        f"bag {name}": Model(_SMALL, (4,), between="", bag=name, wraps=name.startswith("selected"))
        for name in ("mean", "selected mean", "product mean", "ones mean", "lengths")
    },
    "bag max": Model(_SMALL, (4,), between="", bag="max"),
    "bag penalized max": Model(_SMALL, (4,), between="", bag="penalized max"),
    "bag lengths max": Model(_SMALL, (4,), between="", bag="lengths max"),
    "bag of half types": Model(_SMALL, (4,), between="", bag="product mean", dtype="bfloat16"),
    "bag weighted mean": Model(_SMALL, (4,), between="", bag="weighted mean"),
    "bag ragged mean": Model(_SMALL, between="", bag="ragged mean"),
    "bag ragged segment mean": Model(_SMALL, between="", bag="ragged segment mean", wraps=True),
    "bag ragged max": Model(_SMALL, between="", bag="ragged max"),
    "bag padded mean": Model(_SMALL, (4,), between="", bag="padded mean", wraps=True),
}
PRODUCTS = {
    "product": Product((Part("vector", 60), Part("dense", 2), Part("flat", 20, 2)), 3),
    "product of each": Product((Part("each", 70, None),), 3),
    "product of counts": Product((Part("sum", 60, 2), Part("binary", 20, 3)), 3),
    "product of the largest": Product((Part("max", 70, 2),), 3, kernel="constant"),
}
#: Of these, as they are built, every change is tried, but for `make test`; of the others some:
#: `make soak` and `make fuzz` try all.
_WHOLE = ("classic",)
_STEP_OF_WHOLE = 5 if tier() == "fast" else 1
_STEP = 60
#: Graphs of layers are small, but for those of ragged bags.
_STEP_OF_LAYERS = {
    **dict.fromkeys(("bag ragged mean", "bag ragged max"), 400),
    "bag ragged segment mean": 2,
    "packed": 12,
    "bag padded mean": 280,
    "product of each": 2,
    "product of the largest": 7,
}
# The assigned initial values; and a shape of -1s, which makes stock TensorFlow abort.
_NOT_MIXED = ("initial_value", "shape_default", "initialize")
OTHER_OPS = {
    "AddV2": ("Sub", "Mul"),
    "GreaterEqual": ("Greater", "LessEqual", "NotEqual"),
    "Less": ("LessEqual", "Greater"),
    "Prod": ("Sum", "Max"),
    "Select": ("SelectV2",),
    "Max": ("Sum", "Min"),
    "Maximum": ("Minimum",),
    "Mean": ("Sum", "Max"),
    "Minimum": ("Maximum",),
    "NotEqual": ("Equal", "GreaterEqual"),
    "RealDiv": ("DivNoNan", "Mul"),
    "Sum": ("Mean", "Max"),
    "UnsortedSegmentMax": ("UnsortedSegmentSum", "UnsortedSegmentMin"),
    "UnsortedSegmentSum": ("UnsortedSegmentMax", "UnsortedSegmentProd"),
    "SparseSegmentMean": ("SparseSegmentSum", "SparseSegmentSqrtN"),
    "ZerosLike": ("OnesLike",),
}
SIZES_DISAGREE = re.compile(r"says that it is|there are \d+ (entry_rows|weights) for \d+ ids")
FLAGS = ("binary_output", "keep_dims", "transpose_a", "transpose_b")
MASKS = ("begin_mask", "end_mask", "shrink_axis_mask", "ellipsis_mask", "new_axis_mask")


def build(case: Case | Model | Product | str) -> graph_pb2.GraphDef:
    """Two columns `a` and `b`, so that every tensor of one has a counterpart in the other."""
    if isinstance(case, str):
        return _build_columns(case)
    if isinstance(case, Model | Product):
        return _build_layers(case)
    with tf.Graph().as_default() as graph:
        for name in ("a", "b"):
            with v1.variable_scope(name), v1.name_scope(name + "/"):
                table = stock.make_table(case)
                ids = stock.sparse_placeholder(case)
                result = stock.lookup(table, ids, case)
            tf.identity(result, name=f"out_{name}")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def _build_columns(kind: str) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        for name in ("a", "b"):
            dtype = tf.float32 if kind == "bucketized" else tf.int64
            ids = v1.placeholder(dtype, [None, 2], f"{name}/ids")
            rows = 6 if kind == "bucketized" else 8
            table = v1.constant_initializer(np.random.default_rng(3).normal(size=(rows, 3)))
            column = fc.embedding_column(COLUMNS[kind](name), 3, "mean", initializer=table)
            with v1.variable_scope(name), v1.name_scope(name + "/"):
                result = v1.feature_column.input_layer({name: ids}, [column])
            tf.identity(result, name=f"out_{name}")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def _build_layers(model: Model | Product) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        for name in ("a", "b"):
            with v1.variable_scope(name), v1.name_scope(name + "/"):
                if isinstance(model, Product):
                    result = tf.matmul(products.matrix(model), products.kernel(model))
                else:
                    (result,) = layers.outputs(model, layers.all_ids(model))
            tf.identity(result, name=f"out_{name}")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def feeds(case: Case | Model | Product | str) -> dict[str, Any]:
    """Equal sizes and different contents in both columns, so that they can be mixed up."""
    if isinstance(case, Model | Product):
        return {
            f"{name}/{key}": ids
            for seed, name in enumerate("ab")
            for key, ids in _fed(case, seed).items()
        }
    if isinstance(case, str):
        rng = np.random.default_rng(7)
        ids = rng.integers(-2, 10, (2, 5, 2))
        ids[:, 1] = -1
        dtype = np.float32 if case == "bucketized" else np.int64
        return {
            f"{name}/ids:0": values.astype(dtype) for name, values in zip("ab", ids, strict=True)
        }
    a, b = stock.feeds(case, 1), stock.feeds(case, 2)
    size = min(len(a["ids/values:0"]), len(b["ids/values:0"]))
    found = {}
    for prefix, feed in (("a", a), ("b", b)):
        for key, value in feed.items():
            found[f"{prefix}/{key}"] = value if key == "ids/shape:0" else value[:size]
    return found


def _fed(case: Model | Product, seed: int) -> dict[str, Any]:
    if isinstance(case, Product):
        return products.feeds(case, seed=seed)
    return layers.feeds(case, seed=seed)


def column_nodes(graph_def: graph_pb2.GraphDef) -> list[int]:
    """Positions of the nodes that compute `out_a` out of the ids and the table."""
    where = {node.name: i for i, node in enumerate(graph_def.node)}
    stack, seen = ["out_a"], set[str]()
    while stack:
        name = stack.pop()
        node = graph_def.node[where[name]]
        if name in seen or node.op.startswith(("Placeholder", "VarHandle", "Variable")):
            continue
        seen.add(name)
        stack += [text.removeprefix("^").partition(":")[0] for text in node.input]
    return sorted(where[name] for name in seen - {"out_a"})


def mutants(
    graph_def: graph_pb2.GraphDef,
) -> Iterator[tuple[str, Callable[[], graph_pb2.GraphDef]]]:
    """Yields (what is changed, what makes the changed graph), one change at a time."""
    others = _replacements(graph_def)
    for position in column_nodes(graph_def):
        node = graph_def.node[position]
        for label, change in _changes(node, others):
            yield (
                f"{node.name} ({node.op}): {label}",
                partial(_changed, graph_def, position, change),
            )


Change = Callable[[node_def_pb2.NodeDef], None]


def _changed(graph_def: graph_pb2.GraphDef, position: int, change: Change) -> graph_pb2.GraphDef:
    mutant = graph_pb2.GraphDef()
    mutant.CopyFrom(graph_def)
    change(mutant.node[position])
    return mutant


def _changes(
    node: node_def_pb2.NodeDef, others: Callable[[str, str], list[str]]
) -> Iterator[tuple[str, Change]]:
    if node.op == "Const":
        value = tensor_util.MakeNdarray(node.attr["value"].tensor)
        elements = range(value.size) if value.dtype.kind == "i" else ()
        for i, step in itertools.product(elements, (-1, 1, 2)):
            yield f"element {i} {step:+}", partial(_shift, element=i, step=step)
    for key, bit in itertools.product(MASKS, (1, 2)):
        if key in node.attr:
            yield f"{key} ^ {bit}", partial(_flip, key=key, bit=bit)
    for key in ("batch_dims", "axis"):
        if key in node.attr and node.op != "ConcatV2":
            yield f"{key} + 1", partial(_flip, key=key, bit=1)
    for key in FLAGS:
        if key in node.attr:
            yield key, partial(_set_flag, key=key)
    for op in OTHER_OPS.get(node.op, ()):
        yield f"op {op}", partial(_change_op, op=op)
    for i, text in enumerate(node.input):
        for other in others(node.name, text) if text[0] != "^" else ():
            yield f"input {i} {text} -> {other}", partial(_rewire, position=i, text=other)


def _set_flag(node: node_def_pb2.NodeDef, key: str) -> None:
    node.attr[key].b = not node.attr[key].b


def _change_op(node: node_def_pb2.NodeDef, op: str) -> None:
    node.op = op


def _shift(node: node_def_pb2.NodeDef, element: int, step: int) -> None:
    value = tensor_util.MakeNdarray(node.attr["value"].tensor).copy()
    value.flat[element] += step
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))


def _flip(node: node_def_pb2.NodeDef, key: str, bit: int) -> None:
    node.attr[key].i ^= bit


def _rewire(node: node_def_pb2.NodeDef, position: int, text: str) -> None:
    node.input[position] = text


def _replacements(graph_def: graph_pb2.GraphDef) -> Callable[[str, str], list[str]]:
    """Returns a function of (node, input): tensors of the input's dtype that make no cycle."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        dtypes = {
            tensor.name.removesuffix(":0"): tensor.dtype
            for op in graph.get_operations()
            if not op.name.startswith("out_") and not op.name.endswith(_NOT_MIXED)
            for tensor in op.outputs
        }
    of_dtype: dict[tf.DType, list[tuple[str, str]]] = {}
    for tensor, dtype in dtypes.items():
        of_dtype.setdefault(dtype, []).append((tensor, tensor.partition(":")[0]))
    below: dict[str, set[str]] = {node.name: {node.name} for node in graph_def.node}
    for node in reversed(graph_def.node):  # files are in topological order
        for text in node.input:
            below[text.removeprefix("^").partition(":")[0]] |= below[node.name]

    def others(name: str, text: str) -> list[str]:
        twin = "b" + text[1:] if text.startswith("a/") else "a" + text[1:]
        found, after = of_dtype[dtypes[text]], below[name]
        same = [other for other, node in found if node not in after and other != text]
        sample = same[:: max(1, len(same) // 4)]
        return list(dict.fromkeys([twin] * (twin in same) + sample))

    return others


def imported(graph_def: graph_pb2.GraphDef) -> tf.Graph | str:
    """The graph, or why TensorFlow does not take it for one: its shapes do not fit."""
    try:
        return stock.imported(graph_def)
    except ValueError as error:
        return str(error)


def outcome(graph: tf.Graph | str, feed: stock.Feeds) -> list[Any] | str:
    """The fetched values, or the message of a graph that TensorFlow refuses to build or run.

    Without TensorFlow's optimizer: it takes ops that always fail for ops that never do.
    """
    if isinstance(graph, str):
        return graph
    try:
        return stock.run_imported(graph, feed, FETCHES, optimize=False)
    except (ValueError, tf.errors.OpError) as error:
        return str(error)


@pytest.mark.parametrize("optimize", [False, True], ids=["raw", "optimized"])
@pytest.mark.parametrize("base", [*BASES, *COLUMNS, *LAYERS, *PRODUCTS])
def test_a_single_change_is_declined_or_computed_right(base: str, optimize: bool) -> None:
    layer = LAYERS.get(base) or PRODUCTS.get(base)
    case: Case | Model | Product | str = BASES.get(base) or layer or base
    is_whole = base in _WHOLE and not optimize
    sparse = _STEP_OF_LAYERS.get(base, 28) if layer is not None else _STEP
    if layer is not None and optimize:  # fewer nodes are left, of which some are not fused
        sparse = max(1, sparse // 4)
    step = _STEP_OF_WHOLE if is_whole else sparse
    step = 1 if ALL_CASES else step
    graph_def = build(case)
    if optimize:
        graph_def = _sorted(stock.optimized(graph_def, ("out_a", "out_b")))
    feed = feeds(case)
    lookups = len(case.tables) if isinstance(case, Model) else 1
    assert PASS.apply(graph_def).report.fused_count == 2 * lookups
    tried = fused = 0
    wrong = []
    for label, changed in itertools.islice(mutants(graph_def), None, None, step):
        tried += 1
        mutant = changed()
        result = PASS.apply(mutant)
        if not any(c.fused and c.name.startswith("a/") for c in result.report.columns):
            continue
        graph = imported(mutant)
        if isinstance(graph, str):
            continue
        fused += 1
        expected, got = outcome(graph, feed), outcome(imported(result.graph_def), feed)
        is_exact = case.is_exact if isinstance(case, Case) else not isinstance(case, Product)
        if not same(expected, got, is_exact=is_exact):
            wrong.append(f"{label}: {_difference(expected, got)}")
    assert not wrong, "\n".join(wrong)
    assert tried * step > (20 if layer is not None else 150)
    assert 0 < fused < tried


def _difference(expected: list[Any] | str, got: list[Any] | str) -> str:
    if isinstance(expected, str) or isinstance(got, str):
        return f"{str(expected)[:200]} and {str(got)[:200]}"
    if any(x.shape != y.shape for x, y in zip(expected, got, strict=True)):
        return f"{[x.shape for x in expected]} and {[y.shape for y in got]}"
    return f"off by {max(np.nanmax(abs(x - y)) for x, y in zip(expected, got, strict=True))}"


def same(expected: list[Any] | str, got: list[Any] | str, is_exact: bool = True) -> bool:
    """Equal values, but for rounding if the lookup is not exact, or a failure on both sides.

    Where values and indices have different lengths, and so are no sparse tensor, stock TensorFlow
    may still return something. The fused op refuses.
    """
    if isinstance(got, str):
        return isinstance(expected, str) or SIZES_DISAGREE.search(got) is not None
    if isinstance(expected, str):
        return False
    equal = np.array_equal if is_exact else partial(np.allclose, rtol=1e-5, atol=1e-6)
    pairs = zip(expected, got, strict=True)
    return all(x.shape == y.shape and equal(x, y, equal_nan=True) for x, y in pairs)


def _sorted(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    nodes = {node.name: node for node in graph_def.node}
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in done:
            for text in nodes[name].input:
                visit(text.removeprefix("^").partition(":")[0])
            done[name] = None

    for name in nodes:
        visit(name)
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(nodes[name] for name in done)
    return result

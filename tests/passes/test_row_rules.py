"""For each op, what is known of the rows of its result, and what it says of almost the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.analysis.rows.rules import RULES
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.split import SplitGraph
from tests.passes import row_cases, row_cases_of_lists, row_cases_ragged
from tests.passes.row_cases import Case, Inputs, fed
from tests.passes.test_row_rules_more import KEPT as MORE
from tests.passes.test_row_rules_more import graph_of
from tests.request_splits import (
    COUNTS,
    Feeds,
    Model,
    check_numbers,
    close_numbers,
    model_of,
    run_split,
)

v1 = tf.compat.v1

_MODULES: tuple[Any, ...] = (row_cases, row_cases_ragged, row_cases_of_lists)


def _all_of(tables: Iterable[Mapping[str, Sequence[Case]]]) -> dict[str, list[Case]]:
    """The cases of all tables by their ops."""
    found: dict[str, list[Case]] = {}
    for table in tables:
        for op, cases in table.items():
            found.setdefault(op, []).extend(cases)
    return found


CASES = _all_of(module.CASES for module in _MODULES)
OTHERS = _all_of(module.OTHERS for module in _MODULES)
KEPT = [(op, k) for op in CASES for k in range(len(CASES[op]))]
MIXED = [(op, k) for op in OTHERS for k in range(len(OTHERS[op]))]
#: Ops that the runtime has no CPU kernel for, or that need a state: only what is known is tested.
UNRUN = frozenset({"LookupTableFindV2", "ResourceGather", "AccumulateNV2", "LookupTableFind"})


def build(case: Case, sides: str = "uc") -> Model:
    """A model of the case, with an output that candidates alone have."""
    with tf.Graph().as_default() as graph:
        inputs = {side: Inputs(side) for side in "uc"}
        result = case(inputs[sides[0]], inputs[sides[1]])
        return model_of(graph, [tf.identity(result, "out"), tf.identity(inputs["c"].x, "price")])


def feeds(model: Model, requests: int, candidates: int, seed: int = 0) -> Feeds:
    generator = np.random.default_rng(seed)
    return {
        tensor.node: fed(tensor.node, requests if tensor.node[0] == "u" else candidates, generator)
        for tensor in model.facts
    }


def test_every_rule_has_a_case() -> None:
    of_models = {node.op for call in MORE.values() for node in graph_of(call).node}
    # The last ones differ from others in what they are called.
    same = {"LookupTableFind", "MatrixSetDiag", "MatrixSetDiagV2", "SparseCross", "SparseCrossV2"}
    assert RULES.keys() - CASES.keys() - of_models <= same
    assert CASES.keys() - {"ragged"} <= RULES.keys()


@pytest.mark.parametrize("sides", ["uc", "cu"])
@pytest.mark.parametrize(("op", "number"), KEPT)
def test_an_op_that_keeps_rows_apart(op: str, number: int, sides: str) -> None:
    model = build(CASES[op][number], sides)
    assert op in {node.op for node in model.graph.node} | {"ragged"}
    if op in UNRUN:
        assert isinstance(model.split(several=True), SplitGraph), model.split(several=True)
        return
    counts = [2, 0, 3]
    check_numbers(model, feeds(model, len(counts), sum(counts)), counts, close_numbers)


@pytest.mark.parametrize("sides", ["uc", "cu"])
@pytest.mark.parametrize(("op", "number"), MIXED)
def test_an_op_that_mixes_rows(op: str, number: int, sides: str) -> None:
    try:
        model = build(OTHERS[op][number], sides)
    except (ValueError, TypeError) as error:
        pytest.fail(f"no graph: {error}")
    for exact in (False, True):
        found = model.split(several=True, exact=exact)
        assert isinstance(found, NoMatch)
        assert found.reason


def long_chain(side: Inputs) -> tf.Tensor:
    number = tf.constant(0.5)
    for _ in range(500):
        number = number * 0.999
    return side.x * number


def long_chain_of_sizes(side: Inputs) -> tf.Tensor:
    size = tf.shape(side.x)[0]
    for _ in range(500):
        size = size * 1
    return tf.reshape(side.x, tf.stack([size, 2, 2]))


def loop(side: Inputs, bound: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    v1.disable_control_flow_v2()
    try:
        return v1.while_loop(
            lambda k, _: k < bound, lambda k, y: (k + 1, y + side.k[0]), [0, start]
        )[1]
    finally:
        v1.enable_control_flow_v2()


def branch(side: Inputs) -> tf.Tensor:
    v1.disable_control_flow_v2()
    try:
        chosen = v1.cond(
            tf.reduce_max(side.x) > 0, lambda: tf.constant(1.0), lambda: tf.constant(2.0)
        )
        return side.x * chosen
    finally:
        v1.enable_control_flow_v2()


ODD: dict[str, Callable[[Inputs, Inputs], tf.Tensor]] = {
    "a long chain of constants": lambda a, b: long_chain(a) * b.x,
    "a long chain of sizes": lambda a, b: long_chain_of_sizes(a),
    "a loop over a row": lambda a, b: b.x * loop(a, tf.constant(3), tf.constant(0.0)),
    "a loop of constants": lambda a, b: b.x * loop(a, tf.constant(3), a.k[0]),
    "a branch": lambda a, b: branch(a),
    "sides side by side": lambda a, b: raw_identity(b.x, a.x)[1] + raw_identity(a.x, b.x)[1],
    "a sum of terms of two widths": lambda a, b: (a.x + b.x) + a.x[:, :1],
    "texts": lambda a, b: tf.strings.length(tf.add(tf.add(a.text, b.text), a.text)),
    "bytes": lambda a, b: tf.cast(b.n, tf.uint8) - tf.cast(a.n, tf.uint8),
}


def raw_identity(*tensors: tf.Tensor) -> Any:
    return tf.raw_ops.IdentityN(input=list(tensors))


@pytest.mark.parametrize("sides", ["uc", "cu"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_graph_is_refused_or_has_the_original_s_numbers(name: str, sides: str) -> None:
    model = build(ODD[name], sides)
    if isinstance(model.split(), SplitGraph):
        check_numbers(model, feeds(model, 3, 5), [2, 0, 3], close_numbers)


#: Tensors as wide as the widest row of all, and what that width changes.
WIDE: dict[str, Case] = {
    "counts of ids": lambda a, b: mean(tf.math.bincount(a.m, axis=-1, dtype=tf.float32)) * b.x,
    "steps": lambda a, b: grown(a) * b.x,
    "ragged": lambda a, b: mean(ragged(a).to_tensor(0)) * b.x,
    "sparse": lambda a, b: mean(tf.sparse.to_dense(tf.SparseTensor(*a.parsed[0:6:2]))) * b.x,
}


def grown(side: Inputs) -> tf.Tensor:
    """A loop of as many steps as the widest row has entries."""
    x, _ = side.x, side.example  # inputs are made in front of the loop

    def is_below(step: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return step < tf.shape(ragged(side).to_tensor(0))[1]

    return tf.while_loop(is_below, lambda step, y: (step + 1, y * 1.1), [0, x])[1]


def mean(wide: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(wide, tf.float32), 1, keepdims=True)


def ragged(side: Inputs) -> tf.RaggedTensor:
    parsed = side.parsed
    return tf.RaggedTensor.from_row_splits(parsed[7], parsed[9], validate=False)


@pytest.mark.parametrize("name", WIDE)
def test_a_request_without_candidates_makes_no_tensor_wider(name: str) -> None:
    model = build(WIDE[name])
    for seed in range(6):
        for counts in ([2, 0, 3], [0, 0, 2], [0, 2, 0]):
            feed = feeds(model, len(counts), sum(counts), seed)
            check_numbers(model, feed, counts, close_numbers)


@pytest.mark.parametrize("counts", [[2, 2], [5, -1, 1], [2, 3, 1], [5], [1, 1, 1, 2], []])
@pytest.mark.parametrize("name", ["rows", "ragged"])
def test_wrong_numbers_of_candidates_are_refused(name: str, counts: list[int]) -> None:
    model = build(WIDE.get(name, lambda a, b: a.x * b.x))
    for exact in (False, True):
        split = model.split(several=True, exact=exact)
        assert isinstance(split, SplitGraph)
        fed_counts = {**feeds(model, 3, 5), COUNTS: np.array(counts, np.int64)}
        with pytest.raises(tf.errors.InvalidArgumentError):
            run_split(model, split, fed_counts)


def test_two_requests_are_no_request() -> None:
    model = build(lambda a, b: a.x * b.x)
    split = model.split()
    assert isinstance(split, SplitGraph)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_split(model, split, feeds(model, 2, 5))

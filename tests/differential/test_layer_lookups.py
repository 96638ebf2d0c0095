"""Lookups as layers have them, and what the pass makes of them: random models, bit by bit.

`make fuzz` draws many more of them than `make test`.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion.passes.targets import PASSES, Target
from fusion.schema.names import OP_NAMES
from tests import layer_graphs as layers
from tests.differential.strategies import PLAIN_REPORT
from tests.layer_graphs import BAGS, Model, Table
from tests.passes import stock_graphs as stock

_IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
#: For how many seconds examples are drawn at most, both areas together.
_SECONDS = float(os.environ.get("FUZZ_SECONDS", "inf"))
_ROUNDS = 40
KEEP = frozenset({"out", "out_1", "initialize"})

#: How rows become parts of a join: what is between, and the joins.
_Way = tuple[str, tuple[tuple[str, int], ...]]
_OF_MATRIX: tuple[_Way, ...] = (
    ("", (("concat", 1),)),
    ("expand", (("concat", 2),)),
    ("identity", (("concat", -1),)),
)
_OF_COLUMN: tuple[_Way, ...] = (
    ("flatten", (("concat", 1),)),
    ("flatten as Keras", (("concat", -1),)),
    ("squeeze", (("concat", 1),)),
    ("", (("concat", 2),)),
    ("", (("concat", 2), ("concat", -1))),
)
_OF_SEQUENCES: tuple[_Way, ...] = (("", (("concat", 2),)), ("identity", (("concat", -1),)))
_ALIKE: tuple[_Way, ...] = (
    ("", (("concat", 1), ("pack", 1))),
    ("", (("pack", 1),)),
    ("expand", (("concat", 1),)),
)


@st.composite
def models(draw: st.DrawFn, *, bags: bool) -> Model:
    """A model of two to five lookups."""
    bag = draw(st.sampled_from(sorted(BAGS))) if bags else ""
    count = draw(st.integers(2, 5))
    dims = st.sampled_from((1, 2, 3, 4, 5, 8, 12, 16, 33, 64, 130))
    is_alike = draw(st.booleans())
    only = draw(dims)
    kinds = st.sampled_from(("resource", "resource", "read", "constant", "ref"))
    tables = tuple(
        Table(draw(st.integers(1, 60)), only if is_alike else draw(dims), draw(kinds))
        for _ in range(count)
    )
    length = draw(st.sampled_from((1, 2, 3, 7, 15, 16, 17, 20, 31, 50)))
    shape: tuple[int, ...] = (length,) if bags else draw(st.sampled_from(((), (1,), (length,))))
    if bag.startswith("ragged"):
        shape = (1,)
    ways: tuple[_Way, ...] = _OF_SEQUENCES
    if bag.startswith("kept"):
        ways = (("", (("concat", 2),)), ("squeeze", (("concat", 1),)))
    elif bags or shape == ():
        ways = _OF_MATRIX + (_ALIKE if is_alike else ())
    elif shape == (1,):
        ways = _OF_COLUMN
    between, joins = draw(st.sampled_from(ways))
    halves = () if "ragged weighted" in bag else ("float16", "bfloat16")
    return Model(
        tables,
        shape,
        draw(st.sampled_from(("int64", "int32"))),
        draw(st.sampled_from(("float32", "float32", "float64", *halves))),
        wraps=draw(st.booleans()),
        between=between,
        joins=joins,
        beside=joins == (("concat", 1),) and between != "expand" and draw(st.booleans()),
        bag=bag,
        any_length=not bags and ways == _OF_SEQUENCES and draw(st.booleans()),
    )


AREAS = {"rows of layers": (models(bags=False), 25), "bags of layers": (models(bags=True), 35)}


@pytest.mark.parametrize("area", AREAS)
def test_lookups_of_layers_agree_with_stock(area: str) -> None:
    drawn, examples = AREAS[area]
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples)
    @given(model=drawn, batch=st.sampled_from((7, 1, 0, 3, 70)), bad=st.sampled_from((0, 0, 0, 1)))
    def compare(model: Model, batch: int, bad: int) -> None:
        agreed[check(model, batch, bad)] += 1

    end = time.monotonic() + _SECONDS / len(AREAS)
    for done in range(_ROUNDS if _IS_NIGHTLY else 1):
        if done and time.monotonic() > end:
            break
        compare()
    print(f"{area}: {dict(agreed)}")
    assert agreed["in numbers"] > 0.6 * sum(agreed.values())


def check(model: Model, batch: int, bad: int) -> str:
    """Compares a model with what the pass makes of it, and with what it makes of that.

    Args:
      model: what is looked up.
      batch: how many rows.
      bad: whether one id is out of range.
    """
    graph_def = layers.build(model)
    feed = layers.feeds(model, batch, seed=batch)
    if bad and feed["ids_0:0"].size:
        feed["ids_0:0"].reshape(-1)[-1] = model.tables[0].rows
    names = ["out:0", "out_1:0"][: len(model.joins)]
    fused = PASSES[Target.FUSED](preserve=KEEP).apply(graph_def)
    assert fused.report.fused_count == len(model.tables), str(fused.report)
    lowered = PASSES[Target.STOCK](preserve=KEEP).apply(fused.graph_def).graph_def
    assert not {node.op for node in lowered.node} & {*OP_NAMES}
    after = [fused.graph_def, lowered]
    try:
        wanted = stock.run(graph_def, feed, names, optimize=False)
    except tf.errors.InvalidArgumentError:
        for one in after:
            with pytest.raises(tf.errors.InvalidArgumentError):
                stock.run(one, feed, names, optimize=False)
        return "in raising"
    for one in after:
        for got, expected in zip(stock.run(one, feed, names), wanted, strict=True):
            _same(got, expected)
    return "in numbers"


def _same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    is_nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), is_nan)
    assert got[~is_nan].tobytes() == expected[~is_nan].tobytes()

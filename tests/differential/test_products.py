"""Products of encoded ids, and what the pass makes of them: random models within the bounds.

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

from fusion.passes.recognise.stock.products import MOST_CLASSES
from fusion.passes.targets import PASSES, Target
from fusion.schema.names import OP_NAMES
from tests import product_graphs as products
from tests.differential.strategies import PLAIN_REPORT
from tests.passes import stock_graphs as stock
from tests.product_graphs import COUNTED, MIXED, Part, Product

_IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
#: For how many seconds examples are drawn at most.
_SECONDS = float(os.environ.get("FUZZ_SECONDS", "inf"))
_ROUNDS = 40
KEEP = frozenset({"out", "initialize"})


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from((*MIXED, "dense")))
    if kind == "dense":
        return Part(kind, draw(st.integers(1, 5)))
    lengths = (1, 2, 3, 9) if kind in ("flat", "max") else (1, 2, 3, 9, None)
    ids = ("int64", "int32") if kind in COUNTED else ("int64", "int32", "uint8", "int8")
    return Part(
        kind,
        draw(st.sampled_from((1, 2, 5, 65, 100))),
        draw(st.sampled_from(lengths)),
        draw(st.sampled_from(ids)),
    )


@st.composite
def models(draw: st.DrawFn) -> Product:
    # One part is large enough for the product to be looked at.
    found = [draw(parts()) for _ in range(draw(st.integers(0, 4)))]
    found.insert(draw(st.integers(0, len(found))), Part(draw(st.sampled_from(MIXED)), 70))
    if draw(st.integers(0, 7)) == 0:
        found = [Part("each", 70, draw(st.sampled_from((1, 3, None))))]
    return Product(
        tuple(found),
        draw(st.sampled_from((1, 3, 8, 16, 33))),
        draw(st.sampled_from(("float32", "float32", "float64", "float16", "bfloat16"))),
        draw(st.sampled_from(("variable", "constant"))),
        draw(st.booleans()),
    )


def test_products_of_encoded_ids_agree_with_stock() -> None:
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=35)
    @given(model=models(), batch=st.sampled_from((7, 1, 0, 3, 70)), bad=st.sampled_from((0, 0, 1)))
    def compare(model: Product, batch: int, bad: int) -> None:
        agreed[check(model, batch, bad)] += 1

    end = time.monotonic() + _SECONDS
    for done in range(_ROUNDS if _IS_NIGHTLY else 1):
        if done and time.monotonic() > end:
            break
        compare()
    print(f"products of encoded ids: {dict(agreed)}")
    assert agreed["in numbers"] > 0.5 * sum(agreed.values())


def check(model: Product, batch: int, bad: int) -> str:
    """Compares a model with what the pass makes of it, and with what it makes of that.

    Args:
      model: what is multiplied.
      batch: how many rows.
      bad: whether an id that has to be counted is below 0.
    """
    graph_def, feed = products.build(model), products.feeds(model, batch, seed=batch)
    counted = [f"in_{k}:0" for k, part in enumerate(model.parts) if part.kind in COUNTED]
    if bad and counted and feed[counted[0]].size:
        feed[counted[0]].reshape(-1)[-1] = -1
    classes = sum(part.columns for part in model.parts if part.kind != "dense")
    assert classes > MOST_CLASSES
    fused = PASSES[Target.FUSED](preserve=KEEP).apply(graph_def)
    assert [column.form for column in fused.report.columns] == ["single"], str(fused.report)
    lowered = PASSES[Target.STOCK](preserve=KEEP).apply(fused.graph_def).graph_def
    at_once = PASSES[Target.STOCK](preserve=KEEP).apply(graph_def)
    assert at_once.report.fused_count == 1, str(at_once.report)
    after = [fused.graph_def, lowered, at_once.graph_def]
    for one in after[1:]:
        assert not {node.op for node in one.node} & {*OP_NAMES, "OneHot"}
    try:
        (wanted,) = stock.run(graph_def, feed, optimize=False)
    except tf.errors.InvalidArgumentError:
        for one in after:
            with pytest.raises(tf.errors.InvalidArgumentError):
                stock.run(one, feed, optimize=False)
        return "in raising"
    bounds = products.bounds(model, feed)
    for one in after:
        (got,) = stock.run(one, feed)
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        gap = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
        assert (gap <= bounds).all(), (gap - bounds).max()
    return "in numbers"

"""Products of encoded ids, and what the pass makes of them: random models within the bounds.

`make fuzz` draws many more of them than `make test`.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion.passes.recognise.stock.encodings import MAX_CLASSES
from fusion.passes.targets import PASSES, Target
from fusion.schema.names import OP_NAMES
from tests import product_graphs as products
from tests.differential.agreement import Array, agreement, check_models, fused_and_lowered
from tests.differential.strategies import PLAIN_REPORT
from tests.product_graphs import COUNTED, MIXED, Part, Product
from tests.tiers import examples

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

    @settings(PLAIN_REPORT, max_examples=examples(35))
    @given(model=models(), batch=st.sampled_from((7, 1, 0, 3, 70)), bad=st.sampled_from((0, 0, 1)))
    def compare(model: Product, batch: int, bad: int) -> None:
        agreed[check(model, batch, bad)] += 1

    check_models("products of encoded ids", compare, agreed, 0.5)


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
    assert classes > MAX_CLASSES
    report, rewritten = fused_and_lowered(graph_def, KEEP)
    assert [column.form for column in report.columns] == ["single"], str(report)
    at_once = PASSES[Target.STOCK](preserve=KEEP).apply(graph_def)
    assert at_once.report.fused_count == 1, str(at_once.report)
    rewritten["lowered at once"] = at_once.graph_def
    for name in ("lowered", "lowered at once"):
        assert not {node.op for node in rewritten[name].node} & {*OP_NAMES, "OneHot"}
    bounds = cache(lambda: products.bounds(model, feed))

    def are_close(got: Array, wanted: Array) -> None:
        gap = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
        assert (gap <= bounds()).all(), (gap - bounds()).max()

    return agreement(graph_def, rewritten, feed, ["out:0"], are_close)

"""Lookups as layers have them, and what the pass makes of them: random models, bit by bit.

`make fuzz` draws many more of them than `make test`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import layer_graphs as layers
from tests.differential.agreement import Array, agreement, check_models, fused_and_lowered
from tests.differential.strategies import PLAIN_REPORT
from tests.layer_graphs import BAGS, SLICES, TAKEN_MATRICES, TAKEN_VECTORS, Model, Table
from tests.tiers import examples

KEEP = frozenset({"out", "out_1", "initialize"})

#: How rows become parts of a join: what is between, and the joins.
_Way = tuple[str, tuple[tuple[str, int], ...]]
_OF_MATRIX: tuple[_Way, ...] = (
    ("", (("concat", 1),)),
    ("expand", (("concat", 2),)),
    ("new axis", (("concat", 2),)),
    ("identity", (("concat", -1),)),
)
_OF_COLUMN: tuple[_Way, ...] = (
    ("flatten", (("concat", 1),)),
    ("flatten as Keras", (("concat", -1),)),
    ("squeeze", (("concat", 1),)),
    *((name, (("concat", 1),)) for name in SLICES[1:]),
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
    taken = {(): TAKEN_VECTORS, (1,): TAKEN_MATRICES}.get(shape, ()) if not bags else ()
    return Model(
        tables,
        shape,
        draw(st.sampled_from(("int64", "int32"))),
        draw(st.sampled_from(("float32", "float32", "float64", *halves))),
        wraps=draw(st.booleans()),
        between=between,
        joins=joins,
        beside=joins == (("concat", 1),)
        and between not in ("expand", "new axis")
        and draw(st.booleans()),
        bag=bag,
        any_length=not bags and ways == _OF_SEQUENCES and draw(st.booleans()),
        taken=draw(st.sampled_from(("", *taken))),
    )


AREAS = {"rows of layers": (models(bags=False), 25), "bags of layers": (models(bags=True), 35)}


@pytest.mark.parametrize("area", AREAS)
def test_lookups_of_layers_agree_with_stock(area: str) -> None:
    drawn, count = AREAS[area]
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(count))
    @given(model=drawn, batch=st.sampled_from((7, 1, 0, 3, 70)), bad=st.sampled_from((0, 0, 0, 1)))
    def compare(model: Model, batch: int, bad: int) -> None:
        agreed[check(model, batch, bad)] += 1

    check_models(area, compare, agreed, 0.6, len(AREAS))


def check(model: Model, batch: int, bad: int) -> str:
    """Compares a model with what the pass makes of it, and with what it makes of that.

    Args:
      model: what is looked up.
      batch: how many rows.
      bad: whether one id is out of range.
    """
    graph_def = layers.build(model)
    feed = layers.feeds(model, batch, seed=batch)
    ids = feed[layers.ids_key(model, 0)]
    if bad and ids.size:
        last = ids[:, layers.column_of(model, 0)] if model.taken else ids.reshape(-1)
        last[-1] = model.tables[0].rows
    names = ["out:0", "out_1:0"][: len(model.joins)]
    report, rewritten = fused_and_lowered(graph_def, KEEP)
    assert report.fused_count == len(model.tables), str(report)
    return agreement(graph_def, rewritten, feed, names, _are_same)


def _are_same(got: Array, expected: Array) -> None:
    is_nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), is_nan)
    assert got[~is_nan].tobytes() == expected[~is_nan].tobytes()

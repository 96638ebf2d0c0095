"""Every kind of categorical column with every option, fused against stock."""

from __future__ import annotations

import re
from functools import partial

import pytest
import tensorflow as tf

from fusion.lookup import VERSIONS
from tests.feature_column.compare import compare, raised
from tests.feature_column.hosts import dense_features, input_layer
from tests.feature_column.kinds import KINDS, Batch, Column, of_each_combiner

eager = partial(dense_features, compiled=False)
FEATURES = Batch().features()
#: Bags of one to twelve valid entries.
FILLED = Batch((2, 1, 1, 9, 12), ids=(0, 9), weights=(0.5, 2.0, 3.0)).features()
PARITY = pytest.mark.parity
#: The kinds that give an id < 0 to what is not in their vocabulary.
OUT_OF_VOCABULARY = ("vocabulary list", "vocabulary file", "weighted words")


@pytest.mark.parity("column: {kind}")
@pytest.mark.parity("compat.v1 input_layer")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_in_a_session(do_fusion, kind):
    compare(of_each_combiner(kind), FEATURES, do_fusion, input_layer)


@pytest.mark.parity("column: {kind}")
@pytest.mark.parity("tf_keras DenseFeatures, eager")
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"max_norm": 0.8}, marks=PARITY("columns with max_norm")),
        pytest.param({"max_norm": 0.0}, marks=PARITY("columns with max_norm")),
        pytest.param({"trainable": False}, marks=PARITY("columns with trainable=False")),
        pytest.param({"dimension": 1}, marks=PARITY("columns of dimension 1")),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_options(do_fusion, kind, options):
    compare(of_each_combiner(kind, **options), FEATURES, do_fusion, eager)


@pytest.mark.parity("columns with use_safe_embedding_lookup=False")
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(OUT_OF_VOCABULARY)))
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_without_safe_lookup(do_fusion, kind):
    columns = of_each_combiner(kind, safe=False)
    ran = compare(columns, FILLED, do_fusion, eager).ran
    assert "PruneInvalidAndFillEmptyRows" not in ran


@pytest.mark.parametrize("kind", ["hash of words", "weighted ids"])
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_without_safe_lookup_the_result_ends_at_the_last_row_with_an_entry(do_fusion, kind):
    batch = Batch((2, 0, 3, 0, 0), ids=(0, 9), weights=(0.5, 2.0))
    column = Column(kind, combiner="sqrtn", safe=False)
    fused = compare([column], batch.features(), do_fusion, eager)
    assert fused.output.shape == (3, 4)


@pytest.mark.parametrize("host", [input_layer, eager])
@pytest.mark.parametrize(
    ("column", "batch"),
    [
        (Column("identity"), Batch(ids=(10, 20))),
        (Column("identity", safe=False), Batch(ids=(-9, -1))),
        *((Column(kind, safe=False), Batch((3, 5, 9, 9))) for kind in OUT_OF_VOCABULARY),
    ],
    ids=lambda value: value.kind if isinstance(value, Column) else "",
)
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_ids_outside_the_table(do_fusion, column, batch, host):
    for version in (None, do_fusion):
        error = raised([column], batch.features(), version, host)
        assert type(error) is tf.errors.InvalidArgumentError, version
    assert re.search(r"= -?\d+ is not in \[0, \d+\)", str(error))


@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_unknown_combiner(do_fusion):
    for version in (None, do_fusion):
        error = raised([Column("identity", combiner="max")], FEATURES, version, input_layer)
        assert type(error) is ValueError, version
    assert "combiner must be one of" in str(error)
    assert "'max'" in str(error)

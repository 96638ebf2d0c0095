"""The wide-and-deep model: it learns, its export serves what it learnt, and a child can load it."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelzoo import criteo
from modelzoo.wide_deep import demo, measure, train
from modelzoo.wide_deep.worker import Request, WorkerError, model_process

DATA = criteo.CriteoData(cap=500, missing=0.1)
DIM = 16


@pytest.fixture(scope="module", params=train.STYLES)
def export(request, tmp_path_factory) -> tuple[pathlib.Path, list[float]]:
    """A model of each style, trained on 40 batches, and the loss of each step."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    losses = train.train_and_export(request.param, DATA, str(path), steps=40, batch_size=256)
    return path, losses


@pytest.fixture(scope="module")
def path(export) -> pathlib.Path:
    return export[0]


@pytest.fixture(scope="module")
def model(path) -> Any:
    return tf.saved_model.load(str(path))


def test_the_loss_falls(export) -> None:
    _, losses = export
    assert len(losses) == 40
    assert np.mean(losses[-5:]) < 0.85 * losses[0]


def test_unknown_style_is_an_error(tmp_path) -> None:
    with pytest.raises(ValueError, match="style must be one of v1, keras, got 'v3'"):
        train.train_and_export("v3", DATA, str(tmp_path / "model"), steps=1, batch_size=1)
    assert not (tmp_path / "model").exists()


def test_signatures_take_one_tensor_per_feature(model) -> None:
    specs = model.signatures["serving_default"].structured_input_signature[1]
    assert set(specs) == set(criteo.NUMERIC) | set(criteo.CATEGORICAL)
    for name, spec in specs.items():
        assert spec.shape.as_list() == [None, 1]
        assert spec.dtype == (tf.float32 if name in criteo.NUMERIC else tf.int64)
    assert set(model.signatures["embeddings"].structured_input_signature[1]) == set(
        criteo.CATEGORICAL
    )


def _outputs(model: Any, signature: str, batch: criteo.Batch) -> dict[str, np.ndarray]:
    function = model.signatures[signature]
    names = function.structured_input_signature[1]
    results = function(**{name: tf.constant(batch.features[name]) for name in names})
    return {name: tensor.numpy() for name, tensor in results.items()}


def test_serving_predicts_unseen_labels(model) -> None:
    batch = DATA.batch(2000, 99)
    outputs = _outputs(model, "serving_default", batch)
    probabilities = outputs["probabilities"]
    assert probabilities.shape == (2000, 1)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-outputs["logits"])), rtol=1e-5)
    assert np.mean((probabilities - batch.labels) ** 2) < 0.9 * np.var(batch.labels)


def _tables(model: Any) -> list[np.ndarray]:
    """The 26 tables of an export in the order of the deep part's input: columns by name."""
    tables = {}
    for variable in model.variables:
        *_, column, name = variable.name.split("/")
        if name == "embedding_weights:0":
            tables[column] = variable.numpy()
    return [tables[column] for column in _deep_columns()]


def _deep_columns() -> list[str]:
    return sorted(f"{name}_embedding" for name in criteo.CATEGORICAL)


def test_embeddings_are_the_rows_of_the_tables_and_zero_where_missing(model) -> None:
    batch = DATA.batch(64)
    (embeddings,) = _outputs(model, "embeddings", batch).values()
    expected = []
    for column, table in zip(_deep_columns(), _tables(model), strict=True):
        ids = batch.features[column.removesuffix("_embedding")][:, 0]
        expected.append(np.where((ids < 0)[:, None], np.float32(0), table[np.maximum(ids, 0)]))
    np.testing.assert_array_equal(embeddings, np.hstack(expected))


def test_a_child_process_answers_as_this_one_does(path, model, tmp_path) -> None:
    request = Request("serving_default", DATA, size=32, index=5)
    with model_process(str(path), with_fusion=False, log=str(tmp_path / "log")) as child:
        outputs = child.ask("outputs", request)
        seconds = child.ask("seconds", request, 3)
        whole = child.ask("executed_ops", request)
        part = child.ask("executed_ops", Request("embeddings", DATA, size=32))
        saved = child.ask("saved_nodes")
        with pytest.raises(WorkerError, match="KeyError"):
            child.ask("outputs", Request("no_such_signature", DATA, size=1))
        assert child.ask("saved_nodes") == saved, "a failed question must not end the process"
    assert (
        measure.difference(_outputs(model, "serving_default", DATA.batch(32, 5)), outputs) is None
    )
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert part["SparseFillEmptyRows"] == whole["SparseFillEmptyRows"] == 26
    assert sum(part.values()) < sum(whole.values()) < saved
    assert part["ConcatV2"] == 26, "one inside each column; the join of all is not counted"
    assert not {"_Arg", "_Retval", "Const"} & set(whole)
    with pytest.raises(demo.DemoError, match="stock ops"):
        demo.check_fused_ops_ran(part)


def test_a_model_that_does_not_load_is_reported(tmp_path) -> None:
    path = str(tmp_path / "nothing")
    with (
        model_process(path, with_fusion=False, log=str(tmp_path / "log")) as child,
        pytest.raises(WorkerError, match="nothing"),
    ):
        child.ask("saved_nodes")


def test_difference_is_by_bits() -> None:
    zero = {"x": np.zeros((2, 1), np.float32)}
    nan = {"x": np.full((2, 1), np.nan, np.float32)}
    assert measure.difference(zero, {"x": zero["x"].copy()}) is None
    assert measure.difference(nan, {"x": nan["x"].copy()}) is None
    assert "2 of 2 values" in str(measure.difference(zero, {"x": -zero["x"]}))
    assert "by up to 1" in str(measure.difference(zero, {"x": np.eye(2, 1, dtype=np.float32)}))


@pytest.mark.parametrize(
    "change",
    [lambda x: {"x": x.T}, lambda x: {"x": x.astype(np.float64)}, lambda x: {"y": x}],
    ids=["shape", "dtype", "name"],
)
def test_difference_sees_shapes_dtypes_and_names(
    change: Callable[[np.ndarray], dict[str, np.ndarray]],
) -> None:
    array = np.zeros((2, 1), np.float32)
    assert "expected" in str(measure.difference({"x": array}, change(array)))


class _Scripted:
    """Stands in for a ModelProcess: answers `seconds` with a constant and notes the order."""

    def __init__(self, seconds: float, order: list[float]) -> None:
        self._seconds, self._order = seconds, order

    def ask(self, question: str, request: Request, calls: int) -> list[float]:
        assert question == "seconds"
        self._order.append(self._seconds)
        return [self._seconds] * calls


def test_interleaved_takes_turns_and_drops_the_warm_up() -> None:
    order: list[float] = []
    before, after = _Scripted(3.0, order), _Scripted(1.5, order)
    request = Request("serving_default", DATA, size=1)
    pair = measure.interleaved(before, after, request, blocks=3)  # type: ignore[arg-type]
    assert order == [3.0, 1.5, 3.0, 1.5, 1.5, 3.0, 3.0, 1.5]
    assert pair.ratios == [2.0, 2.0, 2.0]
    assert pair.speedup == 2.0
    assert len(pair.before) == len(pair.after) == 3 * measure.CALLS


@pytest.mark.parametrize(("fused", "total"), [(26, 26), (52, 52)])
def test_a_report_with_every_column_fused_passes(fused: int, total: int) -> None:
    demo.check_report({"fused": fused, "total": total}, 26)


@pytest.mark.parametrize(("fused", "total"), [(25, 26), (25, 25), (0, 0)])
def test_a_report_with_a_column_left_out_does_not(fused: int, total: int) -> None:
    with pytest.raises(demo.DemoError, match=f"{fused} of {total} columns"):
        demo.check_report({"fused": fused, "total": total}, 26)


def test_fused_ops_without_stock_lookups_pass() -> None:
    for op in ("FusedEmbeddingSparsePostLookUpV2", "GroupedEmbeddingLookup"):
        demo.check_fused_ops_ran({op: 1, "Where": 26})
    with pytest.raises(demo.DemoError, match="ran 0 fused lookups"):
        demo.check_fused_ops_ran({"Where": 26})


def test_four_times_fewer_nodes_pass() -> None:
    demo.check_fewer(936, 234)
    with pytest.raises(demo.DemoError, match="executes 235 nodes where stock executes 936"):
        demo.check_fewer(936, 235)

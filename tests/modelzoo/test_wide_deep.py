"""The wide-and-deep model: it learns, its export serves what it learnt, and a child can load it."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelzoo import criteo
from modelzoo.options import Options
from modelzoo.training import loop
from modelzoo.training.export import export_graph
from modelzoo.training.run import Run
from modelzoo.training.setup import build, columns_of, shape_of, sources
from modelzoo.wide_deep import demo, measure
from modelzoo.wide_deep.__main__ import MODEL
from modelzoo.wide_deep.worker import Request, WorkerError, model_process

DATA = criteo.CriteoData(cap=500, missing=0.1)
DIM = 16


class Watcher:
    """Keeps the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        self.losses.append(numbers["loss"])

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        pass


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> tuple[pathlib.Path, list[float]]:
    """A compat.v1 model of stock columns, trained on 40 batches, and losses of ten each."""
    folder = tmp_path_factory.mktemp("wide_deep")
    options = Options(cap=500, style="graph", batch_size=256, steps=40, eval_samples=500)
    source, held_out = sources(options)
    steps, watcher, run = (
        build(MODEL, options, source),
        Watcher(),
        Run(folder / "run", "wide_deep", options),
    )
    loop.train(run, steps, source, held_out, watcher)
    columns, path = columns_of(options, source), folder / "model"
    export_graph(MODEL, shape_of(MODEL, options), columns, run.checkpoint(), path)
    return path, watcher.losses


@pytest.fixture(scope="module")
def path(export) -> pathlib.Path:
    return export[0]


@pytest.fixture(scope="module")
def model(path) -> Any:
    return tf.saved_model.load(str(path))


def test_the_loss_falls(export) -> None:
    _, losses = export
    assert len(losses) == 4
    assert losses[-1] < 0.97 * losses[0]


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


def _tables(model: Any, part: str) -> dict[str, np.ndarray]:
    """The 26 tables of a part of an export, by column."""
    tables = {}
    for variable in model.variables:
        names = variable.name.split("/")
        if (names[0], names[-1]) == (part, "embedding_weights:0"):
            tables[names[-2]] = variable.numpy()
    return tables


def test_embeddings_are_the_rows_of_the_tables_and_zero_where_missing(model) -> None:
    batch = DATA.batch(64)
    outputs = _outputs(model, "embeddings", batch)
    assert {name: array.shape for name, array in outputs.items()} == {
        "weights": (64, 26),
        "vectors": (64, 26 * DIM),
    }
    for part, embeddings in outputs.items():
        expected = []
        for column, table in sorted(_tables(model, part).items()):
            ids = batch.features[column.removesuffix("_embedding")][:, 0]
            expected.append(np.where((ids < 0)[:, None], np.float32(0), table[np.maximum(ids, 0)]))
        np.testing.assert_array_equal(embeddings, np.hstack(expected))


def test_a_child_process_answers_as_this_one_does(path, model, tmp_path) -> None:
    request = Request("serving_default", DATA, size=32, index=5)
    served = tmp_path / "nothing"
    with model_process(str(served), with_fusion=False, log=str(tmp_path / "log")) as child:
        with pytest.raises(WorkerError, match="nothing"):
            child.ask("saved_nodes")
        served.symlink_to(path)  # what did not load is loaded when it is there
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
    assert part["ConcatV2"] == 52, "one inside each column; the joins of all are not counted"
    assert not {"_Arg", "_Retval", "Const"} & set(whole)
    with pytest.raises(demo.DemoError, match="stock ops"):
        demo.check_fused_ops_ran(part)


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

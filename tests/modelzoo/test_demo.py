"""What the demo checks and shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import rich.console

from fusion.saved_model import BenchReport, Measurement, Ratio, fuse_saved_model
from modelzoo import demo
from modelzoo.export import EMBEDDINGS, SERVING
from tests.modelzoo.small import CAP, FEW, batches, small
from tests.modelzoo.test_models import trained_graph


def test_models_are_compared_and_their_nodes_counted(tmp_path: Path) -> None:
    (batch,) = batches(1)
    trained_graph(small(), batch, tmp_path / "stock")
    fuse_saved_model(tmp_path / "stock", tmp_path / "fused", verify=False)
    stock, fused = str(tmp_path / "stock"), str(tmp_path / "fused")
    said = demo.compare(stock, fused, batch.features, tmp_path / "inputs.npz")
    assert said == "2 signatures, 2 runs, outputs equal to the bit"
    trained_graph(small(), batches(2)[1], tmp_path / "other")
    with pytest.raises(demo.DemoError, match="differ"):
        demo.compare(stock, str(tmp_path / "other"), batch.features, tmp_path / "inputs.npz")
    part, whole = (demo.executed_ops(stock, name, batch.features) for name in (EMBEDDINGS, SERVING))
    assert part["SparseFillEmptyRows"] == whole["SparseFillEmptyRows"] == len(FEW)
    assert part["ConcatV2"] == 2 * len(FEW), "one in each column; joins of all are not counted"
    assert not {"_Arg", "_Retval", "Const"} & {*whole}
    with pytest.raises(demo.DemoError, match="stock ops"):
        demo.check_fused_ops_ran(part)
    assert demo.node_table(stock, fused, batch.features).row_count == 3


def test_samples_are_of_all_kinds() -> None:
    features = demo.samples(CAP)
    missing = [(features["C1"][start : start + 1024] < 0).mean() for start in range(0, 4096, 1024)]
    assert missing == pytest.approx([0.02, 0.0, 0.5, 1.0], abs=0.05)


def test_latencies_are_shown_by_batch_and_by_what_is_called() -> None:
    def report(faster: float) -> BenchReport:
        measured = [
            Measurement(way, batch, 1, model, 9, batch / (faster if model else 1), 0, 0, 0)
            for way in ("in graph", "end to end")
            for batch in (1, 64)
            for model in (0, 1)
        ]
        ratios = [
            Ratio(way, batch, 1, faster, faster - 1, faster + 1)
            for way in ("in graph", "end to end")
            for batch in (1, 64)
        ]
        return BenchReport((), "", "", None, 1.0, {}, 0.0, tuple(measured), tuple(ratios))

    out = io.StringIO()
    table = demo.latency_table({"all": report(2.0), "embed": report(4.0)})
    rich.console.Console(file=out, width=120).print(table)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "64 in graph all 64.00 32.00 2.00x (1.00-3.00)" in lines
    assert "64 end to end embed 64.00 16.00 4.00x (3.00-5.00)" in lines
    assert table.row_count == 8


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

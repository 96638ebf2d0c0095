from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.variables import Variable
from fusion.passes.graph.tensor import Tensor
from fusion.passes.report.columns import named_columns
from fusion.passes.report.report import ColumnReport, FusionReport
from fusion.saved_model import explain_saved_model
from fusion.saved_model.model.meta_graph import bound_arguments, variable_search
from fusion.saved_model.model.source import read_saved_model
from tests.saved_model.models import DIM, ROWS


def _meta(model: Path) -> meta_graph_pb2.MetaGraphDef:
    return read_saved_model(model).meta_graphs[0]


def test_arguments_of_nested_functions_are_traced_to_their_variables(models: Path):
    meta = _meta(models / "tf2")
    known = variable_search(meta).known
    assert Variable("items", (ROWS, DIM)) in known.values()
    assert {f for f, _ in known if "_embed_" in f}


def test_functions_that_only_the_object_graph_knows_are_bound_too(models: Path):
    meta = _meta(models / "tf2")
    main = [n for n in meta.graph_def.node if n.op == "StatefulPartitionedCall"]
    for node in main:
        node.op, node.attr["f"].func.name = "NoOp", ""
    assert Variable("shops", (2 * ROWS, DIM)) in variable_search(meta).known.values()


def test_callers_that_disagree_leave_an_argument_unnamed(models: Path):
    meta = _meta(models / "tf2")
    before = variable_search(meta).known
    function, argument = next(key for key in before if "_embed_" in key[0])
    caller = next(f for f in meta.graph_def.library.function if "_rank_" in f.signature.name)
    call = next(n for n in caller.node_def if n.attr["f"].func.name == function)
    extra = meta.graph_def.node.add()
    extra.CopyFrom(call)
    extra.name = "another_call"
    del extra.input[:]
    extra.input.extend(["weights"] * len(call.input))
    assert (function, argument) not in variable_search(meta).known


def test_the_main_graph_may_put_a_number_behind_the_name(models: Path):
    meta = _meta(models / "tf2")
    before = variable_search(meta).known
    names = {node.name for node in meta.graph_def.node if node.op == "VarHandleOp"}
    assert {"items", "shops"} <= names
    for node in meta.graph_def.node:
        node.name = f"{node.name}_1" if node.name in names else node.name
        node.input[:] = [f"{text}_1" if text in names else text for text in node.input]
    after = variable_search(meta).known
    bound = [(function, argument) for function, argument, _ in bound_arguments(meta)]
    assert bound
    assert [after[place] for place in bound] == [before[place] for place in bound]


def test_reports_tell_the_variable_and_its_size(models: Path):
    for column in explain_saved_model(models / "keras").columns:
        assert column.name.startswith("dense_features/")
        assert column.spec is not None
        assert None not in column.spec.table.shape


def test_a_column_that_was_not_understood_keeps_its_name(models: Path):
    meta = _meta(models / "tf2")
    report = FusionReport((ColumnReport("name", "f", "anchor", False, "why", "node"),), 1, 1)
    assert named_columns(report, variable_search(meta)) == report


def test_a_column_that_was_understood_up_to_its_table_is_named_too(models: Path):
    meta = _meta(models / "tf2")
    (column, *_) = (c for c in explain_saved_model(models / "tf2").columns if c.name == "items")
    partial = replace(column, name="scope", fused=False, reason="why", node="node", spec=None)
    search = variable_search(meta)
    (named,) = named_columns(FusionReport((partial,), 1, 1), search).columns
    assert named == replace(partial, name="items")
    elsewhere = replace(partial, tables=(*partial.tables, Tensor("elsewhere")))
    assert named_columns(FusionReport((elsewhere,), 1, 1), search).columns == (elsewhere,)

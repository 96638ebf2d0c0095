"""What the stock target writes for a TensorFlow release has only ops and attrs that this knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

import fusion
from fusion.passes import emit
from fusion.passes.analysis.variables import VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.runtime_ops import TOO_OLD, recorded_release, running_release, uses
from fusion.passes.lower_lookups import LowerLookups, remaining_fused_ops
from fusion.running.functions import Library
from fusion.schema.names import OP_NAMES
from fusion.schema.op_history import NEWEST, Release, history
from tests.dumps import dumps
from tests.op_lists import RELEASES
from tests.op_lists.check import as_saved_by, problems
from tests.passes import stock_graphs as stock
from tests.passes.own_graphs import OWN, Own
from tests.passes.planned_graphs import ops
from tests.passes.rewritten_graphs import nodes, refused
from tests.passes.runtime_graphs import FUSED, GRAPHS, from_a_matrix, large, made
from tests.passes.stock_graphs import Case
from tests.passes.test_own_graphs import built
from tests.tiers import some

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
#: The name of a node, and of its function, before what is said of it.
_NODE = r"^.*?(?= \(\w+\): |: no op )"
LEGACY = [name for name in dumps() if name.startswith(("legacy_tf1.15", "legacy_tf2.4"))]


def lower(release: str | Release = NEWEST) -> LowerLookups:
    runtime = Release.parse(release) if isinstance(release, str) else release
    return LowerLookups(preserve=KEEP, runtime=runtime)


def new_problems(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, release: str) -> list[str]:
    """What a release refuses of a graph, and not of other nodes of the one that it was made of."""
    known = {re.sub(_NODE, "", problem) for problem in problems(before, release)}
    found = problems(after, release)
    return [problem for problem in found if re.sub(_NODE, "", problem) not in known]


def bodies(graph_def: graph_pb2.GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def not_in_the_history(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> set[Any]:
    """The ops and attrs of new nodes that neither the history nor the source has."""
    known = {(use.op, use.attr) for use in uses(bodies(before))}
    new = {(use.op, use.attr) for use in uses(bodies(after))} - known
    return {(op, attr) for op, attr in new if attr not in history().get(op, {})}


def is_of_later_dtype(name: str, release: str) -> bool:
    """Whether a release cannot load a graph, whatever its lookups are made of."""
    return release == "1.15" and name.endswith("mean-defaultNone-int64-bfloat16-rank2-classic")


def runs(graph_def: graph_pb2.GraphDef, feed: Any) -> bytes:
    (out,) = stock.run(graph_def, feed, optimize=False)
    return out.tobytes()


# Programs of the releases themselves


@pytest.mark.parametrize("name", LEGACY)
def test_programs_of_old_releases_load_there(name: str) -> None:
    release = name.removeprefix("legacy_tf").partition("_")[0]
    # What TensorFlow's optimizer made of them is not of these releases.
    for title in ("raw", "frozen"):
        before = as_saved_by(dumps()[name].graph(title), release)
        assert problems(before, release) == []
        result = lower(release).apply(before)
        assert result.report.fused_count == 1
        assert problems(result.graph_def, release) == []
        assert result.report.newer == ()


# Programs of today


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_rewritten_graph_has_what_its_release_has(name: str, release: str) -> None:
    graph_def, feed = made(name)
    before = as_saved_by(graph_def, release)
    result = lower(release).apply(before)
    if not is_of_later_dtype(name, release):
        assert new_problems(before, result.graph_def, release) == []
    assert result.modified, str(result.report)
    if name in ("one-hots", "multi-hots", "counts"):  # whose sums are in another order
        return
    assert runs(result.graph_def, feed) == runs(before, feed)
    assert not lower(release).apply(result.graph_def).modified


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", GRAPHS | FUSED)
def test_what_is_fused_becomes_ops_that_a_release_has(name: str, release: str) -> None:
    graph_def, _ = made(name)
    before = as_saved_by(graph_def, release)
    fused = FuseLookups(preserve=KEEP).apply(before).graph_def
    result = lower(release).apply(fused)
    message = remaining_fused_ops(result.graph_def, result.report, Release.parse(release))
    if is_of_later_dtype(name, release):
        assert "TensorFlow 2.3 for bfloat16 as T of SparseSegmentMean, and the" in str(message)
        return
    parsers = {"Examples": "ParseExampleV2", "SequenceExamples": "ParseSequenceExampleV2"}
    op = parsers.get(name.partition(",")[0])
    if op is not None and release == "1.15":
        assert f"it needs TensorFlow 2.1 for {op}, and the" in str(message)
        return
    assert message is None
    assert new_problems(before, result.graph_def, release) == []


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("own", OWN, ids=str)
def test_functions_have_what_their_release_has(own: Own, trains: bool) -> None:
    """They become such stock ops, or an error says from which release on they can."""
    if trains and not own.has_gradient:
        return
    function, inputs = built(own, trains)
    concrete = function.get_concrete_function(*inputs)
    library = Library.of(concrete)
    search = VariableSearch(library.graph_def, library.captured_variables(concrete))
    for release in some(RELEASES, 3):
        before = as_saved_by(library.graph_def, release)
        rewrite = LowerLookups(variables=search.known, runtime=Release.parse(release))
        result = rewrite.apply(before)
        assert [
            problem
            for problem in new_problems(before, result.graph_def, release)
            if not any(f"no op {op}" in problem for op in OP_NAMES)
        ] == []
        message = remaining_fused_ops(result.graph_def, result.report, rewrite.runtime)
        if message is not None and own.is_trained_by_stock:
            assert f"and the model is for {release}" in message
            assert "; name a newer runtime, or " in message


# The history has all that is written


@pytest.mark.parametrize("name", GRAPHS | FUSED)
def test_the_history_has_all_that_is_written(name: str) -> None:
    before, _ = made(name)
    assert not_in_the_history(before, lower().apply(before).graph_def) == set()
    fused = FuseLookups(preserve=KEEP).apply(before).graph_def
    assert not_in_the_history(before, lower().apply(fused).graph_def) == set()


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("own", OWN, ids=str)
def test_the_history_has_all_that_fused_ops_become(own: Own, trains: bool) -> None:
    if trains and not own.has_gradient:
        return
    function, inputs = built(own, trains)
    before = Library.of(function.get_concrete_function(*inputs)).graph_def
    after = LowerLookups().apply(before).graph_def
    assert not_in_the_history(before, after) == set()


def test_the_history_has_all_ops_that_emitters_name() -> None:
    """Whatever graph they are emitted for."""
    folder = Path(emit.__path__[0])
    modules = ("arguments", "concat", "node_builder", "products", "sizes", "stacked", "tables")
    files = [folder / f"{name}.py" for name in modules]
    files += [*folder.glob("stock*.py"), folder.parent / "expand.py", folder.parent / "ungroup.py"]
    named = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    emitted = {name for name in named if hasattr(tf.raw_ops, name)}
    assert len(emitted) > 40
    # These are found, and never written here.
    found = {"ParseExample", "StringSplitV2"}
    assert emitted - {*history()} == found


# What is written for a release


def test_a_large_variable_is_shared_where_there_is_an_op_for_it() -> None:
    graph_def = large(Case())
    result = lower().apply(graph_def)
    assert "DisableCopyOnRead" in ops(result.graph_def)
    assert new_problems(graph_def, result.graph_def, "2.15") == []
    for release in ("1.15", "2.4", "2.9"):
        found = "\n".join(new_problems(graph_def, result.graph_def, release))
        assert "no op DisableCopyOnRead" in found
        assert ("Tsegmentids" in found) == (release == "1.15")


@pytest.mark.parametrize("release", ["2.3", "2.9", "2.10"])
@pytest.mark.parametrize("rows", ["small", "large"])
def test_where_there_is_none_distinct_rows_are_gathered(rows: str, release: str) -> None:
    graph_def = large(Case()) if rows == "large" else stock.build(Case())
    found = ops(lower(release).apply(graph_def).graph_def)
    reads_whole = rows == "small" or release == "2.10"
    assert found.count("Unique") == found.count("ResourceGather") == int(not reads_whole)
    assert ("DisableCopyOnRead" in found) == (rows == "large" and release == "2.10")


@pytest.mark.parametrize("release", ["2.2", "2.3"])
@pytest.mark.parametrize("ids", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_reductions_took_int32_before_2_3(ids: tf.DType, release: str) -> None:
    """Int64 ids read rows that were gathered, and int64 rows are cast, as lookups did it then."""
    graph_def = stock.build(Case(ids=ids, table="constant"))
    after = lower(release).apply(graph_def).graph_def
    (reduction,) = (node for node in after.node if node.op == "SparseSegmentMean")
    is_old = release == "2.2"
    assert ("Tsegmentids" in reduction.attr) != is_old
    segments = nodes(after)[reduction.input[2]]
    assert segments.op == ("Cast" if is_old else "StridedSlice")
    assert ("Unique" in ops(after)) == (is_old and ids is tf.int64)


def test_attrs_of_their_default_are_left_out() -> None:
    for release, is_known in (("1.13", False), ("1.14", True)):
        after = lower(release).apply(stock.build(Case())).graph_def.node
        new = [node for node in after if node.op == "GatherV2" and node.name.endswith("kept")]
        assert ["batch_dims" in node.attr for node in new] == [is_known]


def test_a_lookup_that_needs_a_newer_op_stays() -> None:
    """A default takes a SelectV2."""
    graph_def = from_a_matrix(1, default_id=2)
    column = refused(graph_def, lower("1.13"))
    reason = "it needs TensorFlow 1.14 for SelectV2, and the model is for 1.13"
    assert column.reason == reason
    result = lower("1.14").apply(graph_def)
    assert result.report.fused_count == 1
    assert "SelectV2" in ops(result.graph_def)


def test_a_lookup_stays_alone_where_others_do_not() -> None:
    with tf.Graph().as_default() as graph:
        for width, default in ((1, 2), (3, None)):
            made_of = from_a_matrix(width, default)
            tf.import_graph_def(made_of, name=f"of_{width}")
        tf.identity(graph.get_tensor_by_name("of_1/out:0"), name="out")
        tf.identity(graph.get_tensor_by_name("of_3/out:0"), name="initialize")
        graph_def = graph.as_graph_def()
    columns = lower("1.13").apply(graph_def).report.columns
    assert [column.fused for column in columns] == [False, True]


def test_what_the_source_has_is_not_refused() -> None:
    """It is said in the report."""
    once = lower().apply(large(Case())).graph_def
    result = lower("2.4").apply(once)
    assert not result.modified
    assert result.report.newer == ("DisableCopyOnRead (TensorFlow 2.10)",)
    assert "newer than the runtime  DisableCopyOnRead (TensorFlow 2.10)" in str(result.report)
    assert result.report.to_dict()["newer"] == [*result.report.newer]
    assert lower("2.10").apply(once).report.newer == ()


def test_nothing_is_written_for_releases_of_which_nothing_is_known() -> None:
    column = refused(stock.build(Case()), lower(Release(1, 11)))
    assert column.reason == TOO_OLD
    fused = FuseLookups(preserve=KEEP).apply(stock.build(Case())).graph_def
    result = lower(Release(1, 11)).apply(fused)
    message = str(remaining_fused_ops(result.graph_def, result.report, Release(1, 11)))
    assert f"{TOO_OLD}; or use the model that was fused instead" in message


# Which release that is


@pytest.mark.parametrize(
    ("version", "producer", "release"),
    [
        ("2.4.1", 27, "2.4"),
        ("unknown", 561, "2.4"),
        ("", 560, "2.3"),
        ("", 119, "2.0"),
        ("", 134, "1.15"),
        ("", 175, "2.1"),
        ("", 27, "1.12"),
        ("", 26, "0.0"),
        ("", 9999, str(NEWEST)),
    ],
)
def test_the_release_of_a_model(version: str, producer: int, release: str) -> None:
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = producer
    assert str(recorded_release(graph_def, version)) == release


def test_the_release_of_a_graph_that_tells_nothing_is_the_running_one() -> None:
    assert recorded_release(graph_pb2.GraphDef()) == running_release()
    assert tf.__version__.startswith(f"{running_release()}.")
    with tf.Graph().as_default() as graph:
        assert recorded_release(graph.as_graph_def()) == min(running_release(), NEWEST)


def test_graphs_are_written_for_the_release_that_their_producer_tells() -> None:
    graph_def = large(Case())
    for producer, runtime, is_shared in (
        (graph_def.versions.producer, None, True),
        (561, None, False),
        (561, "2.15.1", True),
        (graph_def.versions.producer, "2.4", False),
    ):
        graph_def.versions.producer = producer
        result = fusion.fuse_graph(graph_def, sorted(KEEP), target="stock", runtime=runtime)
        assert result.report.fused_count == 1
        assert ("DisableCopyOnRead" in ops(result.graph_def)) == is_shared
        assert result.graph_def.versions.producer == producer


@pytest.mark.parametrize("runtime", ["", "2", "latest", "1.11", "v2.4", 2.4, "2.99", "3.0"])
def test_what_is_no_runtime(runtime: Any) -> None:
    message = (
        "fuse_graph: runtime must be a version of TensorFlow such as 2.4 or 2.15.1, from 1.12 to "
        f"the {running_release()} that is installed, got {runtime!r}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        fusion.fuse_graph(stock.build(Case()), target="stock", runtime=runtime)


def test_only_stock_ops_are_written_for_a_runtime() -> None:
    message = "fuse_graph: runtime is for target 'stock', got '2.4' with target 'fused'"
    with pytest.raises(ValueError, match=message):
        fusion.fuse_graph(stock.build(Case()), runtime="2.4")

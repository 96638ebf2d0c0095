"""`fuse_graph`: a GraphDef in memory in, one with fused lookups out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.arguments import wrong_type
from fusion.ops.registered import DEVICES
from fusion.passes.analysis.variables import Variable, VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.runtime_ops import recorded_release
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.lookup_pass import LookupPass
from fusion.passes.lower_lookups import remaining_fused_ops
from fusion.passes.report.report import FusionReport, FusionResult, Networks, NetworkSource
from fusion.passes.targets import PASSES, Target, checked_runtime, checked_target


def fuse_graph(
    graph_def: graph_pb2.GraphDef,
    outputs: Iterable[str] | None = None,
    target: str = "fused",
    runtime: str | None = None,
) -> FusionResult:
    """Fuses the embedding lookups of a graph and of its library functions.

    The new graph computes what the old one did; run `import fusion` before importing it. A fused
    lookup keeps the name of its result. The values inside it vanish, and with them whatever only
    they needed; inputs, variables and nodes with side effects stay. Fusing the result again
    changes nothing, and equal graphs give equal results.

    Args:
        graph_def: the graph, frozen or not; it is not changed.
        outputs: names of nodes (`"a/b"`, `"^a/b"`) or tensors (`"a/b:0"`) that keep name and value
            whatever they are. By default these are all nodes that no other node reads or waits
            for; give names for a graph in which values inside a lookup are fetched as well.
        target: what lookups become: "fused" is the ops of this package, "stock" fewer ops of
            TensorFlow's own; fused lookups become such ones again.
        runtime: the version of TensorFlow, such as "2.4", in which a graph of target "stock" has to
            load; by default the one that its producer says it is from, or else the running one.

    Returns:
        The graph (`graph_def` itself if nothing was rewritten) and the report.

    Raises:
        TypeError: not a GraphDef, or `outputs` is no iterable of strings.
        ValueError: an output does not exist, the target or runtime is unknown, the graph is
            malformed, or it has ops of this package that cannot become stock ones.
    """
    chosen = checked_target("fuse_graph", target)
    if not isinstance(graph_def, graph_pb2.GraphDef):
        raise wrong_type("fuse_graph", "graph_def", "a GraphDef", graph_def)
    release = checked_runtime("fuse_graph", runtime, chosen)
    preserve = final_nodes(graph_def)
    if outputs is not None:
        preserve = frozenset(checked_outputs("fuse_graph", graph_def, outputs))
    with _graph_errors("fuse_graph: graph_def"):
        release = release or recorded_release(graph_def)
        rewrite = PASSES[chosen](
            preserve, variables=_variables(graph_def), devices=DEVICES, runtime=release
        )
        result = rewrite.apply(graph_def)
    if chosen is Target.STOCK:
        message = remaining_fused_ops(result.graph_def, result.report, release)
        if message is not None:
            raise ValueError(f"fuse_graph: target 'stock': {message}")
    return replace(result, report=_with_networks(result.report, graph_def, rewrite))


def explain_graph(
    graph_def: graph_pb2.GraphDef, outputs: Iterable[str] | None = None
) -> FusionReport:
    """Returns what `fuse_graph` would fuse, and why it would leave the rest."""
    preserve = final_nodes(graph_def)
    if outputs is not None:
        preserve = frozenset(checked_outputs("explain", graph_def, outputs))
    with _graph_errors("explain: model"):
        lookups = FuseLookups(preserve, variables=_variables(graph_def), devices=DEVICES)
        return _with_networks(lookups.explain(graph_def), graph_def, lookups)


def _with_networks(
    report: FusionReport, graph_def: graph_pb2.GraphDef, lookups: LookupPass
) -> FusionReport:
    return replace(report, networks=NetworkSource(partial(_networks, graph_def, lookups)))


def _networks(graph_def: graph_pb2.GraphDef, lookups: LookupPass, report: FusionReport) -> Networks:
    from fusion.passes.report.networks import networks

    return networks(report, [lookups.rewritten(graph_def)])


@contextmanager
def _graph_errors(argument: str) -> Iterator[None]:
    """Turns any exception on a malformed graph into one error."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{argument} makes no sense to fusion ({type(error).__name__}: {error}); if TensorFlow "
            "can import it, please report a defect"
        ) from error


def final_nodes(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """Returns the nodes of the main graph that no other node reads or waits for."""
    read = {_node(text) for node in graph_def.node for text in node.input}
    return frozenset(node.name for node in graph_def.node if node.name not in read)


def _variables(graph_def: graph_pb2.GraphDef) -> dict[tuple[str, str], Variable]:
    # Only functions get their tables from elsewhere, and to follow calls costs about as much as
    # the pass itself.
    return VariableSearch(graph_def).known if graph_def.library.function else {}


def checked_outputs(
    function: str, graph_def: graph_pb2.GraphDef, outputs: Iterable[str]
) -> Iterator[str]:
    """Yields the node of each output after checking that there is such a node or tensor.

    Raises:
        TypeError, ValueError: if not, naming the public `function`.
    """
    expected = "an iterable of names of nodes or tensors"
    if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
        raise wrong_type(function, "outputs", expected, outputs)
    nodes = {node.name: node for node in graph_def.node}
    signatures = OpSignatures(graph_def.library.function)
    for name in outputs:
        if not isinstance(name, str):
            raise wrong_type(function, "outputs", expected, name)
        node = nodes.get(_node(name))
        if node is None:
            raise ValueError(f"{function}: outputs: the graph has no node {_node(name)!r}")
        _, colon, index = name.partition(":")
        if colon and not _has_output(node, index, signatures):
            raise ValueError(
                f"{function}: outputs: node {node.name!r} ({node.op}) has no output {name!r}"
            )
        yield node.name


def _has_output(node: node_def_pb2.NodeDef, index: str, signatures: OpSignatures) -> bool:
    outputs = signatures.outputs(node)
    return index.isdecimal() and (outputs is None or int(index) < len(outputs))


def _node(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]

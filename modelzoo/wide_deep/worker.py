"""A child process that loads one exported model and answers a parent's questions about it.

Two such processes, one per model, share no TensorFlow state: neither one's graphs, variables or
custom ops can help or disturb the other. The parent asks them in turn, so that both see the same
weather on a noisy machine.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from modelzoo import criteo

Arrays = dict[str, npt.NDArray[Any]]

DISTINCT_BATCHES = 4
"""Timed calls take turns among this many batches, lest one batch's rows stay in the cache."""

# Nodes that compute nothing: they carry arguments and results, the more the deeper a function was
# called before inlining, or hand out a stored tensor.
_IDLE = frozenset({"_Arg", "_Retval", "_Recv", "_Send", "Const", "Identity", "IdentityN", "NoOp"})


@dataclasses.dataclass(frozen=True)
class Request:
    """Which examples to run through which signature."""

    signature: str
    data: criteo.CriteoData
    size: int
    index: int = 0


class LoadedModel:
    """A SavedModel in this process. Each public method is a question a parent may ask."""

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        self._path = path
        self._model = tf.saved_model.load(path)
        self._inputs: dict[Request, dict[str, Any]] = {}

    def outputs(self, request: Request) -> Arrays:
        """Returns the signature's outputs by name."""
        results = self._model.signatures[request.signature](**self._tensors(request))
        return {name: tensor.numpy() for name, tensor in results.items()}

    def seconds(self, request: Request, calls: int) -> list[float]:
        """Returns the wall time of each of `calls` calls, outputs read back included.

        The calls run the batches from `request.index` on, `DISTINCT_BATCHES` of them, in turn.
        """
        function = self._model.signatures[request.signature]
        batches = [
            self._tensors(dataclasses.replace(request, index=request.index + i))
            for i in range(DISTINCT_BATCHES)
        ]
        times = []
        for call in range(calls):
            start = time.perf_counter()
            for tensor in function(**batches[call % DISTINCT_BATCHES]).values():
                tensor.numpy()
            times.append(time.perf_counter() - start)
        return times

    def saved_nodes(self) -> int:
        """Returns the number of nodes in saved_model.pb, library functions included."""
        from tensorflow.core.protobuf import saved_model_pb2

        file = pathlib.Path(self._path, "saved_model.pb")
        graphs = [
            meta_graph.graph_def
            for meta_graph in saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
        ]
        return sum(
            len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
            for graph in graphs
        )

    def executed_ops(self, request: Request) -> dict[str, int]:
        """Returns how often each op ran in one call, by op name.

        The call is made in a Session, as TensorFlow Serving makes it. The executor's own step
        statistics say which nodes ran, and the partition graphs (what is left after all of
        TensorFlow's optimizers) which op each was. Nodes that compute nothing are not counted, nor
        is a concat that does no more than join the results into one output.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        batch = request.data.batch(request.size, request.index)
        metadata = v1.RunMetadata()
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        with tf.Graph().as_default(), v1.Session() as session:
            meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], self._path)
            signature = meta_graph.signature_def[request.signature]
            feeds = {info.name: batch.features[name] for name, info in signature.inputs.items()}
            fetches = [info.name for info in signature.outputs.values()]
            session.run(fetches, feeds, options=options, run_metadata=metadata)
        return _count_ops(metadata)

    def _tensors(self, request: Request) -> dict[str, Any]:
        import tensorflow as tf

        if request not in self._inputs:
            function = self._model.signatures[request.signature]
            features = request.data.batch(request.size, request.index).features
            names = function.structured_input_signature[1]
            self._inputs[request] = {name: tf.constant(features[name]) for name in names}
        return self._inputs[request]


def _count_ops(metadata: Any) -> dict[str, int]:
    nodes = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
    ran = {
        stats.node_name for device in metadata.step_stats.dev_stats for stats in device.node_stats
    }
    joins = {
        _producer(nodes, node)
        for node in nodes.values()
        if node.op == "_Retval" and nodes[_producer(nodes, node)].op == "ConcatV2"
    }
    counts = collections.Counter(nodes[name].op for name in (ran & nodes.keys()) - joins)
    return {op: count for op, count in counts.items() if op not in _IDLE}


def _producer(nodes: Mapping[str, Any], node: Any) -> str:
    """Returns the name of the node behind the first input of `node`, identities left out."""
    name = node.input[0]
    while True:
        name, _, index = name.partition(":")
        node = nodes[name]
        if node.op not in ("Identity", "IdentityN"):
            return str(name)
        name = node.input[int(index or 0)]


class WorkerError(RuntimeError):
    """A question failed in the child process; the message ends with the child's traceback."""


class ModelProcess:
    """The parent's end: `ask` runs a method of the child's `LoadedModel`."""

    def __init__(self, connection: multiprocessing.connection.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def ask(self, question: str, *arguments: Any) -> Any:
        """Returns `LoadedModel.<question>(*arguments)`.

        Raises:
            WorkerError: it raised, or the child died.
        """
        try:
            self._connection.send((question, arguments))
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(f"the process serving {self._path} died") from error
        if not succeeded:
            raise WorkerError(f"{question} failed for {self._path}:\n{answer}")
        return answer


@contextlib.contextmanager
def model_process(path: str, *, with_fusion: bool, log: str) -> Iterator[ModelProcess]:
    """Starts a fresh process that loads the SavedModel at `path`; stops it on exit.

    Args:
        path: the SavedModel's directory.
        with_fusion: import fusion first, which registers the fused ops. A stock model is loaded
            without it.
        log: file to which the process appends what TensorFlow writes to standard error.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, path, with_fusion, log), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ModelProcess(ours, path)
    finally:
        ours.close()
        process.join(timeout=10)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(
    connection: multiprocessing.connection.Connection, path: str, with_fusion: bool, log: str
) -> None:
    """Answers questions until the parent closes the connection. A load error is an answer too."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    model: LoadedModel | None = None
    while True:
        try:
            question, arguments = connection.recv()
        except EOFError:
            return
        try:
            if model is None:
                model = _load(path, with_fusion)
            connection.send((True, getattr(model, question)(*arguments)))
        except Exception:
            connection.send((False, traceback.format_exc()))


def _load(path: str, with_fusion: bool) -> LoadedModel:
    if with_fusion:
        import fusion  # noqa: F401  (registers the ops)
    return LoadedModel(path)

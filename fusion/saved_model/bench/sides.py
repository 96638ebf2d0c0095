"""A loaded model under measurement, in the two ways in which it is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2

from fusion.passes.graph.view import GraphView
from fusion.passes.report.call import PARTS
from fusion.passes.report.call_parts import parts_of
from fusion.saved_model.bench.feeds import Feeds
from fusion.saved_model.bench.report import END_TO_END, IN_GRAPH
from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.model.frozen import loadable
from fusion.saved_model.model.source import SourceModel
from fusion.saved_model.verify.runner import loaders

_SCOPE = "fusion_bench_inputs"
_TRACED = 10
"""How many calls are traced, after which shares hardly change."""

Outputs = dict[str, NDArray[Any]]


class Side(Protocol):
    """A signature of a loaded model."""

    def outputs(self, feeds: Feeds) -> Outputs:
        """Returns the outputs by key."""
        ...

    def call(self, feeds: Feeds) -> Callable[[], object]:
        """Returns what runs the signature on these inputs, until another such call is asked for."""
        ...

    def shares(self, feeds: Feeds) -> dict[str, float]:
        """Returns the share of each part of a call in the time of all ops; none where unknown."""
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


class InGraph:
    """The signature's graph in a Session, as servers load it, without what goes in and out.

    Its input tensors are replaced by reads of variables, which copy nothing, and its outputs are
    computed and not fetched.
    """

    def __init__(self, model: SourceModel, signature: Signature) -> None:
        """Loads the meta graph of the signature."""
        self._signature = signature
        self._session = tf.compat.v1.Session(
            graph=tf.Graph(), config=tf.compat.v1.ConfigProto(allow_soft_placement=True)
        )
        with self._session.graph.as_default(), loadable(model.path) as folder:
            self._inputs = {
                spec.key: _Input(spec, index) for index, spec in enumerate(signature.inputs)
            }
            tf.compat.v1.saved_model.load(
                self._session,
                list(signature.tags),
                str(folder),
                input_map={spec.tensor: self._inputs[spec.key].read for spec in signature.inputs},
            )
        self._session.graph.finalize()

    def outputs(self, feeds: Feeds) -> Outputs:
        """Puts the inputs into the variables and fetches the outputs."""
        self._assign(feeds)
        values = self._session.run(self._tensors())
        return {key: np.asarray(value) for key, value in values.items()}

    def call(self, feeds: Feeds) -> Callable[[], object]:
        """Puts the inputs into the variables; what is returned runs the graph."""
        self._assign(feeds)
        graph = self._session.graph
        computed = [graph.get_tensor_by_name(name).op for name in self._tensors().values()]
        run: Callable[[], object] = self._session.make_callable(computed)
        return run

    def shares(self, feeds: Feeds) -> dict[str, float]:
        """Traces some calls; what reads the inputs does not count."""
        self._assign(feeds)
        computed = [self._session.graph.get_tensor_by_name(n).op for n in self._tensors().values()]
        metadata, parts, times = config_pb2.RunMetadata(), dict[str, str](), Counter[str]()
        options = config_pb2.RunOptions(output_partition_graphs=True)
        self._session.run(computed, options=options, run_metadata=metadata)
        for graph_def in metadata.partition_graphs:
            parts |= parts_of(GraphView.of_graph(graph_def))
        options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.SOFTWARE_TRACE)
        for _ in range(_TRACED):
            metadata = config_pb2.RunMetadata()
            self._session.run(computed, options=options, run_metadata=metadata)
            for device in metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    if node.node_name in parts and not node.node_name.startswith(_SCOPE):
                        took = node.op_end_rel_nanos - node.op_start_rel_nanos
                        times[parts[node.node_name]] += took
        total = times.total()
        return {part: times[part] / total for part in PARTS} if total else {}

    def close(self) -> None:
        """Closes the session and with it the variables."""
        self._session.close()

    def _tensors(self) -> Mapping[str, str]:
        return {spec.key: spec.tensor for spec in self._signature.outputs}

    def _assign(self, feeds: Feeds) -> None:
        assigned = [variable.assign for variable in self._inputs.values()]
        fed = {variable.fed: feeds[key] for key, variable in self._inputs.items()}
        self._session.run(assigned, fed)


class _Input:
    """A variable that holds an input, in no collection, where a model's saver would find it.

    Attributes:
        fed: the placeholder of its value.
        assign: the op that takes it over.
        read: the value as a tensor of the graph.
    """

    def __init__(self, spec: TensorSpec, index: int) -> None:
        dtype = tf.dtypes.as_dtype(spec.dtype)
        dims = None if spec.shape is None else [None if dim < 0 else dim for dim in spec.shape]
        shape = tf.TensorShape(dims)
        with tf.name_scope(f"{_SCOPE}/{index}"):
            handle = tf.raw_ops.VarHandleOp(
                dtype=dtype, shape=shape, shared_name=f"{_SCOPE}/{index}"
            )
            self.fed = tf.compat.v1.placeholder(dtype, shape)
            self.assign = tf.raw_ops.AssignVariableOp(resource=handle, value=self.fed)
            self.read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            self.read.set_shape(shape)


class EndToEnd:
    """The signature as Python programs call it, NumPy arrays in and out."""

    def __init__(self, model: SourceModel, signature: Signature) -> None:
        """Loads the object graph with tf.saved_model.load, or without one into a Session."""
        ways = loaders(model.proto)
        self._signature = signature
        self._runner = ways.get("function", ways["session"])(model.path, signature.tags)

    def outputs(self, feeds: Feeds) -> Outputs:
        """Calls the signature."""
        return self._runner.run(self._signature, feeds)

    def call(self, feeds: Feeds) -> Callable[[], object]:
        """Returns what calls the signature."""
        return lambda: self._runner.run(self._signature, feeds)

    def shares(self, feeds: Feeds) -> dict[str, float]:
        """Not known: calls from Python are not traced."""
        return {}

    def close(self) -> None:
        """Frees the model."""
        self._runner.close()


WAYS: dict[str, Callable[[SourceModel, Signature], Side]] = {
    IN_GRAPH: InGraph,
    END_TO_END: EndToEnd,
}
"""What loads a model, by the way in which it is called."""

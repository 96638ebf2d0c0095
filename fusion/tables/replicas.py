"""Embedding variables in the replicas of a strategy of `tf.distribute`: one for all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from fusion.runtime.tensorflow.private import (
    FuncGraph,
    MirroredExtended,
    MirroredVariable,
    SingleDevice,
    colocate_with,
    create_mirrored_variable,
    device_util,
    get_current_replica_id_as_int,
)
from fusion.tables.registry import shard_of

_ONE_DEVICE = (tf.distribute.OneDeviceStrategy, tf.compat.v1.distribute.OneDeviceStrategy)

#: Strategies whose variables are ordinary ones, or shards of these.
_ORDINARY = (*_ONE_DEVICE, tf.distribute.ParameterServerStrategy)


class SharedVariable(MirroredVariable):
    """A variable of a strategy with several replicas that all replicas share.

    Optimizers know it as one of their strategy: they sum up the gradients of all replicas, and
    update it once. Its handle can be had everywhere, as that of an ordinary variable.
    """

    @property
    def _devices(self) -> Any:
        """Those of the replicas, where gradients are summed up, and what belongs to all is made."""
        return self._distribute_strategy.extended.worker_devices

    @property
    def handle(self) -> Any:
        """That of the one variable, in all replicas and outside of them."""
        return self._primary.handle

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Rows: what has no such method is read whole by `tf.gather`, as optimizers call it."""
        return self._primary.sparse_read(indices, name=name)

    def _get_replica(self, replica_id: int) -> Any:
        """The one variable."""
        del replica_id
        return self._primary

    def _get_cross_replica(self) -> Any:
        """The one variable itself, for who reads it whole would read its capacity."""
        return self._primary


@contextlib.contextmanager
def whole_variables(device: str | None = None) -> Iterator[None]:
    """A context in which a strategy makes one variable of each, for all of its replicas.

    It is on the first of the strategy's devices, or on its host's CPU. Keys would have other
    rows in each replica if each had an index of its own. No `variable_partitioner` cuts it: rows
    belong to keys, wherever it would cut. Without a strategy variables are ordinary ones, on the
    CPU too: their memory and the ops that find keys are there.

    Args:
      device: the CPU that it is on in the scope of a strategy of several replicas, of which it has
        a part of the keys alone; None for the first one's.

    Raises:
      NotImplementedError: a strategy whose replicas cannot share a variable.
      RuntimeError: when a variable is made in another replica than the first.
    """
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy() or isinstance(strategy, _ORDINARY):
        with _without_partitioner(strategy.extended), _on_cpu(strategy):
            yield
        return
    with variables_on(_shared_device(strategy) if device is None else device):
        yield


@contextlib.contextmanager
def variables_on(device: str) -> Iterator[None]:
    """A context in which a strategy makes one variable of each, on this device of the process.

    Optimizers update it there, by what the process's replicas give for it.

    Raises:
      RuntimeError: when a variable is made in another replica than the first.
    """
    strategy = tf.distribute.get_strategy()

    def create(next_creator: Any, **arguments: Any) -> Any:
        def create_one(**arguments: Any) -> list[Any]:
            return [next_creator(colocate_with=SingleDevice(device), **arguments)]

        if isinstance(arguments.pop("colocate_with", None), SingleDevice):
            return create_one(**arguments)[0]  # for a context in this one
        if get_current_replica_id_as_int():
            raise RuntimeError("variables of all replicas are made once, and not in each replica")
        classes = {tf.VariableSynchronization.ON_WRITE: SharedVariable}
        return create_mirrored_variable(strategy, create_one, classes, {}, **arguments)

    with tf.variable_creator_scope(create):
        yield


def on_cpu() -> AbstractContextManager[Any]:
    """A context of variables that are on a CPU, the first one if another device is chosen.

    TensorFlow puts variables on a GPU if it sees one. In a graph of TensorFlow 1 they are where all
    their ops can run, unless a device is chosen.
    """
    chosen = tf.DeviceSpec.from_string(device_util.current() or "").device_type
    with tf.init_scope():
        is_free = chosen is None and not tf.executing_eagerly()
    return contextlib.nullcontext() if is_free or chosen == "CPU" else tf.device("/device:CPU:0")


def _on_cpu(strategy: Any) -> AbstractContextManager[Any]:
    """`on_cpu`, also in the scope of a strategy that chooses the device of each variable."""
    if not isinstance(strategy, _ONE_DEVICE):
        return on_cpu()
    cpu = SingleDevice(cpu_beside(strategy.extended.worker_devices[0]))

    def create(next_creator: Any, **arguments: Any) -> Any:
        arguments.setdefault("colocate_with", cpu)
        return next_creator(**arguments)

    return tf.variable_creator_scope(create)


@contextlib.contextmanager
def _without_partitioner(extended: Any) -> Iterator[None]:
    """A context in which a strategy cuts no variables; TensorFlow has no argument for it."""
    partitioner = getattr(extended, "_variable_partitioner", None)
    if partitioner is None:
        yield
        return
    extended._variable_partitioner = None
    try:
        yield
    finally:
        extended._variable_partitioner = partitioner


def beside(variable: Any) -> AbstractContextManager[Any]:
    """A context of ops on the device of a variable: a shared one has a device of its own."""
    if not isinstance(variable, SharedVariable):
        return colocate_with(variable)
    device = tf.DeviceSpec.from_string(variable.device)
    return tf.device(f"/device:{device.device_type}:{device.device_index}")


@contextlib.contextmanager
def colocated_variables(table: Any) -> Iterator[None]:
    """A context of `whole_variables` that are colocated with a table."""
    if isinstance(table, SharedVariable):  # as all of its strategy are
        yield
        return
    with tf.distribute.get_strategy().extended.colocate_vars_with(table):
        if isinstance(tf.compat.v1.get_default_graph(), FuncGraph) or tf.executing_eagerly():
            yield
            return
        with tf.device(None):  # else a replica_device_setter would count the variables
            yield


def is_shared(variable: Any) -> bool:
    """Whether a variable is one for all replicas of this process, or what wraps such a shard."""
    return isinstance(variable, SharedVariable) or shard_of(variable) is not None


def joined_gradients(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Gradients of all replicas, summed where the variables are; called in a replica.

    TensorFlow would gather them on all devices, and ends the process if there are no rows in any.

    Args:
      pairs: a replica's gradients, or None, and the shared variables that they are of.

    Returns:
      The same with the sums.
    """
    context = tf.distribute.get_replica_context()
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    workers = getattr(context.strategy.extended, "_num_workers", 1)
    if present and context.num_replicas_in_sync > 1 and workers == 1:
        gradients, variables = zip(*present, strict=True)

        def join(strategy: Any, *gradients: Any) -> list[Any]:
            of_replicas = [strategy.experimental_local_results(gradient) for gradient in gradients]
            return [_sum(*item) for item in zip(of_replicas, variables, strict=True)]

        present = list(zip(context.merge_call(join, args=gradients), variables, strict=True))
    # Of several workers each has one replica, and shards of its own.
    sums = iter([_with_distinct_rows(*pair) for pair in present])
    return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]


def _sum(gradients: Sequence[Any], variable: Any) -> Any:
    with beside(variable):
        if not all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            return tf.add_n([tf.convert_to_tensor(gradient) for gradient in gradients])
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient in gradients], 0),
            tf.concat([gradient.indices for gradient in gradients], 0),
            gradients[0].dense_shape,
        )


def _with_distinct_rows(gradient: Any, variable: Any) -> Any:
    """A gradient of a shard with each row once, as Keras 3 needs it for the right numbers.

    Whatever replicas and lookups of a step rows come from. Other variables have what TensorFlow
    would gather.
    """
    if shard_of(variable) is None or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    with beside(variable):
        rows, places = tf.unique(gradient.indices)
        sums = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
        return tf.IndexedSlices(sums, rows, gradient.dense_shape)


def check_runs_once(what: str) -> None:
    """Checks that something is not called by each replica.

    Raises:
      RuntimeError: it is.
    """
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        raise RuntimeError(f"{what} runs once for all replicas, and not in each of them")


def _shared_device(strategy: Any) -> str:
    """The CPU of the first replica."""
    extended = strategy.extended
    workers = getattr(extended, "_num_workers", 1)
    if not isinstance(extended, MirroredExtended) or workers > 1:
        of_workers = f" with {workers} workers" if workers > 1 else ""
        raise NotImplementedError(
            f"embedding variables are not supported in {type(strategy).__name__}{of_workers}: its "
            "replicas cannot share a variable"
        )
    return cpu_beside(extended.worker_devices[0])


def cpu_beside(device: str) -> str:
    """A device if it is a CPU, or the first CPU of its host."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type != "CPU":
        spec = spec.replace(device_type="CPU", device_index=0)
    return str(spec.to_string())

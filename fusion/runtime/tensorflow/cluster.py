"""The tasks of a cluster: those of this process, and those that run an op."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2

from fusion.runtime.tensorflow.instances import instances
from fusion.runtime.tensorflow.private import context, device_spec, device_util, execute, server_lib

_Task = tuple[str, int]

_servers = instances(server_lib.Server)


def local_tasks() -> frozenset[str]:
    """The tasks of this process.

    They come from TensorFlow's context, and from the servers that the process has started since
    this module was imported.
    """
    tasks = {("localhost", 0), *_of_context(), *_of_servers()}
    return frozenset(f"/job:{job}/replica:0/task:{task}" for job, task in tasks)


def is_in_process_of_ops(device: str) -> bool:
    """Whether a device is in the process where an op that is built now will run.

    That is the process of the current device scope, or else this one. A device without a job in its
    name is in that process.
    """
    named = device_spec.DeviceSpecV2.from_string(device)
    scope = device_spec.DeviceSpecV2.from_string(device_util.current() or "")
    if named.job is None:
        return True
    if scope.job is not None:
        return (named.job, named.task) == (scope.job, scope.task)
    return (named.job, named.task) in {("localhost", 0), *_of_context()}


def _of_context() -> list[_Task]:
    """The task of a cluster that this process is, if it is one."""
    current = context.context_safe()
    if current is None:
        return []
    definitions = (current._server_def, current._collective_ops_server_def)
    return [_task_of(one) for one in definitions if one is not None]


def _of_servers() -> list[_Task]:
    # One that is still being made, or could not be, has no server of C yet.
    return [_task_of(one.server_def) for one in _servers.living() if hasattr(one, "_server")]


def _task_of(definition: tensorflow_server_pb2.ServerDef) -> _Task:
    return definition.job_name, definition.task_index


#: How often a worker is asked whether it knows fused ops, if its answer leaves that open.
_TRIES = 3


class Workers:
    """The workers of the cluster of which this process is the chief, if it is one."""

    def __init__(self) -> None:
        self._cluster: Any = None
        self._tried: set[str] = set()

    def check(self) -> None:
        """Tries a fused op on each worker that the next op may run on, unless that was done.

        TensorFlow's own message is about an op that is not registered, whatever the op is.

        Raises:
          tf.errors.NotFoundError: naming a worker that has not imported fusion.
        """
        current = context.context_safe()
        cluster = None if current is None else current._server_def
        if cluster is None:
            return
        if cluster is not self._cluster:
            self._cluster, self._tried = cluster, set()
        with tf.init_scope():
            is_eager = tf.executing_eagerly()  # in a v1 graph nothing can be tried
        for task in _workers(cluster) if is_eager else ():
            if task not in self._tried and any(_knows_ops(task) for _ in range(_TRIES)):
                self._tried.add(task)


def _knows_ops(task: str) -> bool:
    """Whether a task has run a fused op; False if that is not known.

    Raises:
      tf.errors.NotFoundError: if the task has no such op.
    """
    try:
        with tf.init_scope(), tf.device(f"{task}/device:CPU:0"):
            ids = tf.ones([1], tf.int64)
            attrs = ("Tid", ids.dtype.as_datatype_enum)
            outputs = execute.execute(b"UniqueWithCountsV3", 3, [ids], attrs, context.context())
            outputs[0].numpy()
    except tf.errors.NotFoundError as error:
        message = (
            f"{task} does not know fusion's ops: its process has to `import fusion` as well, "
            "before it is given functions with these ops"
        )
        raise tf.errors.NotFoundError(None, None, message) from error
    except tf.errors.OpError:
        # A worker that is away now may be back when it is needed. And one that has no such op may
        # be asked for the result before it has said so: then it does not know the tensor.
        return False
    return True


def _workers(cluster: Any) -> list[str]:
    """The other tasks that an op may run on: all workers of a strategy, or one that is named."""
    own = f"/job:{cluster.job_name}/replica:0/task:{cluster.task_index}"
    if isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy):
        jobs = (job for job in cluster.cluster.job if job.name == "worker")
        tasks = [f"/job:{job.name}/replica:0/task:{index}" for job in jobs for index in job.tasks]
    else:
        tasks = [device_util.current().partition("/device:")[0]]
    return [task for task in tasks if task.startswith("/job:") and task != own]

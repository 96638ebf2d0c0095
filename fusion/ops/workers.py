"""Whether the workers that a process sends functions to know the fused ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.eager import context, execute


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
            if task not in self._tried:
                _try_on(task)
                self._tried.add(task)


def _try_on(task: str) -> None:
    try:
        with tf.init_scope(), tf.device(f"{task}/device:CPU:0"):
            ids = tf.ones([1], tf.int64)
            attrs = ("Tid", ids.dtype.as_datatype_enum)
            found = execute.execute(b"UniqueWithCountsV3", 3, [ids], attrs, context.context())
            found[0].numpy()
    except tf.errors.NotFoundError as error:
        message = (
            f"{task} does not know fusion's ops: its process has to `import fusion` as well, "
            "before it is given functions with these ops"
        )
        raise tf.errors.NotFoundError(None, None, message) from error
    except tf.errors.OpError:
        pass  # A worker that is away now may be back when it is needed.


def _workers(cluster: Any) -> list[str]:
    """The other tasks that an op may run on: all workers of a strategy, or one that is named."""
    own = f"/job:{cluster.job_name}/replica:0/task:{cluster.task_index}"
    if isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy):
        jobs = (job for job in cluster.cluster.job if job.name == "worker")
        tasks = [f"/job:{job.name}/replica:0/task:{index}" for job in jobs for index in job.tasks]
    else:
        tasks = [device_util.current().partition("/device:")[0]]
    return [task for task in tasks if task.startswith("/job:") and task != own]

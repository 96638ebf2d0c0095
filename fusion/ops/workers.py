"""Whether the workers that a process sends functions to know the fused ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context


class Workers:
    """The workers of the cluster of which this process is the chief, if it is one."""

    def __init__(self) -> None:
        self._tried: Any = None

    def check(self) -> None:
        """Tries a fused op on each worker, once.

        TensorFlow's own message is about an op that is not registered, whatever the op is.

        Raises:
          tf.errors.NotFoundError: naming a worker that has not imported fusion.
        """
        current = context.context_safe()
        cluster = None if current is None else current._server_def
        if cluster is None or cluster is self._tried:
            return
        self._tried = cluster
        own = (cluster.job_name, cluster.task_index)
        for job in cluster.cluster.job:
            for index in job.tasks if job.name == "worker" else ():
                if (job.name, index) != own:
                    _try_on(f"/job:{job.name}/replica:0/task:{index}")


def _try_on(task: str) -> None:
    from fusion import ops

    try:
        with tf.init_scope(), tf.device(f"{task}/device:CPU:0"):
            one = tf.ones([1], tf.int64)
            tf.identity(ops.unique_with_counts_v3(one)[0]).numpy()
    except tf.errors.NotFoundError as error:
        message = (
            f"{task} does not know fusion's ops: its process has to `import fusion` as well, "
            "before it is given functions with these ops"
        )
        raise tf.errors.NotFoundError(None, None, message) from error
    except tf.errors.OpError:
        pass  # A worker that is away now may be back when it is needed.

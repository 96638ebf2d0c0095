"""Which tasks of a cluster this process is, as device names begin with them."""

from __future__ import annotations

import gc
import re
import threading

from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context
from tensorflow.python.training import server_lib

_NAMED = re.compile(rb"/job:([a-zA-Z0-9_]+)/replica:0/task:(\d+)")
_ALONE = ("localhost", 0)

_Task = tuple[str, int]


class LocalTasks:
    """Knows what this process is from TensorFlow's context and from the servers started in it."""

    def __init__(self) -> None:
        self._known: frozenset[_Task] = frozenset()
        self._looked_for: set[frozenset[_Task]] = set()
        self._lock = threading.Lock()

    def in_graph(self, graph: bytes) -> frozenset[str]:
        """The tasks of this process, among them all of those that a serialized graph names."""
        named = {(job.decode(), int(task)) for job, task in _NAMED.findall(graph)}
        with self._lock:
            self._known |= {_ALONE, *_of_context()}
            unknown = frozenset(named - self._known)
            # A server is known to nobody but who started it. Looking at all objects takes as long
            # as optimizing a small graph, and those of a cluster name other tasks each time.
            if unknown and unknown not in self._looked_for:
                self._known |= _of_servers()
                self._looked_for.add(unknown)
            return frozenset(f"/job:{job}/replica:0/task:{task}" for job, task in self._known)


def _of_context() -> list[_Task]:
    """The task that operations of this process itself run on, if it is one of a cluster."""
    current = context.context_safe()
    if current is None:
        return []
    definitions = (current._server_def, current._collective_ops_server_def)
    return [_task_of(one) for one in definitions if one is not None]


def _of_servers() -> frozenset[_Task]:
    servers = (one for one in gc.get_objects() if isinstance(one, server_lib.Server))
    return frozenset(_task_of(server.server_def) for server in servers)


def _task_of(definition: tensorflow_server_pb2.ServerDef) -> _Task:
    return definition.job_name, definition.task_index

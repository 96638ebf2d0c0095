"""Where the shards of tables are: in one process, or one in each of several."""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from fusion.distribute.exchange import Peers, Threads
from fusion.runtime.tensorflow.private import MirroredExtended
from fusion.tables.replicas import cpu_beside, variables_on

_ONE = (tf.distribute.OneDeviceStrategy, tf.compat.v1.distribute.OneDeviceStrategy)

#: What is known of strategies, so that all tables of one share an exchange.
_KNOWN: weakref.WeakKeyDictionary[Any, Replicas] = weakref.WeakKeyDictionary()


class Replicas:
    """The replicas of a strategy, and how their tables are reached.

    Attributes:
      count: how many replicas there are, N.
      devices: of the replicas of this process, by their number.
      threads: the replicas, if there are several in one process.
      peers: the processes, if there are several.
    """

    def __init__(self, strategy: Any) -> None:
        """Looks at a strategy.

        Raises:
          NotImplementedError: its replicas cannot have shards.
        """
        self._strategy = weakref.ref(strategy)  # which is known as long as it lives
        self.count = 1
        self.threads: Threads | None = None
        self.peers: Peers | None = None
        self.devices: dict[int, str | None] = {0: None}
        if not tf.distribute.has_strategy() or isinstance(strategy, _ONE):
            return
        extended = strategy.extended
        workers = getattr(extended, "_num_workers", 1)
        if not isinstance(extended, MirroredExtended):
            raise NotImplementedError(
                f"sharded tables are not supported in {type(strategy).__name__}: use "
                "MirroredStrategy or MultiWorkerMirroredStrategy"
            )
        devices = extended.worker_devices
        if workers == 1:
            self.count = len(devices)
            self.devices = dict(enumerate(devices))
            self.threads = Threads(self.count) if self.count > 1 else None
            return
        if len(devices) > 1:
            raise NotImplementedError(
                f"sharded tables need one replica in each of {workers} processes, got "
                f"{len(devices)}: start a process for each device"
            )
        rank = extended._id_in_cluster  # of all jobs: a chief comes before the workers
        self.count, self.devices = workers, {rank: devices[0]}
        timeout = extended._communication_options.timeout_seconds or 0
        with variables_on(devices[0]):
            self.peers = Peers(rank, workers, devices[0], timeout)

    @classmethod
    def here(cls) -> Replicas:
        """That of the strategy in whose scope it is called."""
        strategy = tf.distribute.get_strategy()
        if strategy not in _KNOWN:
            _KNOWN[strategy] = cls(strategy)
        return _KNOWN[strategy]

    @property
    def cpus(self) -> dict[int, str | None]:
        """The CPU next to the device of each replica, by its number."""
        devices = self.devices.items()
        return {r: None if device is None else cpu_beside(device) for r, device in devices}

    def variables_of(self, replica: int) -> AbstractContextManager[None]:
        """A context, for use once, that makes variables on the device of a replica."""
        device = self.devices[replica]
        return contextlib.nullcontext() if device is None else variables_on(device)

    def check(self, name: str) -> None:
        """Checks that a table can be used where it is called.

        Raises:
          ValueError: that is in another strategy, or by one of several processes alone.
        """
        if self.peers is not None and tf.executing_eagerly() and not is_in_replica():
            raise ValueError(
                f"sharded table {name!r} has rows in {self.count} processes: it is looked up in a "
                "function that the strategy runs in all of them (`strategy.run`)"
            )
        if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not self._strategy():
            raise ValueError(
                f"sharded table {name!r} was made in the scope of another strategy than "
                f"{type(tf.distribute.get_strategy()).__name__}, where it is used"
            )


def is_in_replica() -> bool:
    """Whether a replica of a strategy calls."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()

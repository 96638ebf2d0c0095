"""What TensorFlow's profiler says of steps: the time of each kind of op, large allocations."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

#: An event of a kernel is called "name:Op".
_KERNEL = re.compile(r"[^:\s]+:(_?[A-Za-z]\w*)")
#: Ops that wait for others, which are counted themselves.
_CALLS = frozenset(
    {
        *("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"),
        *("If", "StatelessIf", "Case", "StatelessCase"),
    }
)
_ALLOCATION = "MemoryAllocation"


class Trace(NamedTuple):
    """Steps, as means.

    Attributes:
        milliseconds: of a step, by the type of op, the longest first; threads are added up. Ops
            of some microseconds are left out: executors do not trace what they found cheap.
        calls: how many ops of each type were traced in a step.
        of_table_size: how many allocations of a step are of the bytes that were asked about; the
            allocator of TensorFlow with oneDNN traces those of 256 KiB and more.
    """

    milliseconds: dict[str, float]
    calls: dict[str, float]
    of_table_size: float


def trace(run: Callable[[int], object], table_bytes: int, steps: int = 5) -> Trace:
    """Traces `run(steps)`, after a step that is not traced."""
    run(1)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            run(steps)
        finally:
            tf.profiler.experimental.stop()
        (file,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        return _summary(_events(file.read_bytes()), table_bytes, steps)


def _events(serialized: bytes) -> Iterator[tuple[str, float, int]]:
    """Yields the name of each event of the host, its milliseconds, and the bytes it asked for."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(serialized)
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            sizes = (
                getattr(stat, stat.WhichOneof("value"))
                for stat in event.stats
                if plane.stat_metadata[stat.metadata_id].name == "requested_bytes"
            )
            yield name, event.duration_ps / 1e9, next(sizes, 0) if name == _ALLOCATION else 0


def _summary(events: Iterable[tuple[str, float, int]], table_bytes: int, steps: int) -> Trace:
    taken, calls, of_table_size = Counter[str](), Counter[str](), 0
    for name, milliseconds, size in events:
        of_table_size += name == _ALLOCATION and size == table_bytes
        if (match := _KERNEL.fullmatch(name)) and match[1] not in _CALLS:
            taken[match[1]] += milliseconds  # type: ignore[assignment]
            calls[match[1]] += 1
    return Trace(
        {op: milliseconds / steps for op, milliseconds in taken.most_common()},
        {op: count / steps for op, count in calls.items()},
        of_table_size / steps,
    )

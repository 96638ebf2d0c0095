"""What TensorFlow's profiler says of steps: the time of each kind of op, the largest allocation."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Memory that an op took.

    Attributes:
        size: bytes.
        op: the name of the node.
        shape: of the tensor, as TensorFlow tells it.
    """

    size: int
    op: str
    shape: str


@dataclasses.dataclass(frozen=True)
class Trace:
    """Steps, as means.

    Attributes:
        milliseconds: of a step, by the type of op, the longest first; threads are added up. Ops
            of some microseconds are left out: executors do not trace what they found cheap.
        calls: how many ops of each type were traced in a step.
        largest: the largest single allocation; None if none was traced: the allocator of
            TensorFlow with oneDNN traces those of 256 KiB and more.
        allocated: bytes of a step, of all allocations that were traced.
        of_table_size: how many allocations of a step are of the bytes that were asked about.
    """

    milliseconds: dict[str, float]
    calls: dict[str, float]
    largest: Allocation | None
    allocated: int
    of_table_size: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)


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
        return _summary([*_events(file.read_bytes())], table_bytes, steps)


def _events(serialized: bytes) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yields the name of each event of the host, its milliseconds, and its stats."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(serialized)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                stats = _stats(plane, event) if name == _ALLOCATION else {}
                yield name, event.duration_ps / 1e9, stats


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found


def _summary(
    events: list[tuple[str, float, dict[str, Any]]], table_bytes: int, steps: int
) -> Trace:
    milliseconds, calls = defaultdict[str, float](float), Counter[str]()
    allocations = []
    for name, taken, stats in events:
        if name == _ALLOCATION:
            size = int(stats.get("requested_bytes", 0))
            shape = str(stats.get("shape", ""))
            allocations.append(Allocation(size, str(stats.get("tf_op", "")), shape))
        elif (match := _KERNEL.fullmatch(name)) and match[1] not in _CALLS:
            milliseconds[match[1]] += taken
            calls[match[1]] += 1
    longest = sorted(milliseconds, key=lambda op: -milliseconds[op])
    return Trace(
        {op: milliseconds[op] / steps for op in longest},
        {op: calls[op] / steps for op in longest},
        max(allocations, key=lambda one: one.size, default=None),
        sum(one.size for one in allocations) // steps,
        sum(one.size == table_bytes for one in allocations) / steps,
    )

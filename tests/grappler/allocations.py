"""What TensorFlow's allocator gives, from its own profiler."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from fusion.runtime.tensorflow import library

#: oneDNN's allocator tells of no smaller ones.
SMALLEST = 256 << 10


@contextlib.contextmanager
def allocations() -> Iterator[list[int]]:
    """Lists the bytes of each allocation in the block of at least `SMALLEST`."""
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        with _told(), tf.profiler.experimental.Profile(folder):
            yield sizes
        for path in Path(folder).rglob("*.xplane.pb"):
            sizes += _sizes(xplane_pb2.XSpace.FromString(path.read_bytes()))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Lets the allocator tell too that TensorFlow has on processors where it leaves out oneDNN."""
    functions = library.load()
    functions._ZN3tsl23EnableCPUAllocatorStatsEv()
    try:
        yield
    finally:
        functions._ZN3tsl24DisableCPUAllocatorStatsEv()


def _sizes(space: xplane_pb2.XSpace) -> Iterator[int]:
    for plane in space.planes:
        names = {key: data.name for key, data in plane.event_metadata.items()}
        stats = {key: data.name for key, data in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            if names[event.metadata_id] == "MemoryAllocation":
                yield _bytes(event, stats)


def _bytes(event: Any, stats: dict[int, str]) -> int:
    found = {stats[stat.metadata_id]: stat for stat in event.stats}
    stat = found["requested_bytes"]
    return int(getattr(stat, stat.WhichOneof("value")))

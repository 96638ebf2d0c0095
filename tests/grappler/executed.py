"""Which ops TensorFlow's executors ran, from its own profiler."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

FUSED = ("FusedEmbeddingLookup", "GroupedEmbeddingLookup", "FusedEmbeddingSparsePostLookUpV2")
STOCK = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")


@contextlib.contextmanager
def executed() -> Iterator[Counter[str]]:
    """Counts the ops that run in the block by type, wherever they run."""
    ran: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2)
        with tf.profiler.experimental.Profile(folder, options):
            yield ran
        for path in Path(folder).rglob("*.xplane.pb"):
            ran.update(_ops(xplane_pb2.XSpace.FromString(path.read_bytes())))


def lookups(ran: Counter[str]) -> dict[str, int]:
    """How many fused ops combined rows, and how many stock ones did."""
    return {"fused": sum(ran[op] for op in FUSED), "stock": sum(ran[op] for op in STOCK)}


def _ops(space: xplane_pb2.XSpace) -> Iterator[str]:
    """Yields the type of every op that ran; an event is named `op` or `node:op`."""
    for plane in space.planes:
        names = {key: data.name.rpartition(":")[2] for key, data in plane.event_metadata.items()}
        for line in plane.lines:
            yield from (names[event.metadata_id] for event in line.events)

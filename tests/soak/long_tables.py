"""Embedding variables for a long time: streams, many threads, and trainings that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from fusion import EmbeddingVariable, ops
from fusion.tables import LeastRecent

_SCRIPT = Path(__file__).with_name("killed_table.py")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def entries(variable: EmbeddingVariable) -> dict[str, np.ndarray]:
    found = ops.embedding_key_entries(index=variable.index.handle)
    order = np.argsort(found.keys.numpy())
    return {
        name: getattr(found, name).numpy()[order] for name in ("keys", "rows", "counts", "steps")
    }


def drifting_batches(total: int, size: int, seed: int):
    """Batches of ids of a power law whose most frequent ones change."""
    rng = np.random.default_rng(seed)
    for start in range(0, total, size):
        yield rng.zipf(1.2, size).clip(max=2**40) * 2654435761 % 2**44 + start // 20


def trained(variable: EmbeddingVariable, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Trains distinct keys: 1 is added to their rows; returns which have one."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable.embedding_lookup(keys, counts))
    slices = tape.gradient(loss, variable.table)
    tf.raw_ops.ResourceScatterAdd(
        resource=variable.table.handle, indices=slices.indices, updates=slices.values
    )
    return slices.indices.numpy()


def test_fifty_million_ids_of_a_drifting_power_law() -> None:
    kept, total, size = 50_000, 50_000_000, 100_000
    variable = EmbeddingVariable(
        "stream",
        2,
        admission=2,
        eviction=LeastRecent(kept),
        capacity=4 * kept,
        initializer=tf.zeros_initializer(),
    )
    counts: dict[int, int] = {}
    steps: dict[int, int] = {}  # of keys with rows
    sums: dict[int, int] = {}  # what was added to their rows
    sizes = []
    for step, ids in enumerate(drifting_batches(total, size, seed=7), 1):
        keys, times = np.unique(ids, return_counts=True)
        trained(variable, keys, times.astype(np.int32))
        for key, n in zip(keys.tolist(), times.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + n
            if counts[key] >= 2:
                steps[key], sums[key] = step, sums.get(key, 0) + 1
        assert len(steps) < variable.capacity
        before = entries(variable)
        assert before["keys"].tolist() == sorted(counts)
        assert before["counts"].tolist() == [counts[k] for k in sorted(counts)]
        has_row = before["rows"] >= 0
        assert before["keys"][has_row].tolist() == sorted(steps)
        assert before["steps"][has_row].tolist() == [steps[k] for k in sorted(steps)]
        assert len({*before["rows"][has_row].tolist()}) == has_row.sum()
        some = before["keys"][has_row]
        values = variable.embedding_lookup(some).numpy()
        assert (values == np.array([sums[k] for k in some.tolist()])[:, np.newaxis]).all()
        if len(steps) > 1.5 * kept or len(counts) > 2 * variable.capacity - size:
            evicted = int(variable.evict())
            after = {*entries(variable)["keys"].tolist()}
            gone = {key for key in counts if key not in after}
            with_rows = gone & steps.keys()
            assert evicted == len(with_rows) == max(len(steps) - kept, 0)
            left = min((steps[k] for k in steps.keys() - gone), default=0)
            assert all(steps[key] <= left for key in with_rows)
            for key in gone:
                del counts[key]
                steps.pop(key, None)
                sums.pop(key, None)
            sizes.append(resident_bytes())
    assert len(sizes) > 10
    # Python's dicts have their share in it.
    assert max(sizes[3:]) < 1.2 * min(sizes[3:]), sizes


class Busy:
    """A variable that threads train, read, evict, save and restore, until one finds a wrong row.

    Training writes the number of its key into a row.
    """

    DIM, SPACE = 8, 60_000

    def __init__(self, folder: Path) -> None:
        self.variable = EmbeddingVariable(
            "threads",
            self.DIM,
            eviction=LeastRecent(20_000),
            capacity=200_000,
            initializer=tf.constant_initializer(-1.0),
        )
        self.checkpoint = tf.train.Checkpoint(table=self.variable)
        self.folder = folder
        self.saved = [self.checkpoint.write(str(folder / "first"))]
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def check(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """An element is the number of its key, or what rows begin with, or nothing.

        Rows are read while they are written, so that their elements need not be equal.
        """
        numbers = keys[:, np.newaxis].astype(np.float32)
        fine = ((rows == numbers) | (rows == -1) | (rows == 0)).all(1)
        if not fine.all():
            self.wrong.append(f"keys {keys[~fine][:5]} have {rows[~fine][:5]}")

    def train(self, rng: np.random.Generator) -> None:
        keys = np.unique(rng.integers(1, self.SPACE, 2000))
        with tf.GradientTape() as tape:
            rows = self.variable.embedding_lookup(keys)
            loss = tf.reduce_sum(rows * keys[:, np.newaxis].astype(np.float32))
        self.check(keys, rows.numpy())
        slices = tape.gradient(loss, self.variable.table)
        tf.raw_ops.ResourceScatterUpdate(
            resource=self.variable.table.handle, indices=slices.indices, updates=slices.values
        )

    def infer(self, rng: np.random.Generator) -> None:
        keys = rng.integers(1, self.SPACE, 3000)
        self.check(keys, self.variable.embedding_lookup(keys).numpy())

    def evict(self, _: np.random.Generator) -> None:
        time.sleep(2)
        with self.lock:
            self.variable.evict()

    def save(self, _: np.random.Generator) -> None:
        time.sleep(1)
        with self.lock:
            name = str(self.folder / f"save-{len(self.saved)}")
            self.saved.append(self.checkpoint.write(name))

    def restore(self, _: np.random.Generator) -> None:
        time.sleep(3)
        with self.lock:
            self.checkpoint.read(self.saved[-1])

    def run(self, work: Callable[[np.random.Generator], None], number: int, end: float) -> None:
        rng = np.random.default_rng(number)
        try:
            while time.monotonic() < end and not self.wrong:
                work(rng)
        except Exception as error:
            self.wrong.append(repr(error))


def test_sixteen_threads_that_train_infer_evict_save_and_restore(tmp_path: Path) -> None:
    busy = Busy(tmp_path)
    works = [busy.train] * 6 + [busy.infer] * 7 + [busy.evict, busy.save, busy.restore]
    end = time.monotonic() + 60
    threads = [
        threading.Thread(target=busy.run, args=(work, number, end))
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    time.sleep(20)
    early = resident_bytes()
    for thread in threads:
        thread.join()
    assert not busy.wrong
    assert len(busy.saved) > 10
    assert resident_bytes() < 1.2 * early
    # No key is lost, and none is there twice.
    found = entries(busy.variable)
    assert len({*found["keys"].tolist()}) == len(found["keys"])
    rows = found["rows"][found["rows"] >= 0]
    assert len({*rows.tolist()}) == len(rows)
    keys = np.arange(1, 5000)
    trained(busy.variable, keys, np.ones_like(keys, np.int32))
    assert np.isin(keys, entries(busy.variable)["keys"]).all()


def test_trainings_killed_while_they_save(tmp_path: Path) -> None:
    """Each goes on from the last whole checkpoint, and ends as one that was never killed."""
    whole = _finished(tmp_path / "whole")
    rng = np.random.default_rng(11)
    folder = tmp_path / "killed"
    for _ in range(20):
        with subprocess.Popen([sys.executable, str(_SCRIPT), str(folder)]) as process:
            state = folder / "saves"
            first = len(list(folder.glob("*.index")))
            deadline = time.monotonic() + 120
            while len(list(folder.glob("*.index"))) < first + 1 and process.poll() is None:
                assert time.monotonic() < deadline, state
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
    assert _finished(folder) == whole


def _finished(folder: Path) -> list[float]:
    subprocess.run([sys.executable, str(_SCRIPT), str(folder)], check=True, timeout=900)
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses
